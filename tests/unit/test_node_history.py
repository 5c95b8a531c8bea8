"""How one node came to be what it is."""

import time
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.checkpoints.diff import Change, diff
from holdfast.checkpoints.ledger import (
    InputReceived,
    InputRequested,
    Ledger,
    NodeAdvanced,
    NodeCompleted,
    NodeSkipped,
    NodeStarted,
    RunResumed,
    Transition,
)
from holdfast.checkpoints.models import CheckpointRecord
from holdfast.checkpoints.node_history import NodeMoment, node_history
from holdfast.engine.simulator import Scripted
from holdfast.flows.spec import FlowSpec
from tests import agents
from tests.going_on import Watched, calls, carried, flow

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
MAP = {"id": "each", "type": "map", "params": {"node": {"id": "work", "type": "Task"}, "max_workers": 1}}
LINEAR = {
    "id": "o",
    "type": "linear-orchestrator",
    "params": {"manager": {"model": "boss"}, "agents": [agents.agent(agents.task("look"), node_id="writer")]},
}
PLAN = '[{"description": "one", "agent": "writer"}, {"description": "two", "agent": "writer"}]'


def base(*pending: str, **fields: Any) -> CheckpointRecord:
    return CheckpointRecord(flow_id="flow", run_id="run", pending_node_ids=[*pending], **fields)


def ledger(*transitions: Transition, start: CheckpointRecord | None = None) -> Ledger:
    made = Ledger(start or base("a", "b"))
    for transition in transitions:
        made.record(transition)
    return made


def told(moments: list[NodeMoment]) -> list[tuple[str, str | None, list[str]]]:
    return [(moment.event, moment.status, [change.field for change in moment.changes]) for moment in moments]


def history(run: Ledger, path: str, field: str | None = None) -> list[NodeMoment]:
    return node_history(run.at(run.base_seq), run.since(run.base_seq), path, field)


def from_every_checkpoint(run: Ledger, path: str) -> list[tuple[int, list[Change]]]:
    """The same history the slow way: two whole checkpoints compared at every transition."""
    found: list[tuple[int, list[Change]]] = []
    for seq in range(run.base_seq + 1, run.seq + 1):
        changes = [change for change in diff(run.at(seq - 1), run.at(seq)).changes if change.node == path]
        found += [(seq, changes)] if changes else []
    return found


def an_agent() -> Watched:
    return agents.run(
        flow(agents.agent(agents.task("search"))),
        calls(("search", {"q": "who"})),
        "It was me.",
        search=Scripted(output="a name"),
    )


def simulated(flow: FlowSpec, script: dict[str, Scripted], input_data: Any) -> Watched:
    watched = Watched(flow, script)
    watched.run(input_data)
    return watched


def a_map() -> Watched:
    return simulated(flow(MAP), {"each": Scripted(outputs=[10, 20, 30], seconds=1)}, {"input": [1, 2, 3]})


def a_plan() -> Watched:
    script = {
        "o": Scripted(replies=[PLAN, "All done."]),
        "o/writer": Scripted(replies=[calls(("look", {"q": "x"})), "a text"]),
        "o/writer/look": Scripted(output="seen"),
    }
    return simulated(flow(LINEAR), script, {"input": "Write."})


def test_an_agent_is_told_from_its_start_to_its_end() -> None:
    watched = an_agent()

    moments = history(watched.ledger, "agent")

    assert [(moment.event, moment.status) for moment in moments] == [
        ("node_started", "running"),
        ("agent_opened", "running"),
        ("model_replied", "running"),
        ("tool_completed", "running"),
        ("loop_completed", "running"),
        ("answered", "running"),
        ("node_completed", "success"),
    ]
    last = moments[-1]
    assert (last.checkpoint_id, last.at) == (f"run@{last.sequence_number}", watched.ledger.since(0)[-2].at)
    assert [(change.field, change.left) for change in last.changes] == [
        ("status", "running"),
        ("output", None),
        ("attempts", None),
    ]


def test_one_field_is_told_alone() -> None:
    watched = an_agent()

    assert told(history(watched.ledger, "agent", "messages")) == [
        ("agent_opened", "running", ["messages"]),
        ("model_replied", "running", ["messages[1]"]),
        ("loop_completed", "running", ["messages[2]"]),
        ("answered", "running", ["messages[3]"]),
    ]
    assert told(history(watched.ledger, "agent", "messages[2].role")) == [
        ("loop_completed", "running", ["messages[2].role"])
    ]
    assert [event for event, *_ in told(history(watched.ledger, "agent", "status"))] == [
        "node_started",
        "node_completed",
    ]
    assert history(watched.ledger, "agent", "error") == []


def test_the_items_of_a_map_come_one_by_one_and_go_into_its_output() -> None:
    watched = a_map()

    assert told(history(watched.ledger, "each", "iterations")) == [
        ("map_opened", "running", ["iterations"]),
        ("iteration_completed", "running", ["iterations[0]"]),
        ("iteration_completed", "running", ["iterations[1]"]),
        ("iteration_completed", "running", ["iterations[2]"]),
        ("node_completed", "success", ["iterations"]),
    ]
    assert told(history(watched.ledger, "each", "iterations[1]")) == [
        ("iteration_completed", "running", ["iterations[1]"]),
        ("node_completed", "success", ["iterations[1]"]),
    ]


