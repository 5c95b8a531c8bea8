"""Random flows, run by the real drivers in the simulator: what must hold of every flow, whatever its shape."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints.ledger import NodeStarted, Transition, fold
from holdfast.checkpoints.models import CheckpointRecord
from holdfast.checkpoints.validation import validate_checkpoint
from holdfast.contracts.calls import NodeCall, NodeOutcome, NodeReply
from holdfast.engine.rules import outcome
from holdfast.engine.simulator import EPOCH, Scripted, Simulation
from holdfast.flows.check import ensure
from holdfast.flows.kinds import is_pure
from holdfast.flows.spec import FlowSpec

FLOW_INPUT = {"size": 3, "items": ["a", "b"]}


@dataclass(frozen=True)
class Case:
    flow: FlowSpec
    script: dict[str, Scripted]


class Watched(Simulation):
    """Notes which nodes begin, what they are given and, if asked to film, the live state after every transition.

    The film is JSON: a state that shares something with a later one, and is changed with it, would not show it.
    """

    def __init__(self, case: Case, *, run_id: str = "run", park_after: int | None = None, film: bool = False) -> None:
        super().__init__(case.flow, case.script, run_id=run_id, park_after=park_after)
        self.case = case
        self.begun: list[str] = []
        self.given: dict[str, Any] = {}
        self.film: dict[int, str] | None = {} if film else None

    def recorded(self, transition: Transition) -> None:
        if self.film is not None:
            self.film[transition.seq] = self.ledger.state.model_dump_json()
        if isinstance(transition, NodeStarted):
            self.begun.append(transition.path)

    async def _perform(self, call: NodeCall) -> NodeReply:
        self.given[call.node_id] = call.input_data
        return await super()._perform(call)


CONDITIONS = [
    {"variable": "$.output.n", "operator": "numeric-greater-than", "value": 2},
    {"variable": "$.status", "operator": "string-equals", "value": "failure"},
    {"variable": "$.error.message", "operator": "string-contains", "value": "broke", "is_not": True},
]
OPTIONS = [
    {"id": "big", "condition": {"variable": "$.size", "operator": "numeric-greater-than", "value": 2}},
    {"id": "seen", "condition": {"variable": "$.*.output.n", "operator": "numeric-equals", "value": 1}},
    {"id": "else"},
]
INPUTS = [
    None,
    None,
    {"path": "$.*.output"},
    {"selector": {"size": "$.size", "rest": "$.*.output.n || nothing"}},
]
# A delay's output says when it ended, which is not the same in a run that was resumed.
DELAY = {"type": "delay", "output_transformer": {"selector": {"over": "yes"}}}
KINDS: list[dict[str, Any]] = [
    {"type": "Task"},
    {"type": "Task"},
    {"type": "Pure", "pure": True},
    {"type": "Pure", "pure": True},
    {"type": "transform", "params": {"template": {"n": "{{ input | length }}"}}},
    {"type": "transform", "params": {"template": "{{ nobody.said.this }}"}},
    {"type": "pass"},
    {"type": "choice", "params": {"options": OPTIONS}},
    {"type": "choice", "params": {"options": OPTIONS[:2], "hit_policy": "all"}},
    *({**DELAY, "params": {"seconds": seconds}} for seconds in (5, 3600, "$.size", "$.nowhere")),
]


class Dice:
    """Many small choices out of one drawn number, for a draw each takes longer than the runs. 0 is the simplest."""

    def __init__(self, number: bytes) -> None:
        self._rest = int.from_bytes(number)

    def pick(self, options: Sequence[Any]) -> Any:
        self._rest, index = divmod(self._rest, len(options))
        return options[index]


def some_edges(dice: Dice, above: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Dependencies on some of the nodes above."""
    found: list[dict[str, Any]] = []
    for _ in range(dice.pick([1, 0, 1, 2, 3]) if above else 0):
        node = dice.pick(above)
        edge: dict[str, Any] = {"node": node["id"], "trigger": dice.pick(["success", "success", "success", "failure"])}
        if condition := dice.pick([None, None, None, *CONDITIONS]):
            edge["condition"] = condition
        if node["type"] == "choice":
            edge["option"] = dice.pick([None, *(option["id"] for option in node["params"]["options"])])
        found.append(edge)
    return found


def some_node(dice: Dice, node_id: str, above: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        **dice.pick(KINDS),
        "id": node_id,
        "depends": some_edges(dice, above),
        "join": dice.pick(["all", "any"]),
        "input_transformer": dice.pick(INPUTS),
        # A pure node with retries is not fused with its neighbours.
        "error_handling": {"behavior": dice.pick(["raise", "return", "skip"]), "max_retries": dice.pick([0, 0, 0, 1])},
    }


