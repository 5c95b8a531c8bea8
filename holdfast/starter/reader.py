"""Reads the checkpoints and transitions of a run, wherever they are cheapest to find.

A run that has ended has left its last checkpoint in its closing event, or in its memo; a running run is asked; where
nobody answers, the ledger is rebuilt from the history. None of it adds anything to the run.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import (
    Client,
    WorkflowExecutionDescription,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowHistoryEventFilterType,
    WorkflowQueryFailedError,
    WorkflowQueryRejectedError,
)
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from holdfast.checkpoints.ledger import Ledger, Transition
from holdfast.checkpoints.models import CheckpointRecord, CheckpointSummary
from holdfast.checkpoints.serial import seal, unseal_record
from holdfast.checkpoints.validation import InvalidCheckpointError
from holdfast.codecs import faults
from holdfast.contracts import names
from holdfast.contracts.calls import CheckpointQuery, FlowStart, ListQuery, Started
from holdfast.contracts.results import unpack_data
from holdfast.contracts.successor import Successor
from holdfast.flows.spec import FlowSpec
from holdfast.starter.errors import NoCheckpointError, RunNotFoundError
from holdfast.starter.rebuild import executions, missing, rebuild

_QUERY_SECONDS = 5.0
_LEFT_SECONDS = 0.5
_PAGE = 500
_WITH_SUCCESSOR = 3
_TRANSITION: TypeAdapter[Transition] = TypeAdapter(Transition)
_CLOSE_RESULT = {
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED,
    EventType.EVENT_TYPE_WORKFLOW_EXECUTION_FAILED,
}

_DAMAGED = (InvalidCheckpointError, *faults.DAMAGED)
log = logging.getLogger("holdfast")


class RunReader:
    """Checkpoints in the form they travel in: JSON data with a checksum."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def _handle(self, run_id: str) -> WorkflowHandle[Any, Any]:
        return self._client.get_workflow_handle(run_id)

    async def describe(self, run_id: str) -> WorkflowExecutionDescription:
        """Temporal's description; RunNotFoundError when there is no such run."""
        try:
            return await self._handle(run_id).describe()
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                raise RunNotFoundError(run_id) from error
            raise

    async def latest(self, run_id: str) -> dict[str, Any]:
        """The newest checkpoint. A damaged one is named and the history, which has all the earlier ones, is used."""
        return (await self._latest(run_id))[0]

    async def latest_record(self, run_id: str, known: WorkflowExecutionDescription | None = None) -> CheckpointRecord:
        """The same, verified, as a workflow wants it."""
        return (await self._latest(run_id, known))[1]

    async def closing(self, run_id: str) -> HistoryEvent | None:
        """The event a run has ended with, in one call. An open run would be waited for: it is given a moment."""
        with contextlib.suppress(TimeoutError, RPCError, RunNotFoundError):
            async with asyncio.timeout(_LEFT_SECONDS):
                return await self._close_event(run_id)
        return None

    async def successor(self, closing: HistoryEvent) -> tuple[Successor, bytes] | None:
        """What a run that failed has left for the next one; None where it has left nothing that can be used."""
        info = closing.workflow_execution_failed_event_attributes.failure.application_failure_info
        if info.type == names.FLOW_FAILED and len(info.details.payloads) == _WITH_SUCCESSOR:
            with contextlib.suppress(ValidationError, *_DAMAGED):
                left = list(info.details.payloads[1:])
                head, argument = await self._client.data_converter.decode(left, [Successor, bytes])
                if head.fits(argument):
                    return head, argument
        return None

    async def left_behind(self, closing: HistoryEvent) -> tuple[CheckpointRecord, Started] | None:
        """All that is needed to go on from a run that failed; None where it has not failed, or is damaged."""
        with contextlib.suppress(ValidationError, *_DAMAGED):
            result = await self._result_in(closing)
            if result is not None and result.get("started"):
                return unseal_record(unpack_data(result)), Started.model_validate(result["started"])
        return None

    async def _latest(
        self, run_id: str, known: WorkflowExecutionDescription | None = None
    ) -> tuple[dict[str, Any], CheckpointRecord]:
        try:
            found = await self._at_rest(known or await self.describe(run_id))
            if found is not None:
                return found, unseal_record(found)
        except _DAMAGED as error:
            log.warning("run %s: its last checkpoint is damaged (%s); rebuilding it from the history", run_id, error)
            found = await self._rebuilt(run_id, None)
        else:
            found = await self._asked(run_id, None)
        return found, unseal_record(found)

    async def at(self, run_id: str, seq: int, known: WorkflowExecutionDescription | None = None) -> dict[str, Any]:
        """The checkpoint after transition `seq`."""
        known = known or await self.describe(run_id)
        if known.status == WorkflowExecutionStatus.RUNNING:
            return await self._asked(run_id, seq)
        # Often it is the last one, by its name: that needs no replay.
        with contextlib.suppress(*_DAMAGED):
            found = await self._at_rest(known)
            if found is not None and found.get("sequence_number") == seq:
                unseal_record(found)
                return found
        return await self._rebuilt(run_id, seq)

    async def as_of(
        self, run_id: str, moment: datetime, execution: str | None = None
    ) -> tuple[FlowSpec, CheckpointRecord]:
        """The checkpoint a run had at a moment, with its definition; NoCheckpointError when it had none yet."""
        async for start, ledger in self._ledgers(run_id, execution):
            earlier = [entry.seq for entry in itertools.takewhile(lambda entry: entry.at <= moment, ledger.since(0))]
            if earlier:
                return start.flow, ledger.at(earlier[-1])
        raise NoCheckpointError(run_id, f"it had not begun at {moment.isoformat()}")

    async def _at_rest(self, known: WorkflowExecutionDescription) -> dict[str, Any] | None:
        """What a run leaves behind when it ends; None while it runs, or when it was ended from outside."""
        if known.status in (WorkflowExecutionStatus.COMPLETED, WorkflowExecutionStatus.FAILED):
            result = await self.close_result(known.id)
            return unpack_data(result) if result is not None else None
        # A run that waits for people has left it there as well, and takes it away when it goes on.
        return (await known.memo()).get(names.MEMO_SNAPSHOT)

    async def close_result(self, run_id: str) -> dict[str, Any] | None:
        """The result a closed run left, also in its failure; one call, no worker. None when it left none.

        As data: its checkpoint, with a checksum, is what says whether it is whole.
        """
        event = await self._close_event(run_id)
        return await self._result_in(event) if event is not None else None

    async def _close_event(self, run_id: str) -> HistoryEvent | None:
        """Waits for it while the run is open."""
        try:
            async for event in self._handle(run_id).fetch_history_events(
                event_filter_type=WorkflowHistoryEventFilterType.CLOSE_EVENT
            ):
                return event
        except RPCError as error:
            raise missing(run_id, error) from error
        return None

    async def _result_in(self, event: HistoryEvent) -> dict[str, Any] | None:
        if event.event_type not in _CLOSE_RESULT:
            return None
        converter = self._client.data_converter
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_COMPLETED:
            payloads = event.workflow_execution_completed_event_attributes.result.payloads
            [result] = await converter.decode(payloads)
            return result
        failure = await converter.decode_failure(event.workflow_execution_failed_event_attributes.failure)
        if isinstance(failure, ApplicationError) and failure.type == names.FLOW_FAILED and failure.details:
            return failure.details[0]
        return None

    async def _asked(self, run_id: str, seq: int | None) -> dict[str, Any]:
        answer = await self._query(run_id, names.QUERY_CHECKPOINT, CheckpointQuery(sequence_number=seq))
        return answer if answer is not None else await self._rebuilt(run_id, seq)

    async def _query(self, run_id: str, name: str, argument: Any) -> Any:
        """The answer, or None when no worker gives one: the caller can do without."""
        try:
            return await self._handle(run_id).query(name, argument, rpc_timeout=timedelta(seconds=_QUERY_SECONDS))
        except (WorkflowQueryFailedError, WorkflowQueryRejectedError) as error:
            log.debug("run %s: query %s: %s", run_id, name, error)
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                raise RunNotFoundError(run_id) from error
            log.debug("run %s: query %s: %s", run_id, name, error)
        return None

    async def _rebuilt(self, run_id: str, seq: int | None) -> dict[str, Any]:
        why = "its history begins later"
        async for history in executions(self._client, run_id):
            try:
                _, ledger = await rebuild(self._client, history)
            except _DAMAGED:
                raise  # It has checkpoints. (That a blob is missing is a LookupError, too.)
            except LookupError as error:
                # A new execution that nobody has taken up yet is where the one before it was.
                why = str(error)
                continue
            # What an execution started from was written by the one before it.
            if seq is None or seq > ledger.base_seq or not _continued(history.events[0]):
                try:
                    return seal(ledger.checkpoint(seq))
                except LookupError as error:
                    raise NoCheckpointError(run_id, str(error)) from error
        raise NoCheckpointError(run_id, why)

    async def summaries(self, run_id: str) -> list[CheckpointSummary]:
        """The run's checkpoints over all its executions, newest first."""
        found: list[CheckpointSummary] = []
        async for start, ledger in self._ledgers(run_id):
            found += reversed(ledger.summaries(start.flow.checkpoint))
        return found

    async def _ledgers(self, run_id: str, execution: str | None = None) -> AsyncGenerator[tuple[FlowStart, Ledger]]:
        """Those of all executions, newest first, but of one that no worker has taken up yet."""
        async for history in executions(self._client, run_id, execution):
            try:
                rebuilt = await rebuild(self._client, history)
            except _DAMAGED:
                raise
            except LookupError:
                continue
            yield rebuilt

    async def transitions(self, run_id: str, after: int = 0) -> list[Transition]:
        """Everything that happened after `after`, oldest first, over all executions."""
        found: list[list[Transition]] = []
        async for _, ledger in self._ledgers(run_id):
            found.append(list(ledger.since(after)))
            if ledger.base_seq <= after:
                break
        return [transition for execution in reversed(found) for transition in execution]

    async def story(self, run_id: str) -> tuple[CheckpointRecord, list[Transition]]:
        """What a run began with, and everything that happened since, as far back as its history goes."""
        base: CheckpointRecord | None = None
        found: list[list[Transition]] = []
        async for _, ledger in self._ledgers(run_id):
            base = ledger.at(ledger.base_seq)
            found.append(list(ledger.since(ledger.base_seq)))
        if base is None:
            raise NoCheckpointError(run_id, "no worker has taken it up yet")
        return base, [transition for execution in reversed(found) for transition in execution]

    async def follow(self, run_id: str, after: int = 0) -> AsyncGenerator[Transition]:
        """Transitions as they happen, until the run ends. Long-polls the history, which costs the run nothing."""
        known = await self.describe(run_id)
        for transition in await self.transitions(run_id, after):
            after = transition.seq
            yield transition
        async for execution, event in self._events(run_id, known.run_id):
            told = execution == known.run_id and event.event_id <= known.history_length
            if told or event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                continue
            for transition in await self._news(run_id, after):
                after = transition.seq
                yield transition
        for transition in await self.transitions(run_id, after):
            yield transition

    async def _news(self, run_id: str, after: int) -> list[Transition]:
        """What has happened after `after`, without a hole: from the worker that has the run, or from its history."""
        found: list[Transition] = []
        while True:
            seen = found[-1].seq if found else after
            query = ListQuery(after=seen, limit=_PAGE)
            page = cast(list[Any] | None, await self._query(run_id, names.QUERY_TRANSITIONS, query))
            if page is None or (page and page[0]["seq"] != seen + 1):
                # Nobody answers, or an execution that continued another one knows only what happened since.
                return [*found, *await self.transitions(run_id, seen)]
            found += [_TRANSITION.validate_python(item) for item in page]
            if len(page) < _PAGE:
                return found

    async def _events(self, run_id: str, execution: str | None) -> AsyncGenerator[tuple[str | None, HistoryEvent]]:
        """The events of an execution and of those that continue it, as they come, each with its execution."""
        while execution is not None:
            handle = self._client.get_workflow_handle(run_id, run_id=execution)
            following: str | None = None
            async for event in handle.fetch_history_events(wait_new_event=True):
                if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
                    attributes = event.workflow_execution_continued_as_new_event_attributes
                    following = attributes.new_execution_run_id
                yield execution, event
            execution = following


def _continued(started: HistoryEvent) -> bool:
    return bool(started.workflow_execution_started_event_attributes.continued_execution_run_id)
