"""What a failed run leaves for the next one is used only if it is whole, and of this version."""

from typing import Any

import pytest
from pydantic_core import from_json

from holdfast import read_flow
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus, NodeRecord
from holdfast.contracts.calls import FlowStart, RunConfig
from holdfast.contracts.successor import Successor, shown, successor_of

FLOW = read_flow("id: f\nname: A flow\nnodes: {a: {type: Work}, b: {type: Work, depends: a}}")


def failed(**internal_state: Any) -> CheckpointRecord:
    states = {
        "a": NodeRecord(node_id="a", node_type="Work", status="success", output_data=1),
        "b": NodeRecord(
            node_id="b", node_type="Work", status="failure", error={"message": "x"}, internal_state=internal_state
        ),
    }
    return CheckpointRecord(
        flow_id="f", run_id="r", sequence_number=5, status=CheckpointStatus.FAILED, node_states=states,
        completed_node_ids=["a"], pending_node_ids=["b"],
    )  # fmt: skip


def left(record: CheckpointRecord) -> tuple[Successor, bytes] | None:
    return successor_of(FLOW, RunConfig(), record, "keys", "first")


@pytest.mark.req("FL-2")
def test_the_argument_is_a_start_from_the_checkpoint_with_a_plan() -> None:
    record = failed()
    found = left(record)
    assert found is not None
    head, argument = found
    start = FlowStart.model_validate(from_json(argument))

    assert head.fits(argument)
    assert (head.checkpoint_id, head.family) == ("r@5", "first")
    assert start.base == record
    assert start.plan == head.plan
    assert (head.plan.kept, head.plan.forgotten) == (["a"], ["b"])
    assert (start.resumed_from, start.key_base) == ("r@5", "keys")


@pytest.mark.req("PR-1")
def test_a_changed_argument_or_another_version_does_not_fit() -> None:
    found = left(failed())
    assert found is not None
    head, argument = found

    assert not head.fits(argument.replace(b'"a"', b'"z"', 1))
    assert not head.fits(argument[:-1])
    assert not head.model_copy(update={"library": "9.9"}).fits(argument)


@pytest.mark.req("FL-2")
def test_it_serves_the_last_checkpoint_and_the_definition_the_run_had() -> None:
    found = left(failed())
    assert found is not None
    head, argument = found
    same = FlowStart.model_validate(from_json(argument)).flow
    other = read_flow("id: f\nname: A flow\nnodes: {a: {type: Work}, b: {type: Other, depends: a}}")

    assert head.serves(None, None)
    assert head.serves(5, FLOW)
    assert head.serves(5, same)
    assert not head.serves(4, None)
    assert not head.serves(None, other)


@pytest.mark.req("FL-2")
@pytest.mark.parametrize("state", [{"child_run_id": "r/b"}, {"children": {"r/b/0": {"status": "running"}}}])
def test_where_other_runs_have_to_be_asked_nothing_is_left(state: dict[str, Any]) -> None:
    assert left(failed(**state)) is None


def test_a_long_flow_is_shown_by_its_first_nodes() -> None:
    flow = FLOW.model_copy(update={"nodes": [FLOW.nodes[0].model_copy(update={"id": f"n{i}"}) for i in range(60)]})
    told = shown(flow)

    assert (told.flow_id, told.summary, told.nodes) == ("f", "A flow", 60)
    assert "| n49 |" in told.details
    assert "| n50 |" not in told.details
    assert told.details.endswith("… and 10 more nodes")
