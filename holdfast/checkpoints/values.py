"""Any value a node may return, as JSON and back, with nothing lost.

JSON has no bytes, dates, sets or models, so those become an object with a mark (`{"__bytes__": "…"}`); a dict that
happens to look like one is escaped. Workflows keep and pass on the marked form without looking into it; nodes and
library users get the real values.
"""

import base64
import dataclasses
import io
import math
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePath, PurePosixPath
from typing import Any, cast
from uuid import UUID

from pydantic import BaseModel, RootModel

from holdfast.flows.shapes import is_array, is_object

_PLAIN = frozenset({str, int, bool, type(None)})
_DEEPEST = 100
"""JSON is read back only to a depth of 200, and a checkpoint has a few levels of its own."""


class UnserialisableError(TypeError):
    """A value that cannot be kept. Names the field, because the value itself is gone when somebody reads this."""

    def __init__(self, path: str, value: object, why: str = "cannot be stored") -> None:
        self.path = path
        shown = path if len(path) <= 200 else f"{path[:100]} … {path[-60:]}"
        super().__init__(
            f"{shown} is of type {type(value).__module__}.{type(value).__qualname__} and {why}; "
            "return JSON values, bytes, dates, sets, enums, dataclasses or pydantic models"
        )


class Foreign(dict[str, Any]):
    """A marked value whose class is not known in this process: read as a dict, written back unchanged."""


def encode(value: Any, path: str = "value", depth: int = 0) -> Any:
    """`value` as JSON data; UnserialisableError names the first field that has no such form.

    `depth` counts the levels of JSON around it: a value that contains itself ends there too.
    """
    kind = cast(type[object], type(value))
    if kind in _PLAIN:
        if kind is str and not value.isascii():
            _check_text(value, path)
        return value
    if kind is float:
        return value if math.isfinite(value) else {"__float__": repr(value)}
    if kind is dict:
        return _encode_dict(value, path, depth)
    if kind is list:
        return _encode_items(value, path, depth)
    if kind is Foreign:
        return dict(value)
    return _encode_special(value, path, depth)


