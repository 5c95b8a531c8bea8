"""HoldfastClient: start runs, look at them, and go on from their checkpoints. Async; `Flow` is the sync way in."""

import uuid
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowFailureError,
)
from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes, WorkflowIDReusePolicy
from temporalio.exceptions import ApplicationError, WorkflowAlreadyStartedError
from temporalio.exceptions import CancelledError as TemporalCancelledError

from holdfast.checkpoints import values
from holdfast.checkpoints.ledger import Transition
from holdfast.checkpoints.models import CheckpointRecord, CheckpointSummary, FlowCheckpoint, RunStatus
from holdfast.checkpoints.serial import seal, unseal, unseal_record
from holdfast.contracts import names
from holdfast.contracts.calls import FlowResult, FlowStart, RunConfig
from holdfast.contracts.people import AnswerMessage, AnswerReceipt, HumanAnswer
from holdfast.flows.check import ensure
from holdfast.flows.ids import split_checkpoint_id
from holdfast.flows.spec import FlowSpec
from holdfast.starter import cursors
from holdfast.starter.connecting import connect, ensure_search_attributes
from holdfast.starter.errors import FlowFailedError, RunActiveError, RunCancelledError, RunExistsError
from holdfast.starter.events import StreamEvent
from holdfast.starter.people import OpenRequest, People, quoted
from holdfast.starter.reader import RunReader
from holdfast.starter.rebuild import started_with
from holdfast.starter.runs import PendingNode, RunDetail, RunInfo, RunnableResult, run_status
from holdfast.starter.streaming import RunStream

_STATUS = SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATUS)
_FLOW = SearchAttributeKey.for_keyword(names.ATTRIBUTE_FLOW)


