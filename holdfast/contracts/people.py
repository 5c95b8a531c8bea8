"""Requests to people and their answers: what is asked, what may be answered, and whether an answer fits."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, cast

from pydantic import Field

from holdfast.contracts.calls import Wire
from holdfast.flows import schemas

Kind = Literal["text", "choice", "form", "approval"]


class HumanRequest(Wire):
    """A question that waits for a person. `path` is the node that asks, and the `entity_id` of the approval message.

    `data` is what an approval is about, `editable` its fields that the answer may change. `is_resumed`: it was asked
    before, by the run that this one goes on from. `step` counts those who were asked before and did not answer.
    """

    id: str
    path: str
    kind: Kind
    prompt: str
    data: Any = None
    editable: list[str] = Field(default_factory=list[str])
    choices: list[str] = Field(default_factory=list[str])
    form: dict[str, Any] | None = None
    accept_pattern: str | None = None
    to: str | None = None
    step: int = 0
    created_at: datetime
    deadline: datetime | None = None
    effect: str | None = None
    reminders: list[datetime] = Field(default_factory=list[datetime])
    reminded: int = 0
    overdue: bool = False
    is_resumed: bool = False


class HumanAnswer(Wire):
    """What a person said. `by` and `at` are in the ledger for good."""

    is_approved: bool | None = None
    feedback: str | None = None
    choice: str | None = None
    data: dict[str, Any] | None = None
    by: str | None = None
    at: datetime | None = None


class AnswerMessage(Wire):
    """How an answer reaches a run: by signal, by update, from any Temporal client.

    `request_id` names the question; `entity_id` the node that asks, also before it asks. With neither, it is for the
    one question that is open.
    """

    request_id: str | None = None
    entity_id: str | None = None
    data: HumanAnswer = Field(default_factory=HumanAnswer)
    event: str = "approval"
    by: str | None = None


class AnswerReceipt(Wire):
    """What became of an answer. `kept`: its question has not been asked yet."""

    status: Literal["accepted", "kept"]
    request_id: str | None = None
    path: str | None = None


def complete(request: HumanRequest, answer: HumanAnswer) -> HumanAnswer:
    """An approval that was given in words is one if they fit the pattern."""
    if request.kind == "approval" and answer.is_approved is None and request.accept_pattern and answer.feedback:
        fits = re.search(request.accept_pattern, answer.feedback) is not None
        return answer.model_copy(update={"is_approved": fits})
    return answer


def faults(request: HumanRequest, answer: HumanAnswer) -> list[str]:
    """Why the answer cannot be taken; nothing when it can."""
    match request.kind:
        case "approval":
            if answer.is_approved is None:
                return ["an approval says is_approved: true or false"]
            fixed = [name for name in answer.data or {} if name not in request.editable]
            may = ", ".join(request.editable) or "nothing"
            return [f"{', '.join(map(repr, fixed))} may not be edited; what may is: {may}"] if fixed else []
        case "choice":
            known = ", ".join(map(repr, request.choices))
            return [] if answer.choice in request.choices else [f"choose one of {known}, not {answer.choice!r}"]
        case "form":
            return schemas.faults(request.form or {}, answer.data if answer.data is not None else {})
        case "text":
            return [] if (answer.feedback or "").strip() else ["say something in 'feedback'"]


def already(request_id: str, closed: Mapping[str, Any]) -> str:
    """Who was first, for whoever comes late."""
    by, at = closed.get("by") or "somebody", closed.get("at") or "some time"
    return f"question {request_id!r} is already answered by {by} at {at}"


def message_from(data: Any) -> AnswerMessage:
    """The message as it came, also in its shortest forms; ValueError when it is none."""
    if not isinstance(data, Mapping):
        raise TypeError(f"an answer is an object with 'data', not {data!r:.100}")
    body = dict(cast(Mapping[str, Any], data))
    if "data" not in body:
        # `{"is_approved": true}` alone is how one answers by hand in the Temporal Web UI.
        body = {name: body.pop(name) for name in ("request_id", "entity_id", "by", "event") if name in body} | {
            "data": body
        }
    given = body["data"]
    if isinstance(given, Mapping) and given and not HumanAnswer.model_fields.keys() & given.keys():
        # `{"data": {"age": 3}}` is how one fills in a form.
        body["data"] = {"data": given}
    return AnswerMessage.model_validate(body)
