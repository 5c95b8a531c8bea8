"""Faults inside agents, maps, orchestrators and nested flows: found before anything runs, each with its line."""

from typing import Any

import pytest

from holdfast.flows.check import ParamsCheck, check
from holdfast.flows.composites import AgentParams, FlowParams
from holdfast.flows.faults import Fault, FlowDefinitionError
from holdfast.flows.inside import inner_nodes
from holdfast.flows.reading import flow_from_data, read_flow
from holdfast.flows.spec import FlowSpec, NodeSpec

MODEL = {"model": "m"}


def faults_of(text: str) -> list[Fault]:
    with pytest.raises(FlowDefinitionError) as refused:
        read_flow(text, "flow.yaml")
    return list(refused.value.faults)


def told(text: str) -> list[tuple[str, str, str | None]]:
    """Every fault, with the words in the line it points to."""
    lines = text.splitlines()
    found = faults_of(text)
    assert {fault.place.file for fault in found} == {"flow.yaml"}
    return [(fault.code, fault.message, lines[(fault.place.line or 0) - 1].strip()) for fault in found]


def agent(*tools: dict[str, Any], **params: Any) -> FlowSpec:
    spec = {"id": "agent", "type": "agent", "params": {"llm": MODEL, "tools": tools, **params}}
    return FlowSpec.model_validate({"id": "f", "nodes": [spec]})


def codes(flow: FlowSpec) -> list[tuple[str, str]]:
    return [(fault.code, fault.message) for fault in check(flow)]


def test_faults_of_an_agents_tools_have_file_and_line() -> None:
    found = told(
        """
id: outer
nodes:
  agent:
    type: agent
    llm: {model: m}
    tools:
      - id: search
        type: http
        url: x
        colour: red
      - id: "bad name"
        type: http
        url: x
        input_schema: {type: objekt}
      - id: search
        type: transform
        template: "{{"
      - id: helper
        type: agent
        llm: {model: m}
        tools:
          - id: deep
            type: htpp
      - id: late
        type: http
        url: x
        depends: [{node: agent}]
    output_schema: {required: x}
"""
    )

    assert found == [
        ("node/unknown-field", "a 'http' node has no field 'colour'", "colour: red"),
        ("node/bad-template", "template '{{': unexpected 'end of template'", 'template: "{{"'),
        ("node/duplicate-id", "two nodes inside 'agent' have the id 'search'", "- id: search"),
        ("node/unknown-type", "there is no node type 'htpp'", "type: htpp"),
        ("node/not-inside", "'late' is inside another node and cannot depend on nodes", "depends: [{node: agent}]"),
        ("agent/bad-tool-name", "a model cannot call a tool 'bad name'", '- id: "bad name"'),
        (
            "node/bad-schema",
            "the JSON schema is none: type: 'objekt' is not valid under any of the given schemas",
            "input_schema: {type: objekt}",
        ),
        (
            "node/bad-schema",
            "the JSON schema is none: required: 'x' is not of type 'array'",
            "output_schema: {required: x}",
        ),
    ]


def test_a_fault_inside_is_shown_under_the_node_that_the_flow_has() -> None:
    (fault,) = check(agent({"id": "look", "type": "http"}))

    assert (fault.code, fault.message, fault.place.node) == ("node/missing-field", "a 'http' node needs 'url'", "agent")
    assert str(fault) == (
        "[node/missing-field] a 'http' node needs 'url'\n  in node 'agent'\n  Add 'url: …' to the node."
    )


def test_the_fields_of_an_agent_itself_are_checked_first() -> None:
    assert codes(agent(llm={})) == [("node/missing-field", "a 'agent' node needs 'llm.model'")]
    assert codes(agent(tools=[{"type": "http", "id": "x", "on_error": "ignore"}])) == [
        ("node/bad-field", "tools.0.on_error: Input should be 'observe' or 'fail'")
    ]
    assert codes(agent(colour="red")) == [("node/unknown-field", "a 'agent' node has no field 'colour'")]
    assert codes(agent(prompt="{{")) == [("node/bad-template", "template '{{': unexpected 'end of template'")]


