"""Flows run without a server: scripted results, a virtual clock, the real drivers."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.checkpoints.models import CheckpointStatus
from holdfast.checkpoints.values import UnserialisableError
from holdfast.contracts.calls import NodeCall, NodeReply
from holdfast.engine.simulator import EPOCH, NotScriptedError, Scripted, Simulation
from holdfast.flows.spec import FlowSpec, NodeSpec


def flow(*nodes: dict[str, Any]) -> FlowSpec:
    return FlowSpec.model_validate({"id": "flow", "nodes": nodes})


TASK = {"id": "a", "type": "Task"}


def test_a_node_gives_what_the_script_says_when_the_script_says() -> None:
    simulation = Simulation(flow(TASK), {"a": Scripted(output={"n": {1, 2}}, seconds=90)})

    last = simulation.run({"q": b"\xff"})

    assert last.status == CheckpointStatus.COMPLETED
    assert last.original_input == {"q": {"__bytes__": "/w=="}}
    assert last.node_states["a"].output_data == {"n": {"__set__": [1, 2]}}
    assert last.node_states["a"].completed_at == EPOCH + timedelta(seconds=90)
    assert simulation.executed == ["a"]


def test_a_scripted_error_fails_the_node() -> None:
    last = Simulation(flow(TASK), {"a": Scripted(error="it broke")}).run()

    assert last.status == CheckpointStatus.FAILED
    assert last.node_states["a"].error == {"type": "Scripted", "message": "it broke"}


@pytest.mark.parametrize("days", [30, 400])
def test_many_days_pass_in_no_time(days: int) -> None:
    last = Simulation(flow({"id": "wait", "type": "delay", "params": {"seconds": f"{days}d"}}), {}).run()

    assert last.updated_at == EPOCH + timedelta(days=days)


def test_nodes_that_would_touch_the_world_must_be_scripted() -> None:
    mixed = flow(
        TASK,
        {"id": "b", "type": "http", "params": {"url": "x"}},
        {"id": "c", "type": "pass"},
        {"id": "d", "type": "transform", "params": {"template": "x"}},
        {"id": "e", "type": "delay", "params": {"seconds": 1}},
    )

    with pytest.raises(NotScriptedError) as refused:
        Simulation(mixed, {})

    assert refused.value.missing == ["a", "b"]
    assert str(refused.value) == (
        "[simulate/not-scripted] no scripted result for 'a', 'b'; add for example 'a: {output: {…}}' to the script"
    )
    assert Simulation(mixed, {"a": Scripted(), "b": Scripted()}).run().status == CheckpointStatus.COMPLETED


def test_a_misspelt_script_is_refused() -> None:
    with pytest.raises(ValidationError):
        Scripted.model_validate({"ouput": 1})
    with pytest.raises(ValidationError):
        Scripted.model_validate({"seconds": -1})


def test_an_input_or_output_that_cannot_be_stored_is_refused_by_name() -> None:
    with pytest.raises(UnserialisableError, match=r"^input\.x is of type builtins\.object"):
        Simulation(flow(TASK), {"a": Scripted()}).run({"x": object()})
    with pytest.raises(UnserialisableError, match=r"^the scripted output of 'a' is of type"):
        Simulation(flow(TASK), {"a": Scripted(output=object())}).run()


def test_a_pure_node_computes_also_when_it_has_retries_of_its_own() -> None:
    node = {"id": "t", "type": "transform", "params": {"template": "{{ q }}"}, "error_handling": {"max_retries": 1}}

    assert Simulation(flow(node), {}).run({"q": "why"}).node_states["t"].output_data == "why"


def test_a_flow_that_waits_for_what_never_happens_is_an_error_and_not_a_standstill() -> None:
    class Forgetful(Simulation):
        async def run_node(self, node: NodeSpec, call: NodeCall) -> NodeReply:
            await asyncio.Event().wait()
            return NodeReply()

    with pytest.raises(RuntimeError, match="waits for something that never happens"):
        Forgetful(flow(TASK), {"a": Scripted()}).run()
