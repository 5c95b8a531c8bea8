"""HoldfastClient: start runs, look at them, and go on from their checkpoints. Async; `Flow` is the sync way in."""

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from temporalio.api.failure.v1 import Failure
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError, TerminatedError
from temporalio.exceptions import CancelledError as TemporalCancelledError

from holdfast.checkpoints import values
from holdfast.checkpoints.diff import CheckpointDiff, diff
from holdfast.checkpoints.ledger import Transition
from holdfast.checkpoints.models import CheckpointSummary, FlowCheckpoint, RunStatus
from holdfast.checkpoints.node_history import NodeMoment, node_history
from holdfast.checkpoints.resuming import ResumePlan
from holdfast.checkpoints.serial import unseal, unseal_record
from holdfast.contracts import names
from holdfast.contracts.calls import FlowResult, FlowStart, RunConfig
from holdfast.contracts.people import AnswerMessage, AnswerReceipt, HumanAnswer
from holdfast.contracts.successor import shown
from holdfast.flows.check import ensure
from holdfast.flows.ids import split_checkpoint_id
from holdfast.flows.spec import FlowSpec
from holdfast.starter import cursors
from holdfast.starter.connecting import connect, ensure_search_attributes
from holdfast.starter.errors import FlowFailedError, NoSuchNodeError, RunCancelledError
from holdfast.starter.events import StreamEvent
from holdfast.starter.families import Member, family
from holdfast.starter.people import OpenRequest, People, quoted
from holdfast.starter.reader import RunReader
from holdfast.starter.rebuild import started_with
from holdfast.starter.runs import PendingNode, RunDetail, RunInfo, RunnableResult, info_of
from holdfast.starter.starting import start_run
from holdfast.starter.streaming import RunStream
from holdfast.starter.travel import Changes, Traveller


