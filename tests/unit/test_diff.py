"""What two checkpoints differ in, in the words people use."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints.diff import (
    Change,
    CheckpointDiff,
    Line,
    Moment,
    diff,
    node_changes,
    redact_changes,
    render,
)
from holdfast.checkpoints.ledger import NodeAdvanced
from holdfast.checkpoints.models import (
    CheckpointRecord,
    CheckpointStatus,
    FlowCheckpoint,
    NodeCheckpointState,
    NodeRecord,
    PendingInputRecord,
)
from holdfast.checkpoints.redaction import HIDDEN, redact_checkpoint
from holdfast.engine.simulator import Scripted
from tests import agents
from tests.going_on import Watched, calls, carried, flow

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
Facts = tuple[str, str, Any, Any]


def node(node_id: str = "a", **fields: Any) -> NodeRecord:
    return NodeRecord.model_validate({"node_id": node_id, "node_type": "Task", "status": "success", **fields})


def checkpoint(*nodes: NodeRecord, **fields: Any) -> CheckpointRecord:
    states = {state.node_id: state for state in nodes}
    return CheckpointRecord(flow_id="flow", run_id="run", node_states=states, **fields)


def facts(changes: list[Change]) -> list[Facts]:
    return [(change.kind, change.field, change.left, change.right) for change in changes]


def between(left: Any, right: Any) -> list[Facts]:
    """What `diff` says of two outputs."""
    return facts(diff(checkpoint(node(output_data=left)), checkpoint(node(output_data=right))).changes)


def after(watched: Watched, event: str) -> CheckpointRecord:
    """The last checkpoint that a step of this name led to."""
    steps = [step for step in watched.ledger.since(0) if isinstance(step, NodeAdvanced) and step.event == event]
    return watched.ledger.at(steps[-1].seq)


# Values


@pytest.mark.parametrize(
    ("left", "right", "found"),
    [
        (1, 2, [("changed", "output", 1, 2)]),
        ({"text": "a", "n": 1}, {"text": "b", "n": 1}, [("changed", "output.text", "a", "b")]),
        ({"a": {"b": [1, {"c": 2}]}}, {"a": {"b": [1, {"c": 3}]}}, [("changed", "output.a.b[1].c", 2, 3)]),
        ([1, 2], [1, 2, 3, 4], [("added", "output[2]", None, 3), ("added", "output[3]", None, 4)]),
        ([1, 2], [0], [("changed", "output[0]", 1, 0), ("removed", "output[1]", 2, None)]),
        ({"a": None}, {}, [("removed", "output.a", None, None)]),
        ({}, {"a": None}, [("added", "output.a", None, None)]),
        (None, {"a": 1}, [("added", "output", None, {"a": 1})]),
        ({"a": 1}, None, [("removed", "output", {"a": 1}, None)]),
        ({"a": [1]}, {"a": {"0": 1}}, [("changed", "output.a", [1], {"0": 1})]),
        ([True, 1], [1, 1.0], [("changed", "output[0]", True, 1), ("changed", "output[1]", 1, 1.0)]),
    ],
)  # fmt: skip
def test_values_are_compared_by_key_and_by_index(left: Any, right: Any, found: list[Facts]) -> None:
    assert between(left, right) == found


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ({"__bytes__": "YQ=="}, {"__bytes__": "Yg=="}),
        ({"__tuple__": [1, 2]}, {"__tuple__": [1, 2, 3]}),
        ({"__tuple__": [1]}, {"__tuple__": [True]}),
        ({"__dict__": [[1, "a"]]}, {"__dict__": [[1, "b"]]}),
        ({"__model__": "m:A", "x": 1}, {"__model__": "m:A", "x": 2}),
        ({"x": 1, "__model__": "m:A"}, {"x": 1}),
        ({"__date__": "2026-01-01"}, {"a": 1}),
    ],
)
def test_a_marked_value_is_one_value(left: Any, right: Any) -> None:
    assert between({"v": left}, {"v": right}) == [("changed", "output.v", left, right)]
    assert between({"v": left}, json.loads(json.dumps({"v": left}))) == []


@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("plain", "output.plain"),
        ("with-dash", "output.with-dash"),
        ("größe", "output.größe"),
        ("0", "output.0"),
        ("a.b", 'output["a.b"]'),
        ("a b", 'output["a b"]'),
        ("x[1]", 'output["x[1]"]'),
        ('"', 'output["\\""]'),
        ("", 'output[""]'),
    ],
)
def test_a_key_that_would_be_misread_is_quoted(key: str, field: str) -> None:
    left, right = node(output_data={key: 1}), node(output_data={key: 2})

    assert facts(node_changes(left, right)) == [("changed", field, 1, 2)]
    assert facts(node_changes(left, right, field)) == [("changed", field, 1, 2)]


# Nodes and runs


def test_nodes_are_in_the_order_of_the_right_checkpoint_and_then_of_the_left_one() -> None:
    left = checkpoint(node("gone"), node("a", output_data=1), node("b", output_data=1), node("same"))
    right = checkpoint(node("b", output_data=2), node("new"), node("same"), node("a", output_data=2))

    changes = diff(left, right).changes

    assert list(dict.fromkeys(change.node for change in changes)) == ["b", "new", "a", "gone"]
    assert facts([change for change in changes if change.node == "new"]) == [
        ("added", "status", None, "success"),
        ("added", "type", None, "Task"),
    ]
    assert {change.kind for change in changes if change.node == "gone"} == {"removed"}


def test_every_field_of_a_node_has_a_name_that_people_use() -> None:
    inside = {"prompt_messages": [1], "completed_iterations": {"3": 1}, "context": {"topic": 1}, "chat_history": [1]}
    left = node(internal_state={**inside, "own": 1, "messages": 1})
    other = {"prompt_messages": [2], "completed_iterations": {"3": 2}, "context": {"topic": 2}, "chat_history": [2]}
    right = node(
        status="failure",
        node_type="Other",
        input_data={"x": 1},
        error={"message": "it broke"},
        attempts=2,
        started_at=NOON,
        completed_at=NOON,
        internal_state={**other, "own": 2, "messages": 2},
        later_version=1,
    )

    assert [(change.kind, change.field) for change in node_changes(left, right)] == [
        ("changed", "status"),
        ("changed", "type"),
        ("added", "input"),
        ("added", "error"),
        ("added", "attempts"),
        ("changed", "messages[0]"),
        ("changed", "iterations[3]"),
        ("changed", "context.topic"),
        ("changed", "chat_history[0]"),
        ("changed", "state.own"),
        ("changed", "state.messages"),
        ("added", "extra.later_version"),
    ]


def test_what_only_says_when_and_which_is_no_change() -> None:
    left = checkpoint(node(started_at=NOON), metadata={"key_base": "one", "creation_time": "then"})
    later = {"created_at": NOON, "updated_at": NOON, "workflow_id": "w", "checksum": "c", "original_trace_id": "t"}
    right = left.model_copy(update={"id": "other@9", "run_id": "other", "sequence_number": 9, "metadata": {}, **later})
    right.node_states = {"a": node(started_at=NOON + timedelta(1), completed_at=NOON + timedelta(2))}

    found = diff(left, right)

    assert found.changes == []
    assert (found.left, found.right) == ("run@0", "other@9")
    assert found.right_at == Moment(sequence_number=9, at=NOON)


def test_the_run_itself_has_a_status_an_input_and_what_it_has_used() -> None:
    left = checkpoint(original_input={"x": 1}, metadata={"usage": {"total_tokens": 5}, "mine": 1})
    right = checkpoint(
        status=CheckpointStatus.PENDING_INPUT,
        original_input={"x": 2},
        original_config={"run": {}},
        metadata={"usage": {"total_tokens": 8}, "error": {"message": "it broke"}, "mine": 2},
        pending_input_context=PendingInputRecord(node_id="ask", prompt="Shall I?", timestamp=NOON),
        pending_inputs={"q": {"prompt": "Shall I?"}},
        parent_checkpoint_id="old@4",
    )

    changes = diff(left, right).changes

    assert {change.node for change in changes} == {""}
    assert facts(changes) == [
        ("changed", "status", "active", "pending_input"),
        ("changed", "input.x", 1, 2),
        ("added", "config", None, {"run": {}}),
        ("added", "waiting_for", None, {"node_id": "ask", "prompt": "Shall I?"}),
        ("added", "parent_checkpoint_id", None, "old@4"),
        ("added", "error", None, {"message": "it broke"}),
        ("changed", "usage.total_tokens", 5, 8),
        ("added", "pending_inputs.q", None, {"prompt": "Shall I?"}),
        ("changed", "metadata.mine", 1, 2),
    ]


def test_a_checkpoint_with_real_values_is_compared_in_its_marked_form() -> None:
    left = FlowCheckpoint(flow_id="flow", run_id="run", original_input={"file": b"a"})
    left.mark_node_complete(
        "a", NodeCheckpointState(node_id="a", node_type="Task", status="success", output_data={"at": NOON, "key": {1}})
    )
    right = left.model_copy(deep=True, update={"original_input": {"file": b"b"}})

    found = diff(left, right)

    assert facts(found.changes) == [("changed", "input.file", {"__bytes__": "YQ=="}, {"__bytes__": "Yg=="})]
    assert CheckpointDiff.model_validate_json(found.model_dump_json()) == found
    assert diff(redact_checkpoint(left), redact_checkpoint(left)).changes == []


def test_a_node_that_is_on_neither_side_has_no_changes() -> None:
    assert node_changes(None, None) == []


@pytest.mark.parametrize(
    "field", ["", "text", "tasks", "output..a", "output[", "iterations.3", "messages[03]", ".status"]
)
def test_a_field_that_no_node_has_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=r"a node has no field .*; it has: status, type, input, output"):
        node_changes(node(), None, field)


def test_a_field_that_is_not_there_is_added() -> None:
    left, right = node(output_data={"a": [1], "b": {"__date__": "x"}}), node(output_data={"a": [1, 2], "b": 1})

    assert facts(node_changes(left, right, "output.a[1]")) == [("added", "output.a[1]", None, 2)]
    assert node_changes(left, right, "output.b.__date__") == []
    assert node_changes(left, right, "output.a.x") == []


# Runs of the simulator


def test_messages_that_an_agent_was_given_are_added_one_by_one() -> None:
    watched = agents.run(
        flow(agents.agent(agents.task("search"))),
        calls(("search", {"q": "who"})),
        "It was me.",
        search=Scripted(output="a name"),
    )

    changes = diff(after(watched, "model_replied"), after(watched, "answered")).changes

    messages = [change for change in changes if change.field.startswith("messages")]
    assert [(change.kind, change.field) for change in messages] == [("added", "messages[2]"), ("added", "messages[3]")]
    assert [change.right["role"] for change in messages] == ["tool", "assistant"]
    assert ("added", "state.answer", None, "It was me.") in facts(changes)
    assert ("changed", "usage.llm_calls", 1, 2) in facts(changes)


def test_the_items_of_a_map_are_its_iterations() -> None:
    each = {"id": "each", "type": "map", "params": {"node": {"id": "work", "type": "Task"}, "max_workers": 1}}
    watched = Watched(flow(each), {"each": Scripted(outputs=[10, {"n": 20}, 30], seconds=1)})
    watched.run({"input": [1, 2, 3]})
    first, last = after(watched, "map_opened"), after(watched, "iteration_completed")

    assert facts(diff(first, carried(last)).changes) == [
        ("added", "iterations[0]", None, 10),
        ("added", "iterations[1]", None, {"n": 20}),
        ("added", "iterations[2]", None, 30),
    ]
    ended = diff(last, watched.ledger.at()).changes
    assert [(change.kind, change.node, change.field) for change in ended if change.node] == [
        ("changed", "each", "status"),
        ("added", "each", "output"),
        ("added", "each", "attempts"),
        ("removed", "each", "iterations"),
    ]


def test_the_context_of_a_graph_is_its_context() -> None:
    states = [
        {"id": "draft", "tasks": [{"id": "write", "type": "Task"}], "next": [{"to": "review"}]},
        {"id": "review", "tasks": [{"id": "judge", "type": "Task"}]},
    ]
    node = {"id": "o", "type": "graph-orchestrator", "params": {"states": states, "context": {"tone": "dry"}}}
    watched = Watched(flow(node), {"o/write": Scripted(output="a text"), "o/judge": Scripted(output="good")})
    watched.run({"input": "Write."})

    changes = diff(after(watched, "graph_opened"), after(watched, "state_completed")).changes

    assert facts(changes)[:4] == [
        ("added", "context.write", None, "a text"),
        ("added", "context.judge", None, "good"),
        ("added", "chat_history[1]", None, {"role": "assistant", "name": "draft", "content": "a text"}),
        ("added", "chat_history[2]", None, {"role": "assistant", "name": "review", "content": "good"}),
    ]
    assert ("changed", "state.current_state_id", "draft", "end") in facts(changes)


# What holds of all

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["", "a", "b", "A long text.\n", "\x1b[31m"])
names = st.sampled_from(["a", "b", "c.d", "0", "__bytes__", "__model__"])
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=8
)
states = st.dictionaries(st.sampled_from(["prompt_messages", "completed_iterations", "context", "own"]), anything)


def _node(node_id: str, output: Any, inside: dict[str, Any]) -> NodeRecord:
    return node(node_id, output_data=output, internal_state=inside)


def _checkpoint(several: list[NodeRecord], given: Any, used: Any) -> CheckpointRecord:
    return checkpoint(*several, original_input=given, metadata={"usage": used})


nodes = st.builds(_node, st.sampled_from(["a", "b", "c"]), anything, states)
checkpoints = st.builds(_checkpoint, st.lists(nodes, max_size=3), anything, anything)


def mirrored(change: Change) -> Change:
    kinds = {"added": "removed", "removed": "added", "changed": "changed"}
    swapped = {"kind": kinds[change.kind], "left": change.right, "right": change.left}
    return change.model_copy(update=swapped)


def relevant(record: CheckpointRecord) -> str:
    kept = record.model_dump(mode="json", include={"node_states", "original_input", "metadata"})
    return json.dumps(kept, sort_keys=True)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(checkpoints)
def test_a_checkpoint_does_not_differ_from_itself_or_from_what_a_store_gives_back(record: CheckpointRecord) -> None:
    assert diff(record, record).changes == []
    assert diff(record, carried(record)).changes == []


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(checkpoints, checkpoints)
def test_there_are_changes_where_there_is_a_difference_and_mirrored_they_are_the_same(
    left: CheckpointRecord, right: CheckpointRecord
) -> None:
    there, back = diff(left, right).changes, diff(right, left).changes

    assert (there == []) == (relevant(left) == relevant(right))
    assert sorted(there, key=repr) == sorted(map(mirrored, back), key=repr)
    assert len({(change.node, change.field) for change in there}) == len(there)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(checkpoints, checkpoints, st.integers(20, 120))
def test_every_line_fits_and_is_one_line(left: CheckpointRecord, right: CheckpointRecord, width: int) -> None:
    for sign, text in render(diff(left, right).changes, width=width):
        assert len(f"{sign} {text}" if sign else text) <= width
        assert text.isprintable()


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(checkpoints, checkpoints)
def test_the_name_of_a_change_finds_it_again(left: CheckpointRecord, right: CheckpointRecord) -> None:
    for change in diff(left, right).changes:
        if change.node:
            sides = left.node_states.get(change.node), right.node_states.get(change.node)
            assert node_changes(*sides, change.field) == [change]


def test_ten_thousand_items_are_compared_in_no_time() -> None:
    items = {str(index): {"text": f"result {index}", "seen": [index, {"n": index}]} for index in range(10_000)}
    left = checkpoint(node("each", internal_state={"completed_iterations": items}))
    same, other = carried(left), carried(left)
    other.node_states["each"].internal_state["completed_iterations"]["9999"]["seen"][1]["n"] = -1

    began = time.process_time()
    assert diff(left, same).changes == []
    assert time.process_time() - began < 1

    assert facts(diff(left, other).changes) == [("changed", "iterations[9999].seen[1].n", 9999, -1)]


# Showing


def test_changes_are_shown_by_node_with_a_sign_and_on_one_line() -> None:
    left = checkpoint(node("a", output_data={"text": "one\ntwo", "n": 1}), metadata={"usage": {"llm_calls": 1}})
    right = checkpoint(node("a", output_data={"text": "three", "m": 2}), metadata={"usage": {"llm_calls": 2}})

    assert render(diff(left, right).changes) == [
        Line("", "the run"),
        Line("~", "usage.llm_calls: 1 → 2"),
        Line("", "a"),
        Line("~", 'output.text: "one\\ntwo" → "three"'),
        Line("+", "output.m: 2"),
        Line("-", "output.n: 1"),
    ]
    assert render(diff(left, left).changes) == []


def test_of_two_long_texts_the_part_is_shown_where_they_differ() -> None:
    shared = "word " * 100
    left, right = checkpoint(node(output_data=f"{shared}red {shared}")), checkpoint(node(output_data=f"{shared}blue"))

    _, (_, text) = render(diff(left, right).changes, width=60)

    assert text.startswith("output: …word word red word w")
    assert text.endswith('… → …word word blue"')
    assert len(text) <= 58


def test_what_was_said_cannot_steer_the_terminal() -> None:
    left, right = checkpoint(node()), checkpoint(node(output_data={"a\x9b b": "\x1b[31m \u202e"}))

    assert render(diff(left, right).changes)[1].text == 'output: {"a\\u009b b": "\\u001b[31m \\u202e"}'


def test_a_secret_is_hidden_although_its_name_is_not_in_the_value() -> None:
    left = node(output_data={"api_key": "old", "login": {"user": "u"}})
    right = node(output_data={"api_key": "new", "login": {"user": "v", "password": "p"}}, input_data={"token": "t"})

    assert facts(redact_changes(node_changes(left, right))) == [
        ("added", "input", None, {"token": HIDDEN}),
        ("changed", "output.api_key", HIDDEN, HIDDEN),
        ("changed", "output.login.user", "u", "v"),
        ("added", "output.login.password", None, HIDDEN),
    ]
