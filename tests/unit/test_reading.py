"""Reading a flow from YAML: what is accepted, and what is said of what is not."""

import contextlib
import copy
import operator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.flows.check import ParamsCheck
from holdfast.flows.faults import FlowDefinitionError
from holdfast.flows.reading import flow_from_data, read_flow
from holdfast.flows.shapes import is_array, is_object
from holdfast.flows.spec import Dependency, FlowSpec

DATA = Path(__file__).parent / "data"

GOOD = """\
id: review
name: Contract review
checkpoint: {max_checkpoints: 3}
nodes:
  fetch:
    type: http
    url: https://example.org/{{ contract }}
  gate:
    type: choice
    depends: fetch
    options:
      - {id: ok, condition: {variable: $.fetch.output.status, operator: numeric-equals, value: 200}}
      - {id: no}
  publish:
    type: Publisher
    channel: blog
    params: {urgent: yes}
    depends: [{node: gate, option: ok}, fetch]
    error_handling: {max_retries: 2}
  5:
    type: pass
    depends: [{node: gate, option: no}]
"""


def faults_of(text: str, custom: dict[str, ParamsCheck] | None = None) -> list[tuple[str, int | None, str]]:
    with pytest.raises(FlowDefinitionError) as refused:
        read_flow(text, "f.yaml", custom)
    return [(fault.code, fault.place.line, fault.message) for fault in refused.value.faults]


@pytest.mark.req("FL-1", "FL-4")
def test_a_flow_is_read_with_everything_that_is_in_it() -> None:
    flow = read_flow(GOOD, "review.yaml")

    assert (flow.id, flow.name, flow.checkpoint.max_checkpoints) == ("review", "Contract review", 3)
    assert [node.id for node in flow.nodes] == ["fetch", "gate", "publish", "5"]
    publish = flow.node("publish")
    assert publish.params == {"channel": "blog", "urgent": "yes"}
    assert publish.depends == [Dependency(node="gate", option="ok"), Dependency(node="fetch")]
    assert publish.error_handling.max_retries == 2
    assert flow.node("gate").depends == [Dependency(node="fetch")]


def test_nodes_may_be_a_list_and_a_definition_may_be_data() -> None:
    listed = {"id": "f", "nodes": [{"id": "a", "type": "pass"}, {"id": "b", "type": "pass", "depends": ["a"]}]}
    mapped = {"id": "f", "nodes": {"a": {"type": "pass"}, "b": {"type": "pass", "depends": "a"}}}

    assert flow_from_data(listed) == flow_from_data(mapped)


def test_what_was_read_is_read_again_from_its_own_data() -> None:
    flow = read_flow(GOOD)

    assert flow_from_data(flow.model_dump(mode="json")) == flow


def test_reading_does_not_change_the_data() -> None:
    data: dict[str, Any] = {"id": "f", "nodes": {"a": {"type": "http", "url": "x", "depends": None}}}
    before = repr(data)

    flow_from_data(data)

    assert repr(data) == before


def test_all_faults_of_a_file_are_told_at_once_with_line_and_remedy() -> None:
    text = (DATA / "broken_flow.yaml").read_text()

    with pytest.raises(FlowDefinitionError) as refused:
        read_flow(text, "flows/review.yaml")

    assert str(refused.value) + "\n" == (DATA / "broken_flow.txt").read_text()


def test_a_fault_in_data_names_the_node_instead_of_a_line() -> None:
    with pytest.raises(FlowDefinitionError) as refused:
        flow_from_data({"id": "f", "nodes": {"a": {"type": "http"}}})

    assert str(refused.value) == (
        "the flow has a fault:\n[node/missing-field] a 'http' node needs 'url'\n  in node 'a'\n"
        "  Add 'url: …' to the node."
    )