@pytest.mark.parametrize("name", ["a.b", "é", "x" * 65, "a b", ""])
def test_a_tool_has_a_name_that_a_model_can_call(name: str) -> None:
    found = codes(agent({"id": name, "type": "Task"}))

    assert ("agent/bad-tool-name", f"a model cannot call a tool {name!r}") in found
    assert codes(agent({"id": "x" * 64, "type": "Task"}, {"id": "a-B_9", "type": "Task"})) == []


@pytest.mark.parametrize("name", ["a/b", "a[0]", "a@1", ""])
def test_an_id_inside_has_none_of_the_characters_that_paths_are_made_of(name: str) -> None:
    """Two tasks `a` and `a/b` would otherwise be taken for one inside the other."""
    states = [{"id": "s", "tasks": [{"id": name, "type": "Task"}, {"id": "two words", "type": "Task"}]}]
    graph = NodeSpec(id="graph", type="graph-orchestrator", params={"states": states})

    assert codes(FlowSpec(id="f", nodes=[graph])) == [("node/bad-id", f"{name!r} cannot be a node's id")]


@pytest.mark.parametrize("kind", ["choice", "pass", "delay"])
def test_what_decides_or_waits_has_no_place_inside_a_map(kind: str) -> None:
    params: dict[str, Any] = {"choice": {"options": [{"id": "x"}]}, "pass": {}, "delay": {"seconds": 1}}[kind]
    mapped = NodeSpec(id="each", type="map", params={"node": {"type": kind, **params}})

    assert codes(FlowSpec(id="f", nodes=[mapped])) == [
        ("node/not-inside", f"a {kind!r} node cannot be inside another node")
    ]


def test_faults_in_a_map_and_in_orchestrators_have_their_lines_too() -> None:
    found = told(
        """
id: outer
nodes:
  each:
    type: map
    node:
      type: http
      method: FETCH
      url: x
  graph:
    type: graph-orchestrator
    states:
      - id: a
        tasks:
          - {id: x, type: Task}
          - {id: x, type: Task}
      - id: b
        tasks:
          - id: x
            type: llm
  line:
    type: linear-orchestrator
    manager: {model: m}
    agents:
      - id: w
        type: agent
        llm: {model: m}
        max_loops: 0
"""
    )

    assert found == [
        (
            "node/bad-field",
            "method: Input should be 'GET', 'POST', 'PUT', 'PATCH', 'DELETE' or 'HEAD'",
            "method: FETCH",
        ),
        ("node/duplicate-id", "two nodes inside 'graph' have the id 'x'", "- {id: x, type: Task}"),
        ("node/missing-field", "a 'llm' node needs 'model'", "- id: x"),
        ("node/bad-field", "max_loops: Input should be greater than or equal to 1", "max_loops: 0"),
    ]


@pytest.mark.req("FL-7")
def test_a_fault_inside_a_nested_flow_has_its_own_line_however_its_nodes_are_written() -> None:
    by_name = """
id: outer
nodes:
  sub:
    type: flow
    flow:
      id: inner
      nodes:
        a:
          type: pass
          x: 1
        b:
          type: transform
          template: "{{"
          depends: [c]
"""
    in_a_list = """
id: outer
nodes:
  sub:
    type: flow
    flow:
      id: inner
      nodes:
        - id: a
          type: pass
          x: 1
        - id: b
          type: transform
          template: "{{"
          depends: [c]
"""
    expected = [
        ("node/unknown-field", "in the flow of 'sub': a 'pass' node has no field 'x'", "x: 1"),
        (
            "node/bad-template",
            "in the flow of 'sub': template '{{': unexpected 'end of template'",
            'template: "{{"',
        ),
        ("flow/unknown-node", "in the flow of 'sub': 'b' depends on 'c', which does not exist", "depends: [c]"),
    ]

    assert told(by_name) == expected
    assert told(in_a_list) == expected


