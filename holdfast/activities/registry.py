"""The custom nodes and functions a worker knows, and loading them from modules."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from holdfast.contracts.calls import NodeCall
from holdfast.flows.nodes import BUILT_IN, Node, NonRetryableError, custom_params_check
from holdfast.flows.spec import NodeSpec


class LoadError(Exception):
    """A module given with --load that cannot be used."""


class Registry:
    """Node classes by type, node instances by flow and id, functions by name."""

    def __init__(self) -> None:
        self.classes: dict[str, type[Node]] = {}
        self._instances: dict[tuple[str, str], Node] = {}
        self._functions: dict[str, Callable[..., Any]] = {}

    def add_class(self, cls: type[Node]) -> None:
        known = self.classes.get(cls.type)
        if known is not None and known is not cls:
            raise LoadError(
                f"[worker/duplicate-type] two classes are called {cls.type!r}, in {known.__module__} and "
                f"{cls.__module__}; give one of them another 'type'"
            )
        self.classes[cls.type] = cls

    def add_instances(self, flow_id: str, nodes: Mapping[str, Node]) -> None:
        """Nodes of a flow that runs in this process: the author's own objects execute."""
        for node_id, node in nodes.items():
            function = getattr(node, "function", None)
            if callable(function):
                self.add_function(function)
            if type(node) not in BUILT_IN:
                self.classes.setdefault(type(node).type, type(node))
                self._instances[flow_id, node_id] = node

    def add_function(self, function: Callable[..., Any]) -> None:
        self._functions[f"{function.__module__}:{function.__qualname__}"] = function

    def node(self, call: NodeCall) -> Node:
        """The object to execute: the author's own in this process, otherwise a new one for every execution."""
        instance = self._instances.get((call.flow_id, call.node_id))
        if instance is not None and type(instance).type == call.type:
            return instance
        return self.classes[call.type](id=call.node_id, **call.params)

    def function(self, name: str) -> Callable[..., Any]:
        if name in self._functions:
            return self._functions[name]
        module, _, qualname = name.partition(":")
        try:
            found: Any = importlib.import_module(module)
            for part in qualname.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise NonRetryableError(f"this worker has no function {name!r}: {error}") from error
        return found

    def checks(self) -> dict[str, Callable[[NodeSpec], list[str]]]:
        return {name: custom_params_check(cls) for name, cls in self.classes.items()}


def load(modules: Iterable[str]) -> Registry:
    """Imports each module (a dotted name or a path to a .py file) and takes the node classes in it."""
    registry = Registry()
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in modules:
        module = _import(name)
        for item in vars(module).values():
            if _is_custom_node(item):
                registry.add_class(item)
            elif inspect.isfunction(item) and item.__module__ == module.__name__:
                registry.add_function(item)
    return registry


def _is_custom_node(item: Any) -> TypeGuard[type[Node]]:
    return isinstance(item, type) and issubclass(item, Node) and item is not Node and item not in BUILT_IN


def _import(name: str) -> ModuleType:
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        path = Path(name).resolve()
        if path.stem in sys.modules and getattr(sys.modules[path.stem], "__file__", None) == str(path):
            return sys.modules[path.stem]
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.exists():
            raise ImportError(f"there is no file {name}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except Exception as error:
        raise LoadError(f"[worker/cannot-load] --load {name}: {type(error).__name__}: {error}") from error
