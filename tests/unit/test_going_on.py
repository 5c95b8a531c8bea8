"""Runs that go on: resumed from a checkpoint, or parked and continued in a new execution."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast.checkpoints.ledger import NodeStarted, RunResumed
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus
from holdfast.checkpoints.serial import seal, unseal, unseal_record
from holdfast.contracts.calls import NodeCall, NodeReply
from holdfast.engine.ports import NodeError
from holdfast.engine.simulator import EPOCH, Scripted, Simulation
from holdfast.flows.check import ensure
from holdfast.flows.spec import FlowSpec, NodeSpec

FAILING = Scripted(error="it broke")


def node(node_id: str, *upstream: str | dict[str, Any], kind: str = "Task", **fields: Any) -> dict[str, Any]:
    depends = [{"node": edge} if isinstance(edge, str) else edge for edge in upstream]
    return {"id": node_id, "type": kind, "depends": depends, **fields}


def flow(*nodes: dict[str, Any]) -> FlowSpec:
    return ensure(FlowSpec.model_validate({"id": "flow", "nodes": nodes}))


def simulation(
    spec: FlowSpec, script: dict[str, Scripted] | None = None, *, park_after: int | None = None, run_id: str = "run"
) -> Simulation:
    told = {node.id: Scripted(output=node.id) for node in spec.nodes}
    return Simulation(spec, {**told, **(script or {})}, run_id=run_id, park_after=park_after)


def statuses(state: CheckpointRecord) -> dict[str, str]:
    return {node_id: known.status for node_id, known in state.node_states.items()}


@pytest.mark.req("FL-2")
def test_a_completed_run_that_is_resumed_executes_nothing() -> None:
    spec = flow(node("a"), node("b", "a", kind="transform", params={"template": "x"}))
    last = simulation(spec).run()

    again = simulation(spec, run_id="again")
    resumed = again.run(base=last)

    assert again.executed == []
    assert [entry.kind for entry in again.ledger.since(0)] == ["run_resumed", "run_completed"]
    assert statuses(resumed) == statuses(last)
    assert (resumed.run_id, resumed.parent_checkpoint_id) == ("again", last.id)
    assert resumed.sequence_number == last.sequence_number + 2


@pytest.mark.req("FL-3")
def test_a_failed_run_that_is_resumed_runs_only_what_is_left() -> None:
    spec = flow(node("a"), node("bad", "a"), node("below", "bad"), node("other"))
    failed = simulation(spec, {"bad": FAILING}).run({"q": 1})

    mended = simulation(spec, run_id="again")
    resumed = mended.run(base=failed)

    assert mended.executed == ["bad", "below"]
    assert resumed.status == CheckpointStatus.COMPLETED
    assert "error" not in resumed.metadata
    assert resumed.original_input == {"q": 1}
    assert set(statuses(resumed).values()) == {"success"}
    [began] = [entry for entry in mended.ledger.since(0) if isinstance(entry, RunResumed)]
    assert (began.kept, began.forgotten) == (["a", "other"], ["bad", "below"])


@pytest.mark.req("FL-4", "FL-2")
@pytest.mark.parametrize("pure", [False, True])
def test_a_node_that_ran_beside_a_failure_is_not_run_again_when_the_failure_is_mended(pure: bool) -> None:
    spec = flow(
        node("bad", pure=pure),
        node("good"),
        node("join", "bad", "good", join="any"),
        node("pure", "bad", "good", join="any", pure=True),
        node("passing", "bad", "good", join="any", kind="pass"),
    )
    failed = simulation(spec, {"bad": FAILING}).run()
    assert failed.status == CheckpointStatus.FAILED

    mended = simulation(spec)
    resumed = mended.run(base=failed)

    assert mended.executed == ["bad"]
    assert resumed.status == CheckpointStatus.COMPLETED
    assert len(set(resumed.completed_node_ids)) == len(resumed.completed_node_ids) == 5


@pytest.mark.req("FL-3", "FL-8")
def test_an_unfinished_node_gets_the_state_it_had() -> None:
    class Stateful(Simulation):
        given: dict[str, Any]

        async def run_node(self, node: NodeSpec, call: NodeCall) -> NodeReply:
            self.given = call.internal_state
            if not call.internal_state:
                raise NodeError({"type": "Crash", "message": "half way"}, {"page": 7})
            return NodeReply(output="done", internal_state={"page": 9})

    spec = flow(node("a"))
    failed = Stateful(spec, {"a": Scripted()}).run()
    again = Stateful(spec, {"a": Scripted()})
    resumed = again.run(base=failed)

    assert failed.node_states["a"].internal_state == {"page": 7}
    assert again.given == {"page": 7}
    assert resumed.node_states["a"].internal_state == {"page": 9}
    [started] = [entry for entry in again.ledger.since(0) if isinstance(entry, NodeStarted)]
    assert started.internal_state == {"page": 7}


@pytest.mark.req("DM-9", "FL-10")
def test_a_node_whose_type_changed_runs_again_without_the_old_state() -> None:
    old = flow(node("a", kind="Old"), node("b", "a"))
    new = flow(node("a", kind="delay", params={"seconds": 5}), node("b", "a"), node("c", "b"))
    checkpoint = simulation(old, {"a": FAILING}).run()
    checkpoint.node_states["a"] = checkpoint.node_states["a"].model_copy(
        update={"internal_state": {"not": "a delay's"}}
    )

    again = simulation(new)
    resumed = again.run(base=checkpoint)

    assert again.executed == ["b", "c"]
    assert set(statuses(resumed).values()) == {"success"}


@pytest.mark.req("FL-10", "DM-8")
def test_every_checkpoint_of_a_resumed_run_can_be_sealed_and_read_again() -> None:
    spec = flow(node("a"), node("bad", "a"))
    failed = simulation(spec, {"bad": FAILING}).run()
    again = simulation(spec, run_id="again")
    again.run(base=unseal_record(seal(failed)))

    for seq in range(again.ledger.base_seq, again.ledger.seq + 1):
        assert unseal(seal(again.ledger.at(seq))).id == f"again@{seq}"


@pytest.mark.req("FL-10")
def test_a_delay_that_was_under_way_ends_when_it_was_to_end() -> None:
    spec = flow(node("wait", kind="delay", params={"seconds": 100}), node("other"))
    run = simulation(spec, {"other": Scripted(seconds=60)})
    run.run()
    under_way = run.ledger.at(4)

    resumed = simulation(spec).run(base=under_way)

    assert statuses(under_way) == {"wait": "running", "other": "success"}
    assert resumed.node_states["wait"].completed_at == EPOCH + timedelta(seconds=100)


@pytest.mark.parametrize("park_after", range(1, 12))
def test_a_failure_is_not_repeated_when_the_run_is_parked(park_after: int) -> None:
    spec = flow(node("bad"), node("below", "bad"), node("a"), node("b", "a"), node("c", "b"))
    script = {"bad": FAILING, "a": Scripted(seconds=1), "b": Scripted(seconds=1)}
    expected = simulation(spec, script).run()

    parked = simulation(spec, script, park_after=park_after)
    last = parked.run()

    assert sorted(parked.executed) == ["a", "b", "bad", "c"]
    assert (last.status, statuses(last)) == (expected.status, statuses(expected))
    assert last.metadata == expected.metadata


def test_a_parked_run_does_not_wait_for_a_timer() -> None:
    spec = flow(
        node("wait", kind="delay", params={"seconds": "30d"}),
        node("a"),
        node("b", "a"),
        node("end", "wait", "b"),
    )

    for park_after in range(1, 9):
        last = simulation(spec, {"a": Scripted(seconds=1)}, park_after=park_after).run()

        assert last.node_states["b"].completed_at == EPOCH + timedelta(seconds=1)
        assert last.node_states["wait"].started_at == EPOCH
        assert last.node_states["end"].started_at == EPOCH + timedelta(days=30)


def test_a_timer_that_begins_as_the_run_parks_does_not_hold_it_up() -> None:
    # The choice moves the ledger past the limit after the timer was started and before the node was.
    spec = flow(
        node("wait", kind="delay", params={"seconds": "30d"}),
        node("choice", kind="choice", params={"options": [{"id": "x"}]}),
        node("held"),
    )

    last = simulation(spec, park_after=3).run()

    assert last.node_states["held"].completed_at == EPOCH


def test_a_parked_run_goes_on_with_the_same_numbers() -> None:
    spec = flow(node("a"), node("b", "a"), node("c", "b"))
    straight = simulation(spec)
    straight.run()

    parked = simulation(spec, park_after=3)
    last = parked.run()

    assert parked.ledger.base_seq == 3
    assert last.sequence_number == straight.ledger.seq
    assert last.model_dump_json() == straight.ledger.at().model_dump_json()
