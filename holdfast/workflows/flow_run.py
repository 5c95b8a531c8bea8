"""FlowRun: one run of one flow. The event history is the checkpoint; there is no other copy.

It decides nothing: the engine does, and this binds it to Temporal. It fits into the sandbox, where everything it
imports is passed through; our own workers run it outside (docs/decisions/0010).
"""

import asyncio
import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from pydantic import ValidationError

    from holdfast.checkpoints.ledger import (
        InputReceived,
        InputRequested,
        Ledger,
        RunContinued,
        RunPaused,
        RunStarted,
        Transition,
    )
    from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus, RunStatus
    from holdfast.checkpoints.resuming import ResumePlan, plan_resume, rebase
    from holdfast.checkpoints.serial import seal
    from holdfast.checkpoints.validation import InvalidCheckpointError, ensure_valid
    from holdfast.contracts import names
    from holdfast.contracts.calls import (
        CheckpointQuery,
        ChildMessage,
        FlowResult,
        FlowStart,
        ListQuery,
        PauseMessage,
        Started,
    )
    from holdfast.contracts.people import AnswerReceipt, message_from
    from holdfast.contracts.progress import Progress
    from holdfast.contracts.results import pack
    from holdfast.contracts.successor import Successor, successor_of
    from holdfast.engine.inbox import Inbox, RefusedError
    from holdfast.engine.scheduler import FlowDriver
    from holdfast.flows.check import ensure
    from holdfast.flows.faults import FlowDefinitionError
    from holdfast.workflows.ports import TemporalPorts

_STATUS = SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATUS)
_REQUESTS = SearchAttributeKey.for_keyword_list(names.ATTRIBUTE_REQUESTS)
_FLOW = SearchAttributeKey.for_keyword(names.ATTRIBUTE_FLOW)
_FAMILY = SearchAttributeKey.for_keyword(names.ATTRIBUTE_FAMILY)
_PROGRESS_SECONDS = 10
_MOST_LISTED = 40
_LARGEST_LISTED = 4_000
_LARGEST_SNAPSHOT = 200_000
_IMPORT = "import"
"""Temporal's own limits are 2 KB for one search attribute and 2 MiB for the memo."""


