"""Where something is in a node, as people write it: `output.text`, `messages[3].content`, `context["a.b"]`."""

import json
import re
from collections.abc import Sequence

Key = str | int

# What people call it, and what it is called in a node's internal state.
INSIDE = {
    "messages": "prompt_messages",
    "iterations": "completed_iterations",
    "context": "context",
    "chat_history": "chat_history",
}
_NAME = re.compile(r'[^.\[\]"\s]+')
_QUOTED = re.compile(r'\[("(?:[^"\\]|\\.)*")\]')
_WHOLE = re.compile(rf"{_QUOTED.pattern}(?=[.\[]|$)")
_STEP = re.compile(rf"\.?({_NAME.pattern})|\[(\d+)\]|{_QUOTED.pattern}")


def keys_of(field: str) -> list[Key]:
    """The keys that lead there, one by one; ValueError when it is not an address."""
    try:
        # A name may be quoted that need not be.
        plain = _WHOLE.sub(lambda quoted: _step(json.loads(quoted[1])), field)
        found = _STEP.findall(plain)
        keys: list[Key] = [name or (int(index) if index else json.loads(quoted)) for name, index, quoted in found]
    except json.JSONDecodeError:
        plain, keys = field, []
    if not keys or name_of(keys) != plain:
        raise ValueError(f"{field!r} cannot be read; write 'a.b[3]' or 'a[\"x y\"]'")
    return keys


def name_of(keys: Sequence[Key]) -> str:
    return "".join(_named(keys, position) for position in range(len(keys))).removeprefix(".")


def _named(keys: Sequence[Key], position: int) -> str:
    key = keys[position]
    # Items of a map are kept by their number as text.
    if isinstance(key, int) or (position == 1 and keys[0] == "iterations" and key.isdecimal()):
        return f"[{key}]"
    return _step(key)


def _step(name: str) -> str:
    return f".{name}" if _NAME.fullmatch(name) else f"[{json.dumps(name, ensure_ascii=False)}]"
