"""A run in the middle of everything moves to another server and namespace, in an encrypted file, and its old home dies.

What the first server's worker had done is not done again on the second one, and the result is that of a run which was
never moved. A file that is not what was exported, or not meant for here, is named and starts nothing.
"""

import asyncio
import base64
import json
import os
from collections import Counter
from collections.abc import Generator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from google.protobuf.duration_pb2 import Duration
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.service import RPCError

from holdfast import FlowCheckpoint, HoldfastClient, RunConfig
from holdfast.codecs.keys import UnknownKeyError
from holdfast.contracts.people import HumanAnswer
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from holdfast.starter.bundles import Bundle, ExportKey, read_bundle, write_bundle
from holdfast.starter.connecting import NotReachableError
from holdfast.starter.moving import export
from tests.chaos.harness import Stage, connected, until
from tests.chaos.killed_command import Commands

TOOLS = str(Path(__file__).with_name("chaos_tools.py"))
ITEMS = 8
FLOW = read_flow("""
id: mover
nodes:
  agent:
    type: agent
    prompt: "{{ subject }}"
    llm:
      model: m
      provider: scripted
      replies:
        - {tool_calls: [{name: step, arguments: {number: 1}}]}
        - {tool_calls: [{name: step, arguments: {number: 2}}]}
        - {tool_calls: [{name: step, arguments: {number: 3}}]}
        - all steps are done
    tools:
      - id: step
        type: tool
        function: chaos_tools:step
        description: Does one step.
        input_schema: {type: object, properties: {number: {type: integer}}, required: [number]}
  sub:
    type: flow
    flow:
      id: inner
      nodes:
        x: {type: Work}
        y: {type: Work, depends: x}
        z: {type: Work, depends: y}
  each: {type: map, items: $.items, max_workers: 2, node: {id: item, type: Work, seconds: 0.1}}
  ask: {type: human, prompt: "Go on with {{ subject }}?"}
  end:
    type: Work
    depends: [agent, sub, each, ask]
    input_transformer:
      selector: {said: $.agent.output, inner: $.sub.output, all: $.each.output, ask: $.ask.output.feedback}
""")
INPUT = {"subject": "a move", "items": list(range(ITEMS))}
ANSWER = HumanAnswer(feedback="yes, go on")
KEY = "correct horse battery staple"


class Home:
    """A server's address and a namespace on it, with a client."""

    def __init__(self, address: str, client: HoldfastClient) -> None:
        self.address = address
        self.client = client
        self.namespace = client.temporal.namespace

    async def runs(self) -> list[str]:
        """All there are, as the visibility store has them, in which they are a moment late."""
        return [run.id async for run in self.client.temporal.list_workflows("")]

    async def imported(self) -> str:
        """The only run there is, once it is listed."""
        found: list[str] = []

        async def listed() -> bool:
            found[:] = await self.runs()
            return bool(found)

        await until(listed, "the imported run")
        (run,) = found
        return run


async def furnished(address: str, namespace: str, queue: str) -> Home:
    """A new namespace, once it can be used."""
    service = (await connected(address)).workflow_service
    keep = Duration()
    keep.FromTimedelta(timedelta(days=1))
    await service.register_namespace(
        RegisterNamespaceRequest(namespace=namespace, workflow_execution_retention_period=keep)
    )
    found: list[HoldfastClient] = []

    async def there() -> bool:
        # The server's own parts learn of a new namespace one after the other.
        try:
            client = await HoldfastClient.connect(address, namespace, queue)
            await client.temporal.count_workflows("HoldfastFlow = 'none'")
        except (NotReachableError, RPCError):
            return False
        found.append(client)
        return True

    await until(there, f"namespace {namespace}", pause=0.2)
    return Home(address, found[0])


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Generator[embedded.Running]:
    """Another server, which has nothing of the first one's."""
    with embedded.server(tmp_path_factory.mktemp("second"), 0, 0) as running:
        yield running


def keys(stage: Stage, models: Path, run: str) -> Counter[str]:
    """How often each piece of work of a run was begun, on whichever server: nodes, tools and calls of the model."""
    asked = [json.loads(line)["key"] for line in models.read_text().splitlines()]
    begun = [entry.key for entry in stage.entries(event="started")]
    return Counter(key.removeprefix(run) for key in [*begun, *asked] if key.startswith(f"{run}/"))


async def question(client: HoldfastClient, run: str) -> dict[str, Any]:
    """What the run asks, once it does."""

    async def asked() -> bool:
        return bool(await client.inbox(run))

    await until(asked, f"the question of {run}")
    (request,) = (await client.latest_checkpoint(run)).pending_inputs.values()
    return request


