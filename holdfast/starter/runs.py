"""Runs as callers see them."""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field
from temporalio.client import WorkflowExecution, WorkflowExecutionStatus

from holdfast.checkpoints import values
from holdfast.checkpoints.models import RunnableStatus, RunStatus
from holdfast.contracts import names
from holdfast.contracts.calls import FlowResult
from holdfast.starter.starting import FLOW, STATUS


class RunInfo(BaseModel):
    """A run in a list."""

    run_id: str
    flow_id: str | None = None
    status: RunStatus
    started_at: datetime
    closed_at: datetime | None = None
    done: int = 0
    total: int = 0
    task_queue: str = ""


class PendingNode(BaseModel):
    """A node that runs, or waits for its next attempt, right now."""

    node_id: str
    attempt: int
    state: str
    worker: str | None = None
    last_failure: str | None = None
    next_attempt_at: datetime | None = None


class RunDetail(RunInfo):
    """A run with what it does at the moment, as Temporal knows it without asking a worker."""

    pending: list[PendingNode] = Field(default_factory=list[PendingNode])
    history_events: int = 0


class RunnableResult(BaseModel):
    """What a finished run gave: `output` maps a node's id to `{status, input, output, error}`."""

    status: RunnableStatus
    run_id: str
    input: Any = None
    output: dict[str, Any] = Field(default_factory=dict[str, Any])

    @classmethod
    def of(cls, result: FlowResult) -> "RunnableResult":
        """With real values in place of their marked form."""
        output = {
            node_id: {
                "status": outcome.status,
                "input": values.decode(outcome.input),
                "output": values.decode(outcome.output),
                "error": outcome.error,
            }
            for node_id, outcome in result.output.items()
        }
        succeeded = result.status == RunStatus.COMPLETED
        return cls(
            status=RunnableStatus.SUCCESS if succeeded else RunnableStatus.FAILURE,
            run_id=result.run_id,
            input=values.decode(result.checkpoint.get("original_input")),
            output=output,
        )


_CLOSED = {
    WorkflowExecutionStatus.COMPLETED: RunStatus.COMPLETED,
    WorkflowExecutionStatus.CANCELED: RunStatus.CANCELLED,
    WorkflowExecutionStatus.FAILED: RunStatus.FAILED,
    WorkflowExecutionStatus.TERMINATED: RunStatus.FAILED,
    WorkflowExecutionStatus.TIMED_OUT: RunStatus.FAILED,
}


def run_status(status: WorkflowExecutionStatus | None, attribute: str | None, events: int) -> RunStatus:
    """Temporal's status, refined by the run's own. A run whose first task nobody has done yet is pending."""
    if status is not None and status in _CLOSED:
        return _CLOSED[status]
    if attribute is not None and attribute != RunStatus.RUNNING:
        return RunStatus(attribute)
    return RunStatus.PENDING if events <= 2 else RunStatus.RUNNING


async def info_of(execution: WorkflowExecution) -> RunInfo:
    """A run as the visibility store has it."""
    attributes = execution.typed_search_attributes
    memo = await execution.memo()
    progress: dict[str, int] = memo.get(names.MEMO_PROGRESS, {})
    status = run_status(execution.status, attributes.get(STATUS), execution.history_length)
    total = progress.get("total", 0)
    return RunInfo(
        run_id=execution.id,
        flow_id=attributes.get(FLOW),
        status=status,
        started_at=execution.start_time,
        closed_at=execution.close_time,
        done=total if status == RunStatus.COMPLETED else progress.get("done", 0),
        total=total,
        task_queue=execution.task_queue,
    )
