"""Records the histories that later versions must still replay: `python -m tests.replay.record`.

Histories are added, never edited. Run it when a story is new or a version is released; existing files are left alone.
"""

import asyncio
import contextlib
import json
import socket
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from holdfast import FlowFailedError, HoldfastClient, Node, RunCancelledError, RunConfig, read_flow
from holdfast.activities.registry import Registry
from holdfast.checkpoints.models import LIBRARY_VERSION
from holdfast.starter import embedded
from holdfast.starter.connecting import connect
from holdfast.starter.moving import export, import_bundle
from holdfast.starter.rebuild import executions
from holdfast.worker import running_worker

HISTORIES = Path(__file__).parent / "histories" / "FlowRun"
QUEUE = "recording"


class Step(Node):
    """Does what its parameters say."""

    seconds: float = 0.0
    fail_attempts: int = 0

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(self.seconds)
        if kwargs["attempt"] <= self.fail_attempts:
            raise RuntimeError(f"attempt {kwargs['attempt']} fails")
        return {"node": kwargs["node_id"], "bytes": b"\x00\xff"}


Story = Callable[[HoldfastClient, Path], Awaitable[str]]


def _registry() -> Registry:
    registry = Registry()
    registry.add_class(Step)
    return registry


async def _run(
    client: HoldfastClient, home: Path, flow: str, config: RunConfig | None = None, given: Any = None
) -> str:
    async with running_worker(client.temporal, task_queue=QUEUE, registry=_registry(), cache=home / "cache.db"):
        run_id = await client.start(read_flow(flow), given or {"n": 3}, config=config)
        with contextlib.suppress(FlowFailedError, RunCancelledError):
            await client.result(run_id)
        return run_id


async def branches(client: HoldfastClient, home: Path) -> str:
    return await _run(client, home, """
id: branches
nodes:
  a: {type: Step}
  b: {type: Step, depends: a, seconds: 0.2}
  c: {type: Step, depends: a}
  d: {type: Step, depends: c}
  e: {type: Step, depends: [b, d]}
""")  # fmt: skip


async def fan_out(client: HoldfastClient, home: Path) -> str:
    nodes = "\n".join(f"  n{i}: {{type: Step}}" for i in range(6))
    return await _run(
        client, home, f"id: fan\nnodes:\n{nodes}\n  end: {{type: pass, depends: [n0, n1, n2, n3, n4, n5]}}"
    )


async def fused(client: HoldfastClient, home: Path) -> str:
    return await _run(client, home, """
id: fused
nodes:
  a: {type: Step}
  t: {type: transform, template: "{{ a.output.node }}", depends: a}
  u: {type: transform, template: "{{ t.output }}!", depends: t}
  c:
    type: choice
    depends: u
    options: [{id: yes, condition: {variable: $.u.output, operator: string-equals, value: "a!"}}, {id: no}]
  y: {type: Step, depends: [{node: c, option: yes}]}
  n: {type: Step, depends: [{node: c, option: no}]}
  j: {type: pass, join: any, depends: [y, n]}
""")  # fmt: skip


async def retried(client: HoldfastClient, home: Path) -> str:
    return await _run(client, home, """
id: retried
nodes:
  a: {type: Step, fail_attempts: 1, error_handling: {max_retries: 2, retry_interval_seconds: 0.1}}
""")  # fmt: skip


async def failed(client: HoldfastClient, home: Path) -> str:
    return await _run(client, home, """
id: failed
nodes:
  a: {type: Step}
  b: {type: Step, fail_attempts: 9, depends: a}
  c: {type: Step, depends: b}
  d: {type: Step, fail_attempts: 9, depends: a}
  mend: {type: Step, depends: [{node: d, trigger: failure}]}
""")  # fmt: skip


async def resumed(client: HoldfastClient, home: Path) -> str:
    run_id = await failed(client, home)
    async with running_worker(client.temporal, task_queue=QUEUE, registry=_registry(), cache=home / "cache.db"):
        again = await client.resume(run_id)
        with contextlib.suppress(FlowFailedError):
            await client.result(again)
        return again


async def delayed(client: HoldfastClient, home: Path) -> str:
    return await _run(
        client, home, "id: delayed\nnodes:\n  d: {type: delay, seconds: 0.5}\n  a: {type: Step, depends: d}"
    )


