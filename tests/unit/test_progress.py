"""How far a run is, counted transition by transition."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.checkpoints.ledger import (
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
)
from holdfast.checkpoints.models import CheckpointRecord, NodeRecord
from holdfast.contracts.progress import Progress
from holdfast.flows.spec import FlowSpec

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BROKEN = {"type": "ValueError", "message": "it broke\nin many lines"}


def flow(count: int, **fields: Any) -> FlowSpec:
    nodes = [{"id": f"n{number}", "type": "pass"} for number in range(count)]
    return FlowSpec.model_validate({"id": "flow", "nodes": nodes, **fields})


def started(node_id: str) -> Transition:
    return NodeStarted(at=NOON, path=node_id, node_type="http")


def fresh() -> CheckpointRecord:
    return CheckpointRecord(flow_id="flow", run_id="run")


def noted(progress: Progress, *transitions: Transition) -> Progress:
    for transition in transitions:
        progress.note(transition)
    return progress


def test_a_run_is_told_from_its_first_node_to_its_last() -> None:
    progress = noted(Progress(flow(4), fresh()), RunStarted(at=NOON))
    assert progress.markdown() == "**flow** is running: 0 of 4 nodes done"

    noted(progress, started("n0"), started("n1"), NodeCompleted(at=NOON, path="n0"))
    assert progress.markdown() == ("**flow** is running: 1 of 4 nodes done\n- last done: `n0`\n- running: `n1` http")

    noted(
        progress,
        NodeFailed(at=NOON, path="n1", error=BROKEN),
        NodeSkipped(at=NOON, path="n2", node_type="pass", reason="'n1' failed", blocked=True),
        NodeSkipped(at=NOON, path="n3", node_type="pass", reason="'n0' did not take option 'x'"),
        RunFailed(at=NOON, error=BROKEN),
    )
    assert progress.markdown() == (
        "**flow** is failed: 2 of 4 nodes done (2 skipped)\n- last done: `n0`\n- failed: `n1` it broke"
    )
    assert progress.counts() == {"done": 2, "total": 4, "skipped": 2, "failed": 1}


@pytest.mark.parametrize(
    ("end", "state"),
    [(RunCompleted(at=NOON), "completed"), (RunCancelled(at=NOON), "cancelled")],
)
def test_the_end_of_a_run_is_said_and_its_name_is_used(end: Transition, state: str) -> None:
    progress = noted(Progress(flow(1, name="My flow"), fresh()), end)

    assert progress.markdown() == f"**My flow** is {state}: 0 of 1 nodes done"


def test_a_handled_failure_is_done_and_failed() -> None:
    progress = noted(
        Progress(flow(1), fresh()), started("n0"), NodeFailed(at=NOON, path="n0", error={"type": "Odd"}, handled=True)
    )

    assert progress.counts() == {"done": 1, "total": 1, "skipped": 0, "failed": 1}
    assert progress.markdown().endswith("- failed: `n0`")


def test_a_long_list_is_cut_short() -> None:
    progress = noted(Progress(flow(40), fresh()), *(started(f"n{number}") for number in range(40)))

    assert progress.markdown().count("`") == 30
    assert progress.markdown().endswith("`n14` http and 25 more")


def half_done() -> CheckpointRecord:
    states = {"n0": "success", "n1": "failure", "n2": "skip", "n3": "running"}
    return CheckpointRecord(
        flow_id="flow",
        run_id="run",
        node_states={
            node_id: NodeRecord(node_id=node_id, node_type="http", status=status, error=BROKEN)
            for node_id, status in states.items()
        },
        completed_node_ids=["n0", "n2"],
    )


def test_a_run_that_continues_elsewhere_goes_on_counting() -> None:
    progress = Progress(flow(5), half_done())

    assert progress.counts() == {"done": 2, "total": 5, "skipped": 1, "failed": 1}
    assert progress.markdown() == (
        "**flow** is running: 2 of 5 nodes done (1 skipped)\n- running: `n3` http\n- failed: `n1` it broke"
    )


def test_a_resumed_run_does_not_count_what_it_has_forgotten() -> None:
    resumed = RunResumed(at=NOON, checkpoint_id="run@9", kept=["n0"], forgotten=["n1", "n2", "n3"])
    progress = noted(Progress(flow(5), half_done()), resumed)
    assert progress.counts() == {"done": 1, "total": 5, "skipped": 0, "failed": 0}

    for number in range(1, 5):
        noted(progress, started(f"n{number}"), NodeCompleted(at=NOON, path=f"n{number}"))

    assert progress.counts() == {"done": 5, "total": 5, "skipped": 0, "failed": 0}
