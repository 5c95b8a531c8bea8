"""When a node runs, when it is skipped, and what it gets."""

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.checkpoints import values
from holdfast.checkpoints.models import CheckpointRecord, NodeRecord, RunnableStatus
from holdfast.contracts.calls import NodeOutcome
from holdfast.engine.rules import (
    Verdict,
    choose,
    decide,
    flow_scope,
    handles_failure,
    node_input,
    outcome,
    reads,
    tolerant,
    unhandled_failures,
    verdict,
)
from holdfast.flows.spec import FlowSpec, NodeSpec

BROKEN = {"type": "ValueError", "message": "it broke"}
OK = NodeOutcome(status=RunnableStatus.SUCCESS, input={"q": 1}, output={"n": 5, "chosen": ["big"]})
FAILED = NodeOutcome(status=RunnableStatus.FAILURE, error=BROKEN)
SKIPPED = NodeOutcome(status=RunnableStatus.SKIP, error={"type": "skipped", "message": "why"})
RESULTS = {"ok": OK, "failed": FAILED, "skipped": SKIPPED, "text": OK.model_copy(update={"output": "plain"})}

IS_FIVE = {"variable": "$.output.n", "operator": "numeric-equals", "value": 5}
BROKE = {"variable": "$.error.message", "operator": "string-contains", "value": "broke"}


def node(*depends: dict[str, Any] | str, **fields: Any) -> NodeSpec:
    edges = [{"node": edge} if isinstance(edge, str) else edge for edge in depends]
    return NodeSpec.model_validate({"id": "me", "type": "pass", "depends": edges, **fields})


def not_this(condition: dict[str, Any]) -> dict[str, Any]:
    return {**condition, "is_not": True}


@pytest.mark.req("FL-4")
@pytest.mark.parametrize(
    ("edge", "reason"),
    [
        ({"node": "ok"}, None),
        ({"node": "failed"}, "'failed' failed"),
        ({"node": "skipped"}, "'skipped' was skipped"),
        ({"node": "ok", "trigger": "failure"}, "'ok' did not fail"),
        ({"node": "failed", "trigger": "failure"}, None),
        ({"node": "skipped", "trigger": "failure"}, "'skipped' was skipped"),
        ({"node": "ok", "option": "big"}, None),
        ({"node": "ok", "option": "small"}, "'ok' did not take option 'small'"),
        ({"node": "text", "option": "small"}, "'text' did not take option 'small'"),
        ({"node": "ok", "condition": IS_FIVE}, None),
        ({"node": "ok", "condition": not_this(IS_FIVE)}, "the condition on 'ok' does not hold"),
        ({"node": "ok", "option": "big", "condition": not_this(IS_FIVE)}, "the condition on 'ok' does not hold"),
        ({"node": "failed", "trigger": "failure", "condition": BROKE}, None),
        (
            {"node": "failed", "trigger": "failure", "condition": not_this(BROKE)},
            "the condition on 'failed' does not hold",
        ),
    ],
)
def test_an_edge_lets_a_node_run_or_says_why_not(edge: dict[str, Any], reason: str | None) -> None:
    decision = verdict(node(edge), (), RESULTS.__getitem__)

    assert decision == (Verdict(True) if reason is None else Verdict(False, reason))


@pytest.mark.req("FL-4")
def test_a_node_behind_a_tolerated_failure_runs_unless_its_condition_says_otherwise() -> None:
    assert verdict(node("failed"), ["failed"], RESULTS.__getitem__).run
    assert verdict(node({"node": "failed", "trigger": "failure"}), ["failed"], RESULTS.__getitem__).run
    assert not verdict(node({"node": "failed", "condition": IS_FIVE}), ["failed"], RESULTS.__getitem__).run
    assert verdict(node({"node": "failed", "condition": BROKE}), ["failed"], RESULTS.__getitem__).run


@pytest.mark.req("FL-4")
def test_a_join_needs_all_of_its_edges_or_any_one_of_them() -> None:
    assert not verdict(node("ok", "skipped"), (), RESULTS.__getitem__).run
    assert verdict(node("ok", "skipped", join="any"), (), RESULTS.__getitem__).run
    assert verdict(node("ok", "text"), (), RESULTS.__getitem__).run
    assert verdict(node(), (), RESULTS.__getitem__).run
    nobody = verdict(node("failed", "skipped", join="any"), (), RESULTS.__getitem__)
    assert nobody == Verdict(False, "'failed' failed")


@pytest.mark.req("FL-4")
def test_a_node_gets_the_flow_input_and_the_results_of_its_dependencies() -> None:
    got = node_input(node("ok", "failed"), {"q": 1}, ["ok", "failed", "text"], RESULTS.__getitem__)

    assert got == {
        "q": 1,
        "ok": {"status": "success", "output": OK.output, "error": None},
        "failed": {"status": "failure", "output": None, "error": BROKEN},
    }


@pytest.mark.req("FL-4")
def test_a_transformer_sees_the_whole_result_of_everything_upstream() -> None:
    def got(selector: dict[str, Any]) -> Any:
        reader = node("ok", input_transformer={"selector": selector})
        return node_input(reader, {"q": 1}, ["ok", "text"], RESULTS.__getitem__)

    assert got({"x": "$.ok.input.q", "y": "$.text.status", "z": "$.q"}) == {"x": 1, "y": "success", "z": 1}
    assert got({"all": "$..output"}) == {"all": [OK.output, "plain"]}
    assert got({"far": "$.failed.error"}) == {"far": None}


def test_the_flow_input_is_not_changed_by_what_is_added_to_it() -> None:
    flow_input = {"q": 1}

    node_input(node("ok"), flow_input, ["ok"], RESULTS.__getitem__)

    assert flow_input == {"q": 1}
    assert flow_scope("text") == {"input": "text"}
    assert flow_scope([1]) == {"input": [1]}


