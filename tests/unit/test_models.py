"""The documented checkpoint schema: its fields, its methods, and its two forms."""

import io
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import PydanticSerializationError

from holdfast.checkpoints.models import (
    LIBRARY_VERSION,
    SCHEMA_VERSION,
    CheckpointRecord,
    CheckpointStatus,
    FlowCheckpoint,
    NodeCheckpointState,
    NodeRecord,
    PendingInputContext,
    RunStatus,
)
from holdfast.flows.spec import CheckpointConfig

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def checkpoint(**fields: Any) -> FlowCheckpoint:
    return FlowCheckpoint.model_validate({"flow_id": "flow", "run_id": "run", **fields})


def state(node_id: str = "a", **fields: Any) -> NodeCheckpointState:
    return NodeCheckpointState.model_validate({"node_id": node_id, "node_type": "Task", "status": "success", **fields})


@pytest.mark.req("DM-2")
def test_the_statuses_of_a_checkpoint_are_the_documented_ones() -> None:
    assert [*CheckpointStatus] == ["active", "paused", "completed", "failed", "pending_input"]


@pytest.mark.req("RT-1")
def test_the_statuses_of_a_run_include_the_documented_ones() -> None:
    assert {"pending", "running", "completed", "failed", "cancelled", "pending_input"} <= set(RunStatus)


@pytest.mark.req("DM-3")
def test_a_node_state_has_the_documented_fields_and_keeps_unknown_ones() -> None:
    written = state(
        input_data={"q": 1},
        output_data="a",
        error=None,
        internal_state={"loop": 3},
        started_at=NOON,
        completed_at=NOON + timedelta(seconds=1),
        from_a_newer_version={"kept": True},
    ).model_dump_json()

    assert json.loads(written) == {
        "node_id": "a",
        "node_type": "Task",
        "status": "success",
        "input_data": {"q": 1},
        "output_data": "a",
        "error": None,
        "internal_state": {"loop": 3},
        "started_at": "2026-01-01T12:00:00Z",
        "completed_at": "2026-01-01T12:00:01Z",
        "attempts": 0,
        "from_a_newer_version": {"kept": True},
    }
    assert NodeCheckpointState.model_validate_json(written).model_dump_json() == written
    assert NodeRecord.model_validate_json(written).model_dump_json() == written


@pytest.mark.req("DM-5")
def test_a_checkpoint_has_the_documented_fields() -> None:
    documented = {
        "id", "flow_id", "workflow_id", "run_id", "status", "node_states", "completed_node_ids", "pending_node_ids",
        "original_input", "original_config", "pending_input_context", "created_at", "updated_at", "version",
        "dynamiq_version", "metadata", "parent_checkpoint_id", "sequence_number", "checksum", "trace_context",
        "original_trace_id", "pending_inputs", "answered_inputs",
    }  # fmt: skip

    assert json.loads(checkpoint().model_dump_json()).keys() == documented


@pytest.mark.req("DM-5")
def test_a_new_checkpoint_is_active_named_after_its_run_and_in_utc() -> None:
    made = checkpoint(sequence_number=4)

    assert (made.id, made.status, made.version) == ("run@4", "active", SCHEMA_VERSION)
    assert made.library_version == made.dynamiq_version == LIBRARY_VERSION
    assert made.created_at.tzinfo is UTC
    assert checkpoint(id="mine").id == "mine"


@pytest.mark.req("DM-5")
@pytest.mark.parametrize("missing", ["flow_id", "run_id"])
def test_a_checkpoint_without_a_flow_or_a_run_is_refused(missing: str) -> None:
    fields = {"flow_id": "flow", "run_id": "run"}
    del fields[missing]

    with pytest.raises(ValidationError, match=missing):
        FlowCheckpoint.model_validate(fields)


@pytest.mark.req("DM-5")
def test_a_completed_node_leaves_the_pending_ones_and_is_listed_once() -> None:
    made = checkpoint(pending_node_ids=["a", "b"], updated_at=NOON)

    made.mark_node_complete("a", state(output_data=1))
    made.mark_node_complete("a", state(output_data=2))
    made.mark_node_complete("never pending", state("never pending"))

    assert made.completed_node_ids == ["a", "never pending"]
    assert made.pending_node_ids == ["b"]
    assert made.is_node_completed("a")
    assert not made.is_node_completed("b")
    assert made.get_node_output("a") == 2
    assert made.get_node_output("b") is None
    assert made.updated_at > NOON


