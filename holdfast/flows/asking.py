"""Checks what is asked of people: durations, patterns, templates and forms."""

import re
from collections.abc import Iterable, Iterator

from pydantic import ValidationError

from holdfast.flows import schemas, templates
from holdfast.flows.faults import Fault, Locate, Place
from holdfast.flows.params import seconds_of
from holdfast.flows.people import HumanParams
from holdfast.flows.spec import Deadline, NodeSpec

_NOTHING_TO_APPROVE = frozenset({"choice", "pass", "delay", "human"})


def check_asking(node: NodeSpec, locate: Locate) -> Iterator[Fault]:
    """Every fault in a node's question, and in its approval."""
    approval = node.approval
    if approval.enabled and node.type in _NOTHING_TO_APPROVE:
        message = f"an approval does nothing on a {node.type!r} node"
        yield Fault("node/bad-field", message, locate(node.id, "approval"), "Put it on the node that has the effect.")
    if approval.enabled:
        yield from _check_times(approval.deadline, approval.reminders, locate(node.id, "approval"))
        yield from _check_pattern(approval.accept_pattern, locate(node.id, "approval", "accept_pattern"))
        try:
            templates.verify(approval.prompt)
        except templates.BadTemplateError as error:
            place = locate(node.id, "approval", "prompt")
            yield Fault("node/bad-template", str(error), place, "Mend the Jinja template.")
    if node.type == "human":
        yield from _check_human(node, locate)


def _check_human(node: NodeSpec, locate: Locate) -> Iterator[Fault]:
    try:
        params = HumanParams.model_validate(node.params)
    except ValidationError:
        return  # The parameters' own check has said it.
    yield from _check_times(params.deadline, params.reminders, locate(node.id))
    try:
        if params.form is not None:
            schemas.verify(params.form)
    except schemas.BadSchemaError as error:
        place = locate(node.id, "form")
        yield Fault("node/bad-schema", f"the JSON schema is none: {error}", place, "Mend the schema.")


def _check_times(deadline: Deadline | None, reminders: Iterable[float | str], place: Place) -> Iterator[Fault]:
    durations = list(reminders)
    while deadline is not None:
        durations.append(deadline.after)
        deadline = deadline.then
    for duration in durations:
        try:
            complaint = None if seconds_of(duration) > 0 else f"{duration!r} is no time to wait"
        except ValueError as error:
            complaint = str(error)
        if complaint is not None:
            yield Fault("node/bad-field", complaint, place, "Write for example '90s', '1h 30m' or '30d'.")


def _check_pattern(pattern: str | None, place: Place) -> Iterator[Fault]:
    try:
        re.compile(pattern or "")
    except re.error as error:
        yield Fault("node/bad-field", f"{pattern!r}: {error}", place, "Mend the regular expression.")
