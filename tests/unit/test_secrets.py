"""A secret that is known is found in whatever it is in, and replaced; everything else stays as it is."""

import base64
import json
import logging
import time
from collections.abc import Callable, Generator
from datetime import timedelta
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory, CancelledError

from holdfast.activities.masking import SecretsFilter, guard_logs, masked_failure
from holdfast.activities.secrets import KNOWN, REMOVED
from holdfast.checkpoints import values
from holdfast.contracts.calls import NodeFailure, NodeReply

KEY = "sk-4f/9+c2e?7a1b&d8"
OTHER = 'päss"word\\42'


@pytest.fixture(autouse=True)
def known() -> Generator[None]:
    KNOWN.forget()
    KNOWN.learn([KEY, OTHER])
    yield
    KNOWN.forget()


def in_base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


WAYS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "in a path": quote,
    "in a query": quote_plus,
    "in a part of a path": lambda text: quote(text, safe=""),
    "in JSON": json.dumps,
    "in JSON with umlauts": lambda text: json.dumps(text, ensure_ascii=False),
    "in JSON in JSON": lambda text: json.dumps(
        {"body": json.dumps({"key": text}, ensure_ascii=False)}, ensure_ascii=False
    ),
    "in Python": repr,
    "in base64": in_base64,
    "in base64 for URLs": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
    "in base64 after two bytes": lambda text: in_base64(f"a:{text}:b"),
    "in base64 after a user": lambda text: in_base64(f"anna:{text}"),
}


@pytest.mark.req("PR-2")
@pytest.mark.parametrize("secret", [KEY, OTHER])
@pytest.mark.parametrize("way", WAYS)
def test_a_secret_is_found_in_every_form_that_it_is_written_in(secret: str, way: str) -> None:
    text = f"it says: {WAYS[way](secret)}."

    assert KNOWN.found({"deep": [text]})
    assert REMOVED in KNOWN.mask(text)
    assert not KNOWN.found(KNOWN.mask(text))
    assert KNOWN.mask(text).startswith("it says: ")


@pytest.mark.req("PR-2")
def test_a_secret_is_hidden_at_any_depth_and_types_stay_what_they_are() -> None:
    output = {"a": [f"Bearer {KEY}", 1, None, 2.5, ("x", KEY)], KEY: "as a key", "plain": "stays"}
    reply = NodeReply(output=output, warnings=[f"{KEY}!"], attempt=3)
    masked = KNOWN.mask(reply)

    assert type(masked) is NodeReply
    assert masked.output == {
        "a": [f"Bearer {REMOVED}", 1, None, 2.5, ("x", REMOVED)],
        REMOVED: "as a key",
        "plain": "stays",
    }
    assert (masked.warnings, masked.attempt) == ([f"{REMOVED}!"], 3)
    assert reply.output is output, "the original is left alone"


@pytest.mark.req("PR-2")
@pytest.mark.parametrize("value", [b"k=" + KEY.encode() + b"\xff\x00", bytearray(b"abc" + KEY.encode())])
def test_bytes_are_searched_too_and_can_be_read_afterwards(value: Any) -> None:
    masked = KNOWN.mask({"raw": value, "marked": values.encode(value)})
    wanted = value.replace(KEY.encode(), REMOVED.encode())

    assert masked["raw"] == wanted
    assert values.decode(masked["marked"]) == wanted


def test_something_that_only_its_text_shows_is_hidden_as_a_whole() -> None:
    class Session:
        def __str__(self) -> str:
            return f"<session {KEY}>"

    assert KNOWN.mask({"session": Session(), "set": {KEY}}) == {"session": REMOVED, "set": REMOVED}


def test_what_cannot_be_written_as_json_is_searched_nevertheless() -> None:
    circle: list[Any] = []
    circle.append(circle)

    assert not KNOWN.found(circle)
    assert KNOWN.mask(["\ud800", KEY]) == ["\ud800", REMOVED]


def test_without_a_secret_in_it_a_value_is_itself() -> None:
    value = NodeReply(output={"a": ["b"]})

    assert KNOWN.mask(value) is value


def test_short_values_are_not_searched_for() -> None:
    KNOWN.forget()
    KNOWN.learn(["blue", "", "1234567"])

    assert not KNOWN
    assert KNOWN.mask("a blue sky, 1234567") == "a blue sky, 1234567"


def test_of_keys_that_change_all_the_time_the_latest_are_remembered() -> None:
    KNOWN.forget()
    for number in range(150):
        KNOWN.learn(["the-lasting-key", f"key-number-{number:04}"])

    assert KNOWN.mask("key-number-0000") == "key-number-0000"
    assert KNOWN.mask("key-number-0149 key-number-0060 the-lasting-key") == f"{REMOVED} {REMOVED} {REMOVED}"


def test_a_secret_that_begins_with_another_is_hidden_whole() -> None:
    KNOWN.learn([KEY + "-and-more"])

    assert KNOWN.mask(f"{KEY}-and-more") == REMOVED


