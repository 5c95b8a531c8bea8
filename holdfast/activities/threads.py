"""Where a node's own code runs: never on the worker's event loop.

A node that blocks, sync or async, must not stop the heartbeats: the server would take the worker for dead and run the
node a second time while the first is still going.
"""

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from typing import Any

_FAREWELL_SECONDS = 2.0


class NodeThreads:
    """A thread for every call of sync code, and one event loop of its own for async code.

    All of them are daemons: a node that does not end must not keep a stopped worker's process alive, where it would go
    on beside its own successor. The number of calls at once is limited where activities are.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()
        self._closing = False

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls it where it may block. Cancelled from outside, a sync function's thread is left to end by itself."""
        if inspect.iscoroutinefunction(function):
            future = asyncio.run_coroutine_threadsafe(_contained(function, args, kwargs), self._node_loop())
            return await asyncio.wrap_future(future)
        return await _in_thread(function, args, kwargs)

    def _node_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._serve, args=(self._loop,), name="holdfast-node-loop", daemon=True).start()
            return self._loop

    def _serve(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._closing:
            # A task that a node started and that calls sys.exit() ends itself, not the loop that all nodes share.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                loop.run_forever()
        loop.close()

    async def close(self) -> None:
        """Cancelled coroutines get a moment to clean up; what does not use it is left behind."""
        if self._loop is None:
            return
        farewell = asyncio.run_coroutine_threadsafe(_cancel_others(), self._loop)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.wrap_future(farewell), _FAREWELL_SECONDS)
        self._closing = True
        self._loop.call_soon_threadsafe(self._loop.stop)


async def _in_thread(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    loop = asyncio.get_running_loop()
    context = contextvars.copy_context()
    done: asyncio.Future[Any] = loop.create_future()

    def deliver(result: Any, error: Exception | None) -> None:
        if done.done():
            return  # Nobody waits any more.
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def work() -> None:
        result, failure = None, None
        try:
            result = context.run(function, *args, **kwargs)
        except BaseException as error:
            failure = _ordinary(error)
        with contextlib.suppress(RuntimeError):  # The worker has ended, and its loop with it.
            loop.call_soon_threadsafe(deliver, result, failure)

    threading.Thread(target=work, name="holdfast-node", daemon=True).start()
    return await done


async def _contained(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return await function(*args, **kwargs)
    except BaseException as error:
        task = asyncio.current_task()
        if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
            raise
        failure = _ordinary(error)
        if failure is error:
            raise
        raise failure from error


def _ordinary(error: BaseException) -> Exception:
    """The error, if it is one a future can carry to the worker's loop.

    The others would end that loop, look like a cancellation that nobody asked for, or be lost on the way, so that the
    node would be waited for until its timeout.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"the node's code ended with {error!r}")


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