@pytest.mark.req("DM-4", "DM-5")
def test_a_checkpoint_waits_for_input_and_goes_on() -> None:
    made = checkpoint(updated_at=NOON)

    made.mark_pending_input("ask", "Shall I?", {"tool": "mail"})
    waiting = made.pending_input_context

    assert made.status == CheckpointStatus.PENDING_INPUT
    assert waiting is not None
    assert (waiting.node_id, waiting.prompt, waiting.metadata) == ("ask", "Shall I?", {"tool": "mail"})
    assert waiting.timestamp == made.updated_at > NOON

    made.clear_pending_input()

    assert (made.status, made.pending_input_context) == (CheckpointStatus.ACTIVE, None)


@pytest.mark.req("DM-4", "DM-7")
def test_what_a_question_carries_along_comes_back_as_it_was() -> None:
    made = checkpoint()
    made.mark_pending_input("ask", "This one?", {"image": b"\x89PNG\xff", "seen": {1, 2}})

    read = FlowCheckpoint.model_validate_json(made.model_dump_json()).pending_input_context

    assert read == made.pending_input_context
    assert isinstance(read, PendingInputContext)
    assert read.metadata["image"] == b"\x89PNG\xff"


@pytest.mark.req("DM-5", "DM-7")
def test_a_checkpoint_is_a_dict_of_real_values_and_json_of_marked_ones() -> None:
    made = checkpoint(original_input={"file": b"\xff"}, node_states={"a": state(output_data={1})})

    assert made.to_dict()["original_input"] == {"file": b"\xff"}
    assert made.to_dict(mode="json")["original_input"] == {"file": {"__bytes__": "/w=="}}
    assert made.to_dict(mode="json")["node_states"]["a"]["output_data"] == {"__set__": [1]}


@pytest.mark.req("DM-7")
def test_a_record_passes_marked_values_on_without_looking_into_them() -> None:
    made = checkpoint(
        original_config={"at": NOON},
        metadata={"ids": (1, 2)},
        node_states={"a": state(input_data=io.BytesIO(b"x"), internal_state={"seen": {1}}, error={"cause": b"y"})},
    )
    text = made.model_dump_json()

    record = CheckpointRecord.model_validate_json(text)
    read = FlowCheckpoint.model_validate_json(record.model_dump_json())

    assert record.metadata == {"ids": {"__tuple__": [1, 2]}}
    assert record.model_dump_json() == text
    assert read.original_config == {"at": NOON}
    assert read.metadata == {"ids": (1, 2)}
    assert read.node_states["a"].input_data.getvalue() == b"x"
    assert read.node_states["a"].internal_state == {"seen": {1}}
    assert read.node_states["a"].error == {"cause": b"y"}


@pytest.mark.req("DM-7")
@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"original_input": {"x": object()}}, "original_input.x"),
        ({"original_config": {"x": object()}}, "original_config.x"),
        ({"metadata": {"x": object()}}, "metadata.x"),
        ({"node_states": {"a": state(output_data=[object()])}}, "a.output_data[0]"),
        ({"node_states": {"a": state(internal_state={"x": object()})}}, "a.internal_state.x"),
    ],
)
def test_a_value_that_cannot_be_written_is_named_with_its_field(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(PydanticSerializationError) as refused:
        checkpoint(**fields).model_dump_json()

    assert f"{path} is of type builtins.object and cannot be stored" in str(refused.value)


@pytest.mark.req("PR-9")
def test_a_time_without_a_zone_is_taken_for_utc() -> None:
    read = checkpoint(created_at="2026-01-01T12:00:00", node_states={"a": state(started_at="2026-01-01T12:00:00")})

    assert read.created_at == NOON
    assert read.node_states["a"].started_at == NOON


def test_a_fork_shares_nothing_that_is_ever_changed() -> None:
    base = CheckpointRecord(
        flow_id="flow",
        run_id="run",
        node_states={"a": NodeRecord(node_id="a", node_type="Task", status="success")},
        completed_node_ids=["a"],
        pending_node_ids=["b"],
        metadata={"creation_time": "now"},
    )
    before = base.model_dump_json()

    fork = base.fork(run_id="other")
    fork.node_states.clear()
    fork.completed_node_ids.clear()
    fork.pending_node_ids.clear()
    fork.metadata.clear()

    assert base.model_dump_json() == before
    assert fork.run_id == "other"


@pytest.mark.req("DM-6")
def test_the_settings_of_checkpoints_have_the_documented_fields_and_accept_a_backend() -> None:
    config = CheckpointConfig.model_validate({"backend": {"type": "FileSystem"}, "retention_days": 3})

    assert config.model_fields_set == {"backend", "retention_days"}
    assert config == CheckpointConfig(
        enabled=True,
        backend={"type": "FileSystem"},
        checkpoint_after_node=True,
        checkpoint_on_failure=True,
        checkpoint_mid_agent_loop=False,
        max_checkpoints=10,
        retention_days=3,
        exclude_nodes=[],
    )
    assert config.model_dump() == {"retention_days": 3}
