"""A tool that gives a large file, and leaves a trace of every execution."""

import hashlib
from typing import Any

from holdfast import tool
from tests.chaos.chaos_nodes import note


def picture(size: int) -> bytes:
    """The same bytes every time."""
    block = b"".join(hashlib.sha256(number.to_bytes(4)).digest() for number in range(2**15))
    return (block * (size // len(block) + 1))[:size]


@tool
def draw(size: int, run_id: str, idempotency_key: str, attempt: int) -> dict[str, Any]:
    """Draws a picture."""
    note("started", {"run_id": run_id, "node_id": "draw", "idempotency_key": idempotency_key, "attempt": attempt})
    return {"content": "drawn", "files": {"picture.bin": picture(size)}}
