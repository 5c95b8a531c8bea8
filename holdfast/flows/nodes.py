"""Nodes as an author writes them in Python. Each becomes the same `NodeSpec` that YAML becomes.

A custom node is a class with `execute`. Its annotated public attributes are its parameters: they can be given to the
constructor, are checked against their annotation, and travel in the definition. Everything else on it is its own.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, ClassVar, cast, dataclass_transform, get_origin, get_type_hints

from pydantic import ConfigDict, PydanticUserError, TypeAdapter, ValidationError

from holdfast.flows.conditions import Condition
from holdfast.flows.spec import Approval, Caching, Dependency, ErrorHandling, NodeSpec, Streaming, Transformer

_COMMON = frozenset(NodeSpec.model_fields) - {"type", "params"}
_UNSET: Any = object()
_ANY_TYPE = ConfigDict(arbitrary_types_allowed=True)


class NonRetryableError(Exception):
    """Raised by a node's own code when another attempt cannot help: the node fails at once."""


class NodeCancelledError(Exception):
    """Raised by `self.checkpoint()` once the run was cancelled, so that a long node ends at a place of its choosing."""


@dataclass_transform(kw_only_default=True)
class _Declared:
    """Tells type checkers that annotated attributes of the classes below it are arguments of their constructors."""


class Node(_Declared):
    """The base of every node. Subclass it and write `execute(self, input_data, **kwargs)`, sync or async."""

    type: ClassVar[str]
    pure: ClassVar[bool] = False

    id: str | None = None
    name: str | None = None
    description: str | None = None
    group: str | None = None
    join: str = "all"
    input_transformer: Transformer | Mapping[str, Any] | None = None
    output_transformer: Transformer | Mapping[str, Any] | None = None
    error_handling: ErrorHandling | Mapping[str, Any] | None = None
    caching: Caching | Mapping[str, Any] | None = None
    approval: Approval | Mapping[str, Any] | None = None
    streaming: Streaming | Mapping[str, Any] | None = None
    metadata: Mapping[str, Any] | None = None
    depends: Sequence[Any] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "type" not in cls.__dict__:
            cls.type = cls.__name__

    def __init__(self, **fields: Any) -> None:
        params = parameters(type(self))
        for base in reversed(type(self).__mro__):
            for name, default in vars(base).items():
                # A list written as a class default must not be shared by all instances.
                if isinstance(default, list | dict | set) and not name.startswith("__"):
                    setattr(self, name, copy.deepcopy(cast(Any, default)))
        for name, value in fields.items():
            if name in params:
                setattr(self, name, _checked(type(self), name, value))
            elif name in _COMMON:
                setattr(self, name, value)
            else:
                known = ", ".join([*params, *sorted(_COMMON)])
                raise TypeError(f"{type(self).__name__} has no field {name!r}; it has: {known}")
        missing = [name for name, default in params.items() if default is _UNSET and name not in fields]
        if missing:
            raise TypeError(f"{type(self).__name__} needs {', '.join(map(repr, missing))}")
        self._save: Callable[[Any], None] | None = None

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        """The work of a custom node. `kwargs` has `run_id`, `idempotency_key`, `attempt` and `node_id`."""
        raise NonRetryableError(f"{type(self).__name__} has no execute()")

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Saves a long node's state: after a crash `restore_from_checkpoint` gets it and the node goes on there."""
        if self._save is not None:
            self._save(dict(state))

    def depends_on(self, *nodes: "Node | str | Mapping[str, Any]") -> "Node":
        """Adds dependencies and returns the node, so that it can be used in the list of a flow's nodes."""
        self.depends = [*_listed(self.depends), *(_edge(node) for node in nodes)]
        return self

    def params(self) -> dict[str, Any]:
        """The parameters that travel in the definition."""
        names = parameters(type(self))
        return {name: getattr(self, name) for name, default in names.items() if getattr(self, name) != default}

    def spec(self, node_id: str, ids: "Mapping[int, str] | None" = None) -> NodeSpec:
        """The definition of this node; `ids` maps `id()` of the flow's other nodes to their ids."""
        fields = {name: getattr(self, name) for name in _COMMON if getattr(self, name, None) is not None}
        edges = [_resolved(_edge(edge), ids or {}) for edge in _listed(self.depends)]
        # Said of this node, it counts either way; a class that is not pure leaves it to the kind.
        pure = self.__dict__.get("pure", type(self).pure or None)
        return NodeSpec.model_validate(
            {**fields, "id": node_id, "type": type(self).type, "params": self.params(), "depends": edges, "pure": pure}
        )


def _listed(depends: Any) -> Sequence[Any]:
    """`depends=a` is short for `depends=[a]`, as in YAML."""
    return [depends] if isinstance(depends, str | Node | Mapping | Dependency) else depends


def _edge(item: Any) -> dict[str, Any]:
    if isinstance(item, Dependency):
        return item.model_dump()
    return dict(cast(Mapping[str, Any], item)) if isinstance(item, Mapping) else {"node": item}


def _resolved(edge: dict[str, Any], ids: Mapping[int, str]) -> dict[str, Any]:
    target = edge["node"]
    if not isinstance(target, Node):
        return edge
    name = ids.get(id(target), target.id)
    if name is None:
        raise ValueError(f"a dependency on a {type(target).__name__} that is not in the flow: add it to 'nodes'")
    return {**edge, "node": name}


