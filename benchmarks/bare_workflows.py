"""The bare side: what somebody who uses Temporal without Holdfast would write."""

import asyncio
from datetime import timedelta

from temporalio import workflow

with workflow.unsafe.imports_passed_through():
    from benchmarks.steps import Step, bare_step

_TIMEOUT = timedelta(minutes=1)


@workflow.defn
class BareChain:
    """Activities in sequence, each with the result of the one before."""

    @workflow.run
    async def run(self, count: int) -> Step:
        step = Step()
        for _ in range(count):
            step = await workflow.execute_activity(bare_step, step, start_to_close_timeout=_TIMEOUT)
        return step


@workflow.defn
class BareFanout:
    """Activities side by side, and their results together."""

    @workflow.run
    async def run(self, count: int) -> list[Step]:
        return await asyncio.gather(
            *(workflow.execute_activity(bare_step, Step(), start_to_close_timeout=_TIMEOUT) for _ in range(count))
        )
