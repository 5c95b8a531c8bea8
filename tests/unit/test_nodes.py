"""Nodes as an author writes them in Python."""

from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from holdfast.flows.check import check
from holdfast.flows.conditions import Condition
from holdfast.flows.nodes import (
    Choice,
    Delay,
    Http,
    Llm,
    Node,
    NonRetryableError,
    Pass,
    Python,
    Transform,
    ValidateRegex,
    custom_params_check,
    flow_nodes,
    function_name,
    option,
    parameters,
)
from holdfast.flows.reading import flow_from_data
from holdfast.flows.spec import Caching, Dependency, ErrorHandling, FlowSpec, NodeSpec, Transformer


class Tone(Enum):
    KIND = "kind"


class Style(BaseModel):
    tone: Tone = Tone.KIND


class Writer(Node):
    LIMIT: ClassVar[int] = 3
    written: "ClassVar[int]" = 0
    title: str
    length: int = 100
    tags: list[str] = []
    style: Style | None = None
    folder: Path | None = None
    _drafts: int = 0


class LoudWriter(Writer):
    pure = True
    length: int = 10
    volume: float = 1.0


class Briefed(Node):
    brief: Style

    def keep_in(self, saved: list[Any]) -> None:
        self._save = saved.append


class Fussy(Node):
    words: int = 1

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        if self.words < 0:
            raise ValueError("fewer than no words")


def a_function(_: Any) -> None:
    """Does nothing."""


def flow(*nodes: Node) -> FlowSpec:
    return FlowSpec(id="flow", nodes=flow_nodes(nodes))


@pytest.mark.req("FL-8")
def test_the_annotated_public_attributes_of_a_node_are_its_parameters() -> None:
    assert list(parameters(Writer)) == ["title", "length", "tags", "style", "folder"]
    assert list(parameters(LoudWriter)) == ["title", "length", "tags", "style", "folder", "volume"]
    assert parameters(LoudWriter)["length"] == 10


@pytest.mark.req("FL-8")
def test_a_parameter_is_checked_against_its_annotation() -> None:
    writer = Writer(title="a", length="7", style={"tone": "kind"}, folder="/tmp")  # pyright: ignore[reportArgumentType] (as from JSON)

    assert (writer.length, writer.style, writer.folder) == (7, Style(), Path("/tmp"))
    with pytest.raises(TypeError, match=r"Writer\.length: Input should be a valid integer.*, not 'long'"):
        Writer(title="a", length="long")  # pyright: ignore[reportArgumentType] (that is the point)
    assert Briefed(brief={"tone": "kind"}).brief == Style()  # pyright: ignore[reportArgumentType] (as from JSON)


def test_a_missing_and_an_unknown_parameter_are_refused_by_name() -> None:
    with pytest.raises(TypeError, match="Writer needs 'title'"):
        Writer()  # pyright: ignore[reportCallIssue] (that is the point)
    with pytest.raises(TypeError, match="Writer has no field 'colour'; it has: title, length, tags"):
        Writer(title="a", colour="red")  # pyright: ignore[reportCallIssue] (that is the point)


def test_a_default_list_belongs_to_one_instance() -> None:
    first, second = Writer(title="a"), Writer(title="b")

    first.tags.append("x")

    assert second.tags == []
    assert Writer.tags == []


def test_only_what_differs_from_its_default_travels() -> None:
    assert Writer(title="a", length=100).params() == {"title": "a"}
    assert LoudWriter(title="a", length=100, tags=["x"]).params() == {"title": "a", "length": 100, "tags": ["x"]}


@pytest.mark.req("FL-8")
def test_a_custom_node_is_named_by_its_class_and_says_whether_it_is_pure() -> None:
    assert (Writer.type, LoudWriter.type, Llm.type) == ("Writer", "LoudWriter", "llm")
    assert Writer(title="a").spec("w").pure is None
    assert LoudWriter(title="a").spec("w").pure is True
    assert LoudWriter(title="a", pure=False).spec("w").pure is False  # pyright: ignore[reportCallIssue] (a common field)
    assert Transform(template="x", pure=False).spec("t").pure is False  # pyright: ignore[reportCallIssue] (a common field)


