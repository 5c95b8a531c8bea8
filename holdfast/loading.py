"""Imports the modules authors name with --load, and finds node classes, functions, memories and connections there."""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from holdfast.flows.connections import ConnectionSource
from holdfast.flows.kinds import is_custom
from holdfast.flows.memory import Memory
from holdfast.flows.nodes import Node, custom_params_check
from holdfast.flows.spec import NodeSpec


class LoadError(Exception):
    """A module given with --load that cannot be used."""


@dataclass
class Loaded:
    """What the modules have: node classes by type, functions by name."""

    classes: dict[str, type[Node]] = field(default_factory=dict[str, type[Node]])
    functions: dict[str, Callable[..., Any]] = field(default_factory=dict[str, Callable[..., Any]])
    memories: dict[str, Memory] = field(default_factory=dict[str, Memory])
    connections: dict[str, Callable[[], Any]] = field(default_factory=dict[str, Callable[[], Any]])

    def add_class(self, cls: type[Node]) -> None:
        known = self.classes.get(cls.type)
        if known is not None and known is not cls:
            raise LoadError(
                f"[worker/duplicate-type] two classes are called {cls.type!r}, in {known.__module__} and "
                f"{cls.__module__}; give one of them another 'type'"
            )
        self.classes[cls.type] = cls

    def add_function(self, function: Callable[..., Any]) -> None:
        self.functions[f"{function.__module__}:{function.__qualname__}"] = function

    def checks(self) -> dict[str, Callable[[NodeSpec], list[str]]]:
        """For checking a definition that uses these classes."""
        return {name: custom_params_check(cls) for name, cls in self.classes.items()}


def load_modules(modules: Iterable[str]) -> Loaded:
    """Imports each module: a dotted name, or a path to a .py file."""
    loaded = Loaded()
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in modules:
        module = _import(name)
        for item in vars(module).values():
            if _is_custom_node(item):
                loaded.add_class(item)
            elif _is_memory(item):
                loaded.memories[item.name] = item()
            elif isinstance(item, ConnectionSource):
                loaded.connections[item.name] = item.function
            elif inspect.isfunction(item) and item.__module__ == module.__name__:
                loaded.add_function(item)
    return loaded


def _is_custom_node(item: Any) -> TypeGuard[type[Node]]:
    return isinstance(item, type) and issubclass(item, Node) and item is not Node and is_custom(item.type)


def _is_memory(item: Any) -> TypeGuard[type[Memory]]:
    return isinstance(item, type) and issubclass(item, Memory) and item is not Memory


def _import(name: str) -> ModuleType:
    try:
        if not name.endswith(".py"):
            return importlib.import_module(name)
        path = Path(name).resolve()
        known = sys.modules.get(path.stem)
        if known is not None and getattr(known, "__file__", None) == str(path):
            return known
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.exists():
            raise ImportError(f"there is no file {name}")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    except Exception as error:
        raise LoadError(f"[worker/cannot-load] --load {name}: {type(error).__name__}: {error}") from error
