"""resume: from the request to the first new activity, of a run with 300 transitions, against a fresh start of it."""

import contextlib
import time
from collections.abc import Awaitable, Callable

import yaml

from benchmarks.measuring import Line, ratio, times
from benchmarks.stage import Stage, stage
from benchmarks.stepping import chain_of
from benchmarks.steps import BenchMark, BenchStep
from holdfast.flows.reading import read_flow
from holdfast.flows.spec import FlowSpec
from holdfast.starter.errors import FlowFailedError

_NODES = 150
_ROUNDS = 15


def _marked() -> FlowSpec:
    """A chain whose first node says when it begins, and whose last one does, and fails."""
    flow = chain_of(BenchStep, _NODES)
    for node in (flow.nodes[0], flow.nodes[-1]):
        node.type = BenchMark.type
    flow.nodes[-1].params = {"fails": True}
    return flow


async def resume() -> list[Line]:
    """From the caller's request to the node's first line. Every run goes on to its end before the next one begins: what
    is left to do of one would be counted with the other.

    The bar is against a fresh start with a definition that is in memory already. Against one that is read and checked
    from its text, as `holdfast run` and the API do for every start, it is told beside it; and so is what a fork takes,
    from the latest checkpoint, which is read and planned for, and from the one before it, which is looked up.
    """
    flow = _marked()
    text = yaml.safe_dump(flow.model_dump(mode="json"), sort_keys=False)
    async with stage() as on, on.flow_worker():
        # The first round does not count.
        failed = [await _failed(on, flow) for _ in range(_ROUNDS + 1)]
        transitions = (await on.holdfast.latest_checkpoint(failed[0])).sequence_number
        sides: dict[str, Callable[[str], Awaitable[str]]] = {
            "resume": on.holdfast.resume,
            "fresh": lambda _: on.holdfast.start(flow),
            "fresh_from_text": lambda _: on.holdfast.start(read_flow(text)),
            "fork": on.holdfast.fork,
            "fork_at": lambda run_id: on.holdfast.fork(f"{run_id}@{transitions - 2}"),
        }
        taken: dict[str, list[float]] = {side: [] for side in sides}
        for run_id in failed:
            for side, begin in sides.items():
                begun = time.perf_counter()
                started = await begin(run_id)
                taken[side].append(await BenchMark.first(started) - begun)
                await _ended(on, started)
    counted = {side: found[1:] for side, found in taken.items()}
    extra = {
        "transitions": transitions,
        "against_fresh_from_text": round(ratio(counted, "resume", "fresh_from_text"), 4),
        "fork": round(ratio(counted, "fork", "fresh"), 4),
        "fork_at": round(ratio(counted, "fork_at", "fresh"), 4),
        **times(counted),
    }
    return [Line("resume", ratio(counted, "resume", "fresh"), "x fresh start", "at most", 1.5, extra)]


async def _failed(on: Stage, flow: FlowSpec) -> str:
    run_id = await on.holdfast.start(flow)
    await _ended(on, run_id)
    return run_id


async def _ended(on: Stage, run_id: str) -> None:
    with contextlib.suppress(FlowFailedError):
        await on.holdfast.result(run_id)
