"""What a new run keeps of an old one's checkpoint."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.checkpoints.ledger import fold
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus, NodeRecord
from holdfast.checkpoints.resuming import plan_resume, rebase
from holdfast.checkpoints.validation import validate_checkpoint
from holdfast.flows.spec import FlowSpec, NodeSpec

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

    assert (plan.kept, plan.forgotten, plan.reset) == (["a"], [], ["b"])
    assert plan.warnings == [
        "node 'gone' is no longer in the flow; its state is dropped",
        "node 'b' was a Task and is a http now; it runs again",
    ]


def test_the_plan_becomes_the_first_transition_of_the_new_run() -> None:
    plan = plan_resume(flow("a", "b", b="http"), record("a", a="success", b="success"))

    transition = plan.transition("old@9", NOON)

    assert (transition.checkpoint_id, transition.at) == ("old@9", NOON)
    assert (transition.kept, transition.forgotten, transition.reset) == (["a"], [], ["b"])
    assert (transition.edited, transition.warnings) == (plan.edited, plan.warnings)


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

    assert (plan.forgotten, plan.reset) == (["same"], ["other"])
    assert state.node_states["same"].internal_state == {"half": "same"}
    assert "other" not in state.node_states
    assert state.pending_node_ids == ["same", "other"]
    assert validate_checkpoint(state) == []


DONE = record("a b c d", a="success", b="success", c="success", d="success")
LINE = flow("a", "b<a", "c<b", "d<a")


def with_node(spec: FlowSpec, node_id: str, **changes: Any) -> FlowSpec:
    """The flow with one node changed."""

    def changed(node: NodeSpec) -> NodeSpec:
        return NodeSpec.model_validate({**node.model_dump(), **changes}) if node.id == node_id else node

    return spec.model_copy(update={"nodes": [changed(node) for node in spec.nodes]})


@pytest.mark.req("FL-2")
def test_what_is_run_again_starts_from_nothing_with_all_that_comes_after_it() -> None:
    plan = plan_resume(LINE, DONE, rerun=["b"])

    assert (plan.kept, plan.forgotten, plan.reset) == (["a", "d"], [], ["b", "c"])
    assert plan.fresh == ["b", "c"]
    assert plan.warnings == ["node 'c' runs again: what it is made from changes"]


@pytest.mark.req("FL-2")
def test_a_reset_node_leaves_nothing_behind_and_one_that_was_never_begun_is_only_new_work() -> None:
    old = record("a", a="success", b="failure")
    old.node_states["b/loop[1]/tool[0]"] = NodeRecord(node_id="b/loop[1]/tool[0]", node_type="Task", status="running")
    spec = flow("a", "b<a", "c<b")
    plan = plan_resume(spec, old, rerun=["b"])

    state = fold(rebase(old, spec, "new"), [plan.transition(old.id, NOON).model_copy(update={"seq": 10})])

    assert (plan.reset, plan.fresh) == (["b"], ["b", "c"])
    assert state.node_states.keys() == {"a"}
    assert (state.completed_node_ids, state.pending_node_ids) == (["a"], ["b", "c"])
    assert validate_checkpoint(state) == []


@pytest.mark.req("OR-3")
def test_what_is_retried_goes_on_with_its_own_keys_and_what_follows_is_new_work() -> None:
    old = record("a c d", a="success", b="undefined", c="success", d="success")

    plan = plan_resume(LINE, old, retried=["b"])

    assert (plan.kept, plan.forgotten, plan.reset) == (["a", "d"], ["b"], ["c"])
    assert plan.fresh == ["c"]


@pytest.mark.req("FL-2")
def test_an_output_given_by_hand_stands_and_what_is_made_from_it_is_made_anew() -> None:
    plan = plan_resume(LINE, DONE, edited=["b:output.text"])

    assert (plan.kept, plan.reset, plan.fresh) == (["a", "b", "d"], ["c"], ["c"])
    assert plan.edited == ["b:output.text"]


@pytest.mark.req("FL-2")
def test_an_output_given_by_hand_stands_although_what_is_above_it_runs_again() -> None:
    plan = plan_resume(LINE, DONE, edited=["b:output"], rerun=["a"])

    assert (plan.kept, plan.reset) == (["b"], ["a", "c", "d"])


@pytest.mark.req("AG-2")
def test_a_node_that_was_changed_inside_goes_on_as_new_work() -> None:
    old = record("a", a="success", b="running")

    plan = plan_resume(flow("a", "b<a", "c<b", "d<a"), old, edited=["b/loop[1]/x:state.half"])

    assert (plan.kept, plan.forgotten, plan.reset) == (["a"], ["b"], [])
    assert plan.fresh == ["b", "c"]


DECISIVE: dict[str, Any] = {
    "params": {"word": "new"},
    "join": "any",
    "depends": [],
    "input_transformer": {"path": "$.x"},
    "output_transformer": {"path": "$.x"},
}


@pytest.mark.req("DM-9", "FL-10")
@pytest.mark.parametrize("field", DECISIVE)
def test_a_done_node_runs_again_when_what_decides_its_result_has_changed(field: str) -> None:
    plan = plan_resume(with_node(LINE, "b", **{field: DECISIVE[field]}), DONE, before=LINE)
    what = "params.word" if field == "params" else field

    assert (plan.kept, plan.reset, plan.fresh) == (["a", "d"], ["b", "c"], ["b", "c"])
    assert plan.warnings == [
        f"node 'b' has changed ({what}); it runs again",
        "node 'c' runs again: what it is made from changes",
    ]


@pytest.mark.req("DM-9")
@pytest.mark.parametrize(
    "change",
    [
        {"name": "Other"},
        {"description": "Other"},
        {"group": "other"},
        {"metadata": {"x": 1}},
        {"caching": {"enabled": True}},
        {"approval": {"enabled": True}},
        {"error_handling": {"max_retries": 3, "timeout_seconds": 1}},
    ],
    ids=lambda change: next(iter(change)),
)
def test_how_a_node_is_run_shown_or_guarded_may_change_freely(change: dict[str, Any]) -> None:
    plan = plan_resume(with_node(LINE, "b", **change), DONE, before=LINE)

    assert (plan.kept, plan.reset, plan.fresh, plan.warnings) == (["a", "b", "c", "d"], [], [], [])


@pytest.mark.req("DM-9")
def test_a_changed_node_is_kept_if_one_wants_it_and_so_is_what_is_made_from_it() -> None:
    plan = plan_resume(with_node(LINE, "b", params={"word": "new"}), DONE, before=LINE, keep=["b"])

    assert (sorted(plan.kept), plan.reset, plan.fresh) == (["a", "b", "c", "d"], [], [])
    assert plan.warnings == ["node 'b' has changed (params.word); its old result is kept, as you wish"]


@pytest.mark.req("DM-9", "FL-8")
def test_a_changed_node_that_was_not_done_goes_on_from_where_it_was() -> None:
    plan = plan_resume(with_node(flow("a"), "a", params={"word": "new"}), record("", a="failure"), before=flow("a"))

    # With a key of its own: the old one stands for another request.
    assert (plan.forgotten, plan.reset, plan.fresh) == (["a"], [], ["a"])
    assert plan.warnings == ["node 'a' has changed (params.word); it goes on from where it was"]


@pytest.mark.req("DM-9")
def test_what_is_made_from_a_node_of_another_type_is_made_anew_even_if_that_one_is_to_be_kept() -> None:
    plan = plan_resume(flow("a", "b<a", "c<b", "d<a", b="http"), DONE, before=LINE, keep=["b"])

    assert (plan.kept, plan.reset, plan.fresh) == (["a", "d"], ["b", "c"], ["b", "c"])


@pytest.mark.req("DM-9")
def test_a_node_that_is_new_is_named_where_the_old_definition_is_known() -> None:
    old = record("a b c d", a="success", b="success", c="success", d="success")

    known = plan_resume(flow("a", "b<a", "c<b", "d<a", "e<d"), old, before=LINE)
    unknown = plan_resume(flow("a", "b<a", "c<b", "d<a", "e<d"), old)

    assert known.warnings == ["node 'e' is new in the flow"]
    assert unknown.warnings == []
    assert known.fresh == unknown.fresh == []


def test_the_questions_that_were_open_are_remembered_as_asked_before_and_a_pause_is_over() -> None:
    old = record("a", a="success", b="running")
    old.pending_inputs["q"] = {"path": "b", "prompt": "Go on?"}
    old.metadata["paused"] = {"by": "me"}

    base = rebase(old, flow("a", "b<a"), "new")

    assert base.metadata["asked_before"] == ["b"]
    assert "paused" not in base.metadata
    assert base.pending_inputs == {}


def test_what_is_inside_a_node_is_carried_along_with_it_alone() -> None:
    old = record("", same="failure", other="failure")
    for name in ("same", "other"):
        path = f"{name}/loop[1]/tool[0]"
        old.node_states[path] = NodeRecord(node_id=path, node_type="agent", status="running")

    base = rebase(old, flow("same", "other", other="delay"), "new")

    assert base.node_states.keys() == {"same", "same/loop[1]/tool[0]"}