class HoldfastClient:
    """One connection to one namespace. Workers need not be up for reading or starting."""

    def __init__(self, client: Client, task_queue: str = names.DEFAULT_TASK_QUEUE) -> None:
        self.temporal = client
        self.task_queue = task_queue
        self._reader = RunReader(client)
        self.people = People(client, self._reader)

    @classmethod
    async def connect(
        cls, address: str | None = None, namespace: str | None = None, task_queue: str = names.DEFAULT_TASK_QUEUE
    ) -> "HoldfastClient":
        """Connects by Temporal's own settings where none are given, and registers our search attributes."""
        client = await connect(address, namespace)
        await ensure_search_attributes(client)
        return cls(client, task_queue)

    async def start(
        self, flow: FlowSpec, input_data: Any = None, *, run_id: str | None = None, config: RunConfig | None = None
    ) -> str:
        """Starts a run and returns its id. Everything that can be wrong with the definition is said first."""
        start = FlowStart(
            flow=ensure(flow), input_data=values.encode(input_data, "input"), config=config or RunConfig()
        )
        return await self._start(start, run_id)

    async def resume(
        self,
        checkpoint: str | FlowCheckpoint,
        *,
        flow: FlowSpec | None = None,
        input_data: Any = None,
        run_id: str | None = None,
    ) -> str:
        """Starts a new run from a checkpoint (its id, a run's id for the latest, or the checkpoint itself).

        What had completed is not executed again. The definition is the one given, or the one the run had.
        """
        record = await self._record(checkpoint)
        source = await started_with(self.temporal, record.run_id) if flow is None else None
        definition = flow or (source.flow if source is not None else None)
        assert definition is not None
        start = FlowStart(
            flow=ensure(definition),
            input_data=values.encode(input_data, "input"),
            config=source.config if source is not None else RunConfig(),
            base=record,
            resumed_from=record.id,
            # The same keys for the same work: an effect whose reply was lost is not had twice.
            key_base=(record.metadata.get("key_base") or record.run_id) if input_data is None else None,
        )
        return await self._start(start, run_id)

    async def _record(self, checkpoint: str | FlowCheckpoint) -> CheckpointRecord:
        if isinstance(checkpoint, FlowCheckpoint):
            return unseal_record(seal(checkpoint))
        run, seq = split_checkpoint_id(checkpoint)
        if (await self._reader.status(run)) == WorkflowExecutionStatus.RUNNING:
            raise RunActiveError(run)
        return unseal_record(await (self._reader.latest(run) if seq is None else self._reader.at(run, seq)))

    async def _start(self, start: FlowStart, run_id: str | None) -> str:
        flow = start.flow
        run_id = run_id or f"{flow.id}-{uuid.uuid4()}"
        try:
            await self.temporal.start_workflow(
                names.FLOW_RUN,
                start,
                id=run_id,
                task_queue=self.task_queue,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                search_attributes=TypedSearchAttributes(
                    [SearchAttributePair(_FLOW, flow.id), SearchAttributePair(_STATUS, RunStatus.RUNNING)]
                ),
                memo={names.MEMO_PROGRESS: {"done": 0, "total": len(flow.nodes), "skipped": 0, "failed": 0}},
                static_summary=(flow.name or flow.id)[:200],
                static_details=_details(flow),
                request_eager_start=True,
            )
        except WorkflowAlreadyStartedError as error:
            raise RunExistsError(run_id) from error
        return run_id

    async def result(self, run_id: str) -> RunnableResult:
        """Waits for the run to end. FlowFailedError or RunCancelledError when it did not end well."""
        handle = self.temporal.get_workflow_handle(run_id, result_type=FlowResult)
        try:
            return RunnableResult.of(await handle.result())
        except WorkflowFailureError as failure:
            raise await self._failure(run_id, failure.cause) from failure

    async def _failure(self, run_id: str, cause: BaseException) -> Exception:
        if isinstance(cause, TemporalCancelledError):
            return RunCancelledError(run_id)
        if isinstance(cause, ApplicationError) and cause.type == names.FLOW_FAILED and cause.details:
            result = FlowResult.model_validate(cause.details[0])
            error = result.checkpoint.get("metadata", {}).get("error", {})
            return FlowFailedError(run_id, cause.message, error, result.checkpoint.get("id"))
        return FlowFailedError(run_id, str(cause))

    async def run(self, flow: FlowSpec, input_data: Any = None, **options: Any) -> RunnableResult:
        """Starts a run and waits for its end."""
        return await self.result(await self.start(flow, input_data, **options))

    async def inbox(self, run_id: str | None = None, to: str | None = None, limit: int = 50) -> list[OpenRequest]:
        """The questions that wait for an answer, of all runs, newest first, or of one and what is inside it."""
        return await self.people.inbox(run_id, to, limit)

    async def send_input(
        self,
        run_id: str,
        data: HumanAnswer | Mapping[str, Any],
        *,
        request_id: str | None = None,
        entity_id: str | None = None,
        by: str | None = None,
        key: str | None = None,
    ) -> AnswerReceipt:
        """Answers a question of a run: the one named, the one of the node `entity_id`, or the only one that is open.

        AnswerRefusedError when it is not taken. The same `key` again is the same answer.
        """
        answer = data if isinstance(data, HumanAnswer) else HumanAnswer.model_validate(values.encode(dict(data)))
        message = AnswerMessage(request_id=request_id, entity_id=entity_id, data=answer, by=by)
        return await self.people.answer(run_id, message, key=key)

    async def pause(self, run_id: str, by: str | None = None) -> None:
        """Lets nothing new begin in a run; what is in flight ends. `continue_run` lets it go on."""
        await self.people.pause(run_id, by)

    async def continue_run(self, run_id: str, by: str | None = None) -> None:
        await self.people.go_on(run_id, by)

    async def cancel(self, run_id: str) -> None:
        """Asks a run to end. What has completed stays in its last checkpoint."""
        await self._reader.describe(run_id)
        await self.temporal.get_workflow_handle(run_id).cancel()

    async def get_run(self, run_id: str) -> RunDetail:
        """What Temporal knows of a run, without a worker."""
        description = await self._reader.describe(run_id)
        info = await _info(description)
        pending = [
            PendingNode(
                node_id=activity.activity_id,
                attempt=activity.attempt,
                state="running"
                if activity.last_worker_identity and activity.HasField("last_started_time")
                else "queued",
                worker=activity.last_worker_identity or None,
                last_failure=activity.last_failure.message or None,
                next_attempt_at=activity.scheduled_time.ToDatetime() if activity.HasField("scheduled_time") else None,
            )
            for activity in description.raw_description.pending_activities
        ]
        return RunDetail(**info.model_dump(), pending=pending, history_events=description.history_length)

    async def list_runs(
        self, flow_id: str | None = None, status: RunStatus | None = None, limit: int = 50
    ) -> list[RunInfo]:
        """Runs, newest first, from Temporal's visibility store. Flows inside a run are found through it."""
        found, cursor = await self.page_of_runs(flow_id, status, limit)
        while cursor is not None and len(found) < limit:
            more, cursor = await self.page_of_runs(flow_id, status, limit - len(found), cursor)
            found += more
        return found

    async def page_of_runs(
        self, flow_id: str | None = None, status: RunStatus | None = None, limit: int = 50, cursor: str | None = None
    ) -> tuple[list[RunInfo], str | None]:
        """A page of runs, newest first, and the cursor of the next one. ValueError when the cursor is none of ours."""
        conditions = [f"WorkflowType = '{names.FLOW_RUN}'", "ParentWorkflowId IS NULL"]
        if flow_id is not None:
            conditions.append(f"{names.ATTRIBUTE_FLOW} = '{quoted(flow_id)}'")
        if status is not None:
            conditions.append(_status_condition(status))
        token = cursors.read(cursor)
        pages = self.temporal.list_workflows(
            " AND ".join(conditions), page_size=min(limit, 1000), next_page_token=token
        )
        await pages.fetch_next_page()
        found = [await _info(execution) for execution in pages.current_page or []]
        return found, cursors.write(pages.next_page_token)

    async def latest_checkpoint(self, run_id: str) -> FlowCheckpoint:
        return unseal(await self._reader.latest(run_id))

    async def get_checkpoint(self, checkpoint_id: str) -> FlowCheckpoint:
        """By checkpoint id; a run's id means its latest."""
        run, seq = split_checkpoint_id(checkpoint_id)
        return unseal(await (self._reader.latest(run) if seq is None else self._reader.at(run, seq)))

    async def list_checkpoints(self, run_id: str, limit: int | None = None) -> list[CheckpointSummary]:
        """A run's checkpoints, newest first."""
        return (await self._reader.summaries(run_id))[:limit]

    async def transitions(self, run_id: str, after: int = 0) -> list[Transition]:
        """What happened in a run, oldest first."""
        return await self._reader.transitions(run_id, after)

    def follow(self, run_id: str, after: int = 0) -> AsyncGenerator[Transition]:
        """Transitions as they happen, until the run ends."""
        return self._reader.follow(run_id, after)

    def stream(self, run_id: str, after: int = 0, *, tokens: bool = False) -> AsyncGenerator[StreamEvent]:
        """Numbered events after `after`, as they happen, until the run ends; with `tokens`, partial texts too."""
        return RunStream(self.temporal, self._reader, run_id).events(after, tokens=tokens)

    async def create_run(self, flow: FlowSpec, input_data: Any = None, **options: Any) -> str:
        """Another name for `start`."""
        return await self.start(flow, input_data, **options)

    async def resume_run(self, checkpoint: str | FlowCheckpoint, **options: Any) -> str:
        """Another name for `resume`."""
        return await self.resume(checkpoint, **options)

    async def definition(self, run_id: str) -> FlowSpec:
        """The flow as the run was started with."""
        await self._reader.describe(run_id)
        return (await started_with(self.temporal, run_id)).flow


