"""A run as a tree: what simulated runs record, noted transition by transition and drawn as a terminal would show it."""

from collections.abc import Callable
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from holdfast.checkpoints.ledger import (
    InputReceived,
    InputRequested,
    NodeAdvanced,
    NodeCompleted,
    NodeFailed,
    NodeStarted,
    RunCancelled,
    RunContinued,
    RunPaused,
    RunResumed,
    RunStarted,
    Transition,
)
from holdfast.checkpoints.models import RunStatus
from holdfast.engine.simulator import EPOCH, Scripted, Simulation
from holdfast.flows.reading import read_flow
from holdfast.flows.spec import FlowSpec
from holdfast.starter.cli.watching import RunTree
from tests.agents import agent, run, task
from tests.going_on import calls, flow

BROKEN = {"type": "ValueError", "message": "no route\n\x1b[2Jto host"}
WORKERS = {"id": "each", "type": "map", "params": {"node": {"id": "work", "type": "agent", "llm": {"model": "m"}}}}


class Watching:
    """A tree whose clock stands at the last transition, and what it shows."""

    def __init__(self, flow: FlowSpec, *transitions: Transition) -> None:
        self.now = EPOCH
        self.tree = RunTree("my-run", flow, clock=lambda: self.now)
        for transition in transitions:
            self.note(transition)

    def note(self, transition: Transition) -> None:
        self.now = transition.at
        self.tree.note(transition)

    def lines(self, width: int = 120, height: int | None = None) -> list[str]:
        """What is on the screen, without the lines that connect it."""
        return [line.lstrip("│├└─ ").rstrip() for line in self.drawn(width, height).splitlines()]

    def drawn(self, width: int = 120, height: int | None = None) -> str:
        screen = Console(record=True, width=width, file=StringIO())
        screen.print(self.tree.render(height))
        return screen.export_text()


def until(simulation: Simulation, last: Callable[[Transition], bool]) -> Watching:
    """What is shown of a simulated run right after the first transition that `last` is true of."""
    watching = Watching(simulation.flow)
    for transition in simulation.ledger.since(0):
        watching.note(transition)
        if last(transition):
            return watching
    raise AssertionError("it did not come to that")


def whole(simulation: Simulation) -> list[str]:
    return Watching(simulation.flow, *simulation.ledger.since(0)).lines()


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


def passes(*node_ids: str) -> FlowSpec:
    return flow(*({"id": node_id, "type": "pass"} for node_id in node_ids))


def event(name: str) -> Callable[[Transition], bool]:
    return lambda transition: isinstance(transition, NodeAdvanced) and transition.event == name


def test_nodes_stand_in_the_order_of_the_definition_with_mark_and_seconds() -> None:
    watching = Watching(
        passes("first", "second", "third"),
        RunStarted(at=at(0)),
        NodeStarted(at=at(0), path="second", node_type="pass"),
        NodeCompleted(at=at(1.25), path="second", attempts=3),
        NodeStarted(at=at(2), path="first", node_type="pass"),
    )
    watching.now = at(9)

    assert watching.lines() == [
        "my-run  flow  running",
        "… first  7 s",
        "✓ second  1.25 s, attempt 3",
        "· third",
    ]


def test_a_run_that_nobody_has_taken_up_is_pending() -> None:
    assert Watching(passes("only")).lines() == ["my-run  flow  pending", "· only"]


def test_a_failure_is_told_in_one_line_that_cannot_move_the_cursor() -> None:
    broken = read_flow("id: f\nnodes:\n  a: {type: Work}\n  b: {type: pass, depends: a}\n")
    failing = Simulation(broken, {"a": Scripted(error="no route", seconds=2)})
    failing.run()
    rude = Watching(
        passes("a"),
        NodeStarted(at=at(0), path="a", node_type="pass"),
        NodeFailed(at=at(1), path="a", error=BROKEN),
    )

    shown = whole(failing)
    assert shown[0] == "my-run  f  failed"
    assert shown[1] == "✗ a  2.00 s  no route"
    assert shown[2].startswith("– b  ")
    assert rude.lines()[1] == "✗ a  1.00 s  no route [2Jto host"


def test_an_agent_says_its_loop_and_the_tools_it_uses() -> None:
    looking = agent(task("search"), max_loops=4)
    simulation = run(flow(looking), calls(("search", {"q": "kelp"})), "done", search=Scripted(output="x", seconds=2))
    using = until(simulation, event("model_replied"))
    used = until(simulation, event("loop_completed"))

    assert using.lines() == ["my-run  flow  running", "… agent  0 s, loop 1 of 4: search"]
    assert used.lines()[1] == "… agent  2 s, loop 1 of 4"
    assert whole(simulation) == ["my-run  flow  completed", "✓ agent  2.00 s, loop 2 of 4"]


