"""What this process knows to be secret, and how it is hidden in anything that leaves an activity.

By value, not by name: a service may send a key back in an error, and nobody knows the field it will be in. What a
secret was turned into (a hash, an encryption, half of it) is not found.
"""

import base64
import json
import re
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any, cast
from urllib.parse import quote, quote_plus

from pydantic import BaseModel
from pydantic_core import to_json

from holdfast.flows.shapes import is_array, is_object

SHORTEST = 8
"""A shorter value is not looked for: it would be found in texts that have nothing to do with it."""
_MOST = 100
_BYTES = frozenset({"__bytes__", "__bytearray__", "__bytesio__"})

REMOVED = "[secret]"
"""Another mark than that of what is only hidden where it is shown: here nothing is behind it any more."""


class Secrets:
    """Values to hide. Where there are none, nothing is looked at."""

    def __init__(self) -> None:
        self._values: dict[str, None] = {}
        self._lock = Lock()
        self._set(())

    def __bool__(self) -> bool:
        return bool(self._needles)

    def learn(self, values: Iterable[str]) -> None:
        """From now on they are hidden. Of keys that change, the latest are remembered."""
        wanted = [value for value in values if len(value) >= SHORTEST]
        with self._lock:
            before = set(self._values)
            for value in wanted:
                self._values.pop(value, None)
                self._values[value] = None
            for oldest in list(self._values)[:-_MOST]:
                del self._values[oldest]
            if self._values.keys() != before:
                self._set(self._values)

    def forget(self) -> None:
        """Everything; for tests, which share a process."""
        with self._lock:
            self._values.clear()
            self._set(())

    def _set(self, values: Iterable[str]) -> None:
        # The longest first: a secret may be the beginning of another.
        forms = sorted({form for value in values for form in forms_of(value)}, key=len, reverse=True)
        self._in_text = re.compile("|".join(map(re.escape, forms)))
        self._in_bytes = re.compile(b"|".join(re.escape(form.encode()) for form in forms))
        self._needles = [_escaped(form).encode() for form in forms]

    def found(self, value: Any) -> bool:
        """Whether a secret is anywhere in it. As JSON, because one search in a megabyte is quicker than many in it."""
        if not self._needles:
            return False
        try:
            text = to_json(value, bytes_mode="base64", fallback=str)
        except (ValueError, RecursionError):
            text = _escaped(repr(value)).encode(errors="replace")
        return any(needle in text for needle in self._needles)

    def mask(self, value: Any) -> Any:
        """The value itself where no secret is in it, otherwise a copy of the same type with `[secret]` instead."""
        return self._masked(value) if self.found(value) else value

    def _masked(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._in_text.sub(REMOVED, value)
        if isinstance(value, bytes | bytearray):
            return self._in_bytes.sub(REMOVED.encode(), value)
        if is_object(value):
            return self._masked_object(value)
        if is_array(value):
            return [self._masked(item) for item in value]
        if isinstance(value, tuple):
            return tuple(self._masked(item) for item in cast(tuple[Any, ...], value))
        if isinstance(value, BaseModel):
            return value.model_copy(update={name: self._masked(item) for name, item in value})
        # A number, a date; or something that would be written as a text we cannot see into.
        return REMOVED if self.found(value) else value

    def _masked_object(self, value: Mapping[Any, Any]) -> dict[Any, Any]:
        if len(value) == 1 and _BYTES.issuperset(value):
            # Bytes in their marked form (checkpoints/values.py): they have to be readable afterwards, too.
            [(mark, encoded)] = value.items()
            try:
                data = base64.b64decode(encoded, validate=True)
                return {mark: base64.b64encode(self._masked(data)).decode()}
            except (ValueError, TypeError):
                pass
        return {self._masked(key): self._masked(item) for key, item in value.items()}


KNOWN = Secrets()
"""Of the process, not of one worker in it: its environment and its logs are the process's, too."""


def forms_of(secret: str) -> set[str]:
    """The secret as it may be met: as it is, in a URL, in JSON and JSON in that, in a Python literal, in base64."""
    written = {secret, quote(secret), quote(secret, safe=""), quote_plus(secret), repr(secret)[1:-1]}
    written |= {_escaped(secret), json.dumps(secret)[1:-1], _escaped(_escaped(secret))}
    data = secret.encode(errors="replace")
    return written | {form for offset in range(3) for form in _base64_of(data, offset)}


def _base64_of(data: bytes, offset: int) -> set[str]:
    """What base64 makes of it after `offset` bytes of something else: the characters that depend on it alone."""
    first, last = -(-8 * offset // 6), 8 * (offset + len(data)) // 6
    padded = bytes(offset) + data
    return {encode(padded).decode()[first:last] for encode in (base64.b64encode, base64.urlsafe_b64encode)}


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]