@workflow.defn(name=names.FLOW_RUN)
class FlowRun:
    """Started with one `FlowStart`, by anyone, from any Temporal SDK."""

    @workflow.init
    def __init__(self, start: Any) -> None:
        self._fault: str | None = None
        # Plain data, checked here: a start that does not fit must fail the run, not its task for ever.
        try:
            self._start = FlowStart.model_validate(start)
            ensure(self._start.flow)
            if self._start.base is not None:
                ensure_valid(self._start.base)
        except (ValidationError, FlowDefinitionError, InvalidCheckpointError) as error:
            self._fault = str(error)
            return
        self._run_id = workflow.info().workflow_id
        self._key_base = self._start.key_base or self._run_id
        base = self._base()
        self._ledger = Ledger(base)
        self._inbox = Inbox(self._ledger, list(self._start.kept_answers), workflow.now)
        self._driver: FlowDriver | None = None
        self._pausing: PauseMessage | None = None
        self._waiting_children: list[str] = []
        self._waits = bool(base.pending_inputs)
        self._telling: list[asyncio.Task[None]] = []
        self._snapshot_seq: int | None = None
        self._progress = Progress(self._start.flow, base)
        self._progress_at: datetime = workflow.now()

    def _base(self) -> CheckpointRecord:
        """What the run starts from: nothing, another run's checkpoint, or where its last execution stopped."""
        start, flow = self._start, self._start.flow
        if start.base is None:
            began, parent = workflow.info().start_time, workflow.info().parent
            return CheckpointRecord(
                flow_id=flow.id,
                run_id=self._run_id,
                workflow_id=self._run_id,
                pending_node_ids=[node.id for node in flow.nodes],
                original_input=start.input_data,
                original_config={
                    "checkpoint": flow.checkpoint.model_dump(mode="json"),
                    "run": start.config.model_dump(mode="json"),
                },
                created_at=began,
                updated_at=began,
                metadata={
                    "creation_time": began.isoformat(),
                    "key_base": self._key_base,
                    **({"parent_run_id": parent.workflow_id} if parent is not None else {}),
                },
                parent_checkpoint_id=start.parent_checkpoint_id,
            )
        if start.resumed_from is None:
            return start.base
        base = rebase(start.base, flow, self._run_id)
        base.workflow_id = self._run_id
        self._name_keys(base)
        if start.input_data is not None:
            base.original_input = start.input_data
        if (parent := workflow.info().parent) is not None:
            base.metadata["parent_run_id"] = parent.workflow_id
        return base

    def _name_keys(self, base: CheckpointRecord) -> None:
        """Work that goes on keeps the keys it had; work that is new because of a change has this run's."""
        known = base.metadata if base.metadata.get("key_base") == self._key_base else {}
        fresh = dict.fromkeys((self._start.plan or ResumePlan()).fresh, self._run_id)
        base.metadata["key_base"] = self._key_base
        if bases := {**known.get("key_bases", {}), **fresh}:
            base.metadata["key_bases"] = bases
        else:
            base.metadata.pop("key_bases", None)

    @workflow.run
    async def run(self, start: Any) -> FlowResult:
        if self._fault is not None:
            raise ApplicationError(self._fault, type=names.FLOW_DEFINITION, non_retryable=True)
        self._announce()
        self._open()
        if self._ledger.state.pending_inputs:
            # A new execution of the same run: what was put into the memo has not come with it.
            self._tell()
        ports = TemporalPorts(self._start.config, self._recorded, self._inbox, self._at_rest)
        self._driver = driver = FlowDriver(self._start.flow, self._ledger, ports, self._key_base, self._start.children)
        if self._start.paused and self._pausing is None:
            driver.pause(_IMPORT)
        if self._pausing is not None:
            driver.pause(self._pausing.by)
        try:
            finished = await driver.run()
        except asyncio.CancelledError:
            if ports.is_cancelled():
                self._rest(RunStatus.CANCELLED)
            raise
        if not finished:
            # Whoever has been told that an answer is taken, or kept, was told the truth: no handler is left behind.
            await workflow.wait_condition(workflow.all_handlers_finished)
            snapshot: dict[str, Any] = {
                "base": self._ledger.at(),
                "resumed_from": None,
                "plan": None,
                "paused": False,
                "input_data": None,
                "key_base": self._key_base,
                "kept_answers": self._inbox.carried(),
            }
            workflow.continue_as_new(self._start.model_copy(update=snapshot))
        return self._close()

    def _announce(self) -> None:
        """Our own starters have set these already; somebody else's client need not know of them."""
        known, status = workflow.info().typed_search_attributes, self._status()
        if known.get(_FLOW) != self._start.flow.id or known.get(_STATUS) != status:
            _upsert([_FLOW.value_set(self._start.flow.id), _STATUS.value_set(status)])

    def _open(self) -> None:
        resumed_from = self._start.resumed_from
        if self._start.base is None:
            self._take(RunStarted(at=workflow.now()))
        elif resumed_from is not None:
            plan = self._start.plan or plan_resume(self._start.flow, self._start.base)
            self._take(plan.transition(resumed_from, workflow.now()))

    def _take(self, transition: Transition) -> None:
        self._ledger.record(transition)
        self._recorded(transition)

    def _recorded(self, transition: Transition) -> None:
        self._progress.note(transition)
        if self._snapshot_seq is not None:
            # It was at rest, and its snapshot is old now.
            self._snapshot_seq = None
            workflow.upsert_memo({names.MEMO_SNAPSHOT: None})
        if isinstance(transition, InputRequested | InputReceived | RunPaused | RunContinued):
            self._tell()
        workflow.set_current_details(self._progress.markdown())
        now = workflow.now()
        # Seen in lists without a worker; seldom enough that a long run's history hardly notices.
        if (now - self._progress_at).total_seconds() >= _PROGRESS_SECONDS:
            self._progress_at = now
            workflow.upsert_memo({names.MEMO_PROGRESS: self._progress.counts()})

    def _tell(self) -> None:
        """Says whom the run waits for where it is found without a worker: by those who list, and by the outer run."""
        requests = list(self._ledger.state.pending_inputs.values())[:_MOST_LISTED]
        waits = bool(requests or self._waiting_children)
        _upsert([_STATUS.value_set(self._status()), _REQUESTS.value_set([request["id"] for request in requests])])
        workflow.upsert_memo({names.MEMO_REQUESTS: [_listed(request) for request in requests] or None})
        parent = workflow.info().parent
        if parent is not None and self._start.parent_checkpoint_id is not None and waits != self._waits:
            self._telling.append(asyncio.create_task(self._tell_parent(parent.workflow_id, waits)))
        self._waits = waits

    def _status(self) -> RunStatus:
        state = self._ledger.state
        if "paused" in state.metadata:
            return RunStatus.PAUSED
        return RunStatus.PENDING_INPUT if state.pending_inputs or self._waiting_children else RunStatus.RUNNING

    async def _tell_parent(self, parent: str, waits: bool) -> None:
        told = ChildMessage(run_id=self._run_id, waits=waits)
        try:
            await workflow.get_external_workflow_handle(parent).signal(names.SIGNAL_CHILD, told)
        except ApplicationError:
            # The outer run has ended; nobody there waits to be told.
            workflow.logger.debug("the outer run %s is gone", parent)

    def _at_rest(self) -> None:
        """Nothing is in flight and people are awaited: the checkpoint is left where it can be read for weeks."""
        state = self._ledger.state
        if state.status not in (CheckpointStatus.PENDING_INPUT, CheckpointStatus.PAUSED):
            return
        if self._snapshot_seq == state.sequence_number:
            return
        snapshot = seal(self._ledger.at())
        if len(json.dumps(snapshot)) <= _LARGEST_SNAPSHOT:
            self._snapshot_seq = state.sequence_number
            workflow.upsert_memo({names.MEMO_SNAPSHOT: snapshot})

    @workflow.signal(name=names.SIGNAL_INPUT, description="An answer: {entity_id, data: {is_approved, feedback}}")
    def provide_input(self, message: Any) -> None:
        # May come twice, or before its question. Whoever sends a signal gets no answer; the log has the reason.
        if self._fault is not None:
            return
        try:
            self._inbox.take(message_from(message))
        except (ValueError, TypeError, RefusedError) as error:
            workflow.logger.warning("an answer was not taken: %s", error)

    @workflow.update(name=names.UPDATE_ANSWER, description="The same, and says what became of it")
    def answer(self, message: Any) -> AnswerReceipt:
        try:
            return self._inbox.take(message_from(message))
        except RefusedError as error:
            raise _refused(error) from error

    @answer.validator
    def _judge_answer(self, message: Any) -> None:
        if self._fault is not None:
            raise ApplicationError(self._fault, type=names.ANSWER_REFUSED, non_retryable=True)
        try:
            self._inbox.judge(message_from(message))
        except (ValueError, TypeError, RefusedError) as error:
            raise _refused(error) from error

    @workflow.signal(name=names.SIGNAL_PAUSE, description="Lets nothing new begin: {by}")
    def pause(self, message: Any = None) -> None:
        self._pausing = PauseMessage.model_validate(message or {})
        if self._driver is not None:
            self._driver.pause(self._pausing.by)

    @workflow.signal(name=names.SIGNAL_CONTINUE, description="Lets a paused run go on: {by}")
    def go_on(self, message: Any = None) -> None:
        self._pausing = None
        if self._driver is not None:
            self._driver.unpause(PauseMessage.model_validate(message or {}).by)

    @workflow.signal(name=names.SIGNAL_CHILD, description="A flow inside this run waits for a person, or no more")
    def child_waits(self, message: ChildMessage) -> None:
        if self._fault is not None or self._driver is None:
            return
        others = [name for name in self._waiting_children if name != message.run_id]
        self._waiting_children = [*others, message.run_id] if message.waits else others
        self._driver.child_waits(message.run_id, waits=message.waits)
        self._tell()

    def _rest(self, status: RunStatus) -> None:
        """Leaves what people ask for where it is found without a worker and without a replay.

        A completed run's progress is known, and its checkpoint is in its result: nothing more is written for it.
        """
        memo: dict[str, Any] = {names.MEMO_PROGRESS: self._progress.counts()}
        if status == RunStatus.CANCELLED:
            memo[names.MEMO_SNAPSHOT] = seal(self._ledger.at())
        if status != RunStatus.COMPLETED or names.MEMO_PROGRESS not in workflow.info().raw_memo:
            workflow.upsert_memo(memo)
        gone = [_REQUESTS.value_unset()] if workflow.info().typed_search_attributes.get(_REQUESTS) is not None else []
        _upsert([_STATUS.value_set(status), *gone])

    def _close(self) -> FlowResult:
        state = self._ledger.state
        completed = state.status == CheckpointStatus.COMPLETED
        status = RunStatus.COMPLETED if completed else RunStatus.FAILED
        self._rest(status)
        result = pack(state, status)
        if completed:
            return result
        info = workflow.info()
        result.started = Started(
            flow=self._start.flow,
            config=self._start.config,
            outer=info.root.workflow_id if info.root is not None and info.parent is not None else None,
            family=info.typed_search_attributes.get(_FAMILY),
        )
        error = state.metadata["error"]
        message = f"node {error['node_id']!r} failed: {error.get('message', 'unknown error')}"
        # A flow inside another one is not resumed by itself.
        left = None if info.parent is not None else self._successor()
        raise ApplicationError(message, result, *(left or ()), type=names.FLOW_FAILED, non_retryable=True)

    def _successor(self) -> tuple[Successor, bytes] | None:
        family = workflow.info().typed_search_attributes.get(_FAMILY)
        return successor_of(self._start.flow, self._start.config, self._ledger.state, self._key_base, family)

    @workflow.query(
        name=names.QUERY_CHECKPOINT, description="The run's checkpoint: the latest, or at a sequence number"
    )
    def checkpoint(self, query: CheckpointQuery | None = None) -> dict[str, Any]:
        return seal(self._ledger.checkpoint(query.sequence_number if query else None))

    @workflow.query(name=names.QUERY_CHECKPOINTS, description="The checkpoints of this execution, oldest first")
    def checkpoints(self, query: ListQuery | None = None) -> list[dict[str, Any]]:
        page = query or ListQuery()
        found = [
            entry for entry in self._ledger.summaries(self._start.flow.checkpoint) if entry.sequence_number > page.after
        ]
        return [entry.model_dump(mode="json") for entry in found[: page.limit]]

    @workflow.query(name=names.QUERY_TRANSITIONS, description="What has happened, one entry a transition, oldest first")
    def transitions(self, query: ListQuery | None = None) -> list[dict[str, Any]]:
        page = query or ListQuery()
        return [entry.model_dump(mode="json") for entry in self._ledger.since(page.after, page.limit)]

    @property
    def ledger(self) -> Ledger:
        """For reading a run that was rebuilt from its history; LookupError when it was refused at its start."""
        if self._fault is not None:
            raise LookupError(self._fault)
        return self._ledger

    @property
    def started_with(self) -> FlowStart:
        """The argument, for the same reader."""
        return self._start


def _listed(request: dict[str, Any]) -> dict[str, Any]:
    """A question as lists show it. What is to be approved may be large; then it is read with the checkpoint."""
    if len(json.dumps(request.get("data"))) <= _LARGEST_LISTED:
        return request
    return {**request, "data": None, "data_omitted": True}


def _refused(error: Exception) -> ApplicationError:
    return ApplicationError(str(error), type=names.ANSWER_REFUSED, non_retryable=True)


def _upsert(updates: Sequence[SearchAttributeUpdate[Any]]) -> None:
    workflow.upsert_search_attributes(updates)  # pyright: ignore[reportUnknownMemberType] (generic without a parameter)
