"""Outputs of nodes with `caching`, kept on the worker's disk, so that the same work is not paid for again."""

import hashlib
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

from holdfast.contracts.calls import NodeCall


def cache_key(call: NodeCall) -> str:
    """The same type, parameters and input; which run or node asks does not matter."""
    text = json.dumps([call.type, call.params, call.input_data], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


class OutputCache:
    """A SQLite file: several workers on one machine may share it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def get(self, key: str) -> tuple[Any] | None:
        """The output in a tuple, so that a cached None is told from nothing."""
        with self._lock:
            row = self._open().execute("SELECT output FROM outputs WHERE key = ?", (key,)).fetchone()
        return (json.loads(row[0]),) if row else None

    def put(self, key: str, output: Any) -> None:
        with self._lock, self._open() as connection:
            connection.execute("INSERT OR IGNORE INTO outputs (key, output) VALUES (?, ?)", (key, json.dumps(output)))

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._path, timeout=10, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("CREATE TABLE IF NOT EXISTS outputs (key TEXT PRIMARY KEY, output TEXT NOT NULL)")
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
