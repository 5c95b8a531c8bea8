"""Answers are taken once, kept when they come early, and carried over when the run is."""

from typing import Any

import pytest

from holdfast.checkpoints.ledger import InputReceived, InputRequested, Ledger
from holdfast.checkpoints.models import CheckpointRecord
from holdfast.contracts.people import AnswerMessage, HumanAnswer, HumanRequest
from holdfast.engine.inbox import Inbox, RefusedError
from holdfast.engine.simulator import EPOCH

REQUEST = HumanRequest(id="r1", path="ask", kind="text", prompt="?", created_at=EPOCH)


def inbox(kept: list[dict[str, Any]] | None = None, *, asked: bool = True) -> Inbox:
    ledger = Ledger(CheckpointRecord(flow_id="f", run_id="run", pending_node_ids=["ask", "later"]))
    if asked:
        wire = REQUEST.model_dump(mode="json", exclude_defaults=True)
        ledger.record(InputRequested(at=EPOCH, path="ask", request=wire))
    return Inbox(ledger, kept or [], lambda: EPOCH)


def message(words: str, **fields: Any) -> AnswerMessage:
    return AnswerMessage(data=HumanAnswer(feedback=words), **fields)


@pytest.mark.req("EX-2")
def test_the_first_answer_is_taken_and_the_second_is_told_who_was_first() -> None:
    box = inbox()
    receipt = box.take(message("one", request_id="r1", by="ada"))
    with pytest.raises(RefusedError, match="already answered by ada"):
        box.take(message("two", entity_id="ask"))
    answer = box.answer_to(REQUEST)

    assert (receipt.status, receipt.path) == ("accepted", "ask")
    assert answer is not None
    assert (answer.feedback, answer.by, answer.at) == ("one", "ada", EPOCH)


@pytest.mark.req("EX-2")
def test_an_answer_before_its_question_is_kept_for_it() -> None:
    box = inbox(asked=False)
    receipt = box.take(message("early", entity_id="ask", by="eve"))
    carried = inbox(box.carried())
    carried.look_for_early(REQUEST)
    answer = carried.answer_to(REQUEST)

    assert receipt.status == "kept"
    assert answer is not None
    assert (answer.feedback, answer.by) == ("early", "eve")
    assert carried.kept == []


@pytest.mark.req("EX-2", "RT-5")
def test_an_answer_taken_in_the_moment_a_run_is_carried_over_is_not_lost() -> None:
    box = inbox()
    box.take(message("just in time", request_id="r1", by="ada"))
    following = inbox(box.carried())
    following.look_for_early(REQUEST)
    answer = following.answer_to(REQUEST)

    assert answer is not None
    assert (answer.feedback, answer.by) == ("just in time", "ada")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (message("x", request_id="nobody"), "answer/unknown-request"),
        (message("x", entity_id="nowhere"), "answer/unknown-node"),
        (message(" ", request_id="r1"), "answer/unfit"),
    ],
)
def test_an_answer_that_cannot_be_taken_says_why(given: AnswerMessage, code: str) -> None:
    with pytest.raises(RefusedError) as refused:
        inbox().take(given)

    assert refused.value.code == code


def test_without_a_name_it_is_for_the_one_that_is_open() -> None:
    assert inbox().take(message("x")).path == "ask"
    with pytest.raises(RefusedError, match="say which question"):
        inbox(asked=False).take(message("x"))


def test_a_closed_question_says_who_closed_it() -> None:
    box = inbox()
    ledger = box._ledger  # pyright: ignore[reportPrivateUsage]
    ledger.record(InputReceived(at=EPOCH, path="ask", request_id="r1", answer={"feedback": "x", "by": "ada"}))
    for late in (message("y", request_id="r1"), message("y", entity_id="ask")):
        with pytest.raises(RefusedError, match="already answered by ada at 2026-01-01"):
            box.take(late)
