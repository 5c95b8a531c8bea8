"""The engine's ports as Temporal commands."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    TimeoutType,
    is_cancelled_exception,
)
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from holdfast.checkpoints.ledger import Transition
from holdfast.contracts.calls import (
    FlowResult,
    FlowStart,
    NodeCall,
    NodeFailure,
    NodeReply,
    PureBatch,
    PureReply,
    RunConfig,
)
from holdfast.contracts.messages import ModelCall, ModelReply
from holdfast.contracts.names import CALL_MODEL, FLOW_FAILED, FLOW_RUN, NODE_FAILED, RUN_PURE, STALLS, WORKER_SHUTDOWN
from holdfast.contracts.people import HumanAnswer, HumanRequest
from holdfast.engine.inbox import Inbox
from holdfast.engine.ports import NodeError
from holdfast.flows.kinds import kind_of
from holdfast.flows.params import ActivityParams
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import ErrorHandling, NodeSpec

_BATCH_TIMEOUT = timedelta(minutes=10)
_MOST_LOSSES = 20
_UNKNOWN_WAITS = (1, 2, 5, 10)
_STALL_WAITS = (1, 2, 4, 8, 16, 32, *[60] * 60, 300)
"""Quick at first; after an hour seldom enough that an outage of weeks does not fill the history."""
_NOT_REGISTERED = "NotFoundError"
_MOST_EVENTS = 30_000
_MOST_BYTES = 30 * 2**20
"""Temporal ends a run at 51,200 events, or at 50 MiB."""
_SUGGESTED_BYTES = 4 * 2**20

_Reply = TypeVar("_Reply", NodeReply, ModelReply)


class TemporalPorts:
    """Every node becomes an activity whose type is its kind and whose id is its path."""

    def __init__(
        self,
        config: RunConfig,
        listener: Callable[[Transition], None],
        inbox: Inbox,
        resting: Callable[[], None],
    ) -> None:
        self._config = config
        self._listener = listener
        self._inbox = inbox
        self._resting = resting
        self._children = 0

    def now(self) -> datetime:
        return workflow.now()

    def recorded(self, transition: Transition) -> None:
        self._listener(transition)

    def at_rest(self) -> None:
        self._resting()

    def is_cancelled(self) -> bool:
        return workflow.cancellation_reason() is not None

    def new_id(self) -> str:
        return str(workflow.uuid4())

    async def wait_answer(self, request: HumanRequest, until: datetime | None) -> HumanAnswer | None:
        self._inbox.look_for_early(request)
        patience = None if until is None else max(timedelta(), until - workflow.now())
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._inbox.answer_to(request) is not None,
                timeout=patience,
                timeout_summary=f"{request.path}: deadline or reminder",
            )
        # An answer that came at the moment of the deadline counts: whoever gave it may have been told so.
        return self._inbox.answer_to(request)

    def should_park(self) -> bool:
        info = workflow.info()
        length, size = info.get_current_history_length(), info.get_current_history_size()
        if self._children and length < _MOST_EVENTS and size < _MOST_BYTES:
            # A child cannot be carried over, and may run for days: nothing else is to wait for it.
            return False
        if length >= self._config.continue_after_events or size >= self._config.continue_after_bytes:
            return True
        # The server suggests it at 4 MiB already; a long conversation would be carried over again and again. What
        # else it may suggest it for is taken as said.
        return info.is_continue_as_new_suggested() and size < _SUGGESTED_BYTES

    async def sleep(self, node: NodeSpec, seconds: float) -> None:
        await workflow.sleep(seconds, summary=_summary(node))

    async def run_pure(self, batch: PureBatch) -> PureReply:
        return await workflow.execute_local_activity(
            RUN_PURE,
            batch,
            result_type=PureReply,
            start_to_close_timeout=_BATCH_TIMEOUT,
            summary=", ".join(node.id for node in batch.nodes[:5]) + (" …" if len(batch.nodes) > 5 else ""),
        )

    async def run_node(self, node: NodeSpec, call: NodeCall) -> NodeReply:
        async def attempt(saved: dict[str, Any]) -> NodeReply:
            return await self._execute(node, call.model_copy(update={"internal_state": saved}) if saved else call)

        return await self._until_done(node, attempt)

    async def call_model(self, node: NodeSpec, call: ModelCall) -> ModelReply:
        async def attempt(_: dict[str, Any]) -> ModelReply:
            return await workflow.execute_activity(
                CALL_MODEL,
                call,
                result_type=ModelReply,
                heartbeat_timeout=timedelta(seconds=self._config.heartbeat_seconds),
                **self._options(node, call.path),
            )

        return await self._until_done(node, attempt)

    async def run_child(self, node: NodeSpec, start: FlowStart, run_id: str) -> FlowResult:
        self._children += 1
        try:
            return await workflow.execute_child_workflow(
                FLOW_RUN,
                start.model_copy(update={"config": self._config}),
                id=run_id,
                result_type=FlowResult,
                # A run that was reset starts its children again; what they had done is in the first ones' histories.
                id_reuse_policy=WorkflowIDReusePolicy.TERMINATE_IF_RUNNING,
                parent_close_policy=workflow.ParentClosePolicy.REQUEST_CANCEL,
                static_summary=_summary(node),
            )
        except ChildWorkflowError as error:
            if is_cancelled_exception(error) and _is_cancelled():
                raise asyncio.CancelledError from error
            return _failed_child(error, run_id)
        finally:
            self._children -= 1

    async def _until_done(self, node: NodeSpec, attempt: Callable[[dict[str, Any]], Awaitable[_Reply]]) -> _Reply:
        """The retry policy is for the node's own failures; a last attempt lost with its worker is scheduled anew.

        Otherwise a machine that dies would fail a run. (An earlier attempt that is lost counts as one of the retries.)
        """
        attempts = unknown = losses = stalls = 0
        saved: dict[str, Any] = {}
        while losses < _MOST_LOSSES:
            try:
                reply = await attempt(saved)
            except ActivityError as error:
                if is_cancelled_exception(error) and _is_cancelled():
                    raise asyncio.CancelledError from error
                failure = _failure(node, error)
                attempts += failure.attempt
                if _is_unknown(error) and unknown < len(_UNKNOWN_WAITS):
                    # While workers are being replaced, another one may know the type.
                    await workflow.sleep(_UNKNOWN_WAITS[unknown], summary=f"no worker knows {node.type!r} yet")
                    unknown += 1
                elif (reason := _stalled_by(error)) is not None:
                    # Nothing was lost, and nothing can be done: somebody has to bring the store or the key back.
                    patience = _STALL_WAITS[min(stalls, len(_STALL_WAITS) - 1)]
                    await workflow.sleep(patience, summary=f"waits: {reason}"[:200])
                    stalls += 1
                elif not _is_lost(error):
                    raise NodeError(failure.error, failure.internal_state, attempts) from error
                else:
                    losses += 1
                saved = _saved_state(error, failure) or saved
            else:
                reply.attempt += attempts
                return reply
        message = f"{_MOST_LOSSES} workers died while running it; look at the worker's log for a crash"
        raise NodeError({"type": "WorkerLost", "message": message}, attempts=attempts)

    def _options(self, node: NodeSpec, path: str) -> dict[str, Any]:
        timeout = node.error_handling.timeout_seconds
        return {
            "activity_id": path,
            "start_to_close_timeout": timedelta(seconds=timeout) if timeout else kind_of(node).timeout,
            "retry_policy": _retry_policy(node.error_handling),
            "summary": _summary(node),
        }

    async def _execute(self, node: NodeSpec, call: NodeCall) -> NodeReply:
        common = self._options(node, call.path)
        if node.type == "activity":
            return await self._execute_foreign(ActivityParams.model_validate(node.params), call, common)
        return await workflow.execute_activity(
            kind_of(node).activity or node.type,
            call,
            result_type=NodeReply,
            heartbeat_timeout=timedelta(seconds=self._config.heartbeat_seconds),
            **common,
        )

    async def _execute_foreign(self, params: ActivityParams, call: NodeCall, common: dict[str, Any]) -> NodeReply:
        # Somebody else's worker sends no heartbeat unless its author says so.
        beat = timedelta(seconds=params.heartbeat_seconds) if params.heartbeat_seconds else None
        output = await workflow.execute_activity(
            params.activity, call.input_data, task_queue=params.task_queue, heartbeat_timeout=beat, **common
        )
        return NodeReply(output=output)


def _is_cancelled() -> bool:
    """Whether this part of the run was cancelled itself. Somebody may cancel a child, or an activity, alone."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _failed_child(error: ChildWorkflowError, run_id: str) -> FlowResult:
    """What a failed flow left behind; NodeError when it left nothing."""
    cause = error.cause
    if isinstance(cause, ApplicationError) and cause.type == FLOW_FAILED and cause.details:
        return FlowResult.model_validate(cause.details[0])
    kind = cause.type if isinstance(cause, ApplicationError) else type(cause).__name__
    message = f"the run {run_id!r} ended without a result: {cause or error}"
    raise NodeError({"type": kind or "ChildLost", "message": message, "child_run_id": run_id}) from error


