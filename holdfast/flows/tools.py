"""Functions as tools: `@tool` makes one of any function with typed arguments; its schema is its signature."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from holdfast.flows.nodes import Node, NonRetryableError, function_name

GIVEN = frozenset({"run_id", "node_id", "idempotency_key", "attempt"})
"""Arguments that we fill in where a function has them; a model never sees them."""


class BadToolInputError(NonRetryableError):
    """The arguments are not what the function takes."""


@lru_cache(maxsize=1024)
def arguments_model(function: Callable[..., Any]) -> type[BaseModel]:
    """A model of the function's own arguments."""
    hints = get_type_hints(function, include_extras=True)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in GIVEN:
            continue
        default: Any = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (hints.get(name, Any), default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    return create_model(f"{getattr(function, '__name__', 'tool')}_arguments", __config__=config, **fields)


def schema_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of the function's arguments, as a model is told of it."""
    schema = arguments_model(function).model_json_schema()
    schema.pop("title", None)
    for entry in schema.get("properties", {}).values():
        entry.pop("title", None)
    return schema


def arguments_for(function: Callable[..., Any], given: Any) -> dict[str, Any]:
    """The arguments as the function wants them; BadToolInputError says what does not fit."""
    try:
        parsed = arguments_model(function).model_validate(given)
    except ValidationError as error:
        said = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()[:5])
        raise BadToolInputError(f"the arguments do not fit: {said}") from None
    return {name: getattr(parsed, name) for name in type(parsed).model_fields}


class FunctionTool(Node):
    """A function with typed arguments as a node: they are the fields of its input."""

    type = "tool"
    function: Any

    def params(self) -> dict[str, Any]:
        return {"function": self.function if isinstance(self.function, str) else function_name(self.function)}


@dataclass(frozen=True)
class Tool:
    """Any node as an agent's tool, with what the agent has to know beyond the node itself.

    The node's `id` is the name the model knows it by, its `description` is what the model reads, and its
    `error_handling` has the timeout and the retries. A tool of a function can still be called as the function.
    """

    node: Node
    input_schema: dict[str, Any] | None = None
    side_effects: str | None = None
    on_error: str = "observe"
    reuse: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    @property
    def function(self) -> Callable[..., Any]:
        if not isinstance(self.node, FunctionTool):
            raise TypeError(f"{self.node.id!r} is no function and cannot be called")
        return self.node.function

    def fields(self) -> dict[str, Any]:
        """The fields of the definition, beside the node's own."""
        schema = self.input_schema
        if schema is None and isinstance(self.node, FunctionTool) and callable(self.node.function):
            schema = schema_of(self.node.function)
        own = {"side_effects": self.side_effects, "on_error": self.on_error, "reuse": self.reuse}
        return {"input_schema": schema, **own}


_CONTRACT = frozenset({"input_schema", "side_effects", "on_error", "reuse"})


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(**fields: Any) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(function: Callable[..., Any] | None = None, /, **fields: Any) -> Any:
    """Makes a tool of a function: `@tool`, or `@tool(side_effects="write", error_handling={"max_retries": 2})`.

    Its name and its description, which a model reads, are the function's own unless given as `id` and `description`.
    """
    contract = {name: fields.pop(name) for name in list(fields) if name in _CONTRACT}

    def make(function: Callable[..., Any]) -> Tool:
        own: dict[str, Any] = {"id": cast(Any, function).__name__, "description": inspect.getdoc(function)}
        return Tool(FunctionTool(function=function, **{**own, **fields}), **contract)

    return make if function is None else make(function)