def _check_text(value: str, path: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise UnserialisableError(path, value, f"is not valid Unicode ({error.reason})") from error


def _check_depth(value: object, path: str, depth: int) -> None:
    if depth > _DEEPEST:
        raise UnserialisableError(path, value, f"is nested more than {_DEEPEST} levels deep, or contains itself")


def _encode_dict(value: Mapping[Any, Any], path: str, depth: int) -> Any:
    _check_depth(value, path, depth)
    if all(type(key) is str and not key.startswith("__") for key in value):
        return _encode_fields(value, path, depth)
    items = [
        [encode(key, f"{path} key", depth + 3), encode(item, f"{path}[{key!r}]", depth + 3)]
        for key, item in value.items()
    ]
    return {"__dict__": items}


def _encode_fields(value: Mapping[str, Any], path: str, depth: int) -> dict[str, Any]:
    for key in value:
        if not key.isascii():
            _check_text(key, f"{path} key")
    return {key: encode(item, f"{path}.{key}", depth + 1) for key, item in value.items()}


def _encode_special(value: Any, path: str, depth: int) -> Any:
    _check_depth(value, path, depth)
    if isinstance(value, Enum):
        return {"__enum__": _class_name(type(value)), "value": encode(value.value, path, depth + 1)}
    if isinstance(value, BaseModel):
        return {"__model__": _class_name(type(value)), **_encode_fields(dict(value), path, depth)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"__dataclass__": _class_name(type(value)), **_encode_fields(fields, path, depth)}
    for kind, mark, write in _WRITERS:
        if isinstance(value, kind):
            return {mark: _written(write, value, path)}
    if isinstance(value, tuple | set | frozenset):
        return {_COLLECTIONS[_collection(value)]: _encode_items(cast("tuple[Any, ...]", value), path, depth + 1)}
    # Subclasses of the plain types (numpy's str, an OrderedDict) are kept as what they are at heart.
    if isinstance(value, Mapping):
        return _encode_dict(cast(Mapping[Any, Any], value), path, depth)
    if isinstance(value, list):
        return _encode_items(cast(list[Any], value), path, depth)
    for kind in (bool, int, str, float):
        if isinstance(value, kind):
            return encode(kind(value), path)
    raise UnserialisableError(path, value)


def _written(write: Callable[[Any], Any], value: Any, path: str) -> Any:
    try:
        return write(value)
    except (ValueError, BufferError) as error:
        raise UnserialisableError(path, value, f"cannot be read ({error})") from error


def _encode_items(value: Any, path: str, depth: int) -> list[Any]:
    _check_depth(value, path, depth)
    items = [encode(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    # A set has no order; a stable one keeps equal checkpoints equal byte for byte.
    return sorted(items, key=repr) if isinstance(value, set | frozenset) else items


def _collection(value: Any) -> type:
    return next(kind for kind in _COLLECTIONS if isinstance(value, kind))


def _class_name(cls: type) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


_COLLECTIONS: dict[type, str] = {tuple: "__tuple__", set: "__set__", frozenset: "__frozenset__"}

_WRITERS: list[tuple[type, str, Callable[[Any], Any]]] = [
    (bytes, "__bytes__", lambda value: base64.b64encode(value).decode()),
    (bytearray, "__bytearray__", lambda value: base64.b64encode(value).decode()),
    (memoryview, "__bytes__", lambda value: base64.b64encode(value).decode()),
    (io.BytesIO, "__bytesio__", lambda value: base64.b64encode(value.getvalue()).decode()),
    (datetime, "__datetime__", lambda value: value.isoformat()),
    (date, "__date__", lambda value: value.isoformat()),
    (time, "__time__", lambda value: value.isoformat()),
    (timedelta, "__timedelta__", lambda value: [value.days, value.seconds, value.microseconds]),
    (UUID, "__uuid__", str),
    (Decimal, "__decimal__", str),
    (complex, "__complex__", lambda value: [encode(value.real), encode(value.imag)]),
    (PurePath, "__path__", lambda value: value.as_posix()),
]

_READERS: dict[str, Callable[[Any], Any]] = {
    "__bytes__": base64.b64decode,
    "__bytearray__": lambda text: bytearray(base64.b64decode(text)),
    "__bytesio__": lambda text: io.BytesIO(base64.b64decode(text)),
    "__datetime__": datetime.fromisoformat,
    "__date__": date.fromisoformat,
    "__time__": time.fromisoformat,
    "__timedelta__": lambda parts: timedelta(*parts),
    "__uuid__": UUID,
    "__decimal__": Decimal,
    "__complex__": lambda parts: complex(*decode(parts)),
    "__path__": PurePosixPath,
    "__float__": float,
    "__tuple__": lambda items: tuple(decode(items)),
    "__set__": lambda items: set(decode(items)),
    "__frozenset__": lambda items: frozenset(decode(items)),
    "__dict__": lambda items: {_hashable(decode(key)): decode(item) for key, item in items},
}


_UNREADABLE = (ValueError, TypeError, ArithmeticError, AttributeError)


def _hashable(key: Any) -> Any:
    return tuple(key) if is_array(key) else key


def decode(data: Any) -> Any:
    """What `encode` was given. A class is looked up among those already imported: data never causes an import."""
    if is_array(data):
        return [decode(item) for item in data]
    if not is_object(data):
        return data
    body = dict(data)
    if len(body) == 1 and (mark := next(iter(body))) in _READERS:
        try:
            return _READERS[mark](body[mark])
        except _UNREADABLE:
            return Foreign(body)  # Somebody else's data, which only looks like ours.
    for mark in _CLASS_READERS:
        if mark in body:
            return _decode_class(mark, body)
    return {key: decode(item) for key, item in body.items()}


def _decode_class(mark: str, body: dict[str, Any]) -> Any:
    cls = _find_class(body[mark])
    fields = {key: decode(item) for key, item in body.items() if key != mark}
    try:
        restored = _CLASS_READERS[mark](cls, fields) if cls is not None else None
    except Exception:  # A class of the user's may raise anything when it is made.
        restored = None  # The class has changed since; what was stored is still there to read.
    return Foreign(body) if restored is None else restored


def _restore_model(cls: type, fields: dict[str, Any]) -> Any:
    if issubclass(cls, RootModel):
        return cast(type[RootModel[Any]], cls).model_validate(fields["root"])
    return cls.model_validate(fields, by_name=True, by_alias=False) if issubclass(cls, BaseModel) else None


def _restore_enum(cls: type, fields: dict[str, Any]) -> Any:
    return cls(fields["value"]) if issubclass(cls, Enum) else None


def _restore_dataclass(cls: type, fields: dict[str, Any]) -> Any:
    if not dataclasses.is_dataclass(cls):
        return None
    # A field that the constructor does not take is set as it was.
    late = {field.name for field in dataclasses.fields(cls) if not field.init}
    restored = cls(**{name: value for name, value in fields.items() if name not in late})
    for name in late & fields.keys():
        object.__setattr__(restored, name, fields[name])
    return restored


_CLASS_READERS: dict[str, Callable[[type, dict[str, Any]], Any]] = {
    "__model__": _restore_model,
    "__enum__": _restore_enum,
    "__dataclass__": _restore_dataclass,
}


def _find_class(name: Any) -> type | None:
    if not isinstance(name, str):
        return None
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None
