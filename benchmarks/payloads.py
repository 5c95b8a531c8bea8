"""payloads: large values come through unchanged, and a megabyte costs a node a few milliseconds.

On the local store and on a real S3 server, SeaweedFS, with a key; the worker is a process of its own. A value goes from
a node to the next, from a person into a run, and from a tool into a conversation. The time is what a user sees: from
the start of a run to its result, with all that it has in it, divided by the number of nodes.
"""

import asyncio
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.installed import installed
from benchmarks.measuring import Line, alternate, times
from benchmarks.payload_nodes import BenchData, BenchDigest, BenchText, data_of, digest_of, text_of
from benchmarks.stage import FLOWS, Stage
from holdfast.flows.spec import Dependency, FlowSpec, NodeSpec

_MB = 2**20
_SIZES = (_MB, 64 * _MB)
_LONGEST = 240.0
_NODES = 10
_ROUNDS = 15


def _reads(node_id: str, after: str, selector: str) -> NodeSpec:
    """A node that is given one value of the one before it."""
    return NodeSpec.model_validate(
        {
            "id": node_id,
            "type": BenchDigest.type,
            "depends": [{"node": after}],
            "input_transformer": {"selector": {"value": selector}},
        }
    )


async def _through_a_node(on: Stage, run_id: str, size: int) -> bool:
    """Bytes from one node to the next, and in the result."""
    make = NodeSpec(id="make", type=BenchData.type, params={"size": size, "seed": "node"})
    flow = FlowSpec(id="node", nodes=[make, _reads("read", "make", "$.make.output")])
    output, expected = await on.run_flow(flow, run_id), data_of("node", size)
    return output["make"]["output"] == expected and output["read"]["output"] == digest_of(expected)


async def _through_an_answer(on: Stage, run_id: str, size: int) -> bool:
    """A text from a person to the node that waited for it."""
    ask = NodeSpec(id="ask", type="human", params={"prompt": "What is it?", "kind": "text"})
    flow = FlowSpec(id="answer", nodes=[ask, _reads("read", "ask", "$.ask.output.feedback")])
    expected = text_of("answer", size)
    await on.holdfast.start(flow, {}, run_id=run_id)
    await on.holdfast.send_input(run_id, {"feedback": expected}, entity_id="ask", by="bench")
    output = (await on.holdfast.result(run_id)).output
    return output["ask"]["output"]["feedback"] == expected and output["read"]["output"] == digest_of(expected)


async def _through_a_tool(on: Stage, run_id: str, size: int) -> bool:
    """A tool's text into the conversation."""
    tool = {"id": "look", "type": BenchText.type, "params": {"size": size, "seed": "tool"}, "description": "Looks."}
    replies = [{"tool_calls": [{"name": "look", "arguments": {"input": "it"}}]}, "done"]
    params = {"llm": {"provider": "scripted", "model": "m", "replies": replies}, "tools": [tool]}
    flow = FlowSpec(id="tool", nodes=[NodeSpec(id="agent", type="agent", params=params)])
    output = await on.run_flow(flow, run_id, {"input": "go"})
    checkpoint = await on.holdfast.latest_checkpoint(run_id)
    messages = checkpoint.node_states["agent"].internal_state["prompt_messages"]
    given = [message["content"] for message in messages if message["role"] == "tool"]
    return output["agent"]["output"]["content"] == "done" and given == [text_of("tool", size)]


_PATHS: dict[str, Callable[[Stage, str, int], Awaitable[bool]]] = {
    "node": _through_a_node,
    "answer": _through_an_answer,
    "tool": _through_a_tool,
}


async def _attempts(on: Stage, run_id: str) -> int:
    """The most that a workflow task has had. More than one: the workflow was busy for longer than it may be."""
    events = on.client.get_workflow_handle(run_id).fetch_history_events(skip_archival=True)
    attempts = [event.workflow_task_scheduled_event_attributes.attempt async for event in events]
    described = await on.client.get_workflow_handle(run_id).describe()
    # Of one that is tried again and again, the history has only the first.
    return max(*attempts, described.raw_description.pending_workflow_task.attempt)


