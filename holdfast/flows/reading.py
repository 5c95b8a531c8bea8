"""Reads a flow written in YAML (or as plain data) into its models, and says with file and line what is wrong."""

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from holdfast.flows.check import check, nearest, param_faults
from holdfast.flows.conditions import Condition
from holdfast.flows.faults import Fault, FlowDefinitionError, ParamsCheck, Place
from holdfast.flows.spec import (
    Approval,
    Caching,
    CheckpointConfig,
    Deadline,
    Dependency,
    ErrorHandling,
    FlowSpec,
    NodeSpec,
    SpecModel,
    Streaming,
    Transformer,
)
from holdfast.flows.yaml_source import Path, Source, YamlSyntaxError, read

_Model = TypeVar("_Model", bound=SpecModel)
_FLOW_FIELDS = frozenset(FlowSpec.model_fields)
_NODE_FIELDS = frozenset(NodeSpec.model_fields)
_NESTED: dict[str, type[SpecModel | Condition]] = {
    "error_handling": ErrorHandling,
    "caching": Caching,
    "input_transformer": Transformer,
    "output_transformer": Transformer,
    "depends": Dependency,
    "condition": Condition,
    "operands": Condition,
    "checkpoint": CheckpointConfig,
    "approval": Approval,
    "deadline": Deadline,
    "then": Deadline,
    "streaming": Streaming,
}


def read_flow(text: str, file: str | None = None, custom: Mapping[str, ParamsCheck] | None = None) -> FlowSpec:
    """The flow in `text`, checked whole; FlowDefinitionError carries every fault with its line."""
    try:
        source = read(text)
    except YamlSyntaxError as error:
        place = Place(file=file, line=error.line)
        raise FlowDefinitionError([Fault("flow/not-yaml", str(error), place, "Mend the YAML.")]) from error
    return _Reader(source, file).flow(custom)


def flow_from_data(data: Any, custom: Mapping[str, ParamsCheck] | None = None) -> FlowSpec:
    """The same for a definition that is already data, as from JSON."""
    return _Reader(Source(data=data), None).flow(custom)


