"""The built-in node kinds: their parameters, which activity runs them, and whether they are pure.

A type that is not in `KINDS` is a custom node's class name; by convention it starts with a capital, which is how a
misspelt built-in kind is told from a class that lives on a worker.
"""

from dataclasses import dataclass
from datetime import timedelta

from holdfast.flows.composites import AgentParams, FlowParams, GraphParams, LinearParams, MapParams
from holdfast.flows.params import (
    ActivityParams,
    ChoiceParams,
    DelayParams,
    HttpParams,
    LlmParams,
    Params,
    PassParams,
    PythonParams,
    ToolParams,
    TransformParams,
    ValidateChoicesParams,
    ValidateParams,
    ValidateRegexParams,
)
from holdfast.flows.people import HumanParams
from holdfast.flows.spec import NodeSpec


@dataclass(frozen=True, slots=True)
class Kind:
    """`activity` is None for kinds the workflow decides itself. `timeout`: per attempt, where the node has none."""

    params: type[Params]
    activity: str | None = None
    pure: bool = False
    timeout: timedelta = timedelta(days=7)


KINDS: dict[str, Kind] = {
    "llm": Kind(LlmParams, "llm.chat", timeout=timedelta(minutes=10)),
    "http": Kind(HttpParams, "tool.http", timeout=timedelta(minutes=2)),
    "python": Kind(PythonParams, "python.run"),
    "choice": Kind(ChoiceParams, pure=True),
    "pass": Kind(PassParams, pure=True),
    "delay": Kind(DelayParams),
    "transform": Kind(TransformParams, "transform", pure=True),
    "validate-json": Kind(ValidateParams, "validate.json", pure=True),
    "validate-python": Kind(ValidateParams, "validate.python", pure=True),
    "validate-choices": Kind(ValidateChoicesParams, "validate.choices", pure=True),
    "validate-regex": Kind(ValidateRegexParams, "validate.regex", pure=True),
    "activity": Kind(ActivityParams, timeout=timedelta(hours=1)),
    "tool": Kind(ToolParams, "tool.call", timeout=timedelta(hours=1)),
    "human": Kind(HumanParams),
    "agent": Kind(AgentParams),
    "map": Kind(MapParams),
    "flow": Kind(FlowParams),
    "graph-orchestrator": Kind(GraphParams),
    "linear-orchestrator": Kind(LinearParams),
}

CUSTOM = Kind(Params)
INLINE = frozenset({"choice", "pass"})
COMPOSITE = frozenset({"human", "agent", "map", "flow", "graph-orchestrator", "linear-orchestrator"})
"""Kinds that a driver runs inside the workflow, step by step: their parts are activities, they are not."""
NEVER_FUSED = COMPOSITE | {"delay", "activity", "human"}


def is_custom(type_name: str) -> bool:
    """Custom nodes are named by their class."""
    return type_name not in KINDS


def kind_of(node: NodeSpec) -> Kind:
    """The node's kind; every custom node shares one, whose parameters its own class checks."""
    return KINDS.get(node.type, CUSTOM)


def is_pure(node: NodeSpec) -> bool:
    """Pure by its kind, unless the node says otherwise."""
    return kind_of(node).pure if node.pure is None else node.pure


def is_fusable(node: NodeSpec) -> bool:
    """Pure, and with nothing that needs an activity of its own (a retry, a timeout, the cache)."""
    handling = node.error_handling
    own_activity = handling.max_retries or handling.timeout_seconds or node.caching.enabled or node.approval.enabled
    return is_pure(node) and node.type not in NEVER_FUSED and not own_activity
