"""An old checkpoint is brought up to date; a newer one is refused by name."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoints.migrations import migrate
from holdfast.checkpoints.serial import checksum, deserialize_checkpoint, unseal
from holdfast.checkpoints.validation import InvalidCheckpointError, validate_checkpoint

SAMPLE = Path(__file__).parent / "data" / "checkpoint_v0.json"


@pytest.mark.req("DM-9")
def test_a_checkpoint_of_version_0_is_migrated() -> None:
    checkpoint = deserialize_checkpoint(SAMPLE.read_text())

    assert validate_checkpoint(checkpoint) == []
    assert checkpoint.version == "1.0"
    assert checkpoint.created_at == datetime(2025, 11, 3, 10, tzinfo=UTC)
    assert checkpoint.completed_node_ids == ["fetch"]
    fetch, review = checkpoint.node_states["fetch"], checkpoint.node_states["review"]
    assert fetch.output_data == {"status": 200, "body": "This agreement …"}
    assert fetch.completed_at == datetime(2025, 11, 3, 10, 0, 1, 500_000, tzinfo=UTC)
    assert (review.internal_state, review.completed_at) == ({"current_loop": 2}, None)
    assert review.model_extra == {"reviewer": "kept"}


@pytest.mark.req("DM-9", "PR-1")
def test_the_checksum_of_an_old_checkpoint_is_verified_before_it_is_migrated() -> None:
    data = json.loads(SAMPLE.read_text())
    data["checksum"] = checksum(data)
    assert unseal(data).flow_id == "contract-review"

    data["run_id"] = "somebody else's"

    with pytest.raises(InvalidCheckpointError, match="checkpoint 7c1d: its checksum says"):
        unseal(data)


@pytest.mark.req("DM-9")
def test_migrating_leaves_the_old_data_as_it_was() -> None:
    data = json.loads(SAMPLE.read_text())

    migrate(data)

    assert data == json.loads(SAMPLE.read_text())


@pytest.mark.req("DM-9")
def test_a_checkpoint_of_the_present_version_is_not_touched() -> None:
    data: dict[str, Any] = {"version": "1.0", "node_states": {}}

    assert migrate(data) is data


@pytest.mark.req("DM-9")
def test_a_newer_checkpoint_is_refused_by_name() -> None:
    with pytest.raises(InvalidCheckpointError) as refused:
        unseal({"version": "2.0", "flow_id": "flow", "run_id": "run"})

    assert str(refused.value) == (
        "[checkpoint/invalid] checkpoint version '2.0' is not known to this library (it knows 0, 1.0): upgrade holdfast"
    )


@pytest.mark.req("DM-8", "DM-9")
@pytest.mark.parametrize(
    "data",
    [
        {"node_states": {"a": {}}},
        {"node_states": [1]},
        {"node_states": 5},
        {"created_at": 1e300},
        {"node_states": [{"node_id": "a", "started_at": float("nan")}]},
    ],
)
def test_data_that_only_claims_to_be_an_old_checkpoint_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidCheckpointError, match="not a checkpoint of version '0'"):
        migrate(data)
