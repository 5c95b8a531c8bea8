"""A workflow that imports what it should not: for showing that the strict policy notices."""

from temporalio import workflow

import holdfast.starter.errors


@workflow.defn
class Careless:
    @workflow.run
    async def run(self) -> str:
        return holdfast.starter.errors.__name__
