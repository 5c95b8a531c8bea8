"""Checks the selectors and conditions in a definition, wherever they are."""

import re
from collections.abc import Iterator

from holdfast.flows import selectors
from holdfast.flows.conditions import Condition
from holdfast.flows.faults import Fault, Place


def check_selector(path: str, place: Place) -> Iterator[Fault]:
    try:
        selectors.verify(path)
    except selectors.BadSelectorError as error:
        yield Fault(
            "node/bad-selector", str(error), place, "Write for example '$.node_id.output.field', or a text without '$'."
        )


def check_condition(condition: Condition, place: Place) -> Iterator[Fault]:
    if condition.operator in ("and", "or"):
        if not condition.operands:
            yield Fault(
                "node/bad-condition",
                f"{condition.operator!r} has no operands",
                place,
                "List the conditions in 'operands'.",
            )
        for operand in condition.operands:
            yield from check_condition(operand, place)
        return
    if condition.variable is None:
        yield Fault(
            "node/bad-condition",
            f"{condition.operator!r} compares nothing",
            place,
            "Name what to compare: 'variable: $.output.field'.",
        )
    else:
        yield from check_selector(condition.variable, place)
    if condition.operator.endswith("-path"):
        yield from check_selector(str(condition.value), place)
    if condition.operator == "string-regexp":
        try:
            re.compile(str(condition.value))
        except re.error as error:
            yield Fault("node/bad-condition", f"{condition.value!r}: {error}", place, "Mend the regular expression.")
