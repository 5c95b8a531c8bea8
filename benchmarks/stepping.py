"""chain, fanout and concurrent: what a step costs on top of Temporal's own price."""

import asyncio
import statistics
from itertools import pairwise

from benchmarks.bare_workflows import BareChain, BareFanout
from benchmarks.measuring import Line, alternate, ratio, times
from benchmarks.stage import Stage, stage
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


async def _run_bare_chain(on: Stage, count: int) -> None:
    result = await on.run_bare(BareChain, count)
    assert result["number"] == count


async def chain() -> list[Line]:
    """Effectful nodes in sequence against activities in sequence, and pure ones against effectful ones."""
    flow, pure = chain_of(BenchStep, _CHAIN), chain_of(BenchPureStep, _CHAIN)
    async with stage() as on, on.both_workers():
        taken = await alternate(
            {
                "holdfast": lambda: _run_chain(on, flow, _CHAIN),
                "bare": lambda: _run_bare_chain(on, _CHAIN),
                "pure": lambda: _run_chain(on, pure, _CHAIN),
            },
            rounds=7,
        )
    return [
        Line("chain", ratio(taken, "holdfast", "bare"), "x bare", "at most", 1.15, times(taken)),
        Line("chain_pure", ratio(taken, "pure", "holdfast"), "x effectful", "at most", 0.1, times(taken)),
    ]


async def fanout() -> list[Line]:
    """Parallel nodes and a join against a gather."""
    flow = fanout_of(_FANOUT)

    async def run(on: Stage) -> None:
        result = await on.run_flow(flow)
        assert len(result["join"]["output"]) == _FANOUT

    async def run_bare(on: Stage) -> None:
        assert len(await on.run_bare(BareFanout, _FANOUT)) == _FANOUT

    async with stage() as on, on.both_workers():
        taken = await alternate({"holdfast": lambda: run(on), "bare": lambda: run_bare(on)}, rounds=15)
    return [Line("fanout", ratio(taken, "holdfast", "bare"), "x bare", "at most", 1.2, times(taken))]


async def concurrent() -> list[Line]:
    """Many short flows at once against as many workflows."""
    flow = chain_of(BenchStep, _STEPS)

    async def run(on: Stage) -> None:
        await asyncio.gather(*(_run_chain(on, flow, _STEPS) for _ in range(_FLOWS)))

    async def run_bare(on: Stage) -> None:
        await asyncio.gather(*(_run_bare_chain(on, _STEPS) for _ in range(_FLOWS)))

    async with stage() as on, on.both_workers():
        taken = await alternate({"holdfast": lambda: run(on), "bare": lambda: run_bare(on)})
    steps = {
        f"{name}_steps_per_second": round(_FLOWS * _STEPS / statistics.median(found), 1)
        for name, found in taken.items()
    }
    throughput = ratio(taken, "bare", "holdfast")
    return [Line("concurrent", throughput, "x bare throughput", "at least", 0.9, {**steps, **times(taken)})]