ODD_SHAPES = [
    "",
    "just text",
    "[]",
    "id: f",
    "nodes: {}",
    "nodes: [1]",
    "nodes: [[]]",
    "nodes: 5",
    "nodes: {a: 5}",
    "nodes: {a: }",
    "nodes: {a: []}",
    "nodes: {a: {type: 7}}",
    "nodes: {a: {type: [pass]}}",
    "nodes: {a: {type: }}",
    "nodes: {a: {}}",
    "nodes: {'': {type: pass}}",
    "nodes: {a b: {type: pass}}",
    "nodes: [{id: 5, type: pass}]",
    "nodes: [{id: , type: pass}]",
    "nodes: [{id: [x], type: pass}]",
    "nodes: [{id: '', type: 7}]",
    "nodes: {a: {type: pass, depends: 5}}",
    "nodes: {a: {type: pass, depends: 0}}",
    "nodes: {a: {type: pass, depends: {node: a}}}",
    "nodes: {a: {type: pass, depends: [5, null, [x], {}]}}",
    "nodes: {a: {type: pass, depends: ''}}",
    "nodes: {a: {type: pass, depends: [{node: 5}]}}",
    "nodes: {a: {type: pass, depends: a}}",
    "nodes: {a: {type: pass, params: []}}",
    "nodes: {a: {type: pass, params: [1]}}",
    "nodes: {a: {type: pass, params: x}}",
    "nodes: {a: {type: pass, 5: x}}",
    "nodes: {a: {type: pass, error_handling: x}}",
    "nodes: {a: {type: pass, error_handling: {timeout_seconds: .inf}}}",
    "nodes: {a: {type: pass, caching: 5}}",
    "nodes: {a: {type: pass, approval: 5}}",
    "nodes: {a: {type: pass, streaming: [true]}}",
    "nodes: {a: {type: pass, metadata: x}}",
    "nodes: {a: {type: pass, pure: maybe}}",
    "nodes: {a: {type: pass, input_transformer: x}}",
    "nodes: {a: {type: pass, input_transformer: {path: 5, selector: 7}}}",
    "nodes: {a: {type: pass, input_transformer: {path: '$['}}}",
    "nodes: {a: {type: choice, options: x}, b: {type: pass, depends: [{node: a, option: q}]}}",
    "nodes: {a: {type: choice, options: [1]}, b: {type: pass, depends: [{node: a, option: q}]}}",
    "nodes: {a: {type: choice, options: }, b: {type: pass, depends: [{node: a, option: q}]}}",
    "nodes: {a: {type: choice, options: {}}, b: {type: pass, depends: [{node: a, option: q}]}}",
    "nodes: {a: {type: choice}, b: {type: pass, depends: [{node: a, option: q}]}}",
    "nodes: {a: {type: choice, options: [{id: x, condition: 5}]}}",
    "nodes: {a: {type: choice, options: [{id: x, condition: {operator: and, operands: [5]}}]}}",
    "nodes: {b: {type: pass}, a: {type: pass, depends: [{node: b, condition: {operator: or, operands: 5}}]}}",
    "nodes: {a: {type: python, code: 5}}",
    "nodes: {a: {type: python, code: 'def run('}}",
    "nodes: {a: {type: python, code: x, function: y}}",
    "nodes: {a: {type: llm, model: m, prompt: p, messages: 5}}",
    "nodes: {a: {type: http, url: '{{', headers: 5, query: [x]}}",
    "nodes: {a: {type: delay, seconds: []}}",
    "nodes: {a: {type: delay, seconds: .nan}}",
    "nodes: {a: {type: delay}}",
    "nodes: {a: {type: transform}}",
    "nodes: {a: {type: validate-regex, regex: '('}}",
    "nodes: {a: {type: validate-choices, choices: x}}",
    "nodes: {a: {type: activity, activity: [x], heartbeat_seconds: -1}}",
    "checkpoint: 3\nnodes: {a: {type: pass}}",
    "checkpoint: {exclude_nodes: 5}\nnodes: {a: {type: pass}}",
    "checkpoint: {exclude_nodes: [5]}\nnodes: {a: {type: pass}}",
    "metadata: x\nnodes: {a: {type: pass}}",
    "5: x\nnodes: {a: {type: pass}}",
    "true: x\nnodes: {a: {type: pass}}",
    "id: [x]\nnodes: {a: {type: pass}}",
    "id:\nnodes: {a: {type: pass}}",
    "id: 7\nnodes: {a: {type: pass}}",
    "nodes: {? [x] : {type: pass}}",
    "nodes: &n {a: {type: pass, params: *n}}",
    "nodes: {a: {type: transform, template: !!float x}}",
    "nodes: \x07",
]


