"""Tools: what a model is told of them, what a function is given, and how a result is shown."""

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from holdfast.contracts.messages import ToolCall
from holdfast.engine.tools import cache_key, complaint, input_schema, observation, tool_schemas
from holdfast.flows import schemas
from holdfast.flows.composites import AgentParams
from holdfast.flows.nodes import Http
from holdfast.flows.tools import BadToolInputError, FunctionTool, Tool, arguments_for, schema_of, tool


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


def paint(
    where: Point,
    colour: Colour = Colour.RED,
    times: Annotated[int, Field(description="How often.", ge=1)] = 1,
    layers: list[str] | None = None,
) -> str:
    """Paints a point.

    In any colour.
    """
    return f"{where.x} {where.y} {colour} {times} {layers}"


def search(query: str, limit: int = 10) -> str:
    """Finds pages."""
    return f"{query} {limit}"


def all_given(
    query: str, run_id: str, node_id: str, idempotency_key: str, attempt: int, *rest: Any, **more: Any
) -> str:
    return f"{query} {run_id} {node_id} {idempotency_key} {attempt} {rest} {more}"


def untyped(anything, *, and_more=None):  # pyright: ignore[reportMissingParameterType, reportUnknownParameterType] (the subject)
    return [anything, and_more]  # pyright: ignore[reportUnknownVariableType] (the subject)


# From a signature


def test_the_schema_of_a_tool_is_its_signature() -> None:
    assert schema_of(search) == {
        "type": "object",
        "properties": {"query": {"type": "string"}, "limit": {"type": "integer", "default": 10}},
        "required": ["query"],
        "additionalProperties": False,
    }


def test_types_defaults_and_descriptions_are_in_the_schema() -> None:
    schema = schema_of(paint)

    assert schema["required"] == ["where"]
    assert schema["properties"]["times"] == {
        "type": "integer",
        "default": 1,
        "minimum": 1,
        "description": "How often.",
    }
    assert schema["properties"]["layers"]["anyOf"] == [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]
    assert schema["$defs"]["Colour"]["enum"] == ["red", "blue"]
    assert schema["$defs"]["Point"]["required"] == ["x"]
    schemas.verify(schema)


def test_arguments_that_we_fill_in_are_hidden_from_the_model() -> None:
    assert list(schema_of(all_given)["properties"]) == ["query"]


def test_a_function_without_types_takes_anything() -> None:
    assert schema_of(untyped)["properties"] == {"anything": {}, "and_more": {"default": None}}  # pyright: ignore[reportUnknownArgumentType] (the subject)


def test_the_arguments_are_what_the_function_wants() -> None:
    given = arguments_for(paint, {"where": {"x": "3"}, "colour": "blue", "layers": ["a"]})

    assert given == {"where": Point(x=3), "colour": Colour.BLUE, "times": 1, "layers": ["a"]}
    assert paint(**given) == "3 0 Colour.BLUE 1 ['a']"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "the arguments do not fit: query: Field required"),
        (
            {"query": "x", "limit": "many"},
            "the arguments do not fit: limit: Input should be a valid integer, unable to parse string as an integer",
        ),
        ({"query": "x", "page": 2}, "the arguments do not fit: page: Extra inputs are not permitted"),
        (["x"], "the arguments do not fit: : Input should be a valid dictionary or instance of search_arguments"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_with_what_is_wrong(given: Any, said: str) -> None:
    with pytest.raises(BadToolInputError) as refused:
        arguments_for(search, given)

    assert str(refused.value) == said


# As an author writes them


def test_a_decorated_function_is_a_tool_and_still_a_function() -> None:
    made = tool(search)

    assert made("Ada", limit=2) == "Ada 2"
    assert (made.node.id, made.node.description) == ("search", "Finds pages.")
    assert made.function is search
    spec = made.node.spec("search")
    assert (spec.type, spec.params) == ("tool", {"function": f"{__name__}:search"})
    assert made.fields() == {
        "input_schema": schema_of(search),
        "side_effects": None,
        "on_error": "observe",
        "reuse": True,
    }


def test_what_a_tool_does_to_the_world_is_said_where_it_is_made() -> None:
    @tool(id="pay", description="Pays.", side_effects="write", on_error="fail", error_handling={"max_retries": 2})
    def transfer(amount: float) -> float:
        return amount

    spec = transfer.node.spec("pay")
    assert (transfer.node.id, spec.description, spec.error_handling.max_retries) == ("pay", "Pays.", 2)
    assert transfer.fields()["side_effects"] == "write"
    assert transfer.fields()["on_error"] == "fail"
    with pytest.raises(TypeError, match="has no field 'colour'"):
        tool(colour="red")(search)


def test_any_node_is_a_tool_but_only_a_function_can_be_called() -> None:
    schema = {"type": "object", "properties": {"id": {"type": "string"}}}
    fetch = Tool(Http(id="fetch", url="https://x/{{ id }}"), input_schema=schema, reuse=False)

    assert fetch.fields() == {"input_schema": schema, "side_effects": None, "on_error": "observe", "reuse": False}
    with pytest.raises(TypeError, match="'fetch' is no function and cannot be called"):
        fetch()


def test_a_function_may_be_named_instead_of_given() -> None:
    named = Tool(FunctionTool(id="far", function="elsewhere:far"))

    assert named.node.params() == {"function": "elsewhere:far"}
    assert named.fields()["input_schema"] is None
    assert FunctionTool(function=search).params() == {"function": f"{__name__}:search"}


def test_a_schema_that_is_given_wins_over_the_signature() -> None:
    assert tool(input_schema={"type": "object"})(search).fields()["input_schema"] == {"type": "object"}


# As a model sees them

SEARCH = {"id": "search", "type": "tool", "function": "m:f", "description": "Finds.", "input_schema": schema_of(search)}
PLAIN = {"id": "plain", "type": "Task"}
HELPER = {"id": "helper", "type": "agent", "llm": {"model": "m"}}


def params(*tools: dict[str, Any], delegate: bool = False) -> AgentParams:
    return AgentParams.model_validate({"llm": {"model": "m"}, "tools": tools, "delegate": delegate})


def test_a_tool_without_a_schema_takes_one_text() -> None:
    found = {schema.name: schema for schema in tool_schemas(params(SEARCH, PLAIN, HELPER))}

    assert (found["search"].description, found["search"].parameters) == ("Finds.", schema_of(search))
    assert (found["plain"].description, found["plain"].parameters["required"]) == ("", ["input"])
    assert found["helper"].parameters == found["plain"].parameters


def test_only_a_sub_agent_may_be_asked_for_the_final_answer_and_only_if_the_author_wants_it() -> None:
    wanted = params(HELPER, PLAIN, delegate=True)

    assert input_schema(wanted.tools[0], wanted)["properties"]["delegate_final"]["type"] == "boolean"
    assert "delegate_final" not in input_schema(wanted.tools[1], wanted)["properties"]
    assert "delegate_final" not in input_schema(wanted.tools[0], params(HELPER))["properties"]


@pytest.mark.req("AG-3")
def test_the_key_of_a_call_is_its_name_and_its_sorted_input() -> None:
    assert cache_key("search", {"b": 1, "a": {"d": 2, "c": [3]}}) == 'search::{"a": {"c": [3], "d": 2}, "b": 1}'
    assert cache_key("search", {"a": 1}) != cache_key("search", {"a": "1"})


def call(name: str, arguments: Any, fault: str | None = None) -> ToolCall:
    return ToolCall(id="x", name=name, arguments=arguments, fault=fault)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (call("search", {"query": "Ada"}), None),
        (call("plain", {"input": "go"}), None),
        (call("serach", {}), "There is no tool 'serach'. The tools are: search, plain."),
        (call("search", "{", "it ends too soon"), "The input of 'search' cannot be used: it ends too soon."),
        (call("search", ["Ada"]), "The input of 'search' cannot be used: it is not a JSON object."),
        (
            call("search", {"query": 1, "page": 2, "limit": "x"}),
            "The input of 'search' does not fit its schema: "
            "it: Additional properties are not allowed ('page' was unexpected); "
            "limit: 'x' is not of type 'integer'; query: 1 is not of type 'string'",
        ),
    ],
)
def test_what_is_wrong_with_a_call_is_said_to_the_model(wanted: ToolCall, said: str | None) -> None:
    assert complaint(wanted, params(SEARCH, PLAIN)) == said


