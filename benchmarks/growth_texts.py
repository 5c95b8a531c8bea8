"""What is said in `growth`: the same words for every side, made from a seed.

Words of a made-up vocabulary, a few of them often and most of them seldom, as in any language: zstd halves
one message, as it does with a page of English. One repeated letter would be stored for nothing, and nobody says random
bytes.
"""

import json
import random
from functools import cache
from typing import Any

TASK = "go"
_TEXT = 2048
_WORDS = 5000
_TOOLS = 20
_SYLLABLES = [first + second for first in "bcdfghklmnprstvwz" for second in ("a", "e", "i", "o", "u", "er", "an")]


@cache
def _vocabulary() -> tuple[list[str], list[float]]:
    chosen = random.Random("vocabulary")
    # The words that are often used are the short ones.
    words = ["".join(chosen.choices(_SYLLABLES, k=1 + (rank > 50) + (rank > 800))) for rank in range(_WORDS)]
    return words, [1 / (rank + 3) for rank in range(_WORDS)]


def text(seed: str, size: int = _TEXT) -> str:
    """Exactly so many characters."""
    words, weights = _vocabulary()
    return " ".join(random.Random(seed).choices(words, weights, k=size))[:size]


def said(turn: int) -> str:
    """What the model says in a turn."""
    return text(f"said {turn}")


def found(turn: int) -> str:
    """What the tool finds in a turn."""
    return text(f"found {turn}")


def conversation(turns: int) -> list[dict[str, Any]]:
    """All of it: a task, so many turns of a tool's call and its result, and the answer."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": TASK}]
    for turn in range(turns):
        call = {"id": f"call_{turn}", "name": "tool_0", "arguments": {"turn": turn}}
        result = {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": found(turn)}
        messages += [{"role": "assistant", "content": said(turn), "tool_calls": [call]}, result]
    return [*messages, {"role": "assistant", "content": said(turns)}]


def raw_bytes(turns: int) -> int:
    """The conversation once, as JSON."""
    return len(json.dumps(conversation(turns), separators=(",", ":")).encode())


def tools() -> list[dict[str, Any]]:
    """As OpenAI has them. All are offered, and one is called."""
    return [{"type": "function", "function": _tool(number)} for number in range(_TOOLS)]


def _tool(number: int) -> dict[str, Any]:
    properties = {
        "turn": {"type": "integer", "description": text(f"turn of {number}", 80)},
        "query": {"type": "string", "description": text(f"query of {number}", 120)},
        "limit": {"type": "integer", "description": text(f"limit of {number}", 60)},
    }
    schema = {"type": "object", "properties": properties, "required": ["turn"]}
    return {"name": f"tool_{number}", "description": text(f"tool {number}", 200), "parameters": schema}
