"""chain, fanout and concurrent: what a step costs on top of Temporal's own price."""

import asyncio
import statistics
from itertools import pairwise
from typing import Any

from benchmarks.bare_workflows import BareChain, BareFanout
from benchmarks.measuring import Limit, Line, alternate, ratio, times
from benchmarks.stage import BARE, BARE_UNSANDBOXED, Stage, stage
from benchmarks.steps import BenchPureStep, BenchStep
from holdfast.flows.spec import Dependency, FlowSpec, NodeSpec

_CHAIN = 100
_FANOUT = 200
_FLOWS = 100
_STEPS = 10


def chain_of(node: type[BenchStep], count: int) -> FlowSpec:
    """Nodes in sequence, each with the result of the one before."""
    nodes = [NodeSpec(id=f"step-{number}", type=node.type, pure=node.pure) for number in range(1, count + 1)]
    for before, after in pairwise(nodes):
        after.depends = [Dependency(node=before.id)]
    return FlowSpec(id=f"chain-{node.type}", nodes=nodes)


def fanout_of(count: int) -> FlowSpec:
    """Nodes side by side, and their results together."""
    steps = [NodeSpec(id=f"step-{number}", type=BenchStep.type) for number in range(1, count + 1)]
    join = NodeSpec(id="join", type="pass", depends=[Dependency(node=step.id) for step in steps])
    return FlowSpec(id="fanout", nodes=[*steps, join])


async def _run_chain(on: Stage, flow: FlowSpec, count: int) -> None:
    result = await on.run_flow(flow)
    assert result[f"step-{count}"]["output"]["number"] == count


async def _run_bare_chain(on: Stage, count: int, task_queue: str) -> None:
    result = await on.run_bare(BareChain, count, task_queue)
    assert result["number"] == count


def _line(name: str, taken: dict[str, list[float]], unit: str, limit: Limit, bar: float, **extra: Any) -> Line:
    """Holdfast against bare: times for an upper limit, throughput for a lower one."""
    sides = ("holdfast", "bare") if limit == "at most" else ("bare", "holdfast")
    same_runner = [side.replace("bare", "bare_unsandboxed") for side in sides]
    against = round(ratio(taken, *same_runner), 4)
    return Line(name, ratio(taken, *sides), unit, limit, bar, {**extra, "unsandboxed": against, **times(taken)})


async def chain() -> list[Line]:
    """Effectful nodes in sequence against activities in sequence, and pure ones against effectful ones."""
    flow, pure = chain_of(BenchStep, _CHAIN), chain_of(BenchPureStep, _CHAIN)
    async with stage() as on, on.all_workers():
        taken = await alternate(
            {
                "holdfast": lambda: _run_chain(on, flow, _CHAIN),
                "bare": lambda: _run_bare_chain(on, _CHAIN, BARE),
                "bare_unsandboxed": lambda: _run_bare_chain(on, _CHAIN, BARE_UNSANDBOXED),
                "pure": lambda: _run_chain(on, pure, _CHAIN),
            },
            rounds=21,
        )
    return [
        _line("chain", taken, "x bare", "at most", 1.15),
        Line("chain_pure", ratio(taken, "pure", "holdfast"), "x effectful", "at most", 0.1, times(taken)),
    ]


async def fanout() -> list[Line]:
    """Parallel nodes and a join against a gather."""
    flow = fanout_of(_FANOUT)

    async def run(on: Stage) -> None:
        result = await on.run_flow(flow)
        assert len(result["join"]["output"]) == _FANOUT

    async def run_bare(on: Stage, task_queue: str) -> None:
        assert len(await on.run_bare(BareFanout, _FANOUT, task_queue)) == _FANOUT

    async with stage() as on, on.all_workers():
        taken = await alternate(
            {
                "holdfast": lambda: run(on),
                "bare": lambda: run_bare(on, BARE),
                "bare_unsandboxed": lambda: run_bare(on, BARE_UNSANDBOXED),
            },
            rounds=21,
        )
    return [_line("fanout", taken, "x bare", "at most", 1.2)]


async def concurrent() -> list[Line]:
    """Many short flows at once against as many workflows."""
    flow = chain_of(BenchStep, _STEPS)

    async def run(on: Stage) -> None:
        await asyncio.gather(*(_run_chain(on, flow, _STEPS) for _ in range(_FLOWS)))

    async def run_bare(on: Stage, task_queue: str) -> None:
        await asyncio.gather(*(_run_bare_chain(on, _STEPS, task_queue) for _ in range(_FLOWS)))

    async with stage() as on, on.all_workers():
        taken = await alternate(
            {
                "holdfast": lambda: run(on),
                "bare": lambda: run_bare(on, BARE),
                "bare_unsandboxed": lambda: run_bare(on, BARE_UNSANDBOXED),
            }
        )
    steps = {
        f"{name}_steps_per_second": round(_FLOWS * _STEPS / statistics.median(found), 1)
        for name, found in taken.items()
    }
    return [_line("concurrent", taken, "x bare throughput", "at least", 0.9, **steps)]
