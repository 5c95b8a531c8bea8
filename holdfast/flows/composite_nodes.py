"""Agents, maps, nested flows and orchestrators as an author writes them in Python."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, cast, runtime_checkable

from pydantic import BaseModel

from holdfast.flows.composites import END, AgentParams
from holdfast.flows.memory import Memory
from holdfast.flows.nodes import Node, function_name
from holdfast.flows.spec import FlowSpec
from holdfast.flows.tools import Tool, tool


@runtime_checkable
class HasSpec(Protocol):
    """A flow, as the library has it."""

    nodes: Any

    def spec(self) -> FlowSpec: ...


class _Composite(Node):
    """Writes the nodes inside it as their definitions."""

    def params(self) -> dict[str, Any]:
        return {name: _plain(value) for name, value in super().params().items()}


def inner_id(node: Node) -> str:
    """A node inside another one that has no id is named after its class."""
    return node.id or type(node).__name__.lower()


def _plain(value: Any) -> Any:
    match value:
        case Tool():
            return {**_inner(value.node), **value.fields()}
        case Node():
            return _inner(value)
        case BaseModel():
            return value.model_dump(mode="json", exclude_unset=True)
        case Memory():
            return {"backend": value.name}
        case HasSpec():
            return value.spec().model_dump(mode="json")
        case Mapping():
            return {name: _plain(item) for name, item in cast(Mapping[str, Any], value).items()}
        case list() | tuple():
            return [_plain(item) for item in cast(Sequence[Any], value)]
        case _ if callable(value):
            return _plain(tool(cast(Callable[..., Any], value)))
        case _:
            return value


def _inner(node: Node) -> dict[str, Any]:
    return node.spec(inner_id(node)).model_dump(mode="json")


def nodes_inside(value: Any, place: str) -> Iterator[tuple[str, Node]]:
    """The author's own objects inside a node, each with the place its calls come from (`agent/tool`)."""
    match value:
        case Tool():
            yield from nodes_inside(value.node, place)
        case Node():
            here = f"{place}/{inner_id(value)}"
            yield here, value
            yield from objects_of(value, here)
        case Mapping():
            for item in cast(Mapping[str, Any], value).values():
                yield from nodes_inside(item, place)
        case list() | tuple():
            for item in cast(Sequence[Any], value):
                yield from nodes_inside(item, place)
        case _ if callable(value) and not isinstance(value, type):
            yield from nodes_inside(tool(cast(Callable[..., Any], value)), place)
        case _:
            return


def objects_of(node: Node, place: str) -> Iterator[tuple[str, Node]]:
    """The objects inside one node."""
    if isinstance(node, _Composite):
        for name in type(node).__annotations__:
            yield from nodes_inside(getattr(node, name), place)


class Agent(_Composite):
    """A model that works in a loop with tools: functions made by `@tool`, nodes, other agents."""

    type = "agent"
    llm: Any
    system: str | None = None
    prompt: str | None = None
    tools: list[Any] = []
    mode: str = "function_calling"
    max_loops: int = 15
    on_max_loops: str = "raise"
    max_repairs: int = 3
    parallel_tool_calls: bool = True
    output_schema: dict[str, Any] | None = None
    delegate: bool = False
    ask_before: Any = "write"
    memory: Any = None
    summarise: Any = None
    file_store: Any = None
    llm_error_handling: Any = AgentParams.model_fields["llm_error_handling"].get_default(call_default_factory=True)


class Map(_Composite):
    """The same node for every item of a list."""

    type = "map"
    node: Any
    items: str | None = None
    max_workers: int = 10
    behavior: str = "raise"
    inline_limit: int = 500
    batch_size: int = 500
    indices: list[int] | None = None


class SubFlow(_Composite):
    """A whole flow as a node, with checkpoints of its own."""

    type = "flow"
    flow: Any


class GraphOrchestrator(_Composite):
    """States with tasks, edges between them, and a context they share."""

    type = "graph-orchestrator"
    states: list[Any]
    start: str | None = None
    context: dict[str, Any] = {}
    manager: Any = None
    max_steps: int = 50

    def params(self) -> dict[str, Any]:
        found = super().params()
        for written, own in zip(found["states"], self.states, strict=True):
            route = cast(Mapping[str, Any], own).get("route") if isinstance(own, Mapping) else None
            if callable(route):
                written["route"] = function_name(route)
        return found

    llm_error_handling: Any = AgentParams.model_fields["llm_error_handling"].get_default(call_default_factory=True)


class LinearOrchestrator(_Composite):
    """A manager plans tasks, agents do them in order, the manager puts the results together."""

    type = "linear-orchestrator"
    manager: Any
    agents: list[Any]
    max_tasks: int = 20
    llm_error_handling: Any = AgentParams.model_fields["llm_error_handling"].get_default(call_default_factory=True)


def state(
    state_id: str,
    *tasks: Any,
    next: Sequence[Any] | str = (),  # noqa: A002 (the definition's own word)
    route: Any = None,
    description: str | None = None,
) -> dict[str, Any]:
    """A state of a graph orchestrator: `state("draft", writer, next=["review"])`; `next="end"` ends it."""
    targets = [next] if isinstance(next, str) else list(next)
    edges = [{"to": target} if isinstance(target, str) else target for target in targets]
    return {"id": state_id, "tasks": list(tasks), "next": edges, "route": route, "description": description}


COMPOSITE_NODES: tuple[type[Node], ...] = (Agent, Map, SubFlow, GraphOrchestrator, LinearOrchestrator)
__all__ = ["COMPOSITE_NODES", "END", "Agent", "GraphOrchestrator", "LinearOrchestrator", "Map", "SubFlow", "state"]
