"""Custom nodes of the contract review: each stands for work that takes time and costs money.

Every execution is written to a journal outside of Holdfast, so that the demo can count what really ran.
"""

import asyncio
import os
import sqlite3
import time
from typing import Any

from holdfast import CheckpointMixin, Node

JOURNAL = os.environ.get("DEMO_JOURNAL", "")


def note(node_id: str, event: str, key: str) -> None:
    """One row per event. Nothing is written when no journal is named."""
    if not JOURNAL:
        return
    with sqlite3.connect(JOURNAL, timeout=30) as journal:
        journal.execute("CREATE TABLE IF NOT EXISTS events (node TEXT, event TEXT, key TEXT, pid INT, at REAL)")
        journal.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (node_id, event, key, os.getpid(), time.time()))


class Read(Node):
    """Reads a contract: plain, blocking code."""

    seconds: float = 1.0

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        note(kwargs["node_id"], "started", kwargs["idempotency_key"])
        time.sleep(self.seconds)
        note(kwargs["node_id"], "finished", kwargs["idempotency_key"])
        return {"title": input_data.get("contract", "nda.pdf"), "clauses": [f"clause {n}" for n in range(1, 7)]}


class Assess(Node, CheckpointMixin):
    """Looks at one clause after the other and saves how far it is: after a crash it goes on from there."""

    seconds: float = 3.0
    topic: str = "risk"
    _seen: list[str] = []

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"seen": self._seen}

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        self._seen = list(state.get("seen", []))

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        note(kwargs["node_id"], "started", kwargs["idempotency_key"])
        clauses: list[str] = input_data["clauses"]
        for clause in clauses[len(self._seen) :]:
            await asyncio.sleep(self.seconds / len(clauses))
            self._seen.append(clause)
            self.checkpoint({"seen": self._seen})
        note(kwargs["node_id"], "finished", kwargs["idempotency_key"])
        return {"topic": self.topic, "findings": [f"{clause}: no {self.topic}" for clause in self._seen]}


class Notify(Node):
    """Sends the result; a real one would hand the idempotency key to the mail service."""

    seconds: float = 0.5

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        note(kwargs["node_id"], "started", kwargs["idempotency_key"])
        time.sleep(self.seconds)
        note(kwargs["node_id"], "finished", kwargs["idempotency_key"])
        return {"sent": True, "key": kwargs["idempotency_key"]}