def _status_condition(status: RunStatus) -> str:
    closed = {
        RunStatus.COMPLETED: "ExecutionStatus = 'Completed'",
        RunStatus.CANCELLED: "ExecutionStatus = 'Canceled'",
        RunStatus.FAILED: "ExecutionStatus IN ('Failed', 'Terminated', 'TimedOut')",
    }
    if status in closed:
        return closed[status]
    # A run that no worker has taken up yet is listed with those that run.
    attribute = RunStatus.RUNNING if status == RunStatus.PENDING else status
    return f"ExecutionStatus = 'Running' AND {names.ATTRIBUTE_STATUS} = '{attribute}'"


async def _info(execution: WorkflowExecution) -> RunInfo:
    attributes = execution.typed_search_attributes
    memo = await execution.memo()
    progress: dict[str, int] = memo.get(names.MEMO_PROGRESS, {})
    status = run_status(execution.status, attributes.get(_STATUS), execution.history_length)
    total = progress.get("total", 0)
    return RunInfo(
        run_id=execution.id,
        flow_id=attributes.get(_FLOW),
        status=status,
        started_at=execution.start_time,
        closed_at=execution.close_time,
        done=total if status == RunStatus.COMPLETED else progress.get("done", 0),
        total=total,
        task_queue=execution.task_queue,
    )


def _details(flow: FlowSpec) -> str:
    """Markdown for the Temporal Web UI."""
    lines = [flow.description or f"Flow `{flow.id}`", "", "| node | type | after |", "| --- | --- | --- |"]
    for node in flow.nodes[:50]:
        after = ", ".join(dependency.node for dependency in node.depends)
        lines.append(f"| {node.id} | {node.type} | {after} |")
    if len(flow.nodes) > 50:
        lines.append(f"\n… and {len(flow.nodes) - 50} more nodes")
    return "\n".join(lines)