@pytest.mark.req("FL-7")
def test_a_nested_flow_has_fields_ids_and_no_cycles_like_any_other() -> None:
    found = told(
        """
id: outer
nodes:
  each:
    type: map
    node:
      type: flow
      flow:
        id: inner
        colour: red
        nodes:
          - {id: a, type: pass, depends: [b]}
          - {id: b, type: pass, depends: [a]}
          - {id: a, type: pass}
"""
    )

    assert found == [
        ("flow/unknown-field", "the flow has no field 'colour'", "colour: red"),
        ("node/duplicate-id", "in the flow of 'flow': two nodes have the id 'a'", "- {id: a, type: pass}"),
    ]
    cyclic = [{"id": "a", "type": "pass", "depends": ["b"]}, {"id": "b", "type": "pass", "depends": ["a"]}]
    with pytest.raises(FlowDefinitionError) as refused:
        flow_from_data(
            {"id": "o", "nodes": {"sub": {"type": "flow", "flow": {"id": "i", "nodes": cyclic}}}},
        )
    assert [fault.message for fault in refused.value.faults] == [
        "in the flow of 'sub': these nodes wait on each other: a -> b -> a"
    ]


@pytest.mark.req("FL-7")
def test_a_nested_flow_is_written_like_any_other_and_read_into_what_a_run_carries() -> None:
    flow = read_flow(
        """
id: outer
nodes:
  sub:
    type: flow
    flow:
      id: inner
      nodes:
        a: {type: http, url: x}
        b: {type: pass, depends: a}
        deep:
          type: flow
          flow:
            id: innermost
            nodes:
              c: {type: Task, size: 3}
"""
    )

    inner = FlowParams.model_validate(flow.node("sub").params).flow
    assert [node.id for node in inner.nodes] == ["a", "b", "deep"]
    assert inner.node("a").params == {"url": "x"}
    assert inner.node("b").depends[0].node == "a"
    innermost = FlowParams.model_validate(inner.node("deep").params).flow
    assert innermost.node("c").params == {"size": 3}


def test_the_parameters_of_an_inner_node_stand_beside_its_other_fields() -> None:
    beside = {"id": "look", "type": "http", "url": "x", "on_error": "fail", "error_handling": {"max_retries": 1}}
    within = {
        "id": "look",
        "type": "http",
        "on_error": "fail",
        "params": {"url": "x"},
        "error_handling": {"max_retries": 1},
    }

    one, other = (AgentParams.model_validate({"llm": MODEL, "tools": [tool]}).tools[0] for tool in (beside, within))

    assert one == other
    assert (one.params, one.on_error, one.error_handling.max_retries) == ({"url": "x"}, "fail", 1)


def test_an_inner_node_without_an_id_is_called_by_its_name_or_its_type() -> None:
    params = {"llm": MODEL, "tools": [{"type": "http", "name": "fetch"}, {"type": "http"}]}

    assert [tool.id for tool in AgentParams.model_validate(params).tools] == ["fetch", "http"]


def test_custom_nodes_inside_are_checked_by_their_class() -> None:
    custom: dict[str, ParamsCheck] = {"Known": lambda node: ["too loud"] if node.params else []}
    tools = agent({"id": "a", "type": "Known"}, {"id": "b", "type": "Known", "x": 1}, {"id": "c", "type": "Unknown"})

    assert check(tools) == []
    assert [fault.message for fault in check(tools, custom=custom)] == [
        "too loud",
        "no loaded module has a node class 'Unknown'",
    ]


def test_an_agent_is_neither_pure_nor_cached() -> None:
    node = {"id": "a", "type": "agent", "params": {"llm": MODEL}, "pure": True, "caching": {"enabled": True}}

    assert codes(FlowSpec.model_validate({"id": "f", "nodes": [node]})) == [
        ("node/not-pure", "a 'agent' node touches the world and cannot be pure"),
        ("node/bad-field", "caching does nothing on a 'agent' node"),
    ]


def test_the_nodes_inside_are_listed_with_their_place() -> None:
    state = {"id": "s", "tasks": [{"id": "x", "type": "Task"}, {"id": "y", "type": "Task"}]}
    graph = NodeSpec(id="g", type="graph-orchestrator", params={"states": [{"id": "r"}, state]})
    mapped = NodeSpec(id="m", type="map", params={"node": {"type": "Task"}})

    assert [(path, inner.id) for path, inner in inner_nodes(graph)] == [
        (("states", 1, "tasks", 0), "x"),
        (("states", 1, "tasks", 1), "y"),
    ]
    assert [(path, inner.id) for path, inner in inner_nodes(mapped)] == [(("node",), "Task")]
    assert list(inner_nodes(NodeSpec(id="p", type="pass"))) == []