class _Reader:
    """Keeps where things stand while reading, and collects faults instead of stopping at the first."""

    def __init__(self, source: Source, file: str | None, base: Path = ()) -> None:
        """`base` is where in the source the flow is: a flow inside a node has a place in it too."""
        self._source = source
        self._file = file
        self._base = base
        self._faults: list[Fault] = []
        self._paths: dict[str, Path] = {}
        self._positions: list[Path] = []
        self._nodes: list[NodeSpec] = []
        self._unread: set[str] = set()

    def flow(self, custom: Mapping[str, ParamsCheck] | None) -> FlowSpec:
        for path in self._source.repeated:
            code = "node/duplicate-id" if path[-2:-1] == ("nodes",) else "flow/repeated-key"
            self._fault(
                code, f"{str(path[-1])!r} is written twice", path, "The second would hide the first: rename one."
            )
        flow = self.read(self._source.data)
        # A flow whose own fields are wrong still has nodes to look at.
        self._faults += check(flow or FlowSpec(id="unread", nodes=self._nodes), self._locate, custom, self._unread)
        if self._faults or flow is None:
            raise FlowDefinitionError(self._faults)
        return flow

    def read(self, data: Any) -> FlowSpec | None:
        """The flow as its models, before it is checked; None when its own fields do not fit."""
        if not isinstance(data, dict):
            self._fault(
                "flow/not-a-mapping", "a flow is a mapping with 'id' and 'nodes'", (), "Start with 'id: my-flow'."
            )
            raise FlowDefinitionError(self._faults)
        body = cast(dict[str, Any], data)
        self._unknown(body, _FLOW_FIELDS, (), "the flow")
        self._nodes = [node for path, item in self._items(body.get("nodes")) if (node := self._node(path, item))]
        fields = {key: value for key, value in body.items() if key in _FLOW_FIELDS and key != "nodes"}
        self._nested_unknown(fields, ())
        return self._model(FlowSpec, {"id": "", **fields, "nodes": self._nodes})

    def _fault(self, code: str, message: str, path: Path, remedy: str, node: str | None = None) -> None:
        self._faults.append(Fault(code, message, Place(self._file, self._line(path), node), remedy))

    def _line(self, path: Path) -> int | None:
        return self._source.line((*self._base, *path))

    def _locate(self, node: str | None = None, *path: str | int) -> Place:
        if node is None:
            return Place(self._file, self._line(path))
        if path[:1] == ("#",):
            return Place(self._file, self._line(self._positions[int(path[1])]), node)
        return Place(self._file, self._line((*self._paths.get(node, ()), *path)), node)

    def _locate_flow(self, _node: str | None = None, *path: str | int) -> Place:
        return Place(self._file, self._line(path))

    def _unknown(self, body: Mapping[str, Any], known: frozenset[str], path: Path, of: str) -> None:
        for key in map(str, body):
            if key not in known:
                self._fault("flow/unknown-field", f"{of} has no field {key!r}", (*path, key), nearest(key, known))

    def _nested_unknown(self, body: Mapping[str, Any], path: Path) -> None:
        for name, model in _NESTED.items():
            value = body.get(name)
            for index, item in enumerate(cast(list[Any], value) if isinstance(value, list) else [value]):
                if isinstance(item, dict):
                    inner = cast(dict[str, Any], item)
                    where = (*path, name, index) if isinstance(value, list) else (*path, name)
                    self._unknown(inner, frozenset(model.model_fields), where, f"{name!r}")
                    self._nested_unknown(inner, where)

    def _items(self, nodes: Any) -> Iterator[tuple[Path, dict[str, Any]]]:
        """Nodes come as a mapping from id to body, or as a list of bodies with ids."""
        if isinstance(nodes, dict):
            for node_id, body in cast(dict[Any, Any], nodes).items():
                path: Path = ("nodes", str(node_id))
                if isinstance(body, dict):
                    yield path, {**cast(dict[str, Any], body), "id": str(node_id)}
                else:
                    self._unread.add(str(node_id))
                    self._fault(
                        "node/not-a-mapping", f"node {node_id!r} has no fields", path, "Give it at least a 'type'."
                    )
        elif isinstance(nodes, list):
            for index, body in enumerate(cast(list[Any], nodes)):
                if isinstance(body, dict) and "id" in body:
                    yield ("nodes", index), cast(dict[str, Any], body)
                else:
                    self._unread.add(f"#{index}")
                    self._fault("node/no-id", f"node number {index + 1} has no id", ("nodes", index), "Add 'id: …'.")
        elif nodes is not None:
            self._unread.add("nodes")
            self._fault(
                "flow/bad-nodes", "'nodes' is neither a mapping nor a list", ("nodes",), "Write 'nodes:', then ids."
            )

    def _node(self, path: Path, body: dict[str, Any]) -> NodeSpec | None:
        common = {key: value for key, value in body.items() if key in _NODE_FIELDS}
        params = {key: value for key, value in body.items() if key not in _NODE_FIELDS}
        given = common.get("params")
        if given is None or isinstance(given, dict):
            common["params"] = params = {**params, **cast(dict[str, Any], given or {})}
        self._look_inside(params, path)
        self._nested_unknown({name: params[name] for name in ("deadline",) if name in params}, path)
        common["depends"] = _edges(common.get("depends"))
        self._nested_unknown(common, path)
        self._option_conditions(params.get("options"), path)
        node_id = str(body["id"])
        self._paths[node_id] = path
        node = None
        if "type" in body:
            node = self._model(NodeSpec, common, node_id)
        else:
            self._fault("node/missing-field", f"node {node_id!r} has no type", path, "Add 'type: …'.", node_id)
        if node is None:
            self._unread.add(node_id)
        else:
            self._positions.append(path)
        return node

    def _look_inside(self, params: dict[str, Any], path: Path) -> None:
        """Nodes inside a node are looked at as any node is; a flow there is written like any other flow, and becomes
        what a run carries with it."""
        if "type" in params:
            self._nested_unknown(params, path)
        for name, value in params.items():
            if name == "flow" and isinstance(value, dict):
                inner = _Reader(self._source, self._file, (*self._base, *path, name))
                read_one = inner.read(value)
                self._faults += inner._faults
                if read_one is not None:
                    params[name] = read_one.model_dump(mode="json")
            elif isinstance(value, dict):
                self._look_inside(cast(dict[str, Any], value), (*path, name))
            elif isinstance(value, list):
                for index, item in enumerate(cast(list[Any], value)):
                    if isinstance(item, dict):
                        self._look_inside(cast(dict[str, Any], item), (*path, name, index))

    def _option_conditions(self, options: Any, path: Path) -> None:
        """A choice's parameters refuse unknown fields, but a condition is a wire model too and ignores them."""
        for index, option in enumerate(cast(list[Any], options) if isinstance(options, list) else []):
            if isinstance(option, dict):
                self._nested_unknown(cast(dict[str, Any], option), (*path, "options", index))

    def _model(self, model: type[_Model], data: dict[str, Any], node: str | None = None) -> _Model | None:
        try:
            return model.model_validate(data)
        except ValidationError as error:
            shell = NodeSpec(id=node or "", type=str(data.get("type", "flow")))
            locate = self._locate_flow if node is None else self._locate
            self._faults += param_faults(error, shell, locate, model.model_fields)
            return None


def _edges(depends: Any) -> Any:
    """`depends: a` and `depends: [a, b]` are short for `[{node: a}, …]`."""
    if isinstance(depends, str):
        depends = [depends]
    if isinstance(depends, list):
        return [{"node": item} if isinstance(item, str) else item for item in cast(list[Any], depends)]
    return [] if depends is None else depends