async def continued(client: HoldfastClient, home: Path) -> str:
    nodes = "\n".join(f"  n{i}: {{type: Step{f', depends: n{i - 1}' if i else ''}}}" for i in range(8))
    flow = f"id: continued\nnodes:\n{nodes}\n  d: {{type: delay, seconds: 1.5}}"
    return await _run(client, home, flow, RunConfig(continue_after_events=20))


async def cancelled(client: HoldfastClient, home: Path) -> str:
    async with running_worker(client.temporal, task_queue=QUEUE, registry=_registry(), cache=home / "cache.db"):
        nodes = "  a: {type: Step}\n  b: {type: Step, seconds: 60, depends: a}\n  d: {type: delay, seconds: 60}"
        run_id = await client.start(read_flow(f"id: cancelled\nnodes:\n{nodes}"))
        while len((await client.get_run(run_id)).pending) < 1 or (await client.get_run(run_id)).history_events < 12:
            await asyncio.sleep(0.1)
        await client.cancel(run_id)
        with contextlib.suppress(RunCancelledError):
            await client.result(run_id)
        return run_id


async def worker_stopped(client: HoldfastClient, home: Path) -> str:
    """The worker is stopped while it runs a node; the next one runs it again."""
    options: dict[str, Any] = {"task_queue": QUEUE, "registry": _registry(), "cache": home / "cache.db"}
    async with running_worker(client.temporal, graceful_seconds=0.1, **options):
        run_id = await client.start(read_flow("id: stopped\nnodes:\n  a: {type: Step, seconds: 2}"))
        while not (await client.get_run(run_id)).pending:
            await asyncio.sleep(0.05)
    async with running_worker(client.temporal, **options):
        await client.result(run_id)
    return run_id


_CALLS = "{tool_calls: [{name: look, arguments: {n: 1}}, {name: look, arguments: {n: 2}}]}"
_TOOL = """
      - id: look
        type: python
        code: "def run(x): return x['n']"
        input_schema: {type: object, properties: {n: {type: integer}}}"""
_AGENT = f"""
    type: agent
    llm: {{model: m, provider: scripted, replies: [{_CALLS}, {_CALLS.replace("1", "3")}, done]}}
    tools:{_TOOL}"""


async def agent(client: HoldfastClient, home: Path) -> str:
    """Tools side by side, the same call again, a sub-agent."""
    boss = f"""
  boss:
    type: agent
    llm:
      model: m
      provider: scripted
      replies: [{{tool_calls: [{{name: helper, arguments: {{input: go}}}}]}}, done]
    tools:
      - id: helper{_AGENT.replace(chr(10) + "    ", chr(10) + "        ")}
"""
    return await _run(client, home, f"id: agent\nnodes:\n  one:{_AGENT}\n{boss}")


async def agent_continued(client: HoldfastClient, home: Path) -> str:
    return await _run(client, home, f"id: again\nnodes:\n  one:{_AGENT}\n", RunConfig(continue_after_events=12))


_FILES = """
    type: agent
    ask_before: never
    file_store: {type: local, path: recorded}
    llm:
      model: m
      provider: scripted
      replies:
        - tool_calls:
            - {name: write_file, arguments: {path: a.txt, content: one}}
            - {name: draw, arguments: {input: x}}
            - {name: read_file, arguments: {path: a.txt}}
        - {tool_calls: [{name: write_file, arguments: {path: a.txt, content: two, append: true}}]}
        - done
    tools:
      - {id: draw, type: python, code: "def run(x): return {'content': 'drawn', 'files': {'b.txt': 'two'}}"}"""


async def agent_with_files(client: HoldfastClient, home: Path) -> str:
    """Files of the input, of the model and of a tool; in a fork they are taken over."""
    given = {"input": "go", "files": [{"name": "in.txt", "data": b"in"}]}
    run_id = await _run(client, home, f"id: files\nnodes:\n  one:{_FILES}\n", given=given)
    middle = next(
        entry.seq for entry in await client.transitions(run_id) if getattr(entry, "event", "") == "loop_completed"
    )
    async with running_worker(client.temporal, task_queue=QUEUE, registry=_registry(), cache=home / "cache.db"):
        fork = await client.fork(f"{run_id}@{middle}")
        await client.result(fork)
        return fork


