"""Checks what is inside agents, maps, nested flows and orchestrators, with the checks that every node gets."""

import re
from collections.abc import Callable, Iterator, Mapping

from holdfast.flows import schemas
from holdfast.flows.composites import AgentParams, FlowParams, GraphParams, InnerNode, LinearParams, MapParams, ToolSpec
from holdfast.flows.expressions import check_condition, check_selector
from holdfast.flows.faults import Fault, Locate, ParamsCheck, Place
from holdfast.flows.files import FILE_TOOLS
from holdfast.flows.spec import FlowSpec, NodeSpec

Custom = Mapping[str, ParamsCheck] | None
CheckNode = Callable[[NodeSpec, Locate, Custom], list[Fault]]
CheckFlow = Callable[[FlowSpec, Locate, Custom], list[Fault]]
Inner = tuple[tuple[str | int, ...], InnerNode]

_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_INNER_ID = re.compile(r"[^/@\[\]]+")
_NOT_INSIDE = frozenset({"choice", "pass", "delay"})


def check_inside(
    node: NodeSpec, locate: Locate, custom: Custom, check_node: CheckNode, check_flow: CheckFlow
) -> list[Fault]:
    """Every fault inside a composite node, whose own parameters are known to fit."""
    if node.type == "flow":
        flow = FlowParams.model_validate(node.params).flow
        return [_inside_flow(fault, node) for fault in check_flow(flow, _under_flow(locate, node, flow), custom)]
    faults: list[Fault] = []
    seen: dict[str, set[str]] = {}
    for path, inner in inner_nodes(node):
        there = _under(locate, node, path)
        faults += check_node(inner, there, custom)
        faults += _check_place(inner, there)
        group = seen.setdefault(str(path[:-1]), set())
        if inner.id in group:
            message = f"two nodes inside {node.id!r} have the id {inner.id!r}"
            faults.append(Fault("node/duplicate-id", message, there(), "Give each its own 'id'."))
        group.add(inner.id)
    match node.type:
        case "agent":
            faults += _check_agent(node, locate)
        case "map":
            faults += _check_map(node, locate)
        case "graph-orchestrator":
            faults += _check_graph(node, locate)
        case _:
            pass
    return faults


def inner_nodes(node: NodeSpec) -> Iterator[Inner]:
    """The nodes inside a composite one, each with its place among the parameters."""
    match node.type:
        case "agent":
            tools = AgentParams.model_validate(node.params).tools
            yield from ((("tools", number), tool) for number, tool in enumerate(tools))
        case "map":
            yield ("node",), MapParams.model_validate(node.params).node
        case "graph-orchestrator":
            for number, state in enumerate(GraphParams.model_validate(node.params).states):
                yield from ((("states", number, "tasks", place), task) for place, task in enumerate(state.tasks))
        case "linear-orchestrator":
            agents = LinearParams.model_validate(node.params).agents
            yield from ((("agents", number), agent) for number, agent in enumerate(agents))
        case _:
            return


def _under(locate: Locate, node: NodeSpec, path: tuple[str | int, ...]) -> Locate:
    """Places inside the node are shown under it: it is the one that has a line of its own."""

    def there(_: str | None = None, *more: str | int) -> Place:
        return locate(node.id, *path, *more)

    return there


def _under_flow(locate: Locate, node: NodeSpec, flow: FlowSpec) -> Locate:
    """Nodes of a nested flow are written by name or in a list, and only one of the two leads to a line of its own."""
    numbers = {inner.id: number for number, inner in enumerate(flow.nodes)}

    def there(inner: str | None = None, *more: str | int) -> Place:
        if inner is None:
            return locate(node.id, "flow", *more)
        number, rest = (more[1], more[2:]) if more[:1] == ("#",) else (numbers[inner], more)
        written = [locate(node.id, "flow", "nodes", key, *rest) for key in (inner, number)]
        # The other one gives the nearest line around it, which comes first.
        return max(written, key=lambda place: place.line or 0)

    return there


def _inside_flow(fault: Fault, node: NodeSpec) -> Fault:
    return Fault(fault.code, f"in the flow of {node.id!r}: {fault.message}", fault.place, fault.remedy)


def _check_place(inner: InnerNode, there: Callable[..., Place]) -> Iterator[Fault]:
    # A tool's name has a rule of its own, which is stricter.
    if not isinstance(inner, ToolSpec) and not _INNER_ID.fullmatch(inner.id):
        message = f"{inner.id!r} cannot be a node's id"
        yield Fault("node/bad-id", message, there(), "Give it an 'id' without '/', '@', '[' and ']'.")
    if inner.type in _NOT_INSIDE:
        message = f"a {inner.type!r} node cannot be inside another node"
        yield Fault("node/not-inside", message, there(), "Put it into the flow, or into a nested flow (type: flow).")
    if inner.depends:
        message = f"{inner.id!r} is inside another node and cannot depend on nodes"
        yield Fault("node/not-inside", message, there("", "depends"), "Remove 'depends'; a nested flow can have them.")
    if inner.error_handling.behavior != "raise":
        message = f"{inner.id!r} is inside another node, which decides what its failure means"
        remedy = "Remove 'behavior'; a tool has 'on_error', a map has 'behavior'."
        yield Fault("node/not-inside", message, there("", "error_handling"), remedy)


def _check_agent(node: NodeSpec, locate: Locate) -> Iterator[Fault]:
    params = AgentParams.model_validate(node.params)
    for number, tool in enumerate(params.tools):
        if not _TOOL_NAME.fullmatch(tool.id):
            message = f"a model cannot call a tool {tool.id!r}"
            place = locate(node.id, "tools", number)
            yield Fault("agent/bad-tool-name", message, place, "Use letters, digits, '_' and '-', at most 64.")
        if params.file_store is not None and tool.id in FILE_TOOLS:
            message = f"the tool {tool.id!r} has the name of the tool {tool.id!r} that comes with 'file_store'"
            place = locate(node.id, "tools", number)
            yield Fault("agent/reserved-tool-name", message, place, f"Rename it; taken are: {', '.join(FILE_TOOLS)}.")
        yield from _check_schema(tool.input_schema, locate(node.id, "tools", number, "input_schema"))
    yield from _check_schema(params.output_schema, locate(node.id, "output_schema"))


def _check_map(node: NodeSpec, locate: Locate) -> Iterator[Fault]:
    items = MapParams.model_validate(node.params).items
    if items is not None:
        yield from check_selector(items, locate(node.id, "items"))


def _check_graph(node: NodeSpec, locate: Locate) -> Iterator[Fault]:
    for number, state in enumerate(GraphParams.model_validate(node.params).states):
        for place, edge in enumerate(state.next):
            if edge.condition is not None:
                yield from check_condition(edge.condition, locate(node.id, "states", number, "next", place))


def _check_schema(schema: dict[str, object] | None, place: Place) -> Iterator[Fault]:
    try:
        if schema is not None:
            schemas.verify(schema)
    except schemas.BadSchemaError as error:
        yield Fault("node/bad-schema", f"the JSON schema is none: {error}", place, "Mend the schema.")
