"""The built-in kinds: their parameters, and what they say about how a node is run."""

from typing import Any

import pytest
from pydantic import ValidationError

import holdfast
from holdfast.flows.kinds import CUSTOM, KINDS, is_custom, is_fusable, is_pure, kind_of
from holdfast.flows.nodes import Node, parameters
from holdfast.flows.params import seconds_of
from holdfast.flows.spec import NodeSpec


def node(kind: str, **fields: Any) -> NodeSpec:
    return NodeSpec.model_validate({"id": "a", "type": kind, **fields})


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(90, 90), (1.5, 1.5), ("90s", 90), ("1h 30m", 5400), ("1h30m", 5400), ("0.5 d", 43200), ("2w", 1209600)],
)
def test_a_duration_is_a_number_or_is_written_with_units(text: str | float, seconds: float) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "90", "soon", "1h and a bit", "-5s", "1y"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds_of(text)


@pytest.mark.parametrize("text", ["5300w", float("inf"), float("nan"), 1e300, 10**400])
def test_a_duration_that_no_clock_can_hold_is_refused(text: str | float) -> None:
    with pytest.raises(ValueError, match="longer than a hundred years"):
        seconds_of(text)


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("llm", {"model": "m", "prompt": "p"}),
        ("llm", {"model": "m", "messages": [{"role": "user", "content": "hi"}]}),
        ("http", {"url": "https://example.org", "method": "POST", "ok_statuses": [404]}),
        ("python", {"code": "def run(input_data):\n    return 1"}),
        ("python", {"code": "import json\nasync def run(input_data):\n    return 1"}),
        ("python", {"function": "package.module:Class.method", "code": None}),
        ("choice", {"options": [{"id": "a"}], "hit_policy": "all"}),
        ("pass", {}),
        ("delay", {"seconds": "30d"}),
        ("delay", {"seconds": "$.wait"}),
        ("delay", {"until": "$.date"}),
        ("transform", {"template": None}),
        ("validate-json", {"field": "x", "on_invalid": "return"}),
        ("validate-choices", {"choices": [1]}),
        ("validate-regex", {"regex": "a+", "match": "search"}),
        ("activity", {"activity": "GoActivity", "task_queue": "go", "heartbeat_seconds": 5}),
    ],
)
def test_good_parameters_are_accepted(kind: str, params: dict[str, Any]) -> None:
    assert KINDS[kind].params.model_validate(params).model_fields_set == params.keys()


@pytest.mark.parametrize(
    ("kind", "params", "complaint"),
    [
        ("llm", {"model": "m"}, "give either 'prompt' or 'messages'"),
        ("llm", {"model": "m", "prompt": "p", "messages": []}, "give either 'prompt' or 'messages'"),
        ("http", {"url": "x", "method": "get"}, "Input should be 'GET'"),
        ("python", {}, "give either 'code' or 'function'"),
        ("python", {"code": "def run():", "function": "a:b"}, "does not compile"),
        ("python", {"code": "def run(x):\n  return 1\n", "function": "a:b"}, "give either 'code' or 'function'"),
        ("python", {"function": "os.system"}, "not of the form 'module:name'"),
        ("python", {"code": "x = (\n"}, r"the code does not compile: '\(' was never closed \(line 1 of it\)"),
        ("python", {"code": "def walk(x): pass"}, r"defines no function 'run\(input_data\)'"),
        ("python", {"code": "x = " + "-" * 100_000 + "1"}, "nested too deeply to compile"),
        ("choice", {"options": []}, "at least 1 item"),
        ("delay", {}, "give either 'seconds' or 'until'"),
        ("delay", {"seconds": 1, "until": "x"}, "give either 'seconds' or 'until'"),
        ("delay", {"seconds": "soon"}, "'soon' is not a duration"),
        ("delay", {"seconds": float("inf")}, "longer than a hundred years"),
        ("validate-choices", {"choices": []}, "at least 1 item"),
        ("validate-regex", {"regex": "("}, "not a regular expression: missing"),
        ("activity", {"activity": "x", "heartbeat_seconds": 0}, "greater than 0"),
        ("activity", {"activity": "x", "heartbeat_seconds": float("inf")}, "less than or equal to"),
        ("pass", {"x": 1}, "Extra inputs are not permitted"),
    ],
)
def test_bad_parameters_are_refused_with_the_reason(kind: str, params: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValidationError, match=complaint):
        KINDS[kind].params.model_validate(params)


def test_every_kind_has_a_class_for_python_with_the_same_parameters() -> None:
    public = [getattr(holdfast, name) for name in holdfast.__all__]
    classes = [item for item in public if isinstance(item, type) and issubclass(item, Node) and item is not Node]

    assert {cls.type: {*parameters(cls)} for cls in classes} == {
        name: {*kind.params.model_fields} for name, kind in KINDS.items()
    }


@pytest.mark.req("OR-4")
def test_choice_and_pass_are_pure_and_decided_without_an_activity() -> None:
    for kind in ("choice", "pass"):
        assert is_pure(node(kind))
        assert kind_of(node(kind)).activity is None


def test_a_custom_node_is_pure_only_if_it_says_so() -> None:
    assert is_custom("Task")
    assert not is_custom("pass")
    assert kind_of(node("Task")) is CUSTOM
    assert not is_pure(node("Task"))
    assert is_pure(node("Task", pure=True))
    assert not is_pure(node("transform", pure=False))


@pytest.mark.req("FL-4")
def test_only_pure_nodes_without_a_need_of_their_own_are_fused() -> None:
    assert is_fusable(node("transform"))
    assert is_fusable(node("python", pure=True))
    assert not is_fusable(node("python"))
    assert not is_fusable(node("transform", error_handling={"max_retries": 1}))
    assert not is_fusable(node("transform", error_handling={"timeout_seconds": 1}))
    assert not is_fusable(node("transform", caching={"enabled": True}))
    assert not is_fusable(node("delay", pure=True))