def test_an_agent_inside_another_one_is_a_branch_of_it() -> None:
    inner = agent(task("deep"), node_id="sub") | {"input_schema": {"type": "object"}}
    script = {"sub": Scripted(replies=[calls(("deep", {"q": "y"})), "found"]), "sub/deep": Scripted(output="z")}
    simulation = run(flow(agent(inner)), calls(("sub", {"input": "x"})), "done", **script)
    inside = until(simulation, lambda step: event("model_replied")(step) and "sub" in step.path)

    assert inside.drawn().splitlines()[1:] == [
        "└── … agent  0 s, loop 1 of 15: sub",
        "    └── … loop[1]/sub[0]  0 s, loop 1 of 15: deep",
    ]
    assert whole(simulation)[2:] == ["✓ loop[1]/sub[0]  0.00 s, loop 2 of 15"]


def test_a_map_says_how_many_are_done_and_lists_only_the_last() -> None:
    mapped = flow({"id": "each", "type": "map", "params": {"node": {"id": "work", "type": "Task"}, "max_workers": 1}})
    simulation = Simulation(mapped, {"each": Scripted(output=1, seconds=1)})
    simulation.run({"input": list(range(200))})
    items = [f"✓ each[{number}]" for number in range(92, 100)]
    half = until(simulation, lambda step: isinstance(step, NodeAdvanced) and step.detail.get("done") == 100)

    assert until(simulation, event("map_opened")).lines()[1:] == ["… each  0 s, 0 of 200"]
    assert half.lines()[1:] == ["… each  100 s, 100 of 200", *items]


def test_of_many_items_at_once_those_that_wait_are_shown_and_the_others_counted() -> None:
    watching = Watching(flow(WORKERS), NodeStarted(at=at(0), path="each", node_type="map"))
    for number in range(50):
        watching.note(NodeStarted(at=at(number), path=f"each[{number}]", node_type="agent"))
    asked = {"id": "request-1", "prompt": "Really?", "to": "finance"}
    watching.note(InputRequested(at=at(60), path="each[3]/loop[1]/pay[0]", request=asked))
    shown = watching.lines()

    assert shown[0] == "my-run  flow  pending_input"
    assert shown[2:6] == [
        "… each[3]  57 s",
        "? loop[1]/pay[0]  0 s",
        "Really?  (for finance)",
        "holdfast inbox --run my-run",
    ]
    assert shown[6:] == [*(f"… each[{number}]  {60 - number} s" for number in range(43, 50)), "and 42 more"]


def test_items_that_fail_are_counted_and_have_their_reason() -> None:
    item = {"id": "work", "type": "human", "params": {"prompt": "?"}}
    mapped = flow({"id": "each", "type": "map", "params": {"node": item, "behavior": "return"}})
    watching = Watching(
        mapped,
        NodeStarted(at=at(0), path="each", node_type="map"),
        NodeAdvanced(at=at(0), path="each", event="map_opened", assign={"total_iterations": 3}),
        NodeAdvanced(
            at=at(1),
            path="each",
            event="iteration_failed",
            merge={"failed_iterations": {"0": {"message": "too old"}}},
            detail={"index": 0, "done": 1, "total": 3},
        ),
    )

    assert watching.lines()[1:] == ["… each  1 s, 1 of 3, 1 failed", "✗ each[0]  too old"]


def test_a_map_that_goes_on_says_what_was_done_before() -> None:
    state = {"total_iterations": 9, "completed_iterations": {"0": 1, "1": 1}, "failed_iterations": {}}
    begun = NodeStarted(at=at(0), path="each", node_type="map", internal_state=state)

    assert Watching(flow(WORKERS), begun).lines()[1] == "… each  0 s, 2 of 9"


def test_a_question_is_shown_with_a_line_to_paste_until_it_is_answered() -> None:
    asking = read_flow("id: f\nnodes:\n  ask: {type: human, prompt: 'What of {{ topic }}?'}\n")
    simulation = Simulation(asking, {"ask": Scripted(answer={"feedback": "it holds"}, seconds=3600)})
    simulation.run({"topic": "kelp"})
    waiting = until(simulation, event("asked"))
    answered = until(simulation, lambda step: isinstance(step, InputReceived))

    assert waiting.lines() == [
        "my-run  f  pending_input",
        "? ask  0 s",
        "What of kelp?",
        "holdfast inbox --run my-run",
    ]
    assert answered.lines() == ["my-run  f  running", "… ask  3600 s, answered by script"]
    assert whole(simulation) == ["my-run  f  completed", "✓ ask  3600.00 s, answered by script"]


