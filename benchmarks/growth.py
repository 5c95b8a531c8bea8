"""growth: what a long conversation costs, in bytes stored, beside a bare Temporal agent and LangGraph.

An agent of a hundred turns, two messages of 2 KB each, with twenty tools; and the same with two hundred. Every call of
the model is made with the whole conversation, so whoever stores the calls, or the state after each step, as they are,
stores it again and again. Holdfast runs as it does by default, with the local blob store, and with a key.

Bytes are what would be copied to another machine: the events of the history and the blobs, or the database.
"""

import os
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temporalio.client import Client

from benchmarks.bare_agent import QUEUE
from benchmarks.growth_model import Model
from benchmarks.growth_texts import TASK, conversation, raw_bytes, tools
from benchmarks.installed import installed
from benchmarks.langgraph_agent import HOW_TO_INSTALL, is_installed, stored_by_langgraph
from benchmarks.measuring import Line
from benchmarks.stage import FLOWS, Stage
from holdfast.codecs.blobs import LocalBlobs, prefix_of
from holdfast.flows.spec import FlowSpec, NodeSpec
from holdfast.starter import embedded

_TURNS = 100
_CONNECTION = "HOLDFAST_CONNECTION_BENCH"
_TOOL = "from benchmarks.growth_texts import found\n\ndef run(arguments): return found(arguments['turn'])"


@dataclass(frozen=True)
class _Agent:
    """What one agent has left: its bytes by kind, and its worker's processor time, in seconds a turn."""

    sizes: dict[str, int]
    first_half: float = 0.0
    second_half: float = 0.0


