"""Every fault of a checkpoint is found and named."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.checkpoints.models import CheckpointRecord, NodeRecord
from holdfast.checkpoints.validation import (
    InvalidCheckpointError,
    ensure_valid,
    validate_checkpoint,
    validate_node_state,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WAITING = {"node_id": "ask", "prompt": "Shall I?", "timestamp": NOON}


def node(**fields: Any) -> NodeRecord:
    return NodeRecord.model_validate({"node_id": "a", "node_type": "Task", "status": "success", **fields})


def checkpoint(**fields: Any) -> CheckpointRecord:
    return CheckpointRecord.model_validate({"flow_id": "flow", "run_id": "run", **fields})


@pytest.mark.req("DM-8")
def test_a_sound_checkpoint_has_no_faults() -> None:
    sound = checkpoint(
        node_states={"a": node(started_at=NOON, completed_at=NOON)}, completed_node_ids=["a"], pending_node_ids=["b"]
    )

    assert validate_checkpoint(sound) == []
    ensure_valid(sound)
    ensure_valid(checkpoint(status="pending_input", pending_input_context=WAITING))


@pytest.mark.req("DM-8")
@pytest.mark.parametrize(
    ("fields", "faults"),
    [
        ({"node_id": ""}, ["node without an id: missing node_id"]),
        ({"node_type": ""}, ["node a: missing node_type"]),
        ({"status": ""}, ["node a: missing status"]),
        ({"status": "odd"}, ["node a: unknown status 'odd'"]),
        ({"status": "failure"}, ["node a: failed without an error"]),
        (
            {"started_at": NOON, "completed_at": NOON - timedelta(seconds=1)},
            ["node a: completed before it started"],
        ),
        ({"started_at": NOON, "completed_at": datetime(2026, 1, 1, 11)}, ["node a: completed before it started"]),
        ({"node_type": "", "status": ""}, ["node a: missing node_type", "node a: missing status"]),
        ({}, []),
    ],
)
def test_every_fault_of_a_node_state_is_named(fields: dict[str, Any], faults: list[str]) -> None:
    assert validate_node_state(node(**fields)) == faults


@pytest.mark.req("DM-8")
@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"flow_id": ""}, "missing flow_id"),
        ({"run_id": "", "id": "x"}, "missing run_id"),
        ({"version": "9"}, "unknown checkpoint version '9'; this library knows '1.0'"),
        ({"sequence_number": -1}, "negative sequence_number -1"),
        ({"completed_node_ids": ["a"]}, "completed node a missing from node_states"),
        (
            {"completed_node_ids": ["a", "a"], "node_states": {"a": node()}},
            "completed_node_ids lists a node twice",
        ),
        (
            {"completed_node_ids": ["a"], "node_states": {"a": node(status="running")}},
            "completed node a has status running",
        ),
        (
            {"completed_node_ids": ["a"], "pending_node_ids": ["a"], "node_states": {"a": node()}},
            "node a is both completed and pending",
        ),
        ({"node_states": {"b": node()}}, "node_states['b'] describes node 'a'"),
        ({"node_states": {"a": node(node_type="")}}, "node a: missing node_type"),
        ({"status": "pending_input"}, "status is pending_input, but there is no pending_input_context"),
        ({"pending_input_context": WAITING}, "status is active, but there is a pending_input_context"),
    ],
)
def test_every_fault_of_a_checkpoint_is_named(fields: dict[str, Any], fault: str) -> None:
    assert validate_checkpoint(checkpoint(**fields)) == [fault]


@pytest.mark.req("DM-8")
def test_a_refusal_names_all_faults_at_once() -> None:
    with pytest.raises(InvalidCheckpointError) as refused:
        ensure_valid(checkpoint(flow_id="", sequence_number=-1))

    assert refused.value.faults == ("missing flow_id", "negative sequence_number -1")
    assert str(refused.value) == "[checkpoint/invalid] missing flow_id; negative sequence_number -1"


def test_a_checkpoint_whose_id_was_taken_away_is_refused() -> None:
    assert validate_checkpoint(checkpoint().fork(id="")) == ["missing id"]
