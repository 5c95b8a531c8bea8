"""When a run may be carried over into a new execution: nothing is in flight, and every branch stands at a boundary.

Every coroutine of the engine is one *unit*. A unit is active while it can still go on by itself, or waits for an
activity; it is not while it sleeps, waits for a person, or is parked at a boundary.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


class Gate:
    """Counts active units, and says when there is none."""

    def __init__(self, should_park: Callable[[], bool], settled: Callable[[], None]) -> None:
        self._should_park = should_park
        self._settled = settled
        self._active = 0
        self.parked = 0
        self.resting = 0
        self._open: asyncio.Future[None] | None = None

    @property
    def quiet(self) -> bool:
        return self._active == 0

    def enter(self) -> None:
        self._active += 1

    def leave(self) -> None:
        self._active -= 1
        if self._active == 0:
            self._settled()

    def pause(self) -> None:
        """Lets nothing new begin."""
        if self._open is None:
            self._open = asyncio.get_running_loop().create_future()

    def unpause(self) -> None:
        if self._open is not None:
            self._open.set_result(None)
            self._open = None

    @property
    def paused(self) -> bool:
        return self._open is not None

    async def boundary(self) -> None:
        """Goes through, waits while the run is paused, or stays here for ever: the new execution takes up the work
        from the checkpoint."""
        while self._open is not None:
            opened = self._open
            async with self.rest():
                await asyncio.shield(opened)
        if self._should_park():
            self.parked += 1
            self.leave()
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                # Only a cancellation ends it: by the run, or by the node's timeout, and then the node goes on.
                self.parked -= 1
                self.enter()

    @asynccontextmanager
    async def rest(self) -> AsyncGenerator[None]:
        """A wait whose end is known from the checkpoint: it need not be waited out before the run is carried over."""
        self.resting += 1
        self.leave()
        try:
            yield
        finally:
            self.resting -= 1
            self.enter()

    async def gather(self, works: Sequence[Coroutine[Any, Any, _Answer]]) -> list[_Answer]:
        """Runs them side by side; results in their order. The first exception is raised when all have ended.

        The caller's unit is lent to them and comes back with the last one: in between there is no moment in which
        nothing is active and the caller is about to go on.
        """
        if len(works) < 2:
            return [await work for work in works]
        left = len(works)

        async def unit(work: Coroutine[Any, Any, _Answer]) -> _Answer:
            nonlocal left
            try:
                return await work
            finally:
                left -= 1
                if left:
                    self.leave()

        self._active += len(works) - 1
        tasks = [asyncio.create_task(unit(work)) for work in works]
        try:
            found = await asyncio.gather(*tasks, return_exceptions=True)
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            # One that was cancelled before it began has given nothing back, and was never awaited.
            self._active -= max(0, left - 1)
            for work in works:
                work.close()
            raise
        for result in found:
            if isinstance(result, BaseException):
                raise result
        return [result for result in found if not isinstance(result, BaseException)]
