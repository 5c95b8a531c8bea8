"""What is shown of a checkpoint hides what is secret; what a run needs stays in the run."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast.checkpoints.diff import Change
from holdfast.checkpoints.models import FlowCheckpoint, NodeCheckpointState
from holdfast.checkpoints.redaction import HIDDEN, also_sensitive, is_sensitive, redact, redact_checkpoint
from holdfast.starter import showing


class Login(BaseModel):
    user: str
    password: str


@dataclasses.dataclass
class Bearer:
    url: str
    access_token: str


@pytest.mark.req("PR-2")
@pytest.mark.parametrize(
    "name",
    [
        "api_key", "apiKey", "API-Key", "OPENAI_API_KEY", "x-api-key", "password", "db_password", "dbPassword",
        "client_secret", "clientSecret", "secret_key", "aws_secret_access_key", "AWS_ACCESS_KEY", "passphrase",
        "token", "session_token", "refreshToken", "Authorization", "credentials", "private_key", "Cookie",
    ],
)  # fmt: skip
def test_a_name_that_usually_holds_a_secret_is_sensitive(name: str) -> None:
    assert is_sensitive(name)


@pytest.mark.parametrize("name", ["total_tokens", "max_tokens", "tokens", "secretary", "key", "monkey", "author", "id"])
def test_an_innocent_name_is_not(name: str) -> None:
    assert not is_sensitive(name)


@pytest.mark.req("PR-2")
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"a": [{"token": "t"}]}, {"a": [{"token": HIDDEN}]}),
        ({"token": {"nested": 1}}, {"token": HIDDEN}),
        ({"token": None}, {"token": None}),
        (({"password": "p"}, 1), ({"password": HIDDEN}, 1)),
        ({"login": Login(user="u", password="p")}, {"login": {"user": "u", "password": HIDDEN}}),
        ([Bearer("https://x", "t")], [{"url": "https://x", "access_token": HIDDEN}]),
        (Bearer, Bearer),
        ("token", "token"),
        ({1: "number"}, {1: "number"}),
        (
            {"__dict__": [["token", "t"], [1, {"token": "t"}], ["cookie", None]]},
            {"__dict__": [["token", HIDDEN], [1, {"token": HIDDEN}], ["cookie", None]]},
        ),
        ({"__dict__": {"token": "t"}}, {"__dict__": {"token": HIDDEN}}),
    ],
)
def test_a_sensitive_field_is_hidden_at_every_depth(value: Any, shown: Any) -> None:
    assert redact(value) == shown


def test_what_is_sensitive_can_be_decided_elsewhere() -> None:
    assert redact({"iban": "DE", "token": "t"}, lambda name: name == "iban") == {"iban": HIDDEN, "token": "t"}


@pytest.mark.req("PR-2")
def test_names_of_ones_own_are_hidden_in_any_spelling_beside_the_usual_ones() -> None:
    hides = also_sensitive([" iban", "tax-id", ""])

    names = ["iban", "IBAN", "customerIban", "customer-iban", "tax_id", "TaxId", "api_key"]
    assert [name for name in names if not hides(name)] == []
    assert not any(hides(name) for name in ["ibans", "ibanez", "id", "tax", ""])
    assert also_sensitive(["", " "]) is is_sensitive


@pytest.mark.req("PR-2")
def test_whoever_shows_something_hides_the_names_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(showing.REDACT_VARIABLE, "iban,ssn")
    value = {"customer": {"iban": "DE02", "ssn": "078-05", "token": "t", "name": "Anna"}}
    checkpoint = FlowCheckpoint(flow_id="flow", run_id="run", original_input=value)
    hidden = {"customer": {"iban": HIDDEN, "ssn": HIDDEN, "token": HIDDEN, "name": "Anna"}}
    change = Change(node="a", field="output.iban", kind="changed", left="DE02", right="DE03")

    assert showing.redact(value) == hidden
    assert showing.redact_checkpoint(checkpoint).original_input == hidden
    assert showing.redact_changes([change])[0].right == HIDDEN
    monkeypatch.delenv(showing.REDACT_VARIABLE)
    assert showing.redact({"iban": "DE02"}) == {"iban": "DE02"}


@pytest.mark.req("PR-2")
def test_a_checkpoint_is_shown_without_secrets_and_stays_whole_itself() -> None:
    node = NodeCheckpointState(
        node_id="a",
        node_type="Task",
        status="failure",
        input_data={"headers": {"Authorization": "Bearer s3cret"}},
        output_data={"cookie": "s3cret"},
        internal_state={"session_key": "s3cret"},
        error={"message": "refused", "token": "s3cret"},
    )
    checkpoint = FlowCheckpoint(
        flow_id="flow",
        run_id="run",
        node_states={"a": node},
        original_input={"api_key": "s3cret", "question": "why"},
        original_config={"password": "s3cret"},
        metadata={"secret": "s3cret"},
        checksum="sum",
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    checkpoint.mark_pending_input("a", "Go on?", {"token": "s3cret"})
    before = checkpoint.model_dump_json()

    shown = redact_checkpoint(checkpoint)

    assert "s3cret" not in shown.model_dump_json()
    assert shown.original_input == {"api_key": HIDDEN, "question": "why"}
    assert shown.checksum is None
    assert checkpoint.model_dump_json() == before


def test_a_checkpoint_that_waits_for_nobody_is_shown_too() -> None:
    checkpoint = FlowCheckpoint(flow_id="flow", run_id="run", original_input={"question": "why"})

    assert redact_checkpoint(checkpoint) == checkpoint