@pytest.mark.parametrize("value", [b"\xff", {1, 2}, (1, 2), OK, {1: "a"}, datetime(2026, 1, 1, tzinfo=UTC)], ids=repr)
def test_a_flow_input_that_is_no_plain_object_stays_one_value(value: Any) -> None:
    got = values.decode(node_input(node("ok"), values.encode(value), ["ok"], RESULTS.__getitem__))

    assert got["input"] == value
    assert got["ok"]["status"] == "success"


def test_what_a_node_reads_is_its_dependencies_and_what_its_transformer_names() -> None:
    above = ["z", "a", "ok"]

    assert reads(node("ok"), above) == ["ok"]
    assert reads(node("ok", input_transformer={"path": "$.z.output || $.nobody"}), above) == ["ok", "z"]
    assert reads(node("ok", input_transformer={"path": "$..output"}), above) == ["ok", "a", "z"]
    assert reads(node("ok", input_transformer={"path": "$.ok[?@.n == $.a.output]"}), above) == ["ok", "a", "z"]


@pytest.mark.req("OR-4", "FL-4")
@pytest.mark.parametrize(
    ("size", "policy", "output"),
    [
        (9, "first", {"option": "big", "chosen": ["big"]}),
        (9, "all", {"option": "big", "chosen": ["big", "huge"]}),
        (5, "all", {"option": "big", "chosen": ["big"]}),
        (1, "first", {"option": "rest", "chosen": ["rest"]}),
        (1, "all", {"option": "rest", "chosen": ["rest"]}),
    ],
)
def test_a_choice_takes_the_first_option_or_all_that_hold_and_else_the_fallback(
    size: int, policy: str, output: dict[str, Any]
) -> None:
    def more_than(limit: int) -> dict[str, Any]:
        return {"variable": "$.size", "operator": "numeric-greater-than", "value": limit}

    options = [
        {"id": "rest"},
        {"id": "big", "condition": more_than(3)},
        {"id": "huge", "condition": more_than(7)},
        {"id": "second fallback"},
    ]

    assert choose({"options": options, "hit_policy": policy}, {"size": size}) == output


@pytest.mark.req("OR-4")
def test_a_choice_without_a_match_and_without_a_fallback_takes_nothing() -> None:
    params = {"options": [{"id": "x", "condition": {"variable": "$", "operator": "boolean-equals", "value": True}}]}

    assert choose(params, False) == {"option": None, "chosen": []}
    assert decide(node(type="choice", params=params), True, RESULTS.__getitem__) == {"option": "x", "chosen": ["x"]}


@pytest.mark.req("OR-4")
@pytest.mark.parametrize(
    ("passing", "output"),
    [
        (node(), {"q": 1}),
        (node("ok"), OK.output),
        (node("ok", "text"), {"ok": OK.output, "text": "plain"}),
        (node("ok", "skipped", join="any"), OK.output),
        (node({"node": "failed", "trigger": "failure"}), {}),
        (node("ok", input_transformer={"path": "$.q"}), {"q": 1}),
    ],
)
def test_a_pass_hands_on_what_it_was_given(passing: NodeSpec, output: Any) -> None:
    assert decide(passing, {"q": 1}, RESULTS.__getitem__) == output


@pytest.mark.req("FL-4")
def test_a_failure_is_handled_by_its_behaviour_or_by_an_error_edge_that_takes_it() -> None:
    plain = NodeSpec(id="failed", type="Task")
    other = node("failed")
    catching = node({"node": "failed", "trigger": "failure"})
    choosy = node({"node": "failed", "trigger": "failure", "condition": not_this(BROKE)})

    assert not handles_failure(plain, [], FAILED)
    assert not handles_failure(plain, [other], FAILED)
    assert handles_failure(plain, [other, catching], FAILED)
    assert not handles_failure(plain, [choosy], FAILED)
    assert handles_failure(plain, [choosy, catching], FAILED)
    assert not handles_failure(plain, [node({"node": "elsewhere", "trigger": "failure"})], FAILED)
    for behavior in ("return", "skip"):
        lenient = NodeSpec.model_validate({"id": "x", "type": "Task", "error_handling": {"behavior": behavior}})
        assert handles_failure(lenient, [], FAILED)


@pytest.mark.req("FL-4")
def test_only_a_failure_that_is_returned_is_handed_on_like_a_result() -> None:
    nodes = [{"id": name, "type": "Task", "error_handling": {"behavior": name}} for name in ("raise", "return", "skip")]

    assert tolerant(FlowSpec.model_validate({"id": "f", "nodes": nodes})) == {"return"}


def test_the_failures_of_a_run_are_those_that_nobody_handled_in_the_order_of_the_author() -> None:
    flow = FlowSpec.model_validate({"id": "f", "nodes": [{"id": name, "type": "Task"} for name in "dcba"]})
    states = {
        name: NodeRecord(node_id=name, node_type="Task", status=status, error=BROKEN)
        for name, status in {"a": "failure", "b": "failure", "c": "success", "d": "failure"}.items()
    }
    state = CheckpointRecord(flow_id="f", run_id="r", node_states=states, completed_node_ids=["b", "c"])

    assert [failed.node_id for failed in unhandled_failures(flow, state)] == ["d", "a"]


def test_a_finished_node_is_seen_by_others_without_its_inner_state() -> None:
    record = NodeRecord(
        node_id="a", node_type="Task", status="success", input_data=1, output_data=2, internal_state={"loop": 1}
    )

    assert outcome(record) == NodeOutcome(status=RunnableStatus.SUCCESS, input=1, output=2)