def _summary(node: NodeSpec) -> str:
    return (node.name or node.id)[:200]


def _retry_policy(handling: ErrorHandling) -> RetryPolicy:
    longest = handling.max_retry_interval_seconds
    interval = handling.retry_interval_seconds
    return RetryPolicy(
        initial_interval=timedelta(seconds=interval),
        backoff_coefficient=handling.backoff_rate,
        maximum_interval=timedelta(seconds=max(longest, interval)) if longest else None,
        maximum_attempts=handling.max_retries + 1,
    )


def _is_lost(error: ActivityError) -> bool:
    """The worker died, or was stopped, while it ran the node: the node itself did not fail."""
    cause = error.cause
    if isinstance(cause, TemporalTimeoutError):
        return cause.type == TimeoutType.HEARTBEAT
    return isinstance(cause, ApplicationError) and cause.type == WORKER_SHUTDOWN


def _stalled_by(error: BaseException | None) -> str | None:
    """What kept the worker from reading or storing the node's data, if that is all that is wrong."""
    while error is not None:
        if isinstance(error, ApplicationError) and any(code in error.message for code in STALLS):
            return error.message
        error = error.__cause__
    return None


def _saved_state(error: ActivityError, failure: NodeFailure) -> dict[str, Any]:
    """What an execution had saved by then, in its heartbeats or in its failure: the next one goes on from there."""
    cause = error.cause
    if isinstance(cause, TemporalTimeoutError):
        details = cause.last_heartbeat_details
    else:
        details = cause.details if isinstance(cause, ApplicationError) and cause.type == WORKER_SHUTDOWN else ()
    return dict(details[0]) if details and is_object(details[0]) else failure.internal_state


def _is_unknown(error: ActivityError) -> bool:
    """The worker that took the node does not have its type; the SDK's own words."""
    cause = error.cause
    return (
        isinstance(cause, ApplicationError) and cause.type == _NOT_REGISTERED and "is not registered" in cause.message
    )


def _failure(node: NodeSpec, error: ActivityError) -> NodeFailure:
    cause = error.cause
    if isinstance(cause, ApplicationError):
        if cause.type == NODE_FAILED and cause.details:
            return NodeFailure.model_validate(cause.details[0])
        if _is_unknown(error):
            message = f"no worker knows the node type {node.type!r}: start one with --load MODULE"
            return NodeFailure(error={"type": "UnknownNodeType", "message": message})
        return NodeFailure(error={"type": cause.type or "ApplicationError", "message": cause.message})
    if isinstance(cause, TemporalTimeoutError):
        limit = node.error_handling.timeout_seconds or kind_of(node).timeout.total_seconds()
        return NodeFailure(
            error={
                "type": "Timeout",
                "message": f"an attempt took longer than {limit:g} s (error_handling.timeout_seconds)",
            },
            attempt=node.error_handling.max_retries + 1,
        )
    return NodeFailure(error={"type": type(cause).__name__, "message": str(cause or error)})