def test_an_agent_without_tools_says_that_there_are_none() -> None:
    assert complaint(call("search", {}), params()) == "There is no tool 'search'. The tools are: none."


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        ("text", "text"),
        (None, "null"),
        ([1, "é"], '[1, "é"]'),
        ({"n": 1}, '{"n": 1}'),
        ({"content": "text", "finished": True}, "text"),
        ({"content": {"n": 1}}, '{"n": 1}'),
        ({"content": "text", "files": {"a.txt": b"x", "b.txt": ""}}, "text\nFiles: a.txt, b.txt"),
        ({"content": "text", "files": {}}, "text"),
        ({"content": "text", "files": None}, "text"),
    ],
)
def test_an_output_is_shown_as_its_content_and_the_names_of_its_files(output: Any, shown: str) -> None:
    assert observation(output) == shown


# Schemas


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "objekt"}, "type: 'objekt' is not valid under any of the given schemas"),
        ({"properties": {"a": {"pattern": "("}}}, "properties.a.pattern: '(' is not a 'regex'"),
        ({"required": "a"}, "required: 'a' is not of type 'array'"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema: dict[str, Any], said: str) -> None:
    with pytest.raises(schemas.BadSchemaError) as refused:
        schemas.verify(schema)

    assert str(refused.value) == said


def test_faults_are_few_in_a_stable_order_and_not_too_long() -> None:
    schema = {"additionalProperties": {"type": "string"}}

    assert schemas.faults(schema, {"b": 1, "a": 2}) == ["a: 2 is not of type 'string'", "b: 1 is not of type 'string'"]
    assert len(schemas.faults(schema, {str(number): number for number in range(50)})) == 5
    assert len(schemas.faults({"type": "string"}, ["x" * 10_000])[0]) < 600


@pytest.mark.parametrize(
    ("ref", "said"),
    [
        ("#/$defs/gone", "it cannot be checked: the schema refers to '/$defs/gone', which is not in it"),
        (
            "https://127.0.0.1:9/x",
            "it cannot be checked: the schema refers to 'https://127.0.0.1:9/x', which is not in it",
        ),
        ("#", "it cannot be checked: the schema refers to itself without end"),
    ],
)
def test_a_schema_that_refers_to_nothing_fetches_nothing_and_fits_nothing(
    ref: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[Any] = []
    monkeypatch.setattr("urllib.request.urlopen", fetched.append)

    assert schemas.faults({"$ref": ref}, {}) == [said]
    assert fetched == []


def side(effects: Literal["read", "write", "none"]) -> AgentParams:
    return params({**PLAIN, "side_effects": effects})


def test_a_tool_says_whether_it_reads_or_writes() -> None:
    assert side("write").tools[0].side_effects == "write"
    with pytest.raises(ValueError, match="side_effects"):
        side("none")