async def answered(client: HoldfastClient, run: str) -> dict[str, Any]:
    """Answers the run's question; what it gave, without its name and the time of the answer."""
    await question(client, run)
    await client.send_input(run, ANSWER, by="ada")
    async with asyncio.timeout(60):
        output = (await client.result(run)).output
    del output["ask"]["output"]["at"]
    return json.loads(json.dumps(output).replace(run, "RUN"))


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    journal = tmp_path / "models.jsonl"
    journal.touch()
    monkeypatch.setenv("HOLDFAST_SCRIPTED_JOURNAL", str(journal))
    return journal


async def begun(client: HoldfastClient, stage: Stage) -> str:
    """A run in the middle: of an agent's second loop, of the flow inside it, of a map; and with an open question."""
    run = f"mover-{uuid4().hex[:8]}"
    stage.hold(run, "step-2", "started")
    stage.hold(f"{run}/sub", "y", "started")
    await client.start(FLOW, INPUT, run_id=run, config=RunConfig(heartbeat_seconds=2))
    await until(lambda: len(stage.entries(run, "each/item", "finished")) >= 3, "some items")
    stage.hold(run, "each/item", "started")
    await until(lambda: bool(stage.entries(run, "step-2", "started")), "the agent's second step")
    await until(lambda: bool(stage.entries(f"{run}/sub", "y", "started")), "the middle of the flow inside")

    async def still() -> bool:
        # Both places of the map are taken by items that stay, and what ended before them is known to the run.
        known = (await client.latest_checkpoint(run)).node_states["each"].internal_state["completed_iterations"]
        started, finished = (len(stage.entries(run, "each/item", event)) for event in ("started", "finished"))
        return started == finished + 2 and len(known) == finished

    await until(still, "the map to stand still")
    return run


def done_in(checkpoint: FlowCheckpoint) -> set[str]:
    """The keys of the work that a checkpoint knows the results of."""
    items = checkpoint.node_states["each"].internal_state["completed_iterations"]
    agent = {"/agent/loop[1]/llm", "/agent/loop[1]/step[0]", "/agent/loop[2]/llm"}
    return agent | {f"/each[{index}]" for index in items} | {"/sub/x"}


