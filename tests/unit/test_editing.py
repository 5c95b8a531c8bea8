"""Changes to a checkpoint on the way into a new run: what can be changed, what is refused, and that nothing else is."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints import values
from holdfast.checkpoints.addresses import Key, name_of
from holdfast.checkpoints.editing import EditError, apply_edits, retry_failed
from holdfast.checkpoints.models import CheckpointRecord, NodeRecord, RunnableStatus
from holdfast.checkpoints.validation import validate_checkpoint
from holdfast.flows.shapes import is_array, is_object
from holdfast.flows.spec import FlowSpec

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
BROKEN = {"type": "ValueError", "message": "it broke"}
TYPES = {"draft": "Task", "talk": "agent", "plan": "graph_orchestrator", "each": "map", "bad": "Task", "late": "Task"}
FLOW = FlowSpec.model_validate({"id": "f", "nodes": [{"id": name, "type": kind} for name, kind in TYPES.items()]})


HELLO = {"role": "user", "content": "hello"}


def state(name: str, status: str, **fields: Any) -> NodeRecord:
    return NodeRecord(node_id=name, node_type=TYPES.get(name, "Task"), status=status, started_at=NOON, **fields)


def record() -> CheckpointRecord:
    """A draft is done, an agent, an orchestrator and a map are under way, one node has failed, one has not begun."""
    states = [
        state("draft", "success", output_data={"text": "old", "lines": ["a", "b"], "when": {"__datetime__": "x"}}),
        state("talk", "running", internal_state={"prompt_messages": [{"role": "user", "content": "go"}], "loop": 1}),
        state("talk/loop[1]/sub[0]", "running", internal_state={"prompt_messages": [{"content": "inner"}]}),
        state("talk/loop[0]/sub[0]", "success", output_data=1),
        state("plan", "running", internal_state={"context": {"topic": "sea", "a.b": 1}, "chat_history": [HELLO]}),
        state(
            "each",
            "running",
            internal_state={
                "total_iterations": 3,
                "completed_iterations": {"0": {"n": 1}},
                "failed_iterations": {"1": BROKEN},
            },
        ),
        state("bad", "failure", error=BROKEN, internal_state={"page": 7}),
    ]
    return CheckpointRecord(
        flow_id="f",
        run_id="run",
        sequence_number=9,
        node_states={entry.node_id: entry for entry in states},
        completed_node_ids=["draft"],
        pending_node_ids=[name for name in TYPES if name != "draft"],
        updated_at=NOON,
    )


def edited(address: str, value: Any) -> CheckpointRecord:
    """The checkpoint after one edit; the original is checked to be as it was."""
    original = record()
    before = original.model_dump_json()
    result = apply_edits(FLOW, original, {address: value})
    assert original.model_dump_json() == before
    assert validate_checkpoint(result) == []
    return result


@pytest.mark.req("FL-2")
def test_a_part_of_an_output_is_changed_and_the_rest_stays() -> None:
    assert edited("draft:output.text", "new").node_states["draft"].output_data == {
        "text": "new",
        "lines": ["a", "b"],
        "when": {"__datetime__": "x"},
    }
    assert edited("draft:output.lines[1]", "B").node_states["draft"].output_data["lines"] == ["a", "B"]
    assert edited("draft:output.lines[2]", "c").node_states["draft"].output_data["lines"] == ["a", "b", "c"]
    assert edited('draft:output["a key"]', 1).node_states["draft"].output_data["a key"] == 1


@pytest.mark.req("FL-2")
@pytest.mark.parametrize("name", ["bad", "late", "talk"])
def test_a_node_that_failed_or_had_not_begun_or_was_under_way_is_done_when_its_output_is_given(name: str) -> None:
    result = edited(f"{name}:output", {"text": "by hand"})
    given = result.node_states[name]

    assert (given.status, given.output_data, given.error) == (RunnableStatus.SUCCESS, {"text": "by hand"}, None)
    assert (given.node_type, given.internal_state, given.completed_at) == (TYPES[name], {}, NOON)
    assert result.completed_node_ids == ["draft", name]
    assert name not in result.pending_node_ids
    # What was inside it has no meaning any more.
    assert not [path for path in result.node_states if path.startswith(f"{name}/")]


@pytest.mark.req("AG-2")
def test_the_inside_of_a_node_that_is_under_way_is_changed() -> None:
    def inside(address: str, value: Any, path: str) -> dict[str, Any]:
        return edited(address, value).node_states[path].internal_state

    assert inside("talk:messages[0].content", "stay", "talk")["prompt_messages"] == [
        {"role": "user", "content": "stay"}
    ]
    assert len(inside("talk:messages[1]", {"role": "user", "content": "more"}, "talk")["prompt_messages"]) == 2
    assert inside("talk/loop[1]/sub[0]:messages[0].content", "x", "talk/loop[1]/sub[0]") == {
        "prompt_messages": [{"content": "x"}]
    }
    assert inside("plan:context.topic", "land", "plan")["context"] == {"topic": "land", "a.b": 1}
    assert inside('plan:context["a.b"]', 2, "plan")["context"] == {"topic": "sea", "a.b": 2}
    assert inside("plan:chat_history[0].content", "bye", "plan")["chat_history"] == [{**HELLO, "content": "bye"}]
    assert inside("bad:state.page", 8, "bad") == {"page": 8}
    assert inside("talk:state.loop", 5, "talk")["loop"] == 5


@pytest.mark.req("OR-3")
def test_the_result_of_an_item_is_given_and_it_has_failed_no_more() -> None:
    given = edited("each:iterations[1]", {"n": 2}).node_states["each"].internal_state
    changed = edited("each:iterations[0].n", 9).node_states["each"].internal_state

    assert given["completed_iterations"] == {"0": {"n": 1}, "1": {"n": 2}}
    assert given["failed_iterations"] == {}
    assert changed["completed_iterations"] == {"0": {"n": 9}}
    assert changed["failed_iterations"] == {"1": BROKEN}


def test_a_name_may_be_quoted_that_need_not_be() -> None:
    assert edited('draft:output["text"]', "new").node_states["draft"].output_data["text"] == "new"
    assert edited('draft:output["a=b"]', 1).node_states["draft"].output_data["a=b"] == 1


def test_edits_are_made_in_their_order() -> None:
    result = apply_edits(FLOW, record(), {"late:output": {"a": 1}, "late:output.b": 2, "bad:output": 3})

    assert result.node_states["late"].output_data == {"a": 1, "b": 2}
    assert result.completed_node_ids == ["draft", "late", "bad"]


def test_a_value_is_kept_as_it_is_and_not_as_json_would_have_it() -> None:
    result = edited("draft:output.text", NOON)

    assert values.decode(result.node_states["draft"].output_data["text"]) == NOON


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("draft", "an edit is 'node:field', for example 'draft:output.text'"),
        (":output", "an edit is 'node:field', for example 'draft:output.text'"),
        ("draft:", "an edit is 'node:field', for example 'draft:output.text'"),
        ("draft:.output", "'.output' cannot be read; write 'a.b[3]' or 'a[\"x y\"]'"),
        ('draft:output["text"]x', "'output[\"text\"]x' cannot be read; write 'a.b[3]' or 'a[\"x y\"]'"),
        ('draft:output["\\x"]', "'output[\"\\\\x\"]' cannot be read; write 'a.b[3]' or 'a[\"x y\"]'"),
        ("draft:output[007]", "'output[007]' cannot be read; write 'a.b[3]' or 'a[\"x y\"]'"),
        ("draft:output..x", "'output..x' cannot be read; write 'a.b[3]' or 'a[\"x y\"]'"),
        ("draft:nonsense", "there is no field 'nonsense'; a node has: output, messages, iterations, context, "),
        ("bad:state", "say which part of the state, for example 'node:state.counter'"),
        ("nobody:output", "there is no node 'nobody' in the flow; it has: draft, talk, plan, each, bad, late"),
        ("talk/loop[1]/sub[0]:output", "there is no node 'talk/loop[1]/sub[0]' in the flow"),
        ("late:messages[0]", "the checkpoint has no state of 'late'; it has those of: draft, talk, "),
        ("draft:messages[0]", "'draft' is done at this checkpoint; choose an earlier one, or edit 'draft:output'"),
        ("talk/loop[0]/sub[0]:messages[0]", "'talk/loop[0]/sub[0]' is done at this checkpoint"),
        ("bad:messages[0]", "'bad' has no 'prompt_messages' at this checkpoint; inside it has: page"),
        ("bad:output.text", "'bad' has no output at this checkpoint; give the whole of it: 'bad:output'"),
        ("late:output.text", "'late' has no output at this checkpoint; give the whole of it: 'late:output'"),
        ("draft:output.lines[7]", "there is no [7]: the list has 2 entries"),
        ("draft:output.lines[2].x", "there is no [2]: the list has 2 entries"),
        ("draft:output.no.thing", "there is no 'no'; there is: text, lines, when"),
        ("draft:output.when.year", "__datetime__ cannot be looked into; give the whole value"),
        ("draft:output.text.x", "'x' cannot be found in 'old'"),
        ("draft:output.lines.x", "'x' cannot be found in a list"),
        ("draft:output[0]", "0 cannot be found in an object"),
    ],
)
def test_an_edit_that_cannot_be_made_is_refused_by_name(address: str, why: str) -> None:
    original = record()
    before = original.model_dump_json()
    with pytest.raises(EditError) as refused:
        apply_edits(FLOW, original, {"late:output": 1, address: 2} if not address.startswith("late") else {address: 2})

    assert str(refused.value).startswith(f"[edit/impossible] {address!r}: {why}")
    assert refused.value.address == address
    assert original.model_dump_json() == before


@pytest.mark.parametrize(
    ("address", "value", "why"),
    [
        ("talk:messages", "Be brief.", "it has to be a list of messages, each with 'role' and 'content'"),
        ("talk:messages[0]", "Be brief.", "it has to be a list of messages, each with 'role' and 'content'"),
        ("plan:chat_history", {"role": "user"}, "it has to be a list of messages, each with 'role' and 'content'"),
        ("plan:context", "sea", "it has to be an object"),
        ("each:iterations", [1, 2], "it has to be an object with results by the numbers of the 3 items"),
        ("each:iterations", {"first": 1}, "it has to be an object with results by the numbers of the 3 items"),
        ("each:iterations[3]", 1, "it has to be an object with results by the numbers of the 3 items"),
    ],
)
def test_what_a_node_could_not_go_on_with_is_refused(address: str, value: Any, why: str) -> None:
    with pytest.raises(EditError) as refused:
        apply_edits(FLOW, record(), {address: value})

    assert str(refused.value) == f"[edit/impossible] {address!r}: {why}"


def test_what_there_is_instead_is_said_also_where_there_is_nothing() -> None:
    empty = CheckpointRecord(flow_id="f", run_id="run", node_states={})
    bare = CheckpointRecord(flow_id="f", run_id="run", node_states={"talk": state("talk", "running")})
    blank = CheckpointRecord(
        flow_id="f", run_id="run", node_states={"draft": state("draft", "success", output_data={})}
    )

    with pytest.raises(EditError, match="it has those of: none"):
        apply_edits(FLOW, empty, {"talk:messages[0]": 1})
    with pytest.raises(EditError, match="inside it has: nothing"):
        apply_edits(FLOW, bare, {"talk:messages[0]": 1})
    with pytest.raises(EditError, match="there is: nothing"):
        apply_edits(FLOW, blank, {"draft:output.a.b": 1})


def finished_map(**inside: Any) -> CheckpointRecord:
    whole = record()
    output = {"output": [{"n": 1}, None, {"n": 3}], "failed_iterations": [1]}
    failed = {"total_iterations": 3, "failed_iterations": {"1": BROKEN}, **inside}
    whole.node_states["each"] = state("each", "success", output_data=output, internal_state=failed, completed_at=NOON)
    whole.completed_node_ids.append("each")
    whole.pending_node_ids.remove("each")
    return whole


@pytest.mark.req("OR-3")
@pytest.mark.parametrize("inside", [{}, {"completed_iterations": {"0": {"n": 1}, "2": {"n": 3}}}])
def test_a_finished_map_is_as_it_was_before_its_failed_items_had_failed(inside: dict[str, Any]) -> None:
    original = finished_map(**inside)
    before = original.model_dump_json()

    again = retry_failed(original, "each")
    undone = again.node_states["each"]

    assert original.model_dump_json() == before
    assert validate_checkpoint(again) == []
    assert (undone.status, undone.output_data, undone.completed_at) == (RunnableStatus.UNDEFINED, None, None)
    assert undone.internal_state["completed_iterations"] == {"0": {"n": 1}, "2": {"n": 3}}
    assert undone.internal_state["failed_iterations"] == {}
    assert again.completed_node_ids == ["draft"]
    assert again.pending_node_ids[-1] == "each"


def test_a_map_that_had_failed_is_pending_once() -> None:
    again = retry_failed(record(), "each")

    assert again.pending_node_ids.count("each") == 1
    assert again.node_states["each"].internal_state["completed_iterations"] == {"0": {"n": 1}}


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("draft", "is no map of this checkpoint; only of a map the failed items can be done again"),
        ("late", "is no map of this checkpoint; only of a map the failed items can be done again"),
        ("each", "none of its items has failed"),
    ],
)
def test_what_is_no_map_or_has_no_failed_items_is_refused(path: str, why: str) -> None:
    with pytest.raises(EditError) as refused:
        retry_failed(finished_map(failed_iterations={}), path)

    assert str(refused.value) == f"[edit/impossible] {path!r}: {why}"


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4).filter(
    lambda text: not text.startswith("__")
)
LEAVES = st.none() | st.booleans() | st.integers(-9, 9) | st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
DATA: st.SearchStrategy[Any] = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=8
)


def paths_in(data: Any) -> list[list[Key]]:
    """Every path of a value, the empty one first."""
    inner: list[tuple[Key, Any]] = []
    if is_object(data):
        inner = [*data.items()]
    elif is_array(data):
        inner = [*enumerate(data)]
    return [[], *([key, *rest] for key, value in inner for rest in paths_in(value))]


def at(data: Any, path: list[Key]) -> Any:
    for key in path:
        data = data[key]
    return data


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(data=DATA, new=DATA, choose=st.data())
def test_what_is_changed_at_any_place_is_found_there_and_nothing_else_is_changed(
    data: Any, new: Any, choose: st.DataObject
) -> None:
    path = choose.draw(st.sampled_from(paths_in(data)))
    whole = record()
    whole.node_states["draft"] = state("draft", "success", output_data=data)
    whole.node_states["plan"] = state("plan", "running", internal_state={"context": {"x": data}})
    before = whole.model_dump_json()
    output, context = name_of(["output", *path]), name_of(["context", "x", *path])

    result = apply_edits(FLOW, whole, {f"draft:{output}": new, f"plan:{context}": new})

    for after in (result.node_states["draft"].output_data, result.node_states["plan"].internal_state["context"]["x"]):
        assert at(after, path) == new
        others = [other for other in paths_in(data) if other != path[: len(other)] and other[: len(path)] != path]
        assert [at(after, other) for other in others] == [at(data, other) for other in others]
    assert whole.model_dump_json() == before