def _flow(turns: int) -> FlowSpec:
    offered = [
        {
            "id": tool["function"]["name"],
            "type": "python",
            "code": _TOOL,
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in tools()
    ]
    params = {"llm": {"model": "m", "connection": "bench"}, "tools": offered, "max_loops": turns + 1}
    return FlowSpec(id="growth", nodes=[NodeSpec(id="agent", type="agent", params=params)])


def _cpu(pid: int) -> float:
    """Seconds of processor time a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _history(client: Client, run_id: str) -> dict[str, int]:
    """Over all executions of the run: its events as they are stored, and what the server itself says."""
    events = stated = count = executions = 0
    first = (await client.get_workflow_handle(run_id).describe()).raw_description.workflow_execution_info
    execution = first.first_run_id or first.execution.run_id
    while execution:
        handle = client.get_workflow_handle(run_id, run_id=execution)
        described = await handle.describe()
        stated += described.raw_description.workflow_execution_info.history_size_bytes
        history = [event async for event in handle.fetch_history_events(skip_archival=True)]
        events, count, executions = events + sum(map(_size, history)), count + len(history), executions + 1
        execution = history[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return {"history_bytes": events, "server_says_bytes": stated, "events": count, "executions": executions}


def _size(message: Any) -> int:
    return message.ByteSize()


async def _worked(model: Model, turns: int, worker: list[str], run: Callable[[], Awaitable[None]]) -> tuple[float, ...]:
    """The worker's time for a turn of the first half, and of the second."""
    process = subprocess.Popen(worker, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    marks: dict[int, float] = {}
    # The first turns pay for what is loaded on first use.
    begin, half = 5, turns // 2

    def note(asked: int) -> None:
        if asked in (begin, half, turns):
            marks[asked] = _cpu(process.pid)

    model.turns, model.listener = turns, note
    try:
        await run()
    finally:
        process.kill()
        process.wait()
    return (marks[half] - marks[begin]) / (half - begin), (marks[turns] - marks[half]) / (turns - half)


async def _holdfast(on: Stage, model: Model, turns: int) -> _Agent:
    run_id = f"growth-{uuid.uuid4()}"
    address = on.client.service_client.config.target_host
    worker = [sys.executable, "-m", "holdfast.worker", "--address", address, "--task-queue", FLOWS]

    async def run() -> None:
        await on.run_flow(_flow(turns), run_id, {"input": TASK})

    halves = await _worked(model, turns, worker, run)
    checkpoint = await on.holdfast.latest_checkpoint(run_id)
    kept = checkpoint.node_states["agent"].internal_state["prompt_messages"]
    assert kept == conversation(turns), "the conversation in the checkpoint is not the one that was held"
    found = [blob async for blob in LocalBlobs(embedded.home() / "blobs").find(f"{prefix_of('default', run_id)}/")]
    assert found, "nothing is stored apart: the codec was not on"
    history, blobs = await _history(on.client, run_id), sum(blob.size for blob in found)
    total = history["history_bytes"] + blobs
    return _Agent({"bytes": total, **history, "blob_bytes": blobs, "blobs": len(found)}, *halves)


async def _bare(on: Stage, model: Model, turns: int) -> _Agent:
    run_id = f"bare-{uuid.uuid4()}"
    # A client without our codec, as the worker's own.
    address = on.client.service_client.config.target_host
    client = await Client.connect(address)

    async def run() -> None:
        arguments = [f"{model.url}/chat/completions", tools(), []]
        count = await client.execute_workflow("BareAgent", args=arguments, id=run_id, task_queue=QUEUE)
        assert count == len(conversation(turns))

    halves = await _worked(model, turns, [sys.executable, "-m", "benchmarks.bare_agent", address], run)
    history = await _history(client, run_id)
    return _Agent({"bytes": history["history_bytes"], **history}, *halves)


def _langgraph(turns: int, *, deltas: bool) -> _Agent:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-langgraph-") as directory:
        return _Agent(stored_by_langgraph(Path(directory) / "checkpoints.db", turns, deltas=deltas))


async def growth() -> list[Line]:
    model = Model()
    names = {f"{_CONNECTION}_BASE_URL": model.url, f"{_CONNECTION}_API_KEY": "none"}
    try:
        async with installed(**names) as on:
            sides = {"holdfast": [await _holdfast(on, model, turns) for turns in (_TURNS, 2 * _TURNS)]}
            sides["bare"] = [await _bare(on, model, turns) for turns in (_TURNS, 2 * _TURNS)]
    finally:
        model.close()
    if is_installed():
        sides["langgraph"] = [_langgraph(turns, deltas=False) for turns in (_TURNS, 2 * _TURNS)]
        sides["langgraph_delta"] = [_langgraph(turns, deltas=True) for turns in (_TURNS, 2 * _TURNS)]
    else:
        print(f"  {HOW_TO_INSTALL}", file=sys.stderr, flush=True)
    return _lines(sides)


def _lines(sides: dict[str, list[_Agent]]) -> list[Line]:
    figures = {name: _figures(*agents) for name, agents in sides.items()}
    print(f"  {'':<16} {'bytes':>12} {'x raw':>8} {'twice':>12} {'x raw':>8} {'x once':>8}", file=sys.stderr)
    for name, figure in figures.items():
        (once, twice), (first, second) = figure["bytes"], figure["x_raw"]
        row = f"  {name:<16} {once:>12} {first:>8.2f} {twice:>12} {second:>8.2f} {figure['twice_x_once']:>8.2f}"
        print(row, file=sys.stderr, flush=True)
    raw = [raw_bytes(_TURNS), raw_bytes(2 * _TURNS)]
    extra = {"turns": [_TURNS, 2 * _TURNS], "raw_bytes": raw, **figures}
    ours, bare = sides["holdfast"][1], sides["bare"][1]
    growing = (ours.second_half - ours.first_half) / max(bare.second_half - bare.first_half, 1e-4)
    cpu = {f"{name}_ms_a_turn": [_ms(agent) for agent in sides[name]] for name in ("holdfast", "bare")}
    return [
        Line("growth", max(figures["holdfast"]["x_raw"]), "x raw", "at most", 2.0, extra),
        Line("growth_twice", figures["holdfast"]["twice_x_once"], "x half the turns", "at most", 2.3),
        # What a turn costs more for every turn before it is what the longer payload costs, to us as to anybody.
        Line("growth_cpu", growing, "x bare's growth", "at most", 1.2, cpu),
    ]


def _figures(once: _Agent, twice: _Agent) -> dict[str, Any]:
    sizes = [once.sizes["bytes"], twice.sizes["bytes"]]
    raw = (raw_bytes(_TURNS), raw_bytes(2 * _TURNS))
    return {
        "bytes": sizes,
        "x_raw": [round(size / said, 3) for size, said in zip(sizes, raw, strict=True)],
        "twice_x_once": round(sizes[1] / sizes[0], 3),
        "of_which": [once.sizes, twice.sizes],
    }


def _ms(agent: _Agent) -> dict[str, float]:
    return {"first_half": round(agent.first_half * 1000, 2), "second_half": round(agent.second_half * 1000, 2)}
