"""Agents, maps, orchestrators and nested flows in Python: the same definitions as in YAML."""

from typing import Any

import pytest

from holdfast.flows.check import check
from holdfast.flows.composite_nodes import (
    COMPOSITE_NODES,
    Agent,
    GraphOrchestrator,
    LinearOrchestrator,
    Map,
    SubFlow,
    nodes_inside,
    objects_of,
    state,
)
from holdfast.flows.kinds import COMPOSITE, KINDS
from holdfast.flows.nodes import Http, Node, Transform, flow_nodes, parameters
from holdfast.flows.params import ModelParams
from holdfast.flows.reading import read_flow
from holdfast.flows.spec import FlowSpec, NodeSpec
from holdfast.flows.tools import Tool, schema_of, tool


def search(query: str) -> str:
    """Finds pages."""
    return query


@tool(side_effects="write", on_error="fail", error_handling={"max_retries": 2})
def pay(amount: float) -> float:
    """Pays."""
    return amount


class Greet(Node):
    greeting: str = "hello"

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        return self.greeting


class SmallFlow:
    """A flow as the library has it: nodes, and a definition of them."""

    def __init__(self, *nodes: Node) -> None:
        self.nodes = list(nodes)

    def spec(self) -> FlowSpec:
        return FlowSpec(id="inner", nodes=flow_nodes(self.nodes))


def read(text: str) -> NodeSpec:
    return read_flow("id: f\nnodes:\n" + text).nodes[0]


def same(node: Node, text: str) -> None:
    """The same for every reader of the definition: parameters are compared as their models."""
    (made,) = flow_nodes([node])
    written = read(text)
    model = KINDS[made.type].params
    assert check(FlowSpec(id="f", nodes=[made])) == []
    assert model.model_validate(made.params) == model.model_validate(written.params)
    assert made.model_copy(update={"params": {}}) == written.model_copy(update={"params": {}})


def test_an_agent() -> None:
    same(
        Agent(
            id="agent",
            llm={"model": "m", "fallback": {"model": "n"}},
            system="S",
            tools=[
                Tool(Http(id="fetch", url="x"), input_schema={"type": "object"}),
                Agent(id="helper", llm={"model": "m"}),
            ],
            mode="xml",
            max_loops=3,
            memory={"limit": 5},
            summarise={"after_tokens": 10},
            error_handling={"timeout_seconds": 60},
            depends=[],
        ),
        """
  agent:
    type: agent
    llm: {model: m, fallback: {model: n}}
    system: S
    tools:
      - {id: fetch, type: http, url: x, input_schema: {type: object}}
      - {id: helper, type: agent, llm: {model: m}}
    mode: xml
    max_loops: 3
    memory: {limit: 5}
    summarise: {after_tokens: 10}
    error_handling: {timeout_seconds: 60}
""",
    )


def test_a_map() -> None:
    same(
        Map(id="each", node=Transform(template="{{ input }}"), items="$.rows", max_workers=3, behavior="return"),
        """
  each:
    type: map
    items: $.rows
    max_workers: 3
    behavior: return
    node: {id: transform, type: transform, template: "{{ input }}"}
""",
    )


def test_a_nested_flow() -> None:
    first = Http(id="a", url="x")
    same(
        SubFlow(id="sub", flow=SmallFlow(first, Greet(id="b", greeting="hi").depends_on(first))),
        """
  sub:
    type: flow
    flow:
      id: inner
      nodes:
        a: {type: http, url: x}
        b: {type: Greet, greeting: hi, depends: a}
""",
    )


def test_a_graph() -> None:
    same(
        GraphOrchestrator(
            id="graph",
            states=[
                state("draft", Greet(id="write"), next=["review", {"to": "end"}]),
                state("review", Greet(id="judge"), route=search, description="Judge."),
                state("last", next="end"),
            ],
            manager={"model": "m"},
            context={"n": 1},
        ),
        f"""
  graph:
    type: graph-orchestrator
    manager: {{model: m}}
    context: {{n: 1}}
    states:
      - id: draft
        tasks: [{{id: write, type: Greet}}]
        next: [{{to: review}}, {{to: end}}]
      - id: review
        description: Judge.
        tasks: [{{id: judge, type: Greet}}]
        route: {__name__}:search
      - id: last
        next: [{{to: end}}]
""",
    )


def test_tasks_in_a_row() -> None:
    same(
        LinearOrchestrator(
            id="line", manager=ModelParams(model="m"), agents=[Agent(id="w", llm={"model": "m"})], max_tasks=2
        ),
        """
  line:
    type: linear-orchestrator
    manager: {model: m}
    agents: [{id: w, type: agent, llm: {model: m}}]
    max_tasks: 2
""",
    )


def test_functions_are_tools_decorated_or_not() -> None:
    params = Agent(llm={"model": "m"}, tools=[search, pay]).spec("agent").params

    plain, decorated = params["tools"]
    assert (plain["id"], plain["type"], plain["description"]) == ("search", "tool", "Finds pages.")
    assert plain["params"] == {"function": f"{__name__}:search"}
    assert plain["input_schema"] == schema_of(search)
    assert (decorated["id"], decorated["side_effects"], decorated["on_error"]) == ("pay", "write", "fail")
    assert decorated["error_handling"] == {"max_retries": 2}


def test_a_node_inside_that_has_no_id_is_called_after_its_class() -> None:
    assert Map(node=Greet()).spec("each").params["node"]["id"] == "greet"


def test_objects_inside_are_found_at_the_places_their_calls_come_from() -> None:
    greet, deep, judge = Greet(id="greet"), Greet(), Greet(id="judge")
    helper = Agent(id="helper", llm={"model": "m"}, tools=[deep])
    agent = Agent(id="agent", llm={"model": "m"}, tools=[Tool(greet), helper, search])
    graph = GraphOrchestrator(states=[state("s", judge)])
    mapped = Map(node=Map(id="inner", node=greet))

    assert [(place, type(node).__name__) for place, node in objects_of(agent, "agent")] == [
        ("agent/greet", "Greet"),
        ("agent/helper", "Agent"),
        ("agent/helper/greet", "Greet"),
        ("agent/search", "FunctionTool"),
    ]
    assert dict(objects_of(agent, "agent"))["agent/helper/greet"] is deep
    assert list(objects_of(graph, "g")) == [("g/judge", judge)]
    assert [place for place, _ in objects_of(mapped, "each")] == ["each/inner", "each/inner/greet"]
    assert list(objects_of(greet, "x")) == []
    assert list(nodes_inside("text", "x")) == []


def test_every_composite_kind_has_a_class_with_its_fields() -> None:
    assert {cls.type for cls in COMPOSITE_NODES} | {"human"} == COMPOSITE
    for cls in COMPOSITE_NODES:
        assert set(parameters(cls)) == set(KINDS[cls.type].params.model_fields)


@pytest.mark.parametrize("cls", COMPOSITE_NODES)
def test_what_is_not_given_has_the_default_of_the_definition(cls: type[Node]) -> None:
    fields = KINDS[cls.type].params.model_fields
    for name, default in parameters(cls).items():
        if not fields[name].is_required():
            assert default == fields[name].get_default(call_default_factory=True), name


def test_instances_do_not_share_what_they_are_made_of() -> None:
    one, other = Agent(llm={"model": "m"}), Agent(llm={"model": "m"})

    one.tools.append(search)

    assert other.tools == []
