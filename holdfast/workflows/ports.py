"""The engine's ports as Temporal commands."""

import asyncio
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError, ApplicationError, TimeoutType, is_cancelled_exception
from temporalio.exceptions import TimeoutError as TemporalTimeoutError

from holdfast.checkpoints.ledger import Transition
from holdfast.contracts.calls import NodeCall, NodeFailure, NodeReply, PureBatch, PureReply, RunConfig
from holdfast.contracts.names import NODE_FAILED, RUN_PURE, WORKER_SHUTDOWN
from holdfast.engine.ports import NodeError
from holdfast.flows.kinds import ActivityParams, kind_of
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import ErrorHandling, NodeSpec

_BATCH_TIMEOUT = timedelta(minutes=10)
_MOST_LOSSES = 20
_UNKNOWN_WAITS = (1, 2, 5, 10)
_NOT_REGISTERED = "NotFoundError"


class TemporalPorts:
    """Every node becomes an activity whose type is its kind and whose id is its path."""

    def __init__(self, config: RunConfig, listener: Callable[[Transition], None]) -> None:
        self._config = config
        self._listener = listener

    def now(self) -> datetime:
        return workflow.now()

    def recorded(self, transition: Transition) -> None:
        self._listener(transition)

    def should_park(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested()
            or info.get_current_history_length() >= self._config.continue_after_events
        )

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
        """The retry policy is for the node's own failures; a last attempt lost with its worker is scheduled anew.

        Otherwise a machine that dies would fail a run. (An earlier attempt that is lost counts as one of the retries.)
        """
        attempts = unknown = 0
        for _ in range(_MOST_LOSSES):
            try:
                reply = await self._execute(node, call)
            except ActivityError as error:
                if is_cancelled_exception(error):
                    raise asyncio.CancelledError from error
                failure = _failure(node, error)
                attempts += failure.attempt
                if _is_unknown(error) and unknown < len(_UNKNOWN_WAITS):
                    # While workers are being replaced, another one may know the type.
                    await workflow.sleep(_UNKNOWN_WAITS[unknown], summary=f"no worker knows {node.type!r} yet")
                    unknown += 1
                elif not _is_lost(error):
                    raise NodeError(failure.error, failure.internal_state, attempts) from error
                if saved := _saved_state(error):
                    call = call.model_copy(update={"internal_state": saved})
            else:
                reply.attempt += attempts
                return reply
        message = f"{_MOST_LOSSES} workers died while running it; look at the worker's log for a crash"
        raise NodeError({"type": "WorkerLost", "message": message}, attempts=attempts)

    async def _execute(self, node: NodeSpec, call: NodeCall) -> NodeReply:
        kind = kind_of(node)
        timeout = node.error_handling.timeout_seconds
        common: dict[str, Any] = {
            "activity_id": call.path,
            "start_to_close_timeout": timedelta(seconds=timeout) if timeout else kind.timeout,
            "retry_policy": _retry_policy(node.error_handling),
            "summary": _summary(node),
        }
        if node.type == "activity":
            return await self._execute_foreign(ActivityParams.model_validate(node.params), call, common)
        return await workflow.execute_activity(
            kind.activity or node.type,
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


def _saved_state(error: ActivityError) -> dict[str, Any]:
    """What a lost execution had saved with its heartbeats: the next one goes on from there."""
    cause = error.cause
    if isinstance(cause, TemporalTimeoutError):
        details = cause.last_heartbeat_details
    else:
        details = cause.details if isinstance(cause, ApplicationError) else ()
    return dict(details[0]) if details and is_object(details[0]) else {}


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