async def fallback(client: HoldfastClient, home: Path) -> str:
    second = "{model: s, provider: scripted, replies: [by the second]}"
    first = "{model: m, provider: scripted, replies: [], fallback: " + second + "}"
    handling = "llm_error_handling: {max_retries: 0}"
    return await _run(client, home, f"id: fallback\nnodes:\n  one: {{type: agent, llm: {first}, {handling}}}")


_EACH = """
  each:
    type: map
    items: $.items
    max_workers: 2
    node: {id: twice, type: python, code: "def run(x): return 2 / x"}
    """


async def mapped(client: HoldfastClient, home: Path) -> str:
    flow = f"id: mapped\nnodes:{_EACH}behavior: return\n"
    return await _run(client, home, flow, given={"items": [1, 2, 0, 4, 5]})


async def mapped_in_batches(client: HoldfastClient, home: Path) -> str:
    flow = f"id: batches\nnodes:{_EACH}inline_limit: 1\n    batch_size: 2\n"
    return await _run(client, home, flow, given={"items": [1, 2, 4, 5, 8]})


async def batches_resumed(client: HoldfastClient, home: Path) -> str:
    """Agents in batches that failed in their third loop, and go on there in other batches."""
    flow = """
id: batches-resumed
nodes:
  each:
    type: map
    items: $.items
    inline_limit: 1
    batch_size: 2
    max_workers: 2
    node: {id: reader, type: agent, max_loops: 2, llm: LLM, tools: [TOOL]}
"""
    replies = f"[{_CALLS}, {_CALLS.replace('1', '3')}, done]"
    tool = "{id: look, type: python, code: 'def run(x): return x[\"n\"]', input_schema: {type: object}}"
    flow = flow.replace("LLM", f"{{model: m, provider: scripted, replies: {replies}}}").replace("TOOL", tool)
    run_id = await _run(client, home, flow, given={"items": ["a", "b", "c"]})
    async with running_worker(client.temporal, task_queue=QUEUE, registry=_registry(), cache=home / "cache.db"):
        again = await client.resume(run_id, flow=read_flow(flow.replace("max_loops: 2", "max_loops: 5")))
        await client.result(again)
        return again


async def batch_resumed(client: HoldfastClient, home: Path) -> str:
    """One of those other batches: a run that begins in the middle of its items."""
    return f"{await batches_resumed(client, home)}/each[0-1]"


async def nested(client: HoldfastClient, home: Path) -> str:
    inner = "{id: inner, nodes: {a: {type: Step}, b: {type: Step, depends: a, fail_attempts: 1}}}"
    flow = f"id: outer\nnodes:\n  sub: {{type: flow, flow: {inner}, error_handling: {{max_retries: 1}}}}"
    return await _run(client, home, flow)


async def orchestrated(client: HoldfastClient, home: Path) -> str:
    """A graph with a manager that is not understood at first, and a list of tasks."""
    return await _run(client, home, """
id: orchestrated
nodes:
  graph:
    type: graph-orchestrator
    manager: {model: m, provider: scripted, replies: ['{"state": "one"}', what, end]}
    states:
      - id: one
        tasks: [{id: a, type: Step}, {id: b, type: python, code: "def run(x): return len(x['history'])"}]
        next: [{to: two}]
      - id: two
        tasks: [{id: c, type: agent, llm: {model: m, provider: scripted, replies: [fine]}}]
        next: [{to: one}, {to: end}]
  linear:
    type: linear-orchestrator
    manager:
      model: m
      provider: scripted
      replies: ['[{"description": "x", "agent": "w"}, {"description": "y", "agent": "w"}]', all done]
    agents: [{id: w, type: agent, llm: {model: m, provider: scripted, replies: [ok]}}]
""")  # fmt: skip


