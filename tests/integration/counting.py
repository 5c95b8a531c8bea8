"""Counts what workers execute, by an interceptor around all of their activities."""

from collections import Counter, defaultdict
from typing import Any

from temporalio import activity
from temporalio.client import Interceptor as ClientInterceptor
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput
from temporalio.worker import Interceptor as WorkerInterceptor

from holdfast.contracts.calls import PureBatch
from holdfast.flows.kinds import INLINE

Executions = dict[str, Counter[str]]


class Counting(ClientInterceptor, WorkerInterceptor):
    """Notes every execution of a worker, by run. A client's interceptor is its workers' as well."""

    def __init__(self) -> None:
        self.executions: Executions = defaultdict(Counter[str])

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _Counted(next, self.executions)


class _Counted(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, executions: Executions) -> None:
        super().__init__(following)
        self._executions = executions

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        info = activity.info()
        (call,) = input.args
        names = [info.activity_id]
        if isinstance(call, PureBatch):
            # A choice is decided wherever it is: in a batch, or in the workflow itself.
            names = [node.id for node in call.nodes if node.type not in INLINE]
        self._executions[str(info.workflow_id)].update(names)
        return await super().execute_activity(input)
