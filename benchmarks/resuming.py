"""resume: from the request to the first new activity, of a run with 300 transitions, against a fresh start of it."""

import contextlib
import time

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
    from its text, as `holdfast run` and the API do for every start, it is told beside it.
    """
    flow = _marked()
    text = yaml.safe_dump(flow.model_dump(mode="json"), sort_keys=False)
    async with stage() as on, on.flow_worker():
        # The first round does not count.
        failed = [await _failed(on, flow) for _ in range(_ROUNDS + 1)]
        transitions = (await on.holdfast.latest_checkpoint(failed[0])).sequence_number
        taken: dict[str, list[float]] = {"resume": [], "fresh": [], "fresh_from_text": []}
        for run_id in failed:
            begun = time.perf_counter()
            resumed = await on.holdfast.resume(run_id)
            taken["resume"].append(await BenchMark.first(resumed) - begun)
            await _ended(on, resumed)
            for side in ("fresh", "fresh_from_text"):
                begun = time.perf_counter()
                started = await on.holdfast.start(flow if side == "fresh" else read_flow(text))
                taken[side].append(await BenchMark.first(started) - begun)
                await _ended(on, started)
    counted = {side: found[1:] for side, found in taken.items()}
    extra = {
        "transitions": transitions,
        "against_fresh_from_text": round(ratio(counted, "resume", "fresh_from_text"), 4),
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
