"""Heartbeats for every activity, so that a dead worker is noticed in seconds and a long node's state is kept.

The node's own code never has to beat. What it last saved is sent again with every beat: a beat without it would
erase it.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from holdfast.contracts.names import WORKER_SHUTDOWN
from holdfast.flows.shapes import is_object

_BEATS_PER_TIMEOUT = 5


@dataclass
class Saved:
    """What the node has saved in this attempt or an earlier one, and whether the run still wants it.

    `partial` is for those who watch, and of this attempt alone: the text a model has written so far.
    """

    state: dict[str, Any] = field(default_factory=dict[str, Any])
    partial: str = ""
    beat: Callable[[], None] = field(default=lambda: None)
    cancelled: bool = False


_saved: ContextVar[Saved] = ContextVar("holdfast_saved")


def saved() -> Saved:
    """The state of the activity this is called from."""
    return _saved.get()


def show(text: str) -> None:
    """Lets those who watch see the text so far. Outside an activity nobody does."""
    held = _saved.get(None)
    if held is not None:
        held.partial = text
        held.beat()


class HeartbeatInterceptor(Interceptor):
    """Wraps every activity of a worker."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _Inbound(next)


class _Inbound(ActivityInboundInterceptor):
    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        info = activity.info()
        earlier = info.heartbeat_details[0] if info.heartbeat_details else None
        held = Saved(state=dict(earlier) if is_object(earlier) else {})
        _saved.set(held)
        if info.is_local or not info.heartbeat_timeout:
            return await super().execute_activity(input)
        pulse = _Pulse(held, info.heartbeat_timeout.total_seconds() / _BEATS_PER_TIMEOUT)
        held.beat = pulse.beat
        try:
            return await super().execute_activity(input)
        except asyncio.CancelledError:
            held.cancelled = True
            if activity.is_worker_shutdown():
                # Said as a failure of its own kind: the run schedules the node anew instead of failing.
                message = "the worker was stopped while it ran this"
                benign = ApplicationErrorCategory.BENIGN
                raise ApplicationError(message, held.state, type=WORKER_SHUTDOWN, category=benign) from None
            raise
        finally:
            pulse.stop()


class _Pulse:
    """Beats on the worker's loop and in the activity's context: a node's thread may know neither. A timer, not a task:
    most activities end before its first beat."""

    def __init__(self, held: Saved, interval: float) -> None:
        self._held = held
        self._interval = interval
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()
        self._stopped = False
        self._timer = self._after_interval()

    def _after_interval(self) -> asyncio.TimerHandle:
        return self._loop.call_later(self._interval, self._tick, context=self._context)

    def _tick(self) -> None:
        self._send()
        self._timer = self._after_interval()

    def _send(self) -> None:
        if self._stopped:
            return
        held = self._held
        # The state is always the first detail: that is where the next attempt looks for it.
        details = [held.state] if held.state or held.partial else []
        if held.partial:
            details.append({"partial": held.partial})
        activity.heartbeat(*details)

    def beat(self) -> None:
        """Now, from any thread."""
        self._loop.call_soon_threadsafe(self._send, context=self._context)

    def stop(self) -> None:
        self._stopped = True
        self._timer.cancel()
