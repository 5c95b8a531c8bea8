"""Conditions on edges and Choice options: a small tree of comparisons, evaluated in the workflow.

A comparison with a value of the wrong kind, or with nothing, is false rather than an error: a branch is not taken
because somebody's score is missing. `is_not` turns the whole answer around.
"""

import re
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.flows.shapes import is_object

Operator = Literal[
    "and",
    "or",
    "boolean-equals",
    "numeric-equals",
    "numeric-greater-than",
    "numeric-greater-than-or-equals",
    "numeric-less-than",
    "numeric-less-than-or-equals",
    "string-equals",
    "string-greater-than",
    "string-greater-than-or-equals",
    "string-less-than",
    "string-less-than-or-equals",
    "string-starts-with",
    "string-ends-with",
    "string-contains",
    "string-regexp",
    "boolean-equals-path",
    "numeric-equals-path",
    "numeric-greater-than-path",
    "numeric-greater-than-or-equals-path",
    "numeric-less-than-path",
    "numeric-less-than-or-equals-path",
    "string-equals-path",
    "string-greater-than-path",
    "string-greater-than-or-equals-path",
    "string-less-than-path",
    "string-less-than-or-equals-path",
    "string-starts-with-path",
    "string-ends-with-path",
    "string-contains-path",
]


class Condition(BaseModel):
    """`{variable, operator, value}`, or `and`/`or` with `operands`. With `…-path`, `value` is a JSONPath too."""

    model_config = ConfigDict(extra="ignore")

    operator: Operator
    variable: str | None = None
    value: Any = None
    is_not: bool = False
    operands: list["Condition"] = Field(default_factory=list["Condition"])


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "equals": lambda left, right: left == right,
    "greater-than": lambda left, right: left > right,
    "greater-than-or-equals": lambda left, right: left >= right,
    "less-than": lambda left, right: left < right,
    "less-than-or-equals": lambda left, right: left <= right,
    "starts-with": lambda left, right: left.startswith(right),
    "ends-with": lambda left, right: left.endswith(right),
    "contains": lambda left, right: right in left,
    "regexp": lambda left, right: re.search(right, left) is not None,
}


def _is_kind(kind: str, value: Any) -> bool:
    if kind == "boolean":
        return isinstance(value, bool)
    if kind == "numeric":
        return isinstance(value, int | float) and not isinstance(value, bool)
    return isinstance(value, str)


def holds(condition: Condition, data: Any, find: Callable[[str, Any], Any]) -> bool:
    """Whether the condition is true of `data`; `find` resolves a JSONPath."""
    answer = _answer(condition, data, find)
    return not answer if condition.is_not else answer


def _answer(condition: Condition, data: Any, find: Callable[[str, Any], Any]) -> bool:
    if condition.operator == "and":
        return all(holds(operand, data, find) for operand in condition.operands)
    if condition.operator == "or":
        return any(holds(operand, data, find) for operand in condition.operands)
    kind, _, comparison = condition.operator.partition("-")
    left = _plain(find(condition.variable or "$", data))
    right = condition.value
    if comparison.endswith("-path"):
        comparison = comparison.removesuffix("-path")
        right = find(str(right), data)
    right = _plain(right)
    return _is_kind(kind, left) and _is_kind(kind, right) and _COMPARE[comparison](left, right)


def _plain(value: Any) -> Any:
    """A date or an enum is compared by the text it was written as; see `checkpoints/values.py` for the marks."""
    if is_object(value) and "__enum__" in value:
        return value.get("value")
    if is_object(value) and len(value) == 1:
        [(mark, inner)] = value.items()
        if mark in ("__datetime__", "__date__", "__time__", "__uuid__") and isinstance(inner, str):
            return inner
    return value
