"""Conditions: every operator, every kind of value, and what happens to values of the wrong kind."""

from datetime import UTC, datetime
from enum import Enum
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from holdfast.checkpoints.values import encode
from holdfast.flows.conditions import Condition, Operator, holds
from holdfast.flows.selectors import find


class Color(Enum):
    RED = "red"


DATA: dict[str, Any] = {
    "flag": True,
    "n": 5,
    "m": 5,
    "bigger": 7.5,
    "text": "hello",
    "other": "world",
    "start": "he",
    "end": "lo",
    "part": "ell",
    "nothing": None,
    "date": encode(datetime(2026, 5, 1, tzinfo=UTC)),
    "color": encode(Color.RED),
    "odd": {"__date__": 5},
}


def is_true(operator: str, variable: str | None = None, value: Any = None, **more: Any) -> bool:
    condition = Condition.model_validate({"operator": operator, "variable": variable, "value": value, **more})
    return holds(condition, DATA, find)


@pytest.mark.req("FL-4")
@pytest.mark.parametrize(
    ("operator", "variable", "true_for", "false_for"),
    [
        ("boolean-equals", "$.flag", True, False),
        ("numeric-equals", "$.n", 5.0, 6),
        ("numeric-greater-than", "$.n", 4, 5),
        ("numeric-greater-than-or-equals", "$.n", 5, 6),
        ("numeric-less-than", "$.n", 6, 5),
        ("numeric-less-than-or-equals", "$.n", 5, 4),
        ("string-equals", "$.text", "hello", "Hello"),
        ("string-greater-than", "$.text", "hell", "hello"),
        ("string-greater-than-or-equals", "$.text", "hello", "help"),
        ("string-less-than", "$.text", "help", "hello"),
        ("string-less-than-or-equals", "$.text", "hello", "hell"),
        ("string-starts-with", "$.text", "he", "lo"),
        ("string-ends-with", "$.text", "lo", "he"),
        ("string-contains", "$.text", "ell", "elf"),
        ("string-regexp", "$.text", "l{2}", "^l{2}"),
        ("boolean-equals-path", "$.flag", "$.flag", "$.n"),
        ("numeric-equals-path", "$.n", "$.m", "$.bigger"),
        ("numeric-greater-than-path", "$.bigger", "$.n", "$.bigger"),
        ("numeric-greater-than-or-equals-path", "$.n", "$.m", "$.bigger"),
        ("numeric-less-than-path", "$.n", "$.bigger", "$.m"),
        ("numeric-less-than-or-equals-path", "$.n", "$.m", "$.nothing"),
        ("string-equals-path", "$.text", "$.text", "$.other"),
        ("string-greater-than-path", "$.other", "$.text", "$.other"),
        ("string-greater-than-or-equals-path", "$.text", "$.text", "$.other"),
        ("string-less-than-path", "$.text", "$.other", "$.text"),
        ("string-less-than-or-equals-path", "$.text", "$.text", "$.start"),
        ("string-starts-with-path", "$.text", "$.start", "$.end"),
        ("string-ends-with-path", "$.text", "$.end", "$.start"),
        ("string-contains-path", "$.text", "$.part", "$.other"),
    ],
)
def test_every_comparison_can_be_true_and_false(operator: str, variable: str, true_for: Any, false_for: Any) -> None:
    assert is_true(operator, variable, true_for)
    assert not is_true(operator, variable, false_for)
    assert is_true(operator, variable, false_for, is_not=True)


def test_no_operator_is_left_out_above() -> None:
    [table] = [
        mark.args[1]
        for mark in getattr(test_every_comparison_can_be_true_and_false, "pytestmark", [])
        if mark.name == "parametrize"
    ]

    assert {row[0] for row in table} == set(get_args(Operator)) - {"and", "or"}


@pytest.mark.req("FL-4")
@pytest.mark.parametrize(
    ("operator", "variable", "value"),
    [
        ("numeric-equals", "$.text", 5),
        ("numeric-equals", "$.flag", 1),
        ("numeric-greater-than", "$.missing", 0),
        ("numeric-greater-than", "$.nothing", 0),
        ("numeric-greater-than", "$.n", "4"),
        ("numeric-less-than", "$", 4),
        ("string-equals", "$.n", "5"),
        ("string-contains", "$.text", None),
        ("boolean-equals", "$.n", True),
        ("boolean-equals", "$.flag", "true"),
        ("string-equals", "$.odd", "5"),
    ],
)
def test_a_comparison_with_a_value_of_the_wrong_kind_is_false_and_no_error(
    operator: str, variable: str, value: Any
) -> None:
    assert not is_true(operator, variable, value)
    assert is_true(operator, variable, value, is_not=True)


@pytest.mark.parametrize(("operands", "both", "either"), [("", True, False), ("t", True, True), ("tf", False, True)])
def test_conditions_are_combined(operands: str, both: bool, either: bool) -> None:
    listed = [{"operator": "boolean-equals", "variable": "$.flag", "value": operand == "t"} for operand in operands]

    assert is_true("and", operands=listed) == both
    assert is_true("or", operands=listed) == either
    assert is_true("and", operands=listed, is_not=True) != both


def test_conditions_are_combined_at_every_depth() -> None:
    yes = {"operator": "boolean-equals", "variable": "$.flag", "value": True}

    assert is_true("or", operands=[{"operator": "and", "operands": [yes, {**yes, "is_not": True}]}, yes])
    assert not is_true("and", operands=[{"operator": "or", "operands": [{**yes, "is_not": True}]}, yes])


def test_a_date_and_an_enum_are_compared_by_what_they_say() -> None:
    assert is_true("string-greater-than", "$.date", "2026-04")
    assert is_true("string-starts-with", "$.date", "2026-05-01T")
    assert is_true("string-equals", "$.color", "red")
    assert is_true("string-equals-path", "$.color", "$.color")


def test_an_unknown_operator_is_refused() -> None:
    with pytest.raises(ValidationError):
        is_true("string-resembles", "$.text", "hullo")
