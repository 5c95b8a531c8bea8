"""Where a node's own code runs: never on the worker's event loop.

A node that blocks, sync or async, must not stop the heartbeats: the server would take the worker for dead and run the
node a second time while the first is still going.
"""

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class NodeThreads:
    """Threads for sync code, and one event loop of its own for async code."""

    def __init__(self, workers: int = 200) -> None:
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="holdfast-node")
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Calls it where it may block. Cancelled from outside, a sync function's thread is left to end by itself."""
        if inspect.iscoroutinefunction(function):
            future = asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self._node_loop())
            return await asyncio.wrap_future(future)
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, lambda: context.run(function, *args, **kwargs))

    def _node_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="holdfast-node-loop", daemon=True).start()
            return self._loop

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
