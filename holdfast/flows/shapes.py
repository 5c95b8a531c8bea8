"""JSON data by its shape: narrows `Any` for readers and for the type checker at once."""

from collections.abc import Mapping
from typing import Any, TypeGuard


def is_object(value: Any) -> TypeGuard[Mapping[str, Any]]:
    return isinstance(value, Mapping)


def is_array(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)