@pytest.mark.parametrize(
    "output", ["x" * 1_000_000, [{"id": i, "name": "n" * 20, "text": "t" * 60} for i in range(9000)]]
)
def test_to_search_a_megabyte_takes_milliseconds(output: Any) -> None:
    KNOWN.forget()
    KNOWN.learn(f"sk-proj-{number:040}" for number in range(5))
    reply = NodeReply(output=output)
    took: list[float] = []
    for _ in range(5):
        before = time.perf_counter()
        assert KNOWN.mask(reply) is reply
        took.append(time.perf_counter() - before)

    # About 2 ms here; a busy machine is given time.
    assert min(took) < 0.05


def written(error: Exception) -> Failure:
    failure = Failure()
    converter = pydantic_data_converter
    converter.failure_converter.to_failure(error, converter.payload_converter, failure)
    return failure


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    try:
        if cause is not None:
            raise error from raised(cause)
        raise error
    except Exception as caught:
        return caught


@pytest.mark.req("PR-2")
def test_a_failure_is_masked_in_its_message_its_details_and_all_that_is_behind_it() -> None:
    details = NodeFailure(error={"message": f"refused: {KEY}"}, internal_state={"token": [KEY]}, attempt=2)
    error = ApplicationError(
        f"no: {KEY}",
        details,
        type="NodeFailed",
        non_retryable=True,
        next_retry_delay=timedelta(seconds=3),
        category=ApplicationErrorCategory.BENIGN,
    )
    behind = ValueError(f"https://host/?key={quote(KEY, safe='')}")
    masked = masked_failure(raised(error, behind))
    failure = written(masked)

    assert isinstance(masked, ApplicationError)
    assert masked.message == f"no: {REMOVED}"
    assert type(masked.details[0]) is NodeFailure
    assert masked.details[0].internal_state == {"token": [REMOVED]}
    assert (masked.type, masked.non_retryable, masked.category) == ("NodeFailed", True, ApplicationErrorCategory.BENIGN)
    assert masked.next_retry_delay == timedelta(seconds=3)
    assert failure.cause.message == f"https://host/?key={REMOVED}"
    assert failure.cause.application_failure_info.type == "ValueError"
    assert failure.stack_trace
    assert KEY not in str(failure)
    assert quote(KEY, safe="") not in str(failure)


def test_a_secret_in_an_error_that_another_one_happened_during_is_masked() -> None:
    error = RuntimeError("while cleaning up")
    error.__context__ = KeyError(KEY)
    failure = written(masked_failure(error))

    assert failure.cause.application_failure_info.type == "KeyError"
    assert KEY not in str(failure)


def test_a_line_of_code_with_a_secret_in_it_is_not_shown() -> None:
    try:
        raise RuntimeError("no secret in these words")  # but here: sk-4f/9+c2e?7a1b&d8
    except RuntimeError as error:
        masked = masked_failure(error)

    assert masked.__traceback__ is None
    assert str(masked) == "RuntimeError: no secret in these words"


@pytest.mark.parametrize("error", [ValueError("harmless"), CancelledError(f"cancelled {KEY}")])
def test_a_failure_without_a_secret_and_a_cancellation_are_themselves(error: Exception) -> None:
    assert masked_failure(error) is error


def logged(record: logging.LogRecord) -> str:
    assert SecretsFilter().filter(record)
    return logging.Formatter("%(message)s").format(record)


def record_of(text: str, *args: Any, **extra: Any) -> logging.LogRecord:
    exc_info = extra.pop("exc_info", None)
    return logging.getLogger().makeRecord("x", logging.INFO, "x.py", 1, text, args, exc_info, extra=extra)


@pytest.mark.req("PR-2")
def test_a_log_record_is_masked_in_its_text_its_traceback_and_its_extra_fields() -> None:
    error = raised(RuntimeError(KEY))
    info = (RuntimeError, error, error.__traceback__)
    record = record_of("the key %s of %s", KEY, "Anna", exc_info=info, headers={"auth": [KEY]}, other=1)
    text = logged(record)

    assert text.startswith(f"the key {REMOVED} of Anna\nTraceback")
    assert text.endswith(f"RuntimeError: {REMOVED}")
    assert record.exc_info is None, "nobody formats it anew"
    assert record.__dict__["headers"] == {"auth": [REMOVED]}
    assert record.__dict__["other"] == 1


def test_a_log_record_without_a_secret_keeps_its_arguments_and_its_exception() -> None:
    error = raised(RuntimeError("harmless"))
    record = record_of("%d of %d", 1, 2, exc_info=(RuntimeError, error, error.__traceback__))

    assert logged(record).startswith("1 of 2\nTraceback")
    assert record.args == (1, 2)
    assert record.exc_info is not None


def test_a_log_record_whose_arguments_do_not_fit_is_masked_where_it_is_complained_about() -> None:
    record = record_of("%d", KEY)

    assert SecretsFilter().filter(record)
    assert record.args == (REMOVED,)


def test_every_handler_is_guarded_once(caplog: pytest.LogCaptureFixture) -> None:
    guard_logs()
    guard_logs()
    logging.getLogger("some.node").warning("it is %s", KEY)

    assert caplog.messages == [f"it is {REMOVED}"]
    guards = [each for each in caplog.handler.filters if isinstance(each, SecretsFilter)]
    assert len(guards) == 1