async def _tried(on: Stage, store: str, path: str, size: int) -> dict[str, Any]:
    """Whether it came through, and how long that took; one that does not must not hide the others."""
    case: dict[str, Any] = {"store": store, "path": path, "mb": size // _MB, "equal": False}
    run_id = f"{path}-{uuid.uuid4()}"
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(_LONGEST):
            case["equal"] = await _PATHS[path](on, run_id, size)
    except Exception as error:
        case["error"] = f"{type(error).__name__}: {error}"[:500]
    case["seconds"] = round(time.perf_counter() - begun, 2)
    case["attempts"] = await _attempts(on, run_id)
    print(f"  {case}", file=sys.stderr, flush=True)
    return case


def _chain(size: int) -> FlowSpec:
    """Each node is given what the one before it gave, and gives as much that is new. Runs share nothing."""
    steps = [f"step-{number}" for number in range(1, _NODES + 1)]
    nodes = [NodeSpec(id=step, type=BenchText.type, params={"size": size, "seed": step}) for step in steps]
    for before, after in pairwise(nodes):
        after.depends = [Dependency(node=before.id)]
    return FlowSpec(id=f"chain-{size}", nodes=nodes)


async def _run_chain(on: Stage, flow: FlowSpec, size: int) -> None:
    output = await on.run_flow(flow)
    assert all(output[node.id]["output"] == text_of(node.id, size) for node in flow.nodes)


@contextlib.asynccontextmanager
async def _with_worker(store: str | None, variables: dict[str, str]) -> AsyncGenerator[Stage]:
    async with installed(store, **variables) as on:
        address = on.client.service_client.config.target_host
        options = ["--address", address, "--task-queue", FLOWS, "--load", "benchmarks.payload_nodes"]
        worker = subprocess.Popen([sys.executable, "-m", "holdfast.worker", *options], stdout=subprocess.DEVNULL)
        try:
            yield on
        finally:
            worker.kill()
            worker.wait()


@contextlib.contextmanager
def _s3() -> Generator[tuple[str, dict[str, str]]]:
    from tests.servers.s3 import S3Server

    with tempfile.TemporaryDirectory(prefix="holdfast-bench-s3-") as name, S3Server(Path(name)) as server:
        yield server.url("bench"), server.environment


async def _added(on: Stage) -> tuple[float, dict[str, Any]]:
    """Milliseconds a node, and what is behind them."""
    small, large = _chain(1024), _chain(_MB)
    taken = await alternate(
        {"large": lambda: _run_chain(on, large, _MB), "small": lambda: _run_chain(on, small, 1024)}, rounds=_ROUNDS
    )
    more = [(over - under) / _NODES * 1000 for over, under in zip(taken["large"], taken["small"], strict=True)]
    return statistics.median(more), {"nodes": _NODES, **times(taken)}


async def payloads() -> list[Line]:
    cases: list[dict[str, Any]] = []
    added: dict[str, tuple[float, dict[str, Any]]] = {}
    with _s3() as (url, variables):
        for name, store in (("local", None), ("s3", url)):
            async with _with_worker(store, variables) as on:
                added[name] = await _added(on)
                cases += [await _tried(on, name, path, size) for size in _SIZES for path in _PATHS]
    equal, all_of_them = sum(case["equal"] for case in cases), len(cases)
    return [
        Line("payloads_equal", equal, f"of {all_of_them} come through", "at least", all_of_them, {"cases": cases}),
        Line("payloads_local", added["local"][0], "ms a node for 1 MB", "at most", 50.0, added["local"][1]),
        Line("payloads_s3", added["s3"][0], "ms a node for 1 MB", "at most", 50.0, added["s3"][1]),
    ]