def some_result(dice: Dice) -> Scripted:
    return Scripted(
        output=dice.pick([{"n": 1}, {"n": 3}, "text", None]),
        error=dice.pick([None, None, "it broke", "it did not work"]),
        seconds=dice.pick([0, 1, 7, 7, 4000]),
    )


def some_case(numbers: Sequence[bytes]) -> Case:
    """A flow with a node for each number, and what each of them does."""
    nodes: list[dict[str, Any]] = []
    script: dict[str, Scripted] = {}
    for index, dice in enumerate(map(Dice, numbers)):
        nodes.append(some_node(dice, f"n{index}", nodes))
        if nodes[-1]["type"] in ("Task", "Pure"):
            script[f"n{index}"] = some_result(dice)
    return Case(ensure(FlowSpec.model_validate({"id": "random", "nodes": nodes})), script)


def outcomes(state: CheckpointRecord) -> dict[str, NodeOutcome]:
    return {node_id: outcome(record) for node_id, record in state.node_states.items()}


def twice(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


def every_checkpoint_is_a_fold_of_the_ledger(run: Watched, last: CheckpointRecord) -> None:
    base = run.ledger.at(0)
    ledger = run.ledger.since(0)
    assert [transition.seq for transition in ledger] == list(range(1, last.sequence_number + 1))
    assert run.film is not None
    assert run.film.keys() == set(range(2, last.sequence_number + 1))
    for seq, live in run.film.items():
        folded = fold(base, ledger[:seq])
        assert folded.model_dump_json() == live
        assert validate_checkpoint(folded) == []


def a_node_is_given_what_the_checkpoint_says(run: Watched, last: CheckpointRecord) -> None:
    assert run.given == {node_id: last.node_states[node_id].input_data for node_id in run.given}


def a_run_resumed_from_any_checkpoint_ends_the_same_and_repeats_nothing(run: Watched, last: CheckpointRecord) -> None:
    expected = outcomes(last)
    for seq in range(1, last.sequence_number + 1):
        checkpoint = CheckpointRecord.model_validate_json(run.ledger.at(seq).model_dump_json())
        resumed = Watched(run.case, run_id="resumed")
        state = resumed.run(base=checkpoint)

        assert outcomes(state) == expected
        assert state.status == last.status
        assert set(state.completed_node_ids) == set(last.completed_node_ids)
        assert not set(resumed.begun) & set(checkpoint.completed_node_ids)
        assert twice(resumed.begun) == []


def a_run_parked_anywhere_ends_the_same_and_executes_nothing_twice(run: Watched, last: CheckpointRecord) -> None:
    # Some points of one flow, and others of the next: all of them would take longer than everything else together.
    for seq in range(1 + len(run.begun) % 4, last.sequence_number, 4):
        parked = Watched(run.case, park_after=seq)
        state = parked.run(FLOW_INPUT)

        assert outcomes(state) == outcomes(last)
        assert state.status == last.status
        assert twice(parked.begun) == twice(parked.executed) == twice(state.completed_node_ids) == []


def a_branch_never_waits_for_another_one(case: Case) -> None:
    # Pure nodes run together and are cheap; the time of a flow is what its effectful nodes take.
    quick = {node.id for node in case.flow.nodes if is_pure(node)}
    script = {
        name: scripted.model_copy(update={"seconds": 0}) if name in quick else scripted
        for name, scripted in case.script.items()
    }
    states = Watched(Case(case.flow, script)).run(FLOW_INPUT).node_states
    for node in case.flow.nodes:
        ready = max((states[edge.node].completed_at or EPOCH for edge in node.depends), default=EPOCH)
        assert (states[node.id].started_at or states[node.id].completed_at) == ready


@pytest.mark.req("FL-1", "FL-2", "FL-3", "FL-4", "FL-10", "OR-4", "PR-9")
@settings(max_examples=1000, deadline=None, derandomize=True, database=None)
@given(st.lists(st.binary(min_size=8, max_size=8), min_size=3, max_size=5).map(some_case))
def test_every_flow_folds_resumes_and_parks_without_a_difference(case: Case) -> None:
    run = Watched(case, film=True)
    last = run.run(FLOW_INPUT)

    every_checkpoint_is_a_fold_of_the_ledger(run, last)
    a_node_is_given_what_the_checkpoint_says(run, last)
    a_run_resumed_from_any_checkpoint_ends_the_same_and_repeats_nothing(run, last)
    a_run_parked_anywhere_ends_the_same_and_executes_nothing_twice(run, last)
    a_branch_never_waits_for_another_one(case)
