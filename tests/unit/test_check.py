"""Every fault of a definition, found before anything runs."""

from typing import Any

import pytest

from holdfast.flows.check import ParamsCheck, check, dependencies, ensure, nearest
from holdfast.flows.faults import FlowDefinitionError
from holdfast.flows.spec import Caching, FlowSpec, NodeSpec


def flow(nodes: dict[str, dict[str, Any]], **fields: Any) -> FlowSpec:
    listed = [{"id": name, "type": "pass", **body} for name, body in nodes.items()]
    return FlowSpec.model_validate({"id": "flow", "nodes": listed, **fields})


def faults(nodes: dict[str, dict[str, Any]], **fields: Any) -> list[tuple[str, str | None, str]]:
    return [(fault.code, fault.place.node, fault.message) for fault in check(flow(nodes, **fields))]


def on(node: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"node": node, **fields}]


CONDITION = {"variable": "$.output", "operator": "numeric-equals", "value": 1}
GATE = {"type": "choice", "params": {"options": [{"id": "yes", "condition": CONDITION}, {"id": "no"}]}}


@pytest.mark.req("FL-1", "FL-4")
def test_a_sound_flow_has_no_faults() -> None:
    sound = flow(
        {
            "a": {"type": "http", "params": {"url": "https://example.org/{{ id }}"}},
            "gate": {**GATE, "depends": on("a", condition=CONDITION)},
            "b": {"depends": on("gate", option="yes"), "input_transformer": {"selector": {"x": "$.a.output || none"}}},
            "c": {"type": "Custom", "depends": on("a", trigger="failure"), "params": {"anything": 1}},
            "d": {"depends": [*on("b"), *on("c")], "join": "any", "input_transformer": {"path": "$..output"}},
        },
        checkpoint={"exclude_nodes": ["a"]},
    )

    assert check(sound) == []
    assert ensure(sound) is sound


def test_a_faulty_flow_is_refused_with_everything_that_is_wrong() -> None:
    with pytest.raises(FlowDefinitionError) as refused:
        ensure(flow({"a b": {}, "c": {"depends": on("d")}}))

    assert [fault.code for fault in refused.value.faults] == ["node/bad-id", "flow/unknown-node"]


@pytest.mark.parametrize(
    ("nodes", "fields", "expected"),
    [
        ({}, {}, ("flow/empty", None, "the flow has no nodes")),
        ({"a": {}}, {"id": ""}, ("flow/bad-id", None, "the flow's id is ''")),
        ({"a": {}}, {"id": "f@1"}, ("flow/bad-id", None, "the flow's id is 'f@1'")),
        ({"a/b": {}}, {}, ("node/bad-id", "a/b", "'a/b' cannot be a node's id")),
        ({"": {}}, {}, ("node/bad-id", "", "'' cannot be a node's id")),
        ({"a": {"type": "pas"}}, {}, ("node/unknown-type", "a", "there is no node type 'pas'")),
        (
            {"a": {"type": "delay", "pure": True, "params": {"seconds": 1}}},
            {},
            ("node/not-pure", "a", "a 'delay' node touches the world and cannot be pure"),
        ),
        ({"a": {"params": {"x": 1}}}, {}, ("node/unknown-field", "a", "a 'pass' node has no field 'x'")),
        ({"a": {"type": "http"}}, {}, ("node/missing-field", "a", "a 'http' node needs 'url'")),
        (
            {"a": {"type": "llm", "params": {"model": "m"}}},
            {},
            ("node/bad-field", "a", "give either 'prompt' or 'messages'"),
        ),
        (
            {"a": {"approval": {"enabled": True}}},
            {},
            ("node/bad-field", "a", "an approval does nothing on a 'pass' node"),
        ),
        (
            {"a": {"output_transformer": {"path": "$.a", "selector": {"x": ["$.["]}}}},
            {},
            ("node/bad-selector", "a", "'$.[' is not a JSONPath: expected a shorthand selector"),
        ),
        (
            {"a": {**GATE, "output_transformer": {"path": "$"}}},
            {},
            ("node/bad-field", "a", "a choice's output says which option it took and cannot be transformed"),
        ),
        (
            {"a": {"type": "transform", "params": {"template": {"x": ["{{"]}}}},
            {},
            ("node/bad-template", "a", "template '{{': unexpected 'end of template'"),
        ),
        (
            {"a": {"depends": on("b")}},
            {},
            ("flow/unknown-node", "a", "'a' depends on 'b', which does not exist"),
        ),
        (
            {"a": {}, "b": {"depends": on("a", option="yes")}},
            {},
            ("flow/no-options", "b", "'a' is of type 'pass' and has no options"),
        ),
        (
            {"a": GATE, "b": {"depends": on("a", option="maybe")}},
            {},
            ("flow/unknown-option", "b", "choice 'a' has no option 'maybe'"),
        ),
        ({"a": {}}, {"checkpoint": {"exclude_nodes": ["b"]}}, ("flow/unknown-node", None, "exclude_nodes names 'b'")),
        (
            {"a": {"depends": on("c")}, "b": {"depends": on("a")}, "c": {"depends": on("b")}},
            {},
            ("flow/cycle", "a", "these nodes wait on each other: a -> b -> c -> a"),
        ),
        (
            {"a": {}, "b": {"input_transformer": {"path": "$.a.output"}}},
            {},
            ("node/not-upstream", "b", "'$.a.output' reads node 'a', which may not have run by then"),
        ),
    ],
)
def test_a_fault_is_found_and_named(
    nodes: dict[str, dict[str, Any]], fields: dict[str, Any], expected: tuple[str, str | None, str]
) -> None:
    assert faults(nodes, **fields) == [expected]


