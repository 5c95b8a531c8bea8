"""Which model the examples ask: a real one if there is a key for it, otherwise a script that is written down here."""

import os
from typing import Any


def model(*replies: Any) -> dict[str, Any]:
    """`replies` is what the scripted model says, in turn; a real one says what it likes.

    OPENAI_API_KEY (with OPENAI_BASE_URL for any compatible endpoint) or ANTHROPIC_API_KEY choose a real one, and
    HOLDFAST_MODEL which.
    """
    if os.environ.get("OPENAI_API_KEY"):
        return {"model": os.environ.get("HOLDFAST_MODEL", "gpt-5-mini")}
    if os.environ.get("ANTHROPIC_API_KEY"):
        return {"provider": "anthropic", "model": os.environ.get("HOLDFAST_MODEL", "claude-haiku-4-5")}
    return {"provider": "scripted", "model": "scripted", "replies": list(replies)}


def calls(*named: tuple[str, dict[str, Any]], say: str = "") -> dict[str, Any]:
    """A reply that calls tools."""
    return {"content": say, "tool_calls": [{"name": name, "arguments": arguments} for name, arguments in named]}
