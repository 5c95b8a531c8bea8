"""What is shown of a checkpoint hides what is secret; what a run needs stays in the run."""

import dataclasses
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast.checkpoints.models import FlowCheckpoint, NodeCheckpointState
from holdfast.checkpoints.redaction import HIDDEN, is_sensitive, redact, redact_checkpoint


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
    ],
)
def test_a_sensitive_field_is_hidden_at_every_depth(value: Any, shown: Any) -> None:
    assert redact(value) == shown


def test_what_is_sensitive_can_be_decided_elsewhere() -> None:
    assert redact({"iban": "DE", "token": "t"}, lambda name: name == "iban") == {"iban": HIDDEN, "token": "t"}


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