def test_two_nodes_with_one_id_are_found() -> None:
    twice = FlowSpec.model_validate({"id": "f", "nodes": [{"id": "a", "type": "pass"}, {"id": "a", "type": "pass"}]})

    assert [(fault.code, fault.message) for fault in check(twice)] == [
        ("node/duplicate-id", "two nodes have the id 'a'")
    ]


@pytest.mark.parametrize(
    ("condition", "complaint"),
    [
        ({"operator": "and"}, "'and' has no operands"),
        ({"operator": "or", "operands": [{"operator": "and"}]}, "'and' has no operands"),
        ({"operator": "numeric-equals", "value": 1}, "'numeric-equals' compares nothing"),
        ({**CONDITION, "variable": "$.["}, "'$.[' is not a JSONPath: expected a shorthand selector"),
        (
            {**CONDITION, "operator": "numeric-equals-path", "value": "$["},
            "'$[' is not a JSONPath: unexpected end of query",
        ),
        (
            {**CONDITION, "operator": "string-regexp", "value": "("},
            "'(': missing ), unterminated subpattern at position 0",
        ),
    ],
)
def test_a_bad_condition_is_found_on_an_edge_and_in_an_option(condition: dict[str, Any], complaint: str) -> None:
    on_edge = faults({"a": {}, "b": {"depends": on("a", condition=condition)}})
    in_option = faults({"a": {"type": "choice", "params": {"options": [{"id": "x", "condition": condition}]}}})

    assert [(node, message) for _, node, message in on_edge] == [("b", complaint)]
    assert [(node, message) for _, node, message in in_option] == [("a", complaint)]


def test_a_condition_that_is_none_is_told_once() -> None:
    found = faults({"a": {"type": "choice", "params": {"options": [{"id": "x", "condition": {"operator": "like"}}]}}})

    assert [(code, node) for code, node, _ in found] == [("node/bad-field", "a")]


def test_what_is_upstream_is_not_judged_in_a_cycle() -> None:
    cyclic = {
        "a": {"depends": on("b")},
        "b": {"depends": on("a"), "input_transformer": {"path": "$.c"}},
        "c": {},
    }

    assert [code for code, _, _ in faults(cyclic)] == ["flow/cycle"]


def test_a_bad_path_is_told_once_and_not_searched_for_names() -> None:
    assert [code for code, _, _ in faults({"a": {"input_transformer": {"path": "$["}}})] == ["node/bad-selector"]


def test_a_reference_to_itself_is_a_reference_to_what_has_not_run() -> None:
    assert [code for code, _, _ in faults({"a": {"input_transformer": {"path": "$.a"}}})] == ["node/not-upstream"]


def test_a_node_may_read_anything_upstream_however_far() -> None:
    chain = {
        "a": {},
        "b": {"depends": on("a")},
        "c": {"depends": on("b"), "input_transformer": {"selector": {"x": "$.a.output", "y": "$.not_a_node"}}},
    }

    assert faults(chain) == []


def test_custom_types_are_taken_on_trust_or_checked_by_their_class() -> None:
    custom: dict[str, ParamsCheck] = {"Known": lambda node: ["too loud"] if node.params else []}
    both = flow({"a": {"type": "Known"}, "b": {"type": "Known", "params": {"x": 1}}, "c": {"type": "Unknown"}})

    assert check(both) == []
    assert [(fault.place.node, fault.message, fault.remedy) for fault in check(both, custom=custom)] == [
        ("b", "too loud", "See the class Known."),
        ("c", "no loaded module has a node class 'Unknown'", "Did you mean 'Known'? Load its module with --load."),
    ]


def test_a_node_that_could_not_be_read_is_no_second_fault() -> None:
    partial = flow(
        {"b": {"depends": on("a", option="x"), "input_transformer": {"path": "$.c"}}, "c": {}},
        checkpoint={"exclude_nodes": ["a"]},
    )

    assert check(partial, unread=["a"]) == []
    assert check(flow({}), unread=["a"]) == []


@pytest.mark.parametrize(
    ("word", "known", "remedy"),
    [
        ("tpye", ["type", "name"], "Did you mean 'type'?"),
        ("xyz", ["type", "name"], "There is: 'name', 'type'."),
        ("xyz", [], "There is none."),
    ],
)
def test_the_remedy_for_a_misspelling_is_the_nearest_word(word: str, known: list[str], remedy: str) -> None:
    assert nearest(word, known) == remedy


def test_dependencies_are_listed_in_the_order_of_the_author() -> None:
    assert dependencies(flow({"b": {"depends": [*on("z"), *on("a")]}, "a": {}})) == {"b": ["z", "a"], "a": []}


@pytest.mark.parametrize(
    ("kind", "params"),
    [("pass", {}), ("delay", {"seconds": 1}), ("activity", {"activity": "a"}), ("choice", {"options": [{"id": "x"}]})],
)
def test_caching_where_it_would_do_nothing_is_a_fault(kind: str, params: dict[str, Any]) -> None:
    node = NodeSpec(id="n", type=kind, params=params, caching=Caching(enabled=True))

    [fault] = check(FlowSpec(id="f", nodes=[node]))

    assert fault.message == f"caching does nothing on a {kind!r} node"
