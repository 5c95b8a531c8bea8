"""Holdfast: AI flows that survive everything. All that is public is importable from here, and loaded when used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.checkpoints.editing import EditError
    from holdfast.checkpoints.models import (
        CheckpointStatus,
        CheckpointSummary,
        FlowCheckpoint,
        NodeCheckpointState,
        PendingInputContext,
        RunnableStatus,
        RunStatus,
    )
    from holdfast.checkpoints.protocol import CheckpointableNode, CheckpointMixin
    from holdfast.checkpoints.serial import (
        deserialize_checkpoint,
        fast_deserialize,
        fast_serialize,
        serialize_checkpoint,
    )
    from holdfast.checkpoints.validation import InvalidCheckpointError, validate_checkpoint, validate_node_state
    from holdfast.checkpoints.values import UnserialisableError
    from holdfast.contracts.calls import FlowStart, RunConfig
    from holdfast.contracts.people import HumanAnswer
    from holdfast.flows.composite_nodes import (
        END,
        Agent,
        GraphOrchestrator,
        LinearOrchestrator,
        Map,
        SubFlow,
        state,
    )
    from holdfast.flows.conditions import Condition
    from holdfast.flows.connections import connection
    from holdfast.flows.faults import FlowDefinitionError
    from holdfast.flows.memory import Memory
    from holdfast.flows.nodes import (
        Activity,
        Choice,
        Delay,
        Http,
        Human,
        Llm,
        Node,
        NodeCancelledError,
        NonRetryableError,
        Pass,
        Python,
        Transform,
        ValidateChoices,
        ValidateJson,
        ValidatePython,
        ValidateRegex,
        option,
    )
    from holdfast.flows.reading import read_flow
    from holdfast.flows.spec import (
        Caching,
        CheckpointConfig,
        Dependency,
        ErrorHandling,
        FlowSpec,
        NodeSpec,
        Transformer,
    )
    from holdfast.flows.tools import FunctionTool, Tool, tool
    from holdfast.library import Flow, Workflow
    from holdfast.starter.client import HoldfastClient
    from holdfast.starter.connecting import NotReachableError
    from holdfast.starter.errors import (
        AlreadyResumedError,
        AnswerRefusedError,
        FlowFailedError,
        NoCheckpointError,
        RunActiveError,
        RunCancelledError,
        RunExistsError,
        RunNotFoundError,
    )
    from holdfast.starter.people import OpenRequest
    from holdfast.starter.runs import RunDetail, RunInfo, RunnableResult
    from holdfast.starter.store import CheckpointStore
    from holdfast.starter.sync import SyncHoldfastClient
    from holdfast.starter.travel import Changes
    from holdfast.stored_files import read_file

_HOMES = {
    "holdfast.checkpoints.editing": ("EditError",),
    "holdfast.checkpoints.models": (
        "CheckpointStatus",
        "CheckpointSummary",
        "FlowCheckpoint",
        "NodeCheckpointState",
        "PendingInputContext",
        "RunnableStatus",
        "RunStatus",
    ),
    "holdfast.checkpoints.protocol": (
        "CheckpointableNode",
        "CheckpointMixin",
    ),
    "holdfast.checkpoints.serial": (
        "deserialize_checkpoint",
        "fast_deserialize",
        "fast_serialize",
        "serialize_checkpoint",
    ),
    "holdfast.checkpoints.validation": (
        "InvalidCheckpointError",
        "validate_checkpoint",
        "validate_node_state",
    ),
    "holdfast.checkpoints.values": ("UnserialisableError",),
    "holdfast.contracts.calls": (
        "FlowStart",
        "RunConfig",
    ),
    "holdfast.contracts.people": ("HumanAnswer",),
    "holdfast.flows.composite_nodes": (
        "END",
        "Agent",
        "GraphOrchestrator",
        "LinearOrchestrator",
        "Map",
        "SubFlow",
        "state",
    ),
    "holdfast.flows.conditions": ("Condition",),
    "holdfast.flows.connections": ("connection",),
    "holdfast.flows.faults": ("FlowDefinitionError",),
    "holdfast.flows.memory": ("Memory",),
    "holdfast.flows.nodes": (
        "Activity",
        "Choice",
        "Delay",
        "Http",
        "Human",
        "Llm",
        "Node",
        "NodeCancelledError",
        "NonRetryableError",
        "Pass",
        "Python",
        "Transform",
        "ValidateChoices",
        "ValidateJson",
        "ValidatePython",
        "ValidateRegex",
        "option",
    ),
    "holdfast.flows.reading": ("read_flow",),
    "holdfast.flows.spec": (
        "Caching",
        "CheckpointConfig",
        "Dependency",
        "ErrorHandling",
        "FlowSpec",
        "NodeSpec",
        "Transformer",
    ),
    "holdfast.flows.tools": (
        "FunctionTool",
        "Tool",
        "tool",
    ),
    "holdfast.library": (
        "Flow",
        "Workflow",
    ),
    "holdfast.starter.client": ("HoldfastClient",),
    "holdfast.starter.connecting": ("NotReachableError",),
    "holdfast.starter.errors": (
        "AlreadyResumedError",
        "AnswerRefusedError",
        "FlowFailedError",
        "NoCheckpointError",
        "RunActiveError",
        "RunCancelledError",
        "RunExistsError",
        "RunNotFoundError",
    ),
    "holdfast.starter.people": ("OpenRequest",),
    "holdfast.starter.runs": (
        "RunDetail",
        "RunInfo",
        "RunnableResult",
    ),
    "holdfast.starter.store": ("CheckpointStore",),
    "holdfast.starter.sync": ("SyncHoldfastClient",),
    "holdfast.starter.travel": ("Changes",),
    "holdfast.stored_files": ("read_file",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "END",
    "Activity",
    "Agent",
    "AlreadyResumedError",
    "AnswerRefusedError",
    "Caching",
    "Changes",
    "CheckpointConfig",
    "CheckpointMixin",
    "CheckpointStatus",
    "CheckpointStore",
    "CheckpointSummary",
    "CheckpointableNode",
    "Choice",
    "Condition",
    "Delay",
    "Dependency",
    "EditError",
    "ErrorHandling",
    "Flow",
    "FlowCheckpoint",
    "FlowDefinitionError",
    "FlowFailedError",
    "FlowSpec",
    "FlowStart",
    "FunctionTool",
    "GraphOrchestrator",
    "HoldfastClient",
    "Http",
    "Human",
    "HumanAnswer",
    "InvalidCheckpointError",
    "LinearOrchestrator",
    "Llm",
    "Map",
    "Memory",
    "NoCheckpointError",
    "Node",
    "NodeCancelledError",
    "NodeCheckpointState",
    "NodeSpec",
    "NonRetryableError",
    "NotReachableError",
    "OpenRequest",
    "Pass",
    "PendingInputContext",
    "Python",
    "RunActiveError",
    "RunCancelledError",
    "RunConfig",
    "RunDetail",
    "RunExistsError",
    "RunInfo",
    "RunNotFoundError",
    "RunStatus",
    "RunnableResult",
    "RunnableStatus",
    "SubFlow",
    "SyncHoldfastClient",
    "Tool",
    "Transform",
    "Transformer",
    "UnserialisableError",
    "ValidateChoices",
    "ValidateJson",
    "ValidatePython",
    "ValidateRegex",
    "Workflow",
    "connection",
    "deserialize_checkpoint",
    "fast_deserialize",
    "fast_serialize",
    "option",
    "read_file",
    "read_flow",
    "serialize_checkpoint",
    "state",
    "tool",
    "validate_checkpoint",
    "validate_node_state",
]


def __getattr__(name: str) -> Any:
    # Lazy, because the command line must start in a moment and a workflow's sandbox imports this again and again.
    if name not in _HOME_OF:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