@pytest.mark.req("FL-1", "FL-4")
def test_python_and_yaml_give_the_same_definition() -> None:
    fetch = Http(id="fetch", url="https://example.org", error_handling=ErrorHandling(max_retries=2))
    gate = Choice(
        id="gate",
        options=[option("ok", Condition(operator="boolean-equals", variable="$.x", value=True)), option("no")],
        depends=[fetch],
    )
    write = Writer(
        id="write",
        title="A",
        name="Write it",
        depends=[{"node": gate, "option": "ok"}, Dependency(node="fetch", trigger="failure")],
        join="any",
        input_transformer=Transformer(path="$.fetch"),
        caching=Caching(enabled=True),
        metadata={"team": "x"},
    )

    built = flow(fetch, gate, write)

    assert check(built) == []
    condition: dict[str, Any] = {
        "operator": "boolean-equals",
        "variable": "$.x",
        "value": True,
        "is_not": False,
        "operands": [],
    }
    assert built == flow_from_data(
        {
            "id": "flow",
            "nodes": {
                "fetch": {"type": "http", "url": "https://example.org", "error_handling": {"max_retries": 2}},
                "gate": {
                    "type": "choice",
                    "options": [{"id": "ok", "condition": condition}, {"id": "no"}],
                    "depends": "fetch",
                },
                "write": {
                    "type": "Writer",
                    "title": "A",
                    "name": "Write it",
                    "depends": [{"node": "gate", "option": "ok"}, {"node": "fetch", "trigger": "failure"}],
                    "join": "any",
                    "input_transformer": {"path": "$.fetch"},
                    "caching": {"enabled": True},
                    "metadata": {"team": "x"},
                },
            },
        }
    )


def test_a_node_without_an_id_is_named_after_its_class_the_same_way_every_time() -> None:
    nodes = [Pass(), Pass(id="pass-2"), Pass(), Delay(seconds=1), Pass(id="pass")]

    assert [node.id for node in flow_nodes(nodes)] == ["pass-3", "pass-2", "pass-4", "delay", "pass"]
    assert [node.id for node in flow_nodes(nodes)] == ["pass-3", "pass-2", "pass-4", "delay", "pass"]


def test_dependencies_are_given_in_many_ways() -> None:
    first, second = Pass(id="first"), Pass()
    last = Pass(depends=[first]).depends_on(second, "first", {"node": second, "trigger": "failure"})

    assert flow(first, second, last).nodes[2].depends == [
        Dependency(node="first"),
        Dependency(node="pass"),
        Dependency(node="first"),
        Dependency(node="pass", trigger="failure"),
    ]
    assert flow(first, Pass(depends="first")).nodes[1].depends == [Dependency(node="first")]
    assert flow(first, Pass(depends=[first])).nodes[1].depends == [Dependency(node="first")]


def test_depending_on_a_node_does_not_change_another() -> None:
    shared = Pass(id="a")

    one, other = Pass(depends=[shared]), Pass()
    one.depends_on("b")

    assert len(one.depends) == 2
    assert list(other.depends) == []


def test_a_dependency_that_is_not_in_the_flow_is_refused() -> None:
    with pytest.raises(ValueError, match="a dependency on a Pass that is not in the flow: add it to 'nodes'"):
        flow(Pass(id="a", depends=[Pass()]))

    named = flow(Pass(id="a", depends=[Pass(id="elsewhere")]))
    assert [fault.code for fault in check(named)] == ["flow/unknown-node"]


def test_a_function_travels_by_name() -> None:
    assert Python(function=a_function).params() == {"function": f"{__name__}:a_function"}
    assert Python(function="module:name").params() == {"function": "module:name"}
    assert Python(code="def run(x): return x").params() == {"code": "def run(x): return x"}
    assert function_name(Path.exists) == "pathlib:Path.exists"


def test_an_option_is_plain_data() -> None:
    assert option("no") == {"id": "no"}
    assert option("yes", {"operator": "and"}) == {"id": "yes", "condition": {"operator": "and"}}


@pytest.mark.req("FL-8")
def test_the_parameters_of_a_definition_are_checked_with_the_class() -> None:
    complaints = custom_params_check(Writer)

    assert complaints(NodeSpec(id="a", type="Writer", params={"title": "x"})) == []
    assert complaints(NodeSpec(id="a", type="Writer")) == ["Writer needs 'title'"]
    assert complaints(NodeSpec(id="a", type="Writer", params={"title": 5})) == [
        "Writer.title: Input should be a valid string, not 5"
    ]
    assert "multiple values" in complaints(NodeSpec(id="a", type="Writer", params={"title": "x", "id": "b"}))[0]
    assert custom_params_check(Fussy)(NodeSpec(id="a", type="Fussy", params={"words": -1})) == ["fewer than no words"]


def test_a_node_without_execute_fails_at_once() -> None:
    with pytest.raises(NonRetryableError, match="Writer has no execute"):
        Writer(title="a").execute({})


@pytest.mark.req("FL-8")
def test_a_long_node_saves_its_state_where_it_runs_and_nowhere_else() -> None:
    node, saved, state = Briefed(brief=Style()), list[Any](), {"page": 1}
    node.checkpoint(state)

    node.keep_in(saved)
    node.checkpoint(state)
    state["page"] = 2

    assert saved == [{"page": 1}]


@pytest.mark.parametrize(
    "node",
    [
        Llm(model="m", prompt="p"),
        Http(url="https://example.org"),
        Python(code="def run(x): return x"),
        Choice(options=[option("a")]),
        Delay(seconds="1h"),
        Transform(template={"a": "{{ b }}"}),
        ValidateRegex(regex="a+"),
    ],
)
def test_a_built_in_node_becomes_a_sound_definition(node: Node) -> None:
    assert check(flow(node)) == []
