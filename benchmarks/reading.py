"""read: the latest checkpoint of a closed run, without a worker, against a query that has to replay the run."""

from benchmarks.measuring import Line, alternate, ratio, times
from benchmarks.stage import Stage, stage
from benchmarks.stepping import chain_of
from benchmarks.steps import BenchStep
from holdfast.checkpoints.models import FlowCheckpoint
from holdfast.checkpoints.serial import unseal
from holdfast.contracts import names

_NODES = 50
_RUN = "closed-run"


async def _prepare(on: Stage) -> int:
    """Runs the flow on a worker that is gone afterwards; says how many events it has."""
    async with on.flow_worker():
        await on.run_flow(chain_of(BenchStep, _NODES), _RUN)
    return len((await on.client.get_workflow_handle(_RUN).fetch_history()).events)


def _is_whole(checkpoint: FlowCheckpoint) -> None:
    assert checkpoint.get_node_output(f"step-{_NODES}")["number"] == _NODES


async def read() -> list[Line]:
    """The worker that answers keeps nothing in its cache, so every query replays; it is warm in all other respects."""
    async with stage() as on:
        events = await _prepare(on)
        handle = on.client.get_workflow_handle(_RUN)

        async def latest() -> None:
            _is_whole(await on.holdfast.latest_checkpoint(_RUN))

        async def by_query() -> None:
            _is_whole(unseal(await handle.query(names.QUERY_CHECKPOINT)))

        async with on.flow_worker(max_cached_workflows=0):
            taken = await alternate({"read": latest, "query": by_query}, rounds=9)
    extra = {"events": events, **times(taken)}
    return [Line("read", ratio(taken, "read", "query"), "x uncached query", "at most", 0.2, extra)]
