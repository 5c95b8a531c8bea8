"""The newest of many: a cache of a bounded weight."""

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """Forgets what was not asked for the longest. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                return None
            self._entries.move_to_end(key)
            return found[0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        with self._lock:
            old = self._entries.pop(key, None)
            self._used += weight - (old[1] if old else 0)
            self._entries[key] = (value, weight)
            while self._used > self._limit:
                _, (_, gone) = self._entries.popitem(last=False)
                self._used -= gone