def test_a_flow_inside_that_waits_for_a_person_says_so_at_its_node() -> None:
    def child(status: str) -> NodeAdvanced:
        return NodeAdvanced(at=at(5), path="inner", event="child_waiting", assign={"status": status})

    inner: dict[str, Any] = {"id": "inside", "nodes": [{"id": "a", "type": "pass"}]}
    nested = flow({"id": "inner", "type": "flow", "params": {"flow": inner}})
    watching = Watching(nested, NodeStarted(at=at(0), path="inner", node_type="flow"), child("pending_input"))
    waiting = watching.lines()
    watching.note(child("running"))

    assert waiting == ["my-run  flow  pending_input", "? inner  5 s", "holdfast inbox --run my-run"]
    assert watching.lines() == ["my-run  flow  running", "… inner  5 s"]


def test_a_retry_is_counted_and_its_reason_told() -> None:
    planned = {"retry": {"attempt": 2, "at": at(9).isoformat()}}
    watching = Watching(
        passes("a"),
        NodeStarted(at=at(0), path="a", node_type="pass"),
        NodeAdvanced(at=at(1), path="a", event="retry_planned", detail={"error": {"message": "late"}, **planned}),
    )

    assert watching.lines()[1] == "… a  1 s, attempt 2  late"


def test_what_a_resumed_run_keeps_is_done() -> None:
    watching = Watching(passes("a", "b"), RunResumed(at=at(0), checkpoint_id="old@3", kept=["a"], forgotten=["b"]))

    assert watching.lines() == ["my-run  flow  running", "✓ a  kept", "· b"]


def test_a_pause_is_the_runs_status_until_it_goes_on() -> None:
    watching = Watching(passes("a"), RunStarted(at=at(0)), RunPaused(at=at(1), by="bob"))
    paused = watching.lines()[0]
    watching.note(RunContinued(at=at(2), by="bob"))

    assert paused == "my-run  flow  paused"
    assert watching.lines()[0] == "my-run  flow  running"


@pytest.mark.parametrize("says_so", [True, False])
def test_nothing_goes_on_in_a_run_that_has_ended(says_so: bool) -> None:
    watching = Watching(
        flow(WORKERS),
        NodeStarted(at=at(0), path="each", node_type="map"),
        NodeStarted(at=at(1), path="each[0]", node_type="agent"),
    )
    if says_so:
        watching.note(RunCancelled(at=at(2)))
    # A run that is terminated records nothing; its status is Temporal's.
    watching.tree.end(RunStatus.CANCELLED)
    watching.now = at(100)

    assert watching.lines() == ["my-run  flow  cancelled", f"– each  {2 if says_so else 1}.00 s  stopped"]


def test_on_a_low_terminal_what_is_done_makes_room_for_what_goes_on() -> None:
    names = [f"n{number}" for number in range(30)]
    watching = Watching(passes(*names), RunStarted(at=at(0)))
    for name in names[:20]:
        watching.note(NodeStarted(at=at(0), path=name, node_type="pass"))
        watching.note(NodeCompleted(at=at(0), path=name))
    watching.note(NodeStarted(at=at(0), path="n20", node_type="pass"))
    low = watching.lines(height=15)
    watching.note(RunCancelled(at=at(1)))

    assert len(low) == 15
    assert low[1:4] == ["✓ 17 more", "✓ n17  0.00 s", "✓ n18  0.00 s"]
    assert "… n20  0 s" in low
    assert len(watching.lines(height=15)) == 31


def test_a_batch_that_is_done_waits_for_nobody() -> None:
    def child(event: str, status: str) -> NodeAdvanced:
        children = {"my-run/each[0-9]": {"status": status}}
        detail = {"done": 10, "total": 20} if event == "batch_completed" else {}
        return NodeAdvanced(at=at(1), path="each", event=event, merge={"children": children}, detail=detail)

    watching = Watching(flow(WORKERS), NodeStarted(at=at(0), path="each", node_type="map"))
    watching.note(child("child_waiting", "pending_input"))
    waiting = watching.lines()[1]
    watching.note(child("batch_completed", "completed"))

    assert waiting == "? each  1 s"
    assert watching.lines() == ["my-run  flow  running", "… each  1 s, 10 of 20"]


def test_a_narrow_terminal_loses_nothing() -> None:
    asked = {"id": "request-1", "prompt": "May we pay forty-eight euros for a lunch with Ada?"}
    watching = Watching(passes("ask"), InputRequested(at=at(0), path="ask", request=asked))

    assert " ".join(watching.lines(width=24)).count("forty-eight euros") == 1
    assert max(len(line) for line in watching.drawn(24).splitlines()) <= 24
