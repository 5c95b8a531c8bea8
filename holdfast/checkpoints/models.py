"""The documented checkpoint schema.

Every model comes in two forms with the same fields. A *record* holds values in their marked JSON form: it is what
workflows keep and what travels. A *checkpoint* (`FlowCheckpoint`, `NodeCheckpointState`) holds real values: it is what
library users get. Writing a checkpoint as JSON gives the record, reading JSON gives the values back.
"""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    FieldSerializationInfo,
    ValidationInfo,
    field_serializer,
    field_validator,
    model_validator,
)

from holdfast.checkpoints import values
from holdfast.flows.ids import checkpoint_id

SCHEMA_VERSION = "1.0"
LIBRARY_VERSION = "0.1.0"


class CheckpointStatus(StrEnum):
    """The status of a run as its checkpoint says it. A cancelled run's is `failed`: it can be resumed all the same."""

    ACTIVE = "active"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    PENDING_INPUT = "pending_input"


class RunStatus(StrEnum):
    """The status of a run as people ask for it. `pending`: started, and no worker has taken it up yet."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    PENDING_INPUT = "pending_input"
    PAUSED = "paused"


class RunnableStatus(StrEnum):
    """The status of one node."""

    UNDEFINED = "undefined"
    RUNNING = "running"
    SUCCESS = "success"
    FAILURE = "failure"
    SKIP = "skip"


def _now() -> datetime:
    # For checkpoints built by hand. The fold passes the time of the transition.
    return datetime.now(UTC)  # noqa: TID251


def _aware(value: datetime) -> datetime:
    # Other writers of the schema leave the zone out and mean UTC; a time without one cannot be compared.
    return value if value.tzinfo else value.replace(tzinfo=UTC)


Time = Annotated[datetime, AfterValidator(_aware)]


class NodeRecord(BaseModel):
    """What is known of one node. Unknown fields are kept, so that an older version can carry a newer one's state."""

    model_config = ConfigDict(extra="allow")

    node_id: str
    node_type: str
    status: str
    input_data: Any = None
    output_data: Any = None
    error: dict[str, Any] | None = None
    internal_state: dict[str, Any] = Field(default_factory=dict[str, Any])
    started_at: Time | None = None
    completed_at: Time | None = None
    attempts: int = 0


class PendingInputRecord(BaseModel):
    """What a waiting run waits for."""

    node_id: str
    prompt: str
    timestamp: Time
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])


class CheckpointRecord(BaseModel):
    """The whole state of a run after one transition."""

    model_config = ConfigDict(extra="allow", validate_default=True)

    id: str = ""
    flow_id: str
    workflow_id: str | None = None
    run_id: str
    sequence_number: int = 0
    status: CheckpointStatus = CheckpointStatus.ACTIVE
    node_states: dict[str, NodeRecord] = Field(default_factory=dict[str, NodeRecord])
    completed_node_ids: list[str] = Field(default_factory=list[str])
    pending_node_ids: list[str] = Field(default_factory=list[str])
    original_input: Any = None
    original_config: dict[str, Any] | None = None
    pending_input_context: PendingInputRecord | None = None
    pending_inputs: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    answered_inputs: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    created_at: Time = Field(default_factory=_now)
    updated_at: Time = Field(default_factory=_now)
    version: str = SCHEMA_VERSION
    dynamiq_version: str | None = LIBRARY_VERSION
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    parent_checkpoint_id: str | None = None
    checksum: str | None = None
    trace_context: dict[str, str] | None = None
    original_trace_id: str | None = None

    @model_validator(mode="after")
    def _name(self) -> "CheckpointRecord":
        if not self.id:
            self.id = checkpoint_id(self.run_id, self.sequence_number)
        return self

    @property
    def library_version(self) -> str | None:
        """The version of Holdfast that wrote this; in JSON it has the name the schema gave it."""
        return self.dynamiq_version

    def is_node_completed(self, node_id: str) -> bool:
        return node_id in self.completed_node_ids

    def get_node_output(self, node_id: str) -> Any:
        state = self.node_states.get(node_id)
        return state.output_data if state else None

    def fork(self, **changes: Any) -> "CheckpointRecord":
        """A copy that can be changed without touching this one; the values inside are shared and never mutated."""
        own = {
            "node_states": dict(self.node_states),
            "completed_node_ids": list(self.completed_node_ids),
            "pending_node_ids": list(self.pending_node_ids),
            "metadata": dict(self.metadata),
            "pending_inputs": dict(self.pending_inputs),
            "answered_inputs": dict(self.answered_inputs),
        }
        return self.model_copy(update={**own, **changes})


def _decode_json(value: Any, info: ValidationInfo) -> Any:
    return values.decode(value) if info.mode == "json" else value


class NodeCheckpointState(NodeRecord):
    """A node's state with real values."""

    _decode = field_validator("input_data", "output_data", "internal_state", "error", mode="before")(_decode_json)

    @field_serializer("input_data", "output_data", "internal_state", "error", when_used="json")
    def _encode(self, value: Any, info: FieldSerializationInfo) -> Any:
        return values.encode(value, f"{self.node_id}.{info.field_name}")


class PendingInputContext(PendingInputRecord):
    """What a waiting run waits for, with real values."""

    _decode = field_validator("metadata", mode="before")(_decode_json)

    @field_serializer("metadata", when_used="json")
    def _encode(self, value: Any) -> Any:
        return values.encode(value, "pending_input_context.metadata")


class FlowCheckpoint(CheckpointRecord):
    """A checkpoint with real values: what `get_latest_checkpoint` returns and `resume_from` takes."""

    node_states: dict[str, NodeCheckpointState] = Field(default_factory=dict)  # pyright: ignore[reportIncompatibleVariableOverride]
    pending_input_context: PendingInputContext | None = None

    _decode = field_validator("original_input", "original_config", "metadata", "pending_inputs", mode="before")(
        _decode_json
    )

    @field_serializer("original_input", "original_config", "metadata", "pending_inputs", when_used="json")
    def _encode(self, value: Any, info: FieldSerializationInfo) -> Any:
        return values.encode(value, info.field_name)

    def mark_node_complete(self, node_id: str, state: NodeCheckpointState) -> None:
        self.node_states[node_id] = state
        if node_id not in self.completed_node_ids:
            self.completed_node_ids.append(node_id)
        if node_id in self.pending_node_ids:
            self.pending_node_ids.remove(node_id)
        self.updated_at = _now()

    def mark_pending_input(self, node_id: str, prompt: str, metadata: dict[str, Any] | None = None) -> None:
        self.status = CheckpointStatus.PENDING_INPUT
        now = _now()
        self.pending_input_context = PendingInputContext(
            node_id=node_id, prompt=prompt, timestamp=now, metadata=metadata or {}
        )
        self.updated_at = now

    def clear_pending_input(self) -> None:
        self.pending_input_context = None  # pyright: ignore[reportIncompatibleVariableOverride] (narrower here)
        self.status = CheckpointStatus.ACTIVE
        self.updated_at = _now()

    def to_dict(self, **kwargs: Any) -> dict[str, Any]:
        return self.model_dump(**kwargs)


class CheckpointSummary(BaseModel):
    """A checkpoint in a list: enough to choose one by."""

    model_config = ConfigDict(extra="ignore")

    id: str
    sequence_number: int
    status: CheckpointStatus
    created_at: datetime
    event: str
    node_id: str | None = None
    completed: int
    total: int
    detail: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Where inside the node: an agent's loop and its limit, an item of a map, a state of a graph."""