@lru_cache(maxsize=1024)
def parameters(cls: type[Node]) -> dict[str, Any]:
    """Parameter name -> default (or a mark that there is none), in the order they are written."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base is Node or not issubclass(base, Node):
            continue
        for name, annotation in inspect.get_annotations(base).items():
            is_class_var = get_origin(annotation) is ClassVar or str(annotation).startswith(
                ("ClassVar", "typing.ClassVar")
            )
            if not name.startswith("_") and not is_class_var and name not in _COMMON:
                found[name] = cls.__dict__.get(name, getattr(cls, name, _UNSET))
    return found


@lru_cache(maxsize=4096)
def _adapter(cls: type[Node], name: str) -> TypeAdapter[Any]:
    annotation = get_type_hints(cls).get(name, Any)
    try:
        return TypeAdapter(annotation, config=_ANY_TYPE)
    except PydanticUserError:
        # A pydantic model brings its own configuration and refuses another.
        return TypeAdapter(annotation)


def _checked(cls: type[Node], name: str, value: Any) -> Any:
    try:
        return _adapter(cls, name).validate_python(value)
    except ValidationError as error:
        complaint = error.errors()[0]["msg"]
        raise TypeError(f"{cls.__name__}.{name}: {complaint}, not {value!r}") from error


def custom_params_check(cls: type[Node]) -> Callable[[NodeSpec], list[str]]:
    """Checks a definition's parameters against the class, as `check` wants it."""

    def complaints(node: NodeSpec) -> list[str]:
        try:
            cls(id=node.id, **node.params)
        except (TypeError, ValueError) as error:
            return [str(error)]
        return []

    return complaints


class Llm(Node):
    """One chat completion."""

    type = "llm"
    model: str
    prompt: str | None = None
    system: str | None = None
    messages: list[dict[str, Any]] | None = None
    provider: str = "openai"
    connection: str | None = None
    prices: dict[str, float] | None = None
    replies: list[Any] | None = None
    fallback: dict[str, Any] | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    response_format: dict[str, Any] | None = None
    extra: dict[str, Any] = {}


class Http(Node):
    """One HTTP request."""

    type = "http"
    url: str
    method: str = "GET"
    headers: dict[str, str] = {}
    query: dict[str, Any] = {}
    body: Any = None
    connection: str | None = None
    ok_statuses: list[int] | None = None


class Python(Node):
    """A Python function by reference, or code that defines `run(input_data)`."""

    type = "python"
    code: str | None = None
    function: Any = None

    def params(self) -> dict[str, Any]:
        found = super().params()
        if callable(self.function):
            found["function"] = function_name(self.function)
        return found


def function_name(function: Callable[..., Any]) -> str:
    """`module:name`, as a worker can find it again."""
    return f"{function.__module__}:{function.__qualname__}"


class Human(Node):
    """A question to a person: words, a choice, a form, a yes or no."""

    type = "human"
    prompt: str = "{{ question }}"
    kind: str = "text"
    choices: list[str] | None = None
    form: dict[str, Any] | None = None
    to: str | None = None
    deadline: dict[str, Any] | None = None
    reminders: list[float | str] = []


class Choice(Node):
    """Picks options by condition; dependants name the option they belong to."""

    type = "choice"
    options: list[dict[str, Any]]
    hit_policy: str = "first"


class Pass(Node):
    """Hands its (transformed) input on. With `join="any"` it brings branches together."""

    type = "pass"


class Delay(Node):
    """A durable timer."""

    type = "delay"
    seconds: float | str | None = None
    until: str | None = None


class Transform(Node):
    """A template over the input."""

    type = "transform"
    template: Any


class ValidateJson(Node):
    type = "validate-json"
    field: str = "content"
    on_invalid: str = "fail"


class ValidatePython(Node):
    type = "validate-python"
    field: str = "content"
    on_invalid: str = "fail"


class ValidateChoices(Node):
    type = "validate-choices"
    choices: list[Any]
    field: str = "content"
    on_invalid: str = "fail"


class ValidateRegex(Node):
    type = "validate-regex"
    regex: str
    match: str = "full"
    field: str = "content"
    on_invalid: str = "fail"


class Activity(Node):
    """An activity of somebody else's worker, in any language."""

    type = "activity"
    activity: str
    task_queue: str | None = None
    heartbeat_seconds: float | None = None


def option(option_id: str, condition: Condition | Mapping[str, Any] | None = None) -> dict[str, Any]:
    """An option of a Choice, as plain data."""
    dumped = condition.model_dump() if isinstance(condition, Condition) else condition
    return {"id": option_id, **({"condition": dumped} if dumped else {})}


def flow_nodes(nodes: Sequence[Node]) -> list[NodeSpec]:
    """The definitions of a flow's nodes. A node without an id is named after its class, the same way every time."""
    ids: dict[int, str] = {}
    taken = {node.id for node in nodes if node.id}
    for node in nodes:
        name, number = node.id or type(node).__name__.lower(), 1
        while node.id is None and name in taken:
            number += 1
            name = f"{type(node).__name__.lower()}-{number}"
        taken.add(name)
        ids[id(node)] = name
    return [node.spec(ids[id(node)], ids) for node in nodes]
