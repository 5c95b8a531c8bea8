"""A run's result and its last checkpoint in one payload, and the payloads' promise to newer and older versions."""

from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from holdfast.checkpoints.models import CheckpointRecord, NodeRecord
from holdfast.checkpoints.serial import seal, unseal, unseal_record
from holdfast.checkpoints.validation import InvalidCheckpointError
from holdfast.contracts import calls
from holdfast.contracts.calls import FlowResult, FlowStart, ListQuery, NodeOutcome, RunConfig
from holdfast.contracts.results import pack, unpack, unpack_data

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def record() -> CheckpointRecord:
    def node(node_id: str, status: str, **fields: Any) -> NodeRecord:
        return NodeRecord.model_validate(
            {"node_id": node_id, "node_type": "Task", "status": status, "started_at": NOON, "newer": 1, **fields}
        )

    states = [
        node("good", "success", input_data={"q": 1}, output_data={"__set__": [1, 2]}, internal_state={"loop": 2}),
        node("bad", "failure", error={"type": "ValueError", "message": "it broke"}),
        node("skipped", "skip", error={"type": "skipped", "message": "why"}),
        node("running", "running", input_data={"big": "x"}),
    ]
    return CheckpointRecord(
        flow_id="flow",
        run_id="run",
        sequence_number=7,
        node_states={state.node_id: state for state in states},
        completed_node_ids=["good", "skipped"],
        pending_node_ids=["bad", "running"],
        created_at=NOON,
        updated_at=NOON,
    )


@pytest.mark.req("FL-2", "FL-3", "PR-1")
def test_a_result_carries_the_whole_checkpoint_and_its_checksum_still_holds() -> None:
    packed = pack(record(), "failed")
    arrived = FlowResult.model_validate_json(packed.model_dump_json())

    assert unpack(arrived) == seal(record())
    assert unseal_record(unpack(arrived)).node_states == record().node_states
    assert unseal(unpack(arrived)).node_states["good"].output_data == {1, 2}


def test_a_result_says_what_every_finished_node_got_and_gave() -> None:
    packed = pack(record(), "failed")

    assert (packed.status, packed.run_id) == ("failed", "run")
    assert packed.output.keys() == {"good", "bad", "skipped"}
    assert packed.output["good"] == NodeOutcome.model_validate(
        {"status": "success", "input": {"q": 1}, "output": {"__set__": [1, 2]}}
    )
    assert packed.output["bad"].error == {"type": "ValueError", "message": "it broke"}


def test_a_result_says_nothing_twice() -> None:
    states = pack(record(), "failed").checkpoint["node_states"]

    assert states["good"].keys().isdisjoint({"input_data", "output_data", "error", "status"})
    assert states["running"]["input_data"] == {"big": "x"}


def test_packing_leaves_the_run_as_it_was_and_unpacking_the_result() -> None:
    state = record()
    before = state.model_dump_json()

    result = pack(state, "failed")
    unpack(result)

    assert state.model_dump_json() == before
    assert result == pack(state, "failed")


def test_a_result_without_a_checkpoint_can_be_unpacked() -> None:
    assert unpack(FlowResult(status="completed", run_id="run")) == {"node_states": {}}


def test_anyone_may_start_a_run_with_a_flow_and_an_input() -> None:
    start = FlowStart.model_validate({"flow": {"id": "f"}, "input_data": {"q": 1}, "from_a_newer_version": True})

    assert (start.flow.id, start.input_data, start.base, start.config) == ("f", {"q": 1}, None, RunConfig())


@pytest.mark.parametrize(
    ("model", "data"),
    [
        (RunConfig, {"continue_after_events": 1}),
        (RunConfig, {"heartbeat_seconds": 0}),
        (RunConfig, {"heartbeat_seconds": float("inf")}),
        (ListQuery, {"limit": 0}),
        (ListQuery, {"limit": 5000}),
        (FlowStart, {"input_data": 1}),
    ],
)
def test_what_could_not_work_is_refused(model: type[BaseModel], data: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        model.model_validate(data)


def test_every_payload_ignores_what_a_newer_version_added() -> None:
    payloads = [item for item in vars(calls).values() if isinstance(item, type) and issubclass(item, calls.Wire)]

    assert len(payloads) > 10
    assert all(payload.model_config.get("extra") == "ignore" for payload in payloads)


@pytest.mark.req("PR-1")
@pytest.mark.parametrize(
    "damaged",
    [
        {},
        {"output": {}, "checkpoint": []},
        {"output": {"a": {}}, "checkpoint": {"node_states": {"a": None}}},
        {"output": 1},
    ],
)
def test_what_is_no_result_is_refused_by_name(damaged: dict[str, Any]) -> None:
    with pytest.raises(InvalidCheckpointError, match="not the result of a run"):
        unpack_data(damaged)
