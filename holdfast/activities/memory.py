"""The default memory of agents: a SQLite file on the worker's disk."""

import json
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.flows.memory import Memory

_TABLE = """CREATE TABLE IF NOT EXISTS messages (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    key TEXT NOT NULL, position INTEGER NOT NULL,
    user TEXT NOT NULL, session TEXT NOT NULL, message TEXT NOT NULL,
    UNIQUE (key, position)
)"""


class SqliteMemory(Memory):
    """Shared by the workers of one machine; for several machines, write a `Memory` for a database they share."""

    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def read(self, context: Mapping[str, Any], limit: int) -> Sequence[Mapping[str, Any]]:
        query = "SELECT message FROM messages WHERE user = ? AND session = ? ORDER BY number DESC LIMIT ?"
        with self._lock:
            rows = self._open().execute(query, (*_whose(context), limit)).fetchall()
        return [json.loads(row[0]) for row in reversed(rows)]

    def write(self, key: str, context: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
        statement = "INSERT OR IGNORE INTO messages (key, position, user, session, message) VALUES (?, ?, ?, ?, ?)"
        rows = [(key, place, *_whose(context), json.dumps(message)) for place, message in enumerate(messages)]
        with self._lock, self._open() as connection:
            connection.executemany(statement, rows)

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._path, timeout=10, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute(_TABLE)
            self._connection.execute("CREATE INDEX IF NOT EXISTS whose ON messages (user, session, number)")
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _whose(context: Mapping[str, Any]) -> tuple[str, str]:
    """Without a user or a session, what is kept is everybody's, or belongs to no session."""
    return str(context.get("user_id") or ""), str(context.get("session_id") or "")
