"""Tools of the agents under test. What they do is counted in a file, outside Temporal."""

import json
import os
from typing import Any

from holdfast import tool


def counted() -> list[dict[str, Any]]:
    with open(os.environ["TOOLS_JOURNAL"]) as journal:
        return [json.loads(line) for line in journal]


@tool
def look_up(word: str, idempotency_key: str, node_id: str) -> dict[str, Any]:
    """What a word means."""
    with open(os.environ["TOOLS_JOURNAL"], "a") as journal:
        journal.write(json.dumps({"tool": "look_up", "word": word, "key": idempotency_key, "node": node_id}) + "\n")
    if word == "broken":
        raise ValueError("no such page")
    return {"content": f"{word} means {word[::-1]}"}


@tool(side_effects="write", id="send")
def send_mail(to: str, urgent: bool = False) -> str:
    """Sends a mail."""
    return f"sent to {to}{'!' if urgent else ''}"


@tool
def attach(name: str) -> dict[str, Any]:
    """A file."""
    return {"content": "here it is", "files": {name: b"\x00\xff bytes"}}
