"""Questions to people on the real server: asked, answered once, at every depth."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Flow, HoldfastClient, Human, Map, Node, Python, RunConfig, SubFlow, SyncHoldfastClient
from holdfast.checkpoints.models import CheckpointStatus, RunStatus
from holdfast.checkpoints.validation import validate_checkpoint
from holdfast.contracts import names
from holdfast.contracts.people import HumanAnswer
from holdfast.flows.spec import FlowSpec
from holdfast.starter.embedded import binary
from holdfast.starter.errors import AnswerRefusedError, NoSuchNodeError
from holdfast.starter.people import OpenRequest
from tests.integration.conftest import Bench
from tests.servers.codec import codec_server

ECHO = "def run(x): return x"


def spec(*nodes: Node, id: str = "people") -> FlowSpec:  # noqa: A002
    return Flow(nodes=nodes, id=id).spec()


def scripted(*replies: Any) -> dict[str, Any]:
    return {"model": "m", "provider": "scripted", "replies": list(replies)}


async def asked(bench: Bench, run_id: str, count: int = 1) -> list[OpenRequest]:
    """The open questions of a run, as soon as there are so many."""
    async with asyncio.timeout(20):
        while len(found := await bench.client.inbox(run_id)) < count:
            await asyncio.sleep(0.05)
        return found


@pytest.mark.req("EX-2", "RT-4", "RT-1")
async def test_a_question_waits_in_the_checkpoint_and_its_answer_is_the_output(bench: Bench) -> None:
    await bench.worker()
    run_id = await bench.start(spec(Human(id="ask", prompt="What of {{ topic }}?")), {"topic": "kelp"})
    (request,) = await asked(bench, run_id)
    waiting = await bench.client.latest_checkpoint(run_id)
    status = (await bench.client.get_run(run_id)).status
    receipt = await bench.client.send_input(run_id, {"feedback": "it holds"}, request_id=request.id, by="ada")
    result = await bench.client.result(run_id)
    done = await bench.client.latest_checkpoint(run_id)

    assert request.prompt == "What of kelp?"
    assert status == RunStatus.PENDING_INPUT
    assert waiting.status == CheckpointStatus.PENDING_INPUT
    assert waiting.pending_input_context is not None
    assert (waiting.pending_input_context.node_id, waiting.pending_input_context.prompt) == ("ask", "What of kelp?")
    assert waiting.node_states["ask"].internal_state["prompt"] == "What of kelp?"
    assert validate_checkpoint(waiting) == []
    assert (receipt.status, receipt.path) == ("accepted", "ask")
    output = result.output["ask"]["output"]
    assert (output["content"], output["by"]) == ("it holds", "ada")
    assert done.answered_inputs[request.id]["by"] == "ada"
    assert await bench.client.inbox(run_id) == []
    # Rebuilt from its history, the run is whole, though its last task took an update.
    assert [entry.kind for entry in await bench.client.transitions(run_id)][-3:] == [
        "input_received", "node_completed", "run_completed",
    ]  # fmt: skip


@pytest.mark.req("RT-4")
async def test_the_approval_message_of_the_schema_is_understood_as_a_signal(bench: Bench) -> None:
    await bench.worker()
    flow = spec(
        Python(id="pay", code=ECHO, approval={"enabled": True, "prompt": "Pay {{ amount }}?", "editable": ["amount"]})
    )
    run_id = await bench.start(flow, {"amount": 10, "to": "Ada"})
    await asked(bench, run_id)
    handle = bench.client.temporal.get_workflow_handle(run_id)
    message = {
        "entity_id": "pay",
        "data": {"feedback": "less", "is_approved": True, "data": {"amount": 7}},
        "event": "approval",
    }
    await handle.signal(names.SIGNAL_INPUT, message)
    result = await bench.client.result(run_id)

    assert result.output["pay"]["output"] == {"amount": 7, "to": "Ada"}
    assert result.output["pay"]["input"] == {"amount": 7, "to": "Ada"}


@pytest.mark.req("RT-4")
async def test_a_rejection_skips_the_node_and_says_who_and_why(bench: Bench) -> None:
    await bench.worker()
    run_id = await bench.start(spec(Python(id="pay", code=ECHO, approval={"enabled": True})), {})
    (request,) = await asked(bench, run_id)
    await bench.client.send_input(run_id, HumanAnswer(is_approved=False, feedback="no money"), by="bob")
    result = await bench.client.result(run_id)

    assert request.prompt == "May pay run?"
    assert result.output["pay"]["status"] == "skip"
    assert result.output["pay"]["error"]["message"] == "rejected by bob: no money"


@pytest.mark.req("EX-2")
async def test_fifty_answer_at_once_and_one_is_taken(bench: Bench) -> None:
    await bench.worker()
    run_id = await bench.start(spec(Human(id="ask", prompt="?")), {})
    (request,) = await asked(bench, run_id)

    async def answer(number: int) -> str:
        try:
            data = HumanAnswer(feedback=f"answer {number}")
            await bench.client.send_input(run_id, data, request_id=request.id, by=f"person-{number}")
        except AnswerRefusedError as error:
            return str(error)
        return "accepted"

    said = await asyncio.gather(*(answer(number) for number in range(50)))
    result = await bench.client.result(run_id)
    winner = result.output["ask"]["output"]["by"]

    assert said.count("accepted") == 1
    assert said[int(winner.removeprefix("person-"))] == "accepted"
    assert sum(f"already answered by {winner} at " in text for text in said) == 49


@pytest.mark.req("EX-2")
async def test_a_thousand_duplicate_and_early_signals_have_one_effect(bench: Bench) -> None:
    await bench.worker()
    flow = spec(
        Human(id="first", prompt="?"),
        Human(id="second", prompt="?").depends_on("first"),
        Python(id="end", code=ECHO).depends_on("second"),
    )
    run_id = await bench.start(flow, {})
    await asked(bench, run_id)
    handle = bench.client.temporal.get_workflow_handle(run_id)
    early = {"entity_id": "second", "data": {"feedback": "early"}, "by": "eve"}
    await asyncio.gather(*(handle.signal(names.SIGNAL_INPUT, early) for _ in range(500)))
    first = {"entity_id": "first", "data": {"feedback": "go"}, "by": "ada"}
    await asyncio.gather(*(handle.signal(names.SIGNAL_INPUT, first) for _ in range(500)), return_exceptions=True)
    result = await bench.client.result(run_id)
    received = [entry for entry in await bench.client.transitions(run_id) if entry.kind == "input_received"]

    assert result.output["second"]["output"]["content"] == "early"
    assert [entry.path for entry in received] == ["first", "second"]


async def test_an_answer_that_does_not_fit_is_refused_with_the_reason(bench: Bench) -> None:
    await bench.worker()
    form = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
    flow = spec(
        Human(id="form", prompt="?", kind="form", form=form),
        Human(id="pick", prompt="?", kind="choice", choices=["a", "b"]),
    )
    run_id = await bench.start(flow, {})
    await asked(bench, run_id, 2)
    with pytest.raises(AnswerRefusedError, match="age: 'x' is not of type 'integer'"):
        await bench.client.send_input(run_id, {"data": {"age": "x"}}, entity_id="form")
    with pytest.raises(AnswerRefusedError, match="choose one of 'a', 'b'"):
        await bench.client.send_input(run_id, {"choice": "c"}, entity_id="pick")
    with pytest.raises(AnswerRefusedError, match="say which question"):
        await bench.client.send_input(run_id, {"choice": "a"})
    with pytest.raises(AnswerRefusedError, match="no question 'nobody'"):
        await bench.client.send_input(run_id, {"choice": "a"}, request_id="nobody")
    events = (await bench.client.get_run(run_id)).history_events
    await bench.client.send_input(run_id, {"data": {"age": 3}}, entity_id="form")
    await bench.client.send_input(run_id, {"choice": "b"}, entity_id="pick")
    result = await bench.client.result(run_id)

    # What was refused has left no trace in the run.
    assert events <= 20
    assert result.output["form"]["output"]["data"] == {"age": 3}
    assert result.output["pick"]["output"]["choice"] == "b"


@pytest.mark.req("OR-5")
async def test_an_agent_in_a_map_in_a_nested_flow_asks_and_goes_on(bench: Bench) -> None:
    await bench.worker()
    question = {"tool_calls": [{"name": "boss", "arguments": {"question": "may I?"}}]}
    agent = Agent(id="each", llm=scripted(question, "thanks"), tools=[Human(id="boss")])
    inner = Flow(nodes=[Map(id="all", node=agent, max_workers=2)], id="inner")
    run_id = await bench.start(
        spec(SubFlow(id="sub", flow=inner)), {"input": ["x", "y"]}, RunConfig(continue_after_events=30)
    )
    requests = await asked(bench, run_id, 2)
    async with asyncio.timeout(30):
        # The outer run is told by the inner one, a moment after.
        while (parent := await bench.client.get_run(run_id)).status == RunStatus.RUNNING:
            await asyncio.sleep(0.05)
    outer = await bench.client.latest_checkpoint(run_id)
    for request in requests:
        await bench.client.people.answer_request(request.id, HumanAnswer(feedback="you may"), by="ada")
    result = await bench.client.result(run_id)
    answers = result.output["sub"]["output"]["all"]["output"]["output"]

    assert {request.path for request in requests} == {f"all[{n}]/loop[1]/boss[0]" for n in (0, 1)}
    assert {(request.run_id, request.root_run_id) for request in requests} == {(f"{run_id}/sub", run_id)}
    assert parent.status == RunStatus.PENDING_INPUT
    assert outer.node_states["sub"].internal_state["status"] == "pending_input"
    assert [entry["content"] for entry in answers] == ["thanks", "thanks"]


@pytest.mark.req("AG-5")
async def test_a_tool_that_writes_is_approved_edited_or_rejected_before_it_runs(bench: Bench) -> None:
    await bench.worker()
    send = {"id": "send", "type": "python", "code": ECHO, "side_effects": "write", "input_schema": {"type": "object"}}
    call = [{"tool_calls": [{"name": "send", "arguments": {"to": to}}]} for to in ("ada", "bob")]
    flow = FlowSpec.model_validate(
        {
            "id": "policy",
            "nodes": [{"id": "a", "type": "agent", "params": {"llm": scripted(*call, "done"), "tools": [send]}}],
        }
    )
    run_id = await bench.start(flow, {"input": "send"})
    (first,) = await asked(bench, run_id)
    await bench.client.send_input(run_id, {"is_approved": True, "data": {"to": "eve"}}, request_id=first.id)
    async with asyncio.timeout(30):
        while (second := (await asked(bench, run_id))[0]).id == first.id:
            await asyncio.sleep(0.05)
    await bench.client.send_input(run_id, {"is_approved": False, "feedback": "not him"}, request_id=second.id, by="ada")
    result = await bench.client.result(run_id)
    messages = (await bench.client.latest_checkpoint(run_id)).node_states["a"].internal_state["prompt_messages"]
    told = [message["content"] for message in messages if message["role"] == "tool"]

    assert result.output["a"]["output"]["content"] == "done"
    assert first.prompt == 'send is to be called with {"to": "ada"}. May it?'
    assert told == ['{"to": "eve"}', "Error: rejected by ada: not him"]


@pytest.mark.req("FL-6", "RT-1")
async def test_a_paused_run_begins_nothing_until_it_is_let_go_on(bench: Bench, tmp_path: Path) -> None:
    await bench.worker()
    let_go = tmp_path / "go"
    slow = f"import pathlib, time\ndef run(x):\n    while not pathlib.Path({str(let_go)!r}).exists(): time.sleep(0.02)"
    flow = spec(
        Python(id="a", code=slow), Python(id="b", code=ECHO).depends_on("a"), Python(id="c", code=ECHO).depends_on("b")
    )
    run_id = await bench.start(flow, {"n": 1})
    await bench.client.pause(run_id, by="ada")
    async with asyncio.timeout(30):
        while (await bench.client.get_run(run_id)).status != RunStatus.PAUSED:
            await asyncio.sleep(0.05)
        let_go.touch()
        while "a" not in (await bench.client.latest_checkpoint(run_id)).completed_node_ids:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.3)
    paused = await bench.client.latest_checkpoint(run_id)
    status = (await bench.client.get_run(run_id)).status
    await bench.client.continue_run(run_id, by="bob")
    result = await bench.client.result(run_id)
    said = [
        (entry.kind, getattr(entry, "by", None))
        for entry in await bench.client.transitions(run_id)
        if "run_" in entry.kind
    ]

    assert (paused.status, paused.completed_node_ids) == (CheckpointStatus.PAUSED, ["a"])
    assert status == RunStatus.PAUSED
    assert result.output["c"]["status"] == "success"
    assert said == [("run_started", None), ("run_paused", "ada"), ("run_continued", "bob"), ("run_completed", None)]


async def test_the_checkpoint_of_a_waiting_run_needs_no_worker(bench: Bench) -> None:
    from holdfast.worker import running_worker

    async with running_worker(bench.client.temporal, task_queue=bench.task_queue, graceful_seconds=1):
        run_id = await bench.start(
            spec(Python(id="a", code=ECHO), Human(id="ask", prompt="?").depends_on("a")), {"n": 1}
        )
        await asked(bench, run_id)
    waiting = await asyncio.wait_for(bench.client.latest_checkpoint(run_id), 3)
    (request,) = await asyncio.wait_for(bench.client.inbox(run_id), 3)
    receipt = await bench.client.send_input(run_id, {"feedback": "later"}, request_id=request.id)
    await bench.worker()
    result = await bench.client.result(run_id)

    assert waiting.completed_node_ids == ["a"]
    assert receipt.status == "kept"
    assert result.output["ask"]["output"]["content"] == "later"


@pytest.mark.req("RT-6")
async def test_the_client_for_code_that_is_not_async_does_all_of_it(bench: Bench) -> None:
    await bench.worker()
    address = bench.client.temporal.service_client.config.target_host

    def work() -> list[str]:
        with SyncHoldfastClient(address, task_queue=bench.task_queue) as client:
            run_id = client.create_run(spec(Human(id="ask", prompt="?"), id="sync"), {})
            names_: list[str] = []
            for event in client.stream(run_id):
                names_.append(event.event)
                if event.event == "approval":
                    client.send_input(run_id, {"feedback": "yes"}, by="ada")
            assert client.result(run_id).output["ask"]["output"]["content"] == "yes"
            assert client.get_run(run_id).status == RunStatus.COMPLETED
            assert client.list_checkpoints(run_id)
            return names_

    assert "input_received" in await asyncio.to_thread(work)


@pytest.mark.req("RT-6")
def test_both_clients_have_the_same_methods() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    # `stream` is what there is of `follow`; the API alone needs pages.
    assert public(HoldfastClient) - public(SyncHoldfastClient) == {"connect", "follow", "page_of_runs"}
    assert public(SyncHoldfastClient) - public(HoldfastClient) == {"close"}


@pytest.mark.req("RT-6", "FL-2")
async def test_the_client_for_code_that_is_not_async_travels_too(bench: Bench) -> None:
    await bench.worker()
    address = bench.client.temporal.service_client.config.target_host
    flow = spec(
        Python(id="a", code="def run(x): return {'n': 1}"), Python(id="b", code=ECHO).depends_on("a"), id="sync"
    )

    def work() -> None:
        with SyncHoldfastClient(address, task_queue=bench.task_queue) as client:
            run_id = client.create_run(flow, {})
            client.result(run_id)
            fork = client.fork(run_id, edits={"a:output.n": 2}, run_id=f"{run_id}-fork")
            again = client.rerun(run_id, "b", key="once")
            plan = client.plan(run_id, edits={"a:output.n": 2})
            forked = client.result(fork)
            client.result(again)
            words = {change.field: change for change in client.diff(run_id, fork).changes if change.node == "a"}
            moments = client.node_history(run_id, "a", "output")
            while len((root := client.tree(again)[0]).children) < 2:
                pass  # The visibility store lags a little.
            with pytest.raises(NoSuchNodeError, match="never had a node 'nobody'"):
                client.node_history(run_id, "nobody")

        assert fork == f"{run_id}-fork"
        assert (plan.kept, plan.reset) == (["a"], ["b"])
        assert forked.output["b"]["output"]["a"]["output"] == {"n": 2}
        assert (words["output.n"].left, words["output.n"].right) == (1, 2)
        assert [moment.event for moment in moments] == ["node_completed"]
        assert root.run_id == run_id
        assert {(member.run_id, member.how) for member in root.children} == {(fork, "fork"), (again, "rerun")}

    await asyncio.to_thread(work)


async def _temporal(bench: Bench, *arguments: str) -> str:
    """Temporal's own command line, which knows nothing of us."""
    address = bench.client.temporal.service_client.config.target_host
    process = await asyncio.create_subprocess_exec(
        binary(), *arguments, "--address", address, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    said, failed = await process.communicate()
    assert process.returncode == 0, failed.decode()
    return said.decode()


@pytest.fixture(scope="module")
def codecs() -> Generator[tuple[str, str]]:
    """What Temporal's command line needs to read and write payloads that are encrypted."""
    with codec_server() as url:
        yield "--codec-endpoint", url


@pytest.mark.req("RT-4")
async def test_temporals_own_command_line_is_enough_to_find_and_answer(bench: Bench, codecs: tuple[str, str]) -> None:
    await bench.worker()
    pay = Python(id="pay", code=ECHO, approval={"enabled": True}).depends_on("first")
    flow = spec(Human(id="first", prompt="?"), pay)
    run_id = await bench.start(flow, {})
    await asked(bench, run_id)
    query = f"HoldfastStatus = 'pending_input' AND WorkflowId = '{run_id}'"
    listed = await _temporal(bench, "workflow", "list", "--query", query)
    words = '{"feedback": "by signal", "by": "ada"}'
    signal = ("workflow", "signal", "--workflow-id", run_id, "--name", "provide_input", "--input", words)
    await _temporal(bench, *signal, *codecs)
    async with asyncio.timeout(30):
        while (await asked(bench, run_id))[0].path != "pay":
            await asyncio.sleep(0.05)
    yes = '{"entity_id": "pay", "data": {"is_approved": true}, "by": "ada"}'
    update = ("workflow", "update", "execute", "--workflow-id", run_id, "--name", "answer", "--input", yes)
    receipt = await _temporal(bench, *update, *codecs)
    result = await bench.client.result(run_id)

    assert run_id in listed
    assert "accepted" in receipt
    assert result.output["first"]["output"]["content"] == "by signal"
    assert result.output["pay"]["status"] == "success"
