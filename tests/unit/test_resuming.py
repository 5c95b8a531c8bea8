"""What a new run keeps of an old one's checkpoint."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.checkpoints.ledger import fold
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus, NodeRecord
from holdfast.checkpoints.resuming import plan_resume, rebase
from holdfast.checkpoints.validation import validate_checkpoint
from holdfast.flows.spec import FlowSpec

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BROKEN = {"type": "ValueError", "message": "it broke"}


def flow(*nodes: str, **types: str) -> FlowSpec:
    """Nodes as `id<upstream`, of type Task unless said otherwise."""
    found: list[dict[str, Any]] = []
    for node in nodes:
        name, _, upstream = node.partition("<")
        depends = [{"node": other} for other in upstream.split(",") if other]
        found.append({"id": name, "type": types.get(name, "Task"), "depends": depends})
    return FlowSpec.model_validate({"id": "flow", "nodes": found})


def record(completed: str = "", **statuses: str) -> CheckpointRecord:
    states = {
        name: NodeRecord(
            node_id=name,
            node_type="Task",
            status=status,
            error=BROKEN if status == "failure" else None,
            internal_state={"half": name} if status != "success" else {},
        )
        for name, status in statuses.items()
    }
    return CheckpointRecord(
        flow_id="old flow",
        run_id="old",
        sequence_number=9,
        status=CheckpointStatus.FAILED,
        node_states=states,
        completed_node_ids=completed.split(),
        metadata={"error": BROKEN},
        checksum="sum",
    )


@pytest.mark.req("FL-2", "FL-3")
def test_what_is_completed_is_kept_and_what_was_begun_or_failed_is_done_again() -> None:
    plan = plan_resume(flow("a", "b<a", "c<a", "d<c"), record("a", a="success", b="failure", c="running"))

    assert (plan.kept, plan.forgotten, plan.warnings) == (["a"], ["b", "c"], [])


@pytest.mark.req("FL-4")
def test_a_handled_failure_stays_handled() -> None:
    plan = plan_resume(flow("a", "b<a"), record("a b", a="failure", b="success"))

    assert (plan.kept, plan.forgotten) == (["a", "b"], [])


@pytest.mark.req("FL-3")
def test_a_node_skipped_below_a_failure_is_decided_anew_and_other_skipped_ones_are_not() -> None:
    plan = plan_resume(
        flow("a", "b<a", "c<b", "x", "y<x"), record("b c x y", a="failure", b="skip", c="skip", x="success", y="skip")
    )

    assert plan.kept == ["x", "y"]
    assert plan.forgotten == ["a", "b", "c"]


def test_a_node_skipped_below_one_that_never_ran_is_decided_anew() -> None:
    plan = plan_resume(flow("new", "a<new"), record("a", a="skip"))

    assert (plan.kept, plan.forgotten) == ([], ["a"])


@pytest.mark.req("DM-9", "FL-10")
def test_a_changed_flow_is_resumed_with_warnings_that_name_what_changed() -> None:
    plan = plan_resume(flow("a", "b", b="http"), record("a b gone", a="success", b="success", gone="success"))

    assert (plan.kept, plan.forgotten) == (["a"], ["b"])
    assert plan.warnings == [
        "node 'gone' is no longer in the flow; its state is dropped",
        "node 'b' was a Task and is a http now; it runs again",
    ]


def test_the_plan_becomes_the_first_transition_of_the_new_run() -> None:
    plan = plan_resume(flow("a", "b", b="http"), record("a", a="success", b="success"))

    transition = plan.transition("old@9", NOON)

    assert (transition.checkpoint_id, transition.at) == ("old@9", NOON)
    assert (transition.kept, transition.forgotten) == (["a"], ["b"])
    assert transition.warnings == plan.warnings


@pytest.mark.req("FL-2", "FL-10")
def test_the_base_of_a_new_run_is_a_valid_checkpoint_of_its_own() -> None:
    old = record("a gone", a="success", b="failure", gone="success")
    before = old.model_dump_json()

    base = rebase(old, flow("a", "b<a", "new<b"), "new run")

    assert validate_checkpoint(base) == []
    assert (base.id, base.run_id, base.flow_id, base.sequence_number) == ("new run@9", "new run", "flow", 9)
    assert (base.status, base.checksum, base.pending_input_context) == (CheckpointStatus.ACTIVE, None, None)
    assert base.completed_node_ids == ["a"]
    assert base.pending_node_ids == ["b", "new"]
    assert base.node_states.keys() == {"a", "b"}
    assert old.model_dump_json() == before


@pytest.mark.req("DM-9", "FL-8")
def test_the_state_of_an_unfinished_node_is_given_back_but_not_to_a_node_of_another_type() -> None:
    old = record("", same="failure", other="failure")
    new_flow = flow("same", "other", other="delay")

    plan = plan_resume(new_flow, old)
    base = rebase(old, new_flow, "new")
    state = fold(base, [plan.transition(old.id, NOON).model_copy(update={"seq": 10})])

    assert plan.forgotten == ["same", "other"]
    assert state.node_states["same"].internal_state == {"half": "same"}
    assert "other" not in state.node_states
    assert state.pending_node_ids == ["same", "other"]
    assert validate_checkpoint(state) == []