class HoldfastClient:
    """One connection to one namespace. Workers need not be up for reading or starting."""

    def __init__(self, client: Client, task_queue: str = names.DEFAULT_TASK_QUEUE) -> None:
        self.temporal = client
        self.task_queue = task_queue
        self._reader = RunReader(client)
        self.people = People(client, self._reader)
        self.travel = Traveller(client, self._reader, task_queue)

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
        run_id = run_id or f"{flow.id}-{uuid.uuid4()}"
        await start_run(self.temporal, self.task_queue, start, shown(start.flow), run_id)
        return run_id

    async def resume(
        self,
        checkpoint: str | FlowCheckpoint,
        *,
        flow: FlowSpec | None = None,
        input_data: Any = None,
        edits: Mapping[str, Any] | None = None,
        keep: Sequence[str] = (),
        key: str | None = None,
    ) -> str:
        """Starts the run that takes the place of one that has ended (a checkpoint's id, or a run's for its latest).

        What had completed is not executed again. The definition is the one given, or the one the run had. A run is
        resumed once: AlreadyResumedError names the run that is its successor. The same `key` again is the same resume.
        """
        changes = Changes(flow=flow, input_data=input_data, edits=edits or {}, keep=keep)
        return (await self.travel.resume(checkpoint, changes, key)).run_id

    async def fork(
        self,
        checkpoint: str | FlowCheckpoint,
        *,
        flow: FlowSpec | None = None,
        input_data: Any = None,
        edits: Mapping[str, Any] | None = None,
        keep: Sequence[str] = (),
        run_id: str | None = None,
        key: str | None = None,
    ) -> str:
        """Starts a run of its own from a checkpoint of any run, also of one that goes on."""
        changes = Changes(flow=flow, input_data=input_data, edits=edits or {}, keep=keep)
        return (await self.travel.fork(checkpoint, changes, run_id=run_id, key=key)).run_id

    async def rerun(
        self,
        checkpoint: str | FlowCheckpoint,
        node_id: str | Sequence[str],
        *,
        only_failed: bool = False,
        flow: FlowSpec | None = None,
        run_id: str | None = None,
        key: str | None = None,
    ) -> str:
        """A fork that does nodes, and all that comes after them, again; of maps, with `only_failed`, what failed."""
        rerun = [node_id] if isinstance(node_id, str) else node_id
        changes = Changes(flow=flow, rerun=rerun, only_failed=only_failed)
        return (await self.travel.fork(checkpoint, changes, run_id=run_id, key=key)).run_id

    async def plan(
        self,
        checkpoint: str | FlowCheckpoint,
        *,
        flow: FlowSpec | None = None,
        input_data: Any = None,
        edits: Mapping[str, Any] | None = None,
        keep: Sequence[str] = (),
        rerun: Sequence[str] = (),
        only_failed: bool = False,
        resume: bool = False,
    ) -> ResumePlan:
        """What would become of each node in such a fork or rerun, or with `resume` in a resume; nothing is started."""
        changes = Changes(flow, input_data, edits or {}, rerun, only_failed, keep)
        return await self.travel.plan(checkpoint, changes, resume=resume)

    async def result(self, run_id: str) -> RunnableResult:
        """Waits for the run to end. FlowFailedError or RunCancelledError when it did not end well."""
        handle = self.temporal.get_workflow_handle(run_id, result_type=FlowResult)
        while True:
            try:
                return RunnableResult.of(await handle.result())
            except WorkflowFailureError as failure:
                # Temporal's reset ends an execution, too, and the run goes on in another one.
                if not isinstance(failure.cause, TerminatedError) or await self._is_terminated(run_id):
                    raise await self._failure(run_id, failure.cause) from failure

    async def _is_terminated(self, run_id: str) -> bool:
        return (await self._reader.describe(run_id)).status == WorkflowExecutionStatus.TERMINATED

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
        info = await info_of(description)
        pending = [
            PendingNode(
                node_id=activity.activity_id,
                attempt=activity.attempt,
                state="running"
                if activity.last_worker_identity and activity.HasField("last_started_time")
                else "queued",
                worker=activity.last_worker_identity or None,
                last_failure=await self._said(activity.last_failure),
                next_attempt_at=activity.scheduled_time.ToDatetime() if activity.HasField("scheduled_time") else None,
            )
            for activity in description.raw_description.pending_activities
        ]
        return RunDetail(**info.model_dump(), pending=pending, history_events=description.history_length)

    async def _said(self, failure: Failure) -> str | None:
        if not failure.message:
            return None
        error = await self.temporal.data_converter.decode_failure(failure)
        return getattr(error, "message", None) or str(error)

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
        # A run that was continued has several executions, of which the last one is the run.
        conditions = [
            f"WorkflowType = '{names.FLOW_RUN}'", "ParentWorkflowId IS NULL", "ExecutionStatus != 'ContinuedAsNew'",
        ]  # fmt: skip
        if flow_id is not None:
            conditions.append(f"{names.ATTRIBUTE_FLOW} = '{quoted(flow_id)}'")
        if status is not None:
            conditions.append(_status_condition(status))
        token = cursors.read(cursor)
        pages = self.temporal.list_workflows(
            " AND ".join(conditions), page_size=min(limit, 1000), next_page_token=token
        )
        await pages.fetch_next_page()
        found = [await info_of(execution) for execution in pages.current_page or []]
        return found, cursors.write(pages.next_page_token)

    async def latest_checkpoint(self, run_id: str) -> FlowCheckpoint:
        return unseal(await self._reader.latest(run_id))

    async def get_checkpoint(self, checkpoint_id: str) -> FlowCheckpoint:
        """By checkpoint id; a run's id means its latest."""
        return unseal(await self._checkpoint(checkpoint_id))

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

    async def diff(self, left: str, right: str) -> CheckpointDiff:
        """What is different between two checkpoints, of one run or of two; a run's id means its latest."""
        found = [unseal_record(await self._checkpoint(checkpoint)) for checkpoint in (left, right)]
        return diff(found[0], found[1])

    async def node_history(self, run_id: str, path: str, field: str | None = None) -> list[NodeMoment]:
        """How a node, or one field of it, changed through a run."""
        await self._reader.describe(run_id)
        base, transitions = await self._reader.story(run_id)
        try:
            return node_history(base, transitions, path, field)
        except (LookupError, ValueError) as error:
            raise NoSuchNodeError(run_id, str(error)) from error

    async def tree(self, run_id: str) -> list[Member]:
        """The family of a run: what was resumed, forked and rerun from what."""
        return await family(self.temporal, self._reader, run_id)

    async def _checkpoint(self, checkpoint_id: str) -> dict[str, Any]:
        run, seq = split_checkpoint_id(checkpoint_id)
        return await (self._reader.latest(run) if seq is None else self._reader.at(run, seq))

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