def test_what_is_inside_another_node_ends_where_that_one_takes_its_result() -> None:
    watched = a_plan()

    moments = history(watched.ledger, "o/task[0]/writer")

    assert [moment.event for moment in moments][-2:] == ["node_completed", "task_completed"]
    assert (moments[-2].status, moments[-1].status) == ("success", None)
    assert {change.kind for change in moments[-1].changes} == {"removed"}


@pytest.mark.parametrize(
    ("run", "path"),
    [(an_agent, "agent"), (a_map, "each"), (a_plan, "o"), (a_plan, "o/task[1]/writer")],
)
def test_it_says_what_the_checkpoints_say(run: Any, path: str) -> None:
    whole = run().ledger
    moments = history(whole, path)

    assert [(moment.sequence_number, moment.changes) for moment in moments] == from_every_checkpoint(whole, path)

    half = whole.at(whole.seq // 2)
    later = node_history(carried(half), whole.since(half.sequence_number), path)
    assert later == [moment for moment in moments if moment.sequence_number > half.sequence_number]


def test_a_resumed_run_says_what_was_given_back_and_what_was_not() -> None:
    failed = base("b", node_states={"a": {"node_id": "a", "node_type": "Task", "status": "failure", "error": {"n": 1}}})
    failed.node_states["a"].internal_state = {"half": 1}
    run = ledger(
        RunResumed(at=NOON, checkpoint_id="old@3", forgotten=["a"]),
        NodeStarted(at=NOON, path="a", node_type="Task", internal_state={"half": 1}),
        NodeCompleted(at=NOON, path="a", output_data=1),
        start=failed,
    )

    assert told(history(run, "a")) == [
        ("run_resumed", "undefined", ["status", "error"]),
        ("node_started", "running", ["status"]),
        ("node_completed", "success", ["status", "output", "attempts", "state.half"]),
    ]
    assert failed.node_states["a"].status == "failure"


def test_a_name_that_looks_like_a_mark_is_told_like_any_other() -> None:
    run = ledger(
        NodeStarted(at=NOON, path="a", node_type="Task", internal_state={"files": {"x": 1, "y": 2}, "none": None}),
        NodeAdvanced(at=NOON, path="a", event="e", merge={"files": {"__init__.py": 3}, "none": {"x": 1}, "new": {}}),
    )

    assert told(history(run, "a"))[1:] == [("e", "running", ['state.files["__init__.py"]', "state.none", "state.new"])]
    assert history(run, "a")[1].changes == from_every_checkpoint(run, "a")[1][1]


def test_questions_and_other_nodes_are_no_part_of_it() -> None:
    request = {"id": "q", "path": "a", "kind": "question", "prompt": "Which?", "created_at": NOON.isoformat()}
    run = ledger(
        NodeStarted(at=NOON, path="b", node_type="Task"),
        NodeStarted(at=NOON, path="a", node_type="Task"),
        InputRequested(at=NOON, path="a", request=request),
        InputReceived(at=NOON, path="a", request_id="q", answer={}),
        NodeAdvanced(at=NOON, path="b", event="e", assign={"x": 1}),
        NodeAdvanced(at=NOON, path="a", event="nothing new"),
        NodeCompleted(at=NOON, path="b"),
    )

    assert [moment.sequence_number for moment in history(run, "a")] == [2]


def test_a_node_that_is_still_to_come_has_no_history_yet() -> None:
    assert node_history(base("a"), [], "a") == []


def test_a_node_that_the_run_never_had_is_refused_and_the_others_are_named() -> None:
    run = ledger(
        NodeStarted(at=NOON, path="a[0]", node_type="agent"),
        NodeSkipped(at=NOON, path="c", node_type="Task", reason=""),
    )

    with pytest.raises(LookupError, match=r"the run never had a node 'x'; it has: a, b, c, a\[0\]$"):
        history(run, "x")
    with pytest.raises(LookupError, match=r"a\[0\]; what came of an item is in 'iterations\[7\]' of 'a'$"):
        history(run, "a[7]")
    with pytest.raises(LookupError, match=r"it has: none$"):
        node_history(base(), [], "x")
    with pytest.raises(LookupError, match=r"n18, n19 and 5 more$"):
        node_history(base(*(f"n{index}" for index in range(25))), [], "x")


def test_a_field_that_no_node_has_is_refused() -> None:
    with pytest.raises(ValueError, match="a node has no field 'text'"):
        history(ledger(NodeStarted(at=NOON, path="a", node_type="Task")), "a", "text")


def test_a_ledger_with_a_hole_is_refused() -> None:
    with pytest.raises(ValueError, match="transition 3 cannot follow 0: the ledger has a hole"):
        node_history(base("a"), [NodeStarted(seq=3, at=NOON, path="b", node_type="Task")], "a")


def test_a_long_history_is_told_in_no_time() -> None:
    steps = [
        NodeAdvanced(at=NOON, path="a", event="e", merge={"completed_iterations": {str(index): {"n": index}}})
        for index in range(2000)
    ]
    words = [NodeAdvanced(at=NOON, path="b", event="e", extend={"prompt_messages": [{"n": n}]}) for n in range(2000)]
    begun = [NodeStarted(at=NOON, path=path, node_type="Task") for path in ("a", "b")]
    run = ledger(*begun, *steps, *words)

    began = time.process_time()
    items, messages = history(run, "a", "iterations"), history(run, "b")
    took = time.process_time() - began

    assert (len(items), len(messages)) == (2000, 2001)
    assert [change.field for change in messages[-1].changes] == ["messages[1999]"]
    assert took < 3
