"""Transitions, the fold over them, and the checkpoints that are listed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pydantic import TypeAdapter

from holdfast.checkpoints.ledger import (
    Ledger,
    NodeCompleted,
    NodeFailed,
    NodeSkipped,
    NodeStarted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    RunStarted,
    Transition,
    apply,
    fold,
    is_checkpoint,
)
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus
from holdfast.flows.spec import CheckpointConfig

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BROKEN = {"type": "ValueError", "message": "it broke"}


def at(second: int) -> datetime:
    return NOON + timedelta(seconds=second)


def base(*pending: str, **fields: Any) -> CheckpointRecord:
    return CheckpointRecord(
        flow_id="flow", run_id="run", pending_node_ids=[*pending], created_at=NOON, updated_at=NOON, **fields
    )


def recorded(ledger: Ledger, *transitions: Transition) -> Ledger:
    for transition in transitions:
        ledger.record(transition)
    return ledger


def two_nodes() -> Ledger:
    return recorded(
        Ledger(base("a", "b", "c")),
        RunStarted(at=at(0)),
        NodeStarted(at=at(1), path="a", node_type="Task", input_data={"q": 1}),
        NodeCompleted(at=at(2), path="a", output_data={"n": 1}, internal_state={"loop": 2}, attempts=3),
        NodeStarted(at=at(3), path="b", node_type="Task"),
        NodeFailed(at=at(4), path="b", error=BROKEN, internal_state={"half": 1}),
        NodeSkipped(at=at(5), path="c", node_type="pass", reason="'b' failed"),
        RunFailed(at=at(6), error={**BROKEN, "node_id": "b"}),
    )


@pytest.mark.req("FL-2", "PR-9")
def test_transitions_are_numbered_one_after_the_other_and_name_the_checkpoint_they_lead_to() -> None:
    ledger = two_nodes()

    assert [transition.seq for transition in ledger.since(0)] == [1, 2, 3, 4, 5, 6, 7]
    assert (ledger.seq, ledger.state.id) == (7, "run@7")
    assert ledger.at(3).id == "run@3"
    assert ledger.at(3).updated_at == at(2)


@pytest.mark.req("FL-2")
def test_a_node_is_running_then_done_and_keeps_what_it_got_and_gave() -> None:
    ledger = two_nodes()

    running, done = ledger.at(2).node_states["a"], ledger.at(3).node_states["a"]

    assert (running.status, running.input_data, running.started_at) == ("running", {"q": 1}, at(1))
    assert (done.status, done.output_data, done.completed_at) == ("success", {"n": 1}, at(2))
    assert (done.input_data, done.internal_state, done.attempts) == ({"q": 1}, {"loop": 2}, 3)
    assert ledger.at(3).completed_node_ids == ["a"]
    assert ledger.at(3).pending_node_ids == ["b", "c"]


@pytest.mark.req("FL-3")
def test_a_failed_run_keeps_what_was_completed_and_why_it_failed() -> None:
    state = two_nodes().at()

    assert state.status == CheckpointStatus.FAILED
    assert state.metadata["error"] == {**BROKEN, "node_id": "b"}
    assert state.completed_node_ids == ["a", "c"]
    assert state.pending_node_ids == ["b"]
    assert (state.node_states["b"].status, state.node_states["b"].error) == ("failure", BROKEN)
    assert state.node_states["c"].error == {"type": "skipped", "message": "'b' failed"}


@pytest.mark.req("FL-4")
def test_a_handled_failure_is_completed() -> None:
    ledger = recorded(
        Ledger(base("a")),
        NodeStarted(at=at(1), path="a", node_type="Task"),
        NodeFailed(at=at(2), path="a", error=BROKEN, handled=True),
        RunCompleted(at=at(3)),
    )

    assert ledger.state.completed_node_ids == ["a"]
    assert ledger.state.node_states["a"].status == "failure"
    assert ledger.state.status == CheckpointStatus.COMPLETED


@pytest.mark.req("FL-3")
def test_a_cancelled_run_can_be_resumed_like_a_failed_one() -> None:
    ledger = recorded(Ledger(base("a")), RunStarted(at=at(0)), RunCancelled(at=at(1)))

    assert ledger.state.status == CheckpointStatus.FAILED
    assert ledger.state.metadata["error"]["type"] == "cancelled"


@pytest.mark.req("FL-3", "FL-10")
def test_a_resumed_run_forgets_what_is_to_be_done_again_but_gives_its_state_back() -> None:
    failed = two_nodes().at()

    state = fold(failed, [RunResumed(seq=8, at=at(9), checkpoint_id="run@7", kept=["a"], forgotten=["b", "c", "gone"])])

    assert (state.status, state.parent_checkpoint_id) == (CheckpointStatus.ACTIVE, "run@7")
    assert "error" not in state.metadata
    assert state.completed_node_ids == ["a"]
    assert state.pending_node_ids == ["b", "c", "gone"]
    assert state.node_states.keys() == {"a", "b"}
    given_back = state.node_states["b"]
    assert (given_back.status, given_back.internal_state) == ("undefined", {"half": 1})
    assert (given_back.error, given_back.output_data, given_back.completed_at) == (None, None, None)


@pytest.mark.req("FL-2")
def test_folding_leaves_the_base_and_every_earlier_checkpoint_as_they_were() -> None:
    ledger = two_nodes()
    earlier = [ledger.at(seq) for seq in range(8)]
    before = [state.model_dump_json() for state in earlier]

    resumed = recorded(Ledger(ledger.at()), RunResumed(at=at(9), checkpoint_id="run@7", forgotten=["b", "c"]))
    recorded(
        resumed,
        NodeStarted(at=at(10), path="b", node_type="Task"),
        NodeCompleted(at=at(11), path="b", output_data=1),
        RunCompleted(at=at(12)),
    )

    assert [state.model_dump_json() for state in earlier] == before
    assert [ledger.at(seq).model_dump_json() for seq in range(8)] == before


@pytest.mark.req("PR-9")
def test_a_ledger_with_a_hole_is_refused() -> None:
    with pytest.raises(ValueError, match="transition 3 cannot follow 0: the ledger has a hole"):
        apply(base(), RunStarted(seq=3, at=NOON))


def test_the_sequence_goes_on_where_the_base_was() -> None:
    ledger = recorded(Ledger(base("a", sequence_number=40)), RunStarted(at=at(1)), RunCompleted(at=at(2)))

    assert (ledger.base_seq, ledger.seq) == (40, 42)
    assert [transition.seq for transition in ledger.since(41)] == [42]
    assert ledger.at(40).sequence_number == 40


def test_a_checkpoint_of_another_execution_is_not_found() -> None:
    ledger = recorded(Ledger(base("a", sequence_number=40)), RunStarted(at=at(1)))

    with pytest.raises(LookupError, match="there is no checkpoint 39: this execution has 40 to 41"):
        ledger.at(39)
    with pytest.raises(LookupError, match="no checkpoint 42"):
        ledger.at(42)


def test_transitions_are_read_in_pages() -> None:
    ledger = two_nodes()

    assert [transition.kind for transition in ledger.since(2, limit=2)] == ["node_completed", "node_started"]
    assert ledger.since(2, limit=0) == []
    assert ledger.since(99) == []
    assert len(ledger.since(-5)) == 7


def test_a_transition_survives_json_and_ignores_what_a_newer_version_added() -> None:
    adapter: TypeAdapter[Transition] = TypeAdapter(Transition)

    for transition in two_nodes().since(0):
        text = transition.model_dump(mode="json") | {"new": 1}
        assert adapter.validate_python(text) == transition


@pytest.mark.req("FL-2", "FL-9")
def test_by_default_there_is_a_checkpoint_after_everything_but_a_start() -> None:
    listed = two_nodes().summaries(CheckpointConfig())

    assert [(entry.sequence_number, entry.event, entry.node_id) for entry in listed] == [
        (3, "node_completed", "a"),
        (5, "node_failed", "b"),
        (6, "node_skipped", "c"),
        (7, "run_failed", None),
    ]
    assert [(entry.completed, entry.total) for entry in listed] == [(1, 3), (1, 3), (2, 3), (2, 3)]
    assert [entry.status for entry in listed] == ["active", "active", "active", "failed"]
    assert (listed[0].id, listed[0].created_at) == ("run@3", at(2))


@pytest.mark.req("FL-9")
@pytest.mark.parametrize(
    ("settings", "kinds"),
    [
        ({"enabled": False}, []),
        ({"checkpoint_after_node": False}, ["node_failed", "run_failed"]),
        ({"checkpoint_on_failure": False}, ["node_completed", "node_skipped"]),
        ({"exclude_nodes": ["a", "b"]}, ["node_skipped", "run_failed"]),
    ],
)
def test_the_author_decides_which_checkpoints_are_listed(settings: dict[str, Any], kinds: list[str]) -> None:
    config = CheckpointConfig.model_validate(settings)

    assert [entry.event for entry in two_nodes().summaries(config)] == kinds


def test_the_beginning_of_a_resumed_run_and_its_end_are_checkpoints() -> None:
    config = CheckpointConfig(checkpoint_after_node=False, checkpoint_on_failure=False)

    assert is_checkpoint(RunResumed(at=NOON, checkpoint_id="run@7"), config)
    assert is_checkpoint(RunCompleted(at=NOON), config)
    assert is_checkpoint(RunCancelled(at=NOON), config)
