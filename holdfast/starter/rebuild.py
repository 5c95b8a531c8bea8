"""Rebuilds a run's ledger from its history, here, without a worker: the SDK's own replay with our workflow class."""

from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import ValidationError
from temporalio import workflow
from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent, WorkflowExecutionStartedEventAttributes
from temporalio.client import Client, WorkflowHistory
from temporalio.converter import DataConverter, decode_typed_search_attributes
from temporalio.service import RPCError, RPCStatusCode
from temporalio.worker import (
    ExecuteWorkflowInput,
    Interceptor,
    Replayer,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
)

from holdfast.checkpoints.ledger import Ledger
from holdfast.codecs.codec import HoldfastCodec
from holdfast.codecs.runner import FlowRunner
from holdfast.contracts.calls import FlowStart, Started, Wire
from holdfast.starter.errors import NotAFlowError, RunNotFoundError
from holdfast.starter.starting import FAMILY
from holdfast.workflows.flow_run import FlowRun

_Read = TypeVar("_Read", bound=Wire)
_COMPLETED = EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED
# Commands too, but they do not say of which task.
_UPDATES = frozenset(
    {
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_ACCEPTED,
        EventType.EVENT_TYPE_WORKFLOW_EXECUTION_UPDATE_COMPLETED,
    }
)


async def executions(client: Client, run_id: str, execution: str | None = None) -> AsyncGenerator[WorkflowHistory]:
    """The histories of a run, newest execution first, or from one on: continue-as-new makes a chain of them.

    The first ones may be gone: a namespace's retention counts from the end of an execution, not of its run.
    """
    while True:
        handle = client.get_workflow_handle(run_id, run_id=execution)
        try:
            history = await handle.fetch_history()
        except RPCError as error:
            if execution is not None and error.status == RPCStatusCode.NOT_FOUND:
                return
            # Deleted a moment ago.
            raise missing(run_id, error) from error
        yield history
        started = history.events[0].workflow_execution_started_event_attributes
        execution = started.continued_execution_run_id or None
        if execution is None:
            return


def missing(run_id: str, error: RPCError) -> Exception:
    return RunNotFoundError(run_id) if error.status == RPCStatusCode.NOT_FOUND else error


async def rebuild(client: Client, history: WorkflowHistory) -> tuple[FlowStart, Ledger]:
    """What one execution started with, and its ledger up to its last completed workflow task.

    LookupError when none is completed yet. (The SDK's replay waits for ever where there is none at all: a run that was
    continued, or started with a delay, is like that for a while.)
    """
    done = _done(history)
    captured: list[FlowRun] = []
    unreadable: list[Exception] = []
    replayer = Replayer(
        workflows=[FlowRun],
        workflow_runner=FlowRunner(),
        namespace=client.namespace,
        data_converter=_reading(client.data_converter, unreadable),
        interceptors=[_Capture(captured)],
    )
    try:
        await replayer.replay_workflow(done)
    except Exception as error:
        if unreadable:
            raise unreadable[0] from error
        raise
    return captured[0].started_with, captured[0].ledger


def _reading(converter: DataConverter, unreadable: list[Exception]) -> DataConverter:
    codec = converter.payload_codec
    return (
        replace(converter, payload_codec=codec.reading(unreadable)) if isinstance(codec, HoldfastCodec) else converter
    )


def _done(history: WorkflowHistory) -> WorkflowHistory:
    """The history up to the last completed workflow task and its commands.

    What came in since then no task has taken up: a replay would, at a time that is not the run's.
    """
    events = list(history.events)
    last = max((index for index, event in enumerate(events) if event.event_type == _COMPLETED), default=None)
    if last is None:
        raise LookupError("no worker has taken the run up yet")
    end = last + 1
    while end < len(events) and (
        events[end].event_type in _UPDATES or _decided_by(events[end]) == events[last].event_id
    ):
        end += 1
    return WorkflowHistory(history.workflow_id, events[:end])


def _decided_by(event: HistoryEvent) -> int | None:
    """The completion of the workflow task whose command the event is."""
    attributes: Any = getattr(event, event.WhichOneof("attributes") or "", None)
    return getattr(attributes, "workflow_task_completed_event_id", None)


class _Capture(Interceptor):
    """Keeps hold of the workflow object that the replay brings to life."""

    def __init__(self, captured: list[FlowRun]) -> None:
        self._captured = captured

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:  # noqa: A002
        captured = self._captured

        class Inbound(WorkflowInboundInterceptor):
            async def execute_workflow(self, input: ExecuteWorkflowInput) -> Any:  # noqa: A002
                captured.append(workflow.instance())
                return await super().execute_workflow(input)

        return Inbound


async def started_with(client: Client, run_id: str) -> Started:
    """The definition and settings that the run was started with."""
    attributes = await _first(client, run_id)
    start = await _started(client, run_id, list(attributes.input.payloads))
    known = decode_typed_search_attributes(attributes.search_attributes)
    outer = attributes.root_workflow_execution if attributes.parent_workflow_execution.workflow_id else None
    return start.model_copy(update={"outer": outer.workflow_id if outer else None, "family": known.get(FAMILY)})


async def argument_of(client: Client, run_id: str, kind: type[_Read]) -> _Read:
    """What the run was started with, or as much of it as `kind` says."""
    payloads = list((await _first(client, run_id)).input.payloads)
    [argument] = await client.data_converter.decode(payloads[:1], [kind])
    return argument


async def _first(client: Client, run_id: str) -> WorkflowExecutionStartedEventAttributes:
    try:
        async for event in client.get_workflow_handle(run_id).fetch_history_events(page_size=1):
            if event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_STARTED:
                return event.workflow_execution_started_event_attributes
    except RPCError as error:
        raise missing(run_id, error) from error
    raise LookupError(f"run {run_id!r} has an empty history")


async def _started(client: Client, run_id: str, payloads: list[Payload]) -> Started:
    try:
        decoded = await client.data_converter.decode(payloads[:1], [Started]) if payloads else []
    except (ValidationError, KeyError) as error:
        raise NotAFlowError(run_id) from error
    match decoded:
        case [Started() as start]:
            return start
        case _:
            raise NotAFlowError(run_id)