@pytest.mark.parametrize("text", ODD_SHAPES)
def test_an_odd_shape_is_a_fault_of_the_flow_and_never_a_traceback(text: str) -> None:
    with pytest.raises(FlowDefinitionError) as refused:
        read_flow(text if text.startswith(("id", "[", "just")) or not text else f"id: f\n{text}", "f.yaml")

    assert all(fault.remedy and fault.message and fault.place.file == "f.yaml" for fault in refused.value.faults)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in `data`."""
    inner: list[tuple[Any, Any]] = []
    if is_object(data):
        inner = list(data.items())
    elif is_array(data):
        inner = list(enumerate(data))
    return [path] * bool(path) + [place for key, value in inner for place in places(value, (*path, key))]


WHOLE: dict[str, Any] = {**yaml.safe_load(GOOD), "metadata": {}, "description": "text"}
WHOLE["nodes"] |= {
    "read": {
        "type": "pass",
        "depends": ["fetch"],
        "input_transformer": {"path": "$.fetch", "selector": {"x": ["$.y"]}},
    },
    "wait": {"type": "delay", "seconds": "$.x", "error_handling": {"timeout_seconds": 5, "behavior": "return"}},
    "ask": {"type": "llm", "model": "m", "messages": [{"role": "user", "content": "{{ q }}"}], "caching": {}},
    "run": {"type": "python", "code": "def run(x): return x", "approval": {"enabled": False}},
    "fit": {"type": "validate-regex", "regex": "a+", "output_transformer": {"path": "$.content"}},
}
ODD_VALUES = st.recursive(
    st.sampled_from([None, True, 0, -1, 1.5, float("inf"), 10**30, "", "x", "$", "$[", "$.a | $.b", "{{", "(", b"x"]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from(["node", "id", "type", "operator", "operands", "path", 5, None]), inner),
    ),
    max_leaves=4,
)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(st.sampled_from(places(WHOLE)), ODD_VALUES)
def test_whatever_stands_wherever_gives_a_flow_or_its_faults(place: tuple[Any, ...], value: Any) -> None:
    data = copy.deepcopy(WHOLE)
    around = reduce(operator.getitem, place[:-1], data)
    around[place[-1]] = value

    with contextlib.suppress(FlowDefinitionError):
        assert isinstance(flow_from_data(data), FlowSpec)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nodes: [1]", [("node/no-id", 2, "node number 1 has no id")]),
        ("nodes: 5", [("flow/bad-nodes", 2, "'nodes' is neither a mapping nor a list")]),
        ("nodes:\n  a:", [("node/not-a-mapping", 3, "node 'a' has no fields")]),
        ("nodes:\n  a:\n    type: 7", [("node/bad-field", 4, "type: Input should be a valid string")]),
        ("nodes:\n- id: ''\n  type: 7", [("node/bad-field", 4, "type: Input should be a valid string")]),
        ("nodes:\n  a:\n    type: pass\n    depends: 5", [
            ("node/bad-field", 5, "depends: Input should be a valid list"),
        ]),
        ("nodes:\n  a:\n    type: pass\n    params: []", [
            ("node/bad-field", 5, "params: Input should be a valid dictionary"),
        ]),
        ("nodes:\n  a: {type: pass}\n5: x", [("flow/unknown-field", 4, "the flow has no field '5'")]),
        ("nodes:\n  a:\n    type: pass\n    depends:\n    - node: b\n    - {nod: a}\n  b: {type: pass}", [
            ("flow/unknown-field", 7, "'depends' has no field 'nod'"),
            ("node/missing-field", 7, "a 'pass' node needs 'depends.1.node'"),
        ]),
        ("nodes:\n  a: {type: pass, join: some}\n  b: {type: pass, depends: a}", [
            ("node/bad-field", 3, "join: Input should be 'all' or 'any'"),
        ]),
        ("nodes:\n  a: {type: choice, options: [{id: x, nam: y}]}", [
            ("node/unknown-field", 3, "a 'choice' node has no field 'options.0.nam'"),
        ]),
        ("nodes:\n  a:\n    type: pass\n    type: http\n    url: x", [
            ("flow/repeated-key", 5, "'type' is written twice"),
        ]),
    ],
)  # fmt: skip
def test_a_fault_is_told_once_and_on_its_own_line(text: str, expected: list[tuple[str, int, str]]) -> None:
    assert faults_of(f"id: f\n{text}") == expected


def test_a_node_with_a_taken_id_is_located_though_others_before_it_could_not_be_read() -> None:
    text = "id: f\nnodes:\n- {id: x}\n- {id: y, type: 7}\n- {id: a, type: pass}\n- {id: a, type: pass}"

    assert faults_of(text) == [
        ("node/missing-field", 3, "node 'x' has no type"),
        ("node/bad-field", 4, "type: Input should be a valid string"),
        ("node/duplicate-id", 6, "two nodes have the id 'a'"),
    ]


def test_wrong_fields_of_the_flow_do_not_hide_the_faults_of_its_nodes() -> None:
    assert faults_of("id: f\ncheckpoint: 3\nnodes:\n  a: {type: pas}") == [
        ("node/bad-field", 2, "checkpoint: Input should be a valid dictionary or instance of CheckpointConfig"),
        ("node/unknown-type", 4, "there is no node type 'pas'"),
    ]


def test_broken_yaml_is_told_with_its_line() -> None:
    with pytest.raises(FlowDefinitionError) as refused:
        read_flow("id: f\nnodes: [", "f.yaml")

    assert str(refused.value) == (
        "the flow has a fault:\n[flow/not-yaml] expected the node content, but found '<stream end>'\n"
        "  in f.yaml:2\n  Mend the YAML."
    )


def test_custom_nodes_are_checked_by_those_who_know_them() -> None:
    custom: dict[str, ParamsCheck] = {"Publisher": lambda node: [f"no channel {node.params['channel']!r}"]}
    text = "id: f\nnodes:\n  a: {type: Publisher, channel: tv}\n  b: {type: Publicher}"

    assert faults_of(text, custom) == [
        ("node/bad-field", 3, "no channel 'tv'"),
        ("node/unknown-type", 4, "no loaded module has a node class 'Publicher'"),
    ]
    assert isinstance(read_flow(text), FlowSpec)
