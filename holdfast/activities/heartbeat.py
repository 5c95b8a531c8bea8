"""Heartbeats for every activity, so that a dead worker is noticed in seconds and a long node's state is kept.

The node's own code never has to beat. What it last saved is sent again with every beat: a beat without it would
erase it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.converter import DataConverter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput, Interceptor

from holdfast.activities.secrets import KNOWN
from holdfast.activities.settling import Settling
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
    """Wraps every activity of a worker. The outermost one: it makes payloads of what the others have seen."""

    def __init__(self, converter: DataConverter) -> None:
        self._settling = Settling(converter)

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _Inbound(next, self._settling)


class _Inbound(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, settling: Settling) -> None:
        super().__init__(following)
        self._settling = settling

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        info = activity.info()
        earlier = info.heartbeat_details[0] if info.heartbeat_details else None
        held = Saved(state=dict(earlier) if is_object(earlier) else {})
        _saved.set(held)
        if info.is_local or not info.heartbeat_timeout:
            return await super().execute_activity(input)
        pulse = _Pulse(held, info.heartbeat_timeout.total_seconds() / _BEATS_PER_TIMEOUT, self._settling)
        held.beat = pulse.beat
        try:
            return await self._settling.settle(await super().execute_activity(input))
        except asyncio.CancelledError:
            held.cancelled = True
            if activity.is_worker_shutdown():
                # Said as a failure of its own kind: the run schedules the node anew instead of failing.
                message = "the worker was stopped while it ran this"
                benign = ApplicationErrorCategory.BENIGN
                raise ApplicationError(message, KNOWN.mask(held.state), type=WORKER_SHUTDOWN, category=benign) from None
            raise
        finally:
            await pulse.stop()


class _Pulse:
    """Beats on the worker's loop and in the activity's context: a node's thread may know neither. A timer, not a task:
    most activities end before its first beat."""

    def __init__(self, held: Saved, interval: float, settling: Settling) -> None:
        self._held = held
        self._settling = settling
        self._details: list[RawValue] = []
        self._unstored: Sequence[Payload] | None = None
        self._storing: asyncio.Task[None] | None = None
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
        payloads = self._settling.payloads(KNOWN.mask(details))
        if self._settling.is_settled(payloads):
            self._details = [RawValue(payload) for payload in payloads]
            self._unstored = None
        else:
            self._unstored = payloads
            if self._storing is None:
                self._storing = self._loop.create_task(self._store(), context=self._context)
        activity.heartbeat(*self._details)

    async def _store(self) -> None:
        """Beside the beats. If it fails the beats go on with what was stored last: they must not fail the activity."""
        while (payloads := self._unstored) is not None:
            self._unstored = None
            try:
                self._details = await self._settling.store(payloads)
                activity.heartbeat(*self._details)
            except Exception as error:
                activity.logger.warning("the state of %s could not be stored: %s", activity.info().activity_id, error)
        self._storing = None

    def beat(self) -> None:
        """Now, from any thread."""
        self._loop.call_soon_threadsafe(self._send, context=self._context)

    async def stop(self) -> None:
        """What was saved last goes out before the end: the next attempt begins with it."""
        self._stopped = True
        self._timer.cancel()
        if self._storing is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._storing, self._interval)