async def people(client: HoldfastClient, home: Path) -> str:
    """An early answer, a reminder, an approval with an edit, a pause, and a flow inside that asks."""
    flow = """
id: people
nodes:
  first: {type: human, prompt: "{{ n }}?", reminders: [0.5]}
  second: {type: human, prompt: q, kind: choice, choices: [a, b], depends: first}
  pay: {type: Step, approval: {enabled: true, editable: [n]}, depends: second}
  late: {type: human, prompt: q, deadline: {after: 0.5, effect: default, answer: {feedback: x}}, depends: second}
  sub: {type: flow, depends: second, flow: {id: inner, nodes: {ask: {type: human, prompt: inner}}}}
"""
    async with running_worker(client.temporal, task_queue=QUEUE, registry=_registry(), cache=home / "cache.db"):
        run_id = await client.start(read_flow(flow), {"n": 3})
        await client.send_input(run_id, {"choice": "b"}, entity_id="second", by="eve")
        await asyncio.sleep(1.5)
        await client.pause(run_id, "ada")
        await client.send_input(run_id, {"feedback": "yes"}, entity_id="first", by="ada")
        await asyncio.sleep(0.5)
        await client.continue_run(run_id, "ada")
        while len(requests := await client.inbox(run_id)) < 2:
            await asyncio.sleep(0.1)
        for request in requests:
            answer = {"is_approved": True, "data": {"n": 4}} if request.path == "pay" else {"feedback": "in"}
            await client.send_input(request.run_id, answer, request_id=request.id, by="bob")
        await client.result(run_id)
        return run_id


_OUTER = """
id: outer
nodes:
  a: {type: Step}
  b: {type: Step, depends: a}
  sub: {type: flow, depends: a, flow: {id: inner, nodes: {x: {type: Step}, w: {type: delay, seconds: 1, depends: x}}}}
  end: {type: Step, depends: [b, sub]}
"""


async def forked(client: HoldfastClient, home: Path) -> str:
    """From the middle, with an output given by hand, another definition, and a flow inside that goes on."""
    async with running_worker(client.temporal, task_queue=QUEUE, registry=_registry(), cache=home / "cache.db"):
        run_id = await client.start(read_flow(_OUTER), {"n": 3})
        await asyncio.sleep(0.8)
        changed = read_flow(_OUTER + "  new: {type: Step, depends: end}\n")
        fork = await client.fork(run_id, flow=changed, edits={"b:output": {"node": "by hand"}})
        await client.result(fork)
        return fork


async def imported(client: HoldfastClient, home: Path) -> str:
    """Paused until somebody lets it go on."""
    run_id = await failed(client, home)
    async with running_worker(client.temporal, task_queue=QUEUE, registry=_registry(), cache=home / "cache.db"):
        new = await import_bundle(client, await export(client, run_id))
        await asyncio.sleep(0.5)
        await client.continue_run(new.run_id, "ada")
        with contextlib.suppress(FlowFailedError):
            await client.result(new.run_id)
        return new.run_id


STORIES: list[Story] = [
    branches,
    fan_out,
    fused,
    retried,
    failed,
    resumed,
    delayed,
    continued,
    cancelled,
    worker_stopped,
    agent,
    agent_continued,
    agent_with_files,
    fallback,
    mapped,
    mapped_in_batches,
    batches_resumed,
    batch_resumed,
    nested,
    orchestrated,
    people,
    forked,
    imported,
]


def _cleaned(data: Any) -> Any:
    """Without what says where it was recorded: a replay looks at neither stack traces nor identities."""
    if isinstance(data, dict):
        fields = cast(dict[str, Any], data)
        return {
            key: "recorder" if key == "identity" else _cleaned(item)
            for key, item in fields.items()
            if key != "stackTrace"
        }
    return [_cleaned(item) for item in cast(list[Any], data)] if isinstance(data, list) else data


async def record(address: str, home: Path) -> None:
    # Recorded as it reads: what the codec makes of payloads is no part of what a run decides.
    connected = await connect(address)
    client = HoldfastClient(Client(connected.service_client, data_converter=pydantic_data_converter), QUEUE)
    HISTORIES.mkdir(parents=True, exist_ok=True)
    for story in STORIES:
        name = f"{LIBRARY_VERSION}-{story.__name__}"
        if list(HISTORIES.glob(f"{name}*.json")):
            continue
        run_id = await story(client, home)
        histories = [history async for history in executions(client.temporal, run_id)]
        for number, history in enumerate(reversed(histories), 1):
            suffix = f"-{number}" if len(histories) > 1 else ""
            recorded = json.dumps(_cleaned(json.loads(history.to_json())), indent=1)
            recorded = recorded.replace(f"@{socket.gethostname()}", "")
            (HISTORIES / f"{name}{suffix}.json").write_text(recorded + "\n")
            print(f"{name}{suffix}: {len(history.events)} events")


def main() -> int:
    with tempfile.TemporaryDirectory() as directory, embedded.server(Path(directory), 0, 0) as server:
        asyncio.run(record(server.address, Path(directory)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