@pytest.mark.req("DM-10", "FL-2", "FL-7")
async def test_a_run_in_the_middle_of_everything_goes_on_elsewhere(
    temporal: embedded.Running,
    second: embedded.Running,
    stage: Stage,
    models: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = Home(temporal.address, await HoldfastClient.connect(temporal.address, None, stage.queue))
    worker = stage.start_worker(here.address, "--load", TOOLS)
    at_home = {name: os.environ[name] for name in ("HOLDFAST_KEYS", "HOLDFAST_BLOBS")}
    # From here on everything that is started belongs there, where nothing of this is known.
    monkeypatch.setenv("HOLDFAST_KEYS", f"elsewhere:{base64.b64encode(os.urandom(32)).decode()}")
    monkeypatch.setenv("HOLDFAST_BLOBS", str(tmp_path / "blobs"))
    there = await furnished(second.address, "elsewhere", stage.queue)
    successor = stage.start_worker(there.address, "--namespace", there.namespace, "--load", TOOLS)
    await asyncio.gather(worker.ready(), successor.ready())
    whole = await here.client.start(FLOW, INPUT)
    undisturbed = await answered(here.client, whole)
    expected = keys(stage, models, whole)

    run = await begun(here.client, stage)
    (tmp_path / "key").write_text(KEY)
    commands = Commands(tmp_path / "commands")
    locked = ["--key-file", str(tmp_path / "key")]
    export_to = ["export", run, "run.json", "--for", there.namespace, "--encrypt", *locked]
    await commands.run(*export_to, "--address", here.address, code=0, **at_home)
    await here.client.temporal.get_workflow_handle(run).terminate("it has moved")
    worker.kill()
    stage.release()
    exported = read_bundle(commands.folder / "run.json", key=ExportKey.from_text(KEY))
    before = keys(stage, models, run)
    server = ["--address", there.address, "--namespace", there.namespace]
    brought = await commands.run("import", "run.json", *locked, "--task-queue", stage.queue, *server)
    new = await there.imported()

    async def held() -> bool:
        return (await there.client.get_run(new)).status == "paused"

    await until(held, "the imported run to hold")
    paused = await there.client.latest_checkpoint(new)
    resting = keys(stage, models, run)
    await commands.run("continue", new, *server)
    asked = await question(there.client, new)
    output = await answered(there.client, new)
    ran = keys(stage, models, run)
    for name, value in at_home.items():
        monkeypatch.setenv(name, value)
    with_old_keys = await HoldfastClient.connect(there.address, there.namespace, stage.queue)
    with pytest.raises(UnknownKeyError, match="'elsewhere'"):
        await with_old_keys.latest_checkpoint(new)

    assert f"holdfast continue {new}" in brought.output
    assert str(INPUT["subject"]) not in (commands.folder / "run.json").read_text()
    # It stands there as it stood here, and begins nothing by itself: it does not even ask.
    assert paused.status == "paused"
    assert resting == before
    assert [len(found.pending_inputs) for found in (exported.checkpoint, paused)] == [1, 0]
    assert (asked["prompt"], asked["is_resumed"]) == ("Go on with a move?", True)
    assert output == undisturbed
    # Of all that was begun here, only what nobody knows the end of is begun again there, with the key it had.
    done = done_in(FlowCheckpoint.model_validate(exported.checkpoint.model_dump()))
    assert 3 <= len(exported.checkpoint.node_states["each"].internal_state["completed_iterations"]) <= ITEMS - 2
    assert exported.children.keys() == {"sub"}
    assert ran.keys() == expected.keys()
    assert done < set(before)
    assert {key for key, count in ran.items() if count == 2} == set(before) - done
    assert ran.total() == expected.total() + len(set(before) - done)


def edited(text: str) -> str:
    """As somebody would who wants another result, and leaves the rest alone."""
    assert '"completed"' in text
    return text.replace('"completed"', '"failed"', 1)


def flipped(data: bytes) -> bytes:
    place = len(data) // 2
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def future(text: str) -> str:
    data = json.loads(text)
    return json.dumps({**data, "version": data["version"] + 1})


@pytest.mark.req("DM-10", "PR-1")
async def test_a_file_that_is_not_whole_or_not_for_here_is_named_and_starts_nothing(
    temporal: embedded.Running, second: embedded.Running, stage: Stage, tmp_path: Path
) -> None:
    here = Home(temporal.address, await HoldfastClient.connect(temporal.address, None, stage.queue))
    there = await furnished(second.address, "guarded", stage.queue)
    await stage.start_worker(here.address).ready()
    run = await here.client.start(read_flow("id: small\nnodes:\n  a: {type: Work, seconds: 0}"))
    await here.client.result(run)
    commands = Commands(tmp_path, "--address", there.address, "--namespace", there.namespace)
    mine: Bundle = await export(here.client, run, made_for=there.namespace)
    right, wrong = ExportKey.from_text(KEY), "another"
    for name, bundle, key in (
        ("whole", mine, None),
        ("locked", mine, right),
        ("stranger", await export(here.client, run), None),
        ("locked-stranger", await export(here.client, run), right),
    ):
        write_bundle(bundle, tmp_path / f"{name}.json", key=key)
    text = (tmp_path / "whole.json").read_text()
    (tmp_path / "truncated.json").write_text(text[: len(text) // 2])
    (tmp_path / "flipped.json").write_bytes(flipped(text.encode()))
    (tmp_path / "locked-flipped.json").write_bytes(flipped((tmp_path / "locked.json").read_bytes()))
    (tmp_path / "edited.json").write_text(edited(text))
    (tmp_path / "future.json").write_text(future(text))
    faults = {
        "stranger": "[export/wrong-tenant] it was made for namespace 'default', and this is 'guarded'",
        "locked-stranger": "[export/wrong-tenant] it was made for namespace 'default', and this is 'guarded'",
        "truncated": "[export/damaged] it is not whole JSON or YAML",
        "flipped": "[export/damaged]",
        "locked-flipped": "[export/damaged]",
        "edited": "[export/damaged] its content does not fit its checksum",
        "future": "[export/newer] its format has version 2, and this library knows 1",
        "locked": f"[export/wrong-key] this key does not open the export of run '{run}'",
    }

    async def refused(name: str) -> str:
        # A key is given only with what is locked: with a key, a file in clear is refused for that alone.
        given = {"HOLDFAST_EXPORT_KEY": wrong} if name.startswith("locked") else {}
        arguments = ["import", f"{name}.json", "--task-queue", stage.queue]
        return (await commands.run(*arguments, code=2, **given)).errors

    told = dict(zip(faults, await asyncio.gather(*map(refused, faults)), strict=True))
    keyless = await commands.run("import", "locked.json", code=2)
    await asyncio.sleep(1)
    counted = await there.runs()
    await commands.run("import", "whole.json", "--task-queue", stage.queue)
    brought = await there.imported()

    assert {name: words in told[name] for name, words in faults.items()} == dict.fromkeys(faults, True), told
    assert "[export/locked]" in keyless.errors
    # Nothing was started by any of them; the one that is whole is let in.
    assert counted == []
    assert brought.startswith(f"{run}~i")
