"""The custom nodes and functions a worker knows: loaded from modules, or the author's own objects in this process."""

import importlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.contracts.calls import NodeCall
from holdfast.flows.composite_nodes import HasSpec, SubFlow, objects_of
from holdfast.flows.kinds import is_custom
from holdfast.flows.memory import Memory
from holdfast.flows.nodes import Node, NonRetryableError
from holdfast.flows.tools import Tool
from holdfast.loading import Loaded, load_modules


class Registry:
    """Node classes by type, node instances by flow and id, functions by name."""

    def __init__(self, loaded: Loaded | None = None) -> None:
        self._loaded = loaded or Loaded()
        self._instances: dict[tuple[str, str], Node] = {}

    @property
    def memories(self) -> dict[str, Memory]:
        return self._loaded.memories

    @property
    def connections(self) -> dict[str, Callable[[], Any]]:
        return self._loaded.connections

    @property
    def classes(self) -> dict[str, type[Node]]:
        return self._loaded.classes

    def add_class(self, cls: type[Node]) -> None:
        self._loaded.add_class(cls)

    def add_flow(self, flow: HasSpec) -> None:
        """A flow that runs in this process."""
        spec = flow.spec()
        # A flow that was read from a file has a definition and no objects.
        self.add_instances(spec.id, {node.id: own for node, own in zip(spec.nodes, flow.nodes, strict=False)})

    def add_instances(self, flow_id: str, nodes: Mapping[str, Node]) -> None:
        """Nodes of a flow that runs in this process: the author's own objects execute."""
        for node_id, node in nodes.items():
            for place, own in [(node_id, node), *objects_of(node, node_id)]:
                self._add_instance(flow_id, place, own)

    def _add_instance(self, flow_id: str, place: str, node: Node) -> None:
        function = getattr(node, "function", None)
        if callable(function):
            self._loaded.add_function(function)
        memory = getattr(node, "memory", None)
        if isinstance(memory, Memory):
            self._loaded.memories[memory.name] = memory
        if isinstance(node, SubFlow) and isinstance(node.flow, HasSpec):
            self.add_flow(node.flow)
        elif is_custom(type(node).type):
            self.add_class(type(node))
            self._instances[flow_id, place] = node

    def node(self, call: NodeCall) -> Node:
        """The object to execute: the author's own in this process, otherwise a new one for every execution."""
        instance = self._instances.get((call.flow_id, call.node_id))
        if instance is not None and type(instance).type == call.type:
            return instance
        return self.classes[call.type](id=call.node_id, **call.params)

    def function(self, name: str) -> Callable[..., Any]:
        if name in self._loaded.functions:
            return self._loaded.functions[name]
        module, _, qualname = name.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in qualname.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise NonRetryableError(f"this worker has no function {name!r}: {error}") from error
        return found.function if isinstance(found, Tool) else found


def load(modules: Iterable[str]) -> Registry:
    """A registry with what the modules have."""
    return Registry(load_modules(modules))
