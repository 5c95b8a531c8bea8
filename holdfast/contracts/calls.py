"""What crosses the line between workflow, activities and starters. New fields always have a default."""

import base64
import zlib
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import from_json

from holdfast.checkpoints.models import CheckpointRecord, RunnableStatus
from holdfast.checkpoints.resuming import ResumePlan
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import LONGEST_SECONDS, FlowSpec, NodeSpec

_PACKED = "zlib"
_LARGEST = 2**30


class Wire(BaseModel):
    """Ignores what a newer version added."""

    model_config = ConfigDict(extra="ignore")


class RunConfig(Wire):
    """How a run is executed. Everything has a default; nothing here changes what the flow computes."""

    continue_after_events: int = Field(default=4000, ge=10)
    continue_after_bytes: int = Field(default=10 * 2**20, ge=1000)
    heartbeat_seconds: float = Field(default=8.0, gt=0, le=LONGEST_SECONDS)


def _unpack(given: Any) -> Any:
    """What was written before there was a codec: a large checkpoint was compressed on its own."""
    if not is_object(given) or list(given) != [_PACKED]:
        return given
    try:
        return from_json(zlib.decompressobj().decompress(base64.b64decode(given[_PACKED]), _LARGEST))
    except (zlib.error, ValueError, TypeError) as error:
        raise ValueError(f"the packed checkpoint is damaged: {error}") from error


PackedCheckpoint = Annotated[CheckpointRecord, BeforeValidator(_unpack)]


class InnerRun(Wire):
    """How far a flow inside a run had come, and the definition it had."""

    flow: FlowSpec
    checkpoint: PackedCheckpoint


class FlowStart(Wire):
    """The one argument of `FlowRun`. Anyone may start it by name with just `flow` and `input_data`."""

    flow: FlowSpec
    input_data: Any = None
    config: RunConfig = Field(default_factory=RunConfig)
    base: PackedCheckpoint | None = None
    resumed_from: str | None = None
    plan: ResumePlan | None = None
    """What becomes of the checkpoint's nodes. Made by whoever starts the run, and pinned here; found out if missing."""
    children: dict[str, InnerRun] = Field(default_factory=dict[str, InnerRun])
    """The flows inside the resumed run that had not ended, by their path in it."""
    paused: bool = False
    """Nothing is to begin before somebody lets it: an imported checkpoint, to be looked at first."""
    key_base: str | None = None
    """What idempotency keys start with. A resumed run keeps its parent's: one key for one effect."""
    parent_checkpoint_id: str | None = None
    """For a flow inside another one: the checkpoint of the outer run at which it was started."""
    kept_answers: list[dict[str, Any]] = Field(default_factory=list[dict[str, Any]])
    """Answers that came before their question, when the run goes on in a new execution."""


class Started(Wire):
    """What is asked of a run's argument by whoever goes on from the run. The rest of it may be large."""

    flow: FlowSpec
    config: RunConfig = Field(default_factory=RunConfig)
    outer: str | None = None
    """For a flow inside a run: the outermost run."""
    family: str | None = None
    """The first of the runs that it comes from."""


class Given(Wire):
    """What a run was given, in its argument, of the runs inside the one that it comes from."""

    children: dict[str, InnerRun] = Field(default_factory=dict[str, InnerRun])


class NodeOutcome(Wire):
    """One node in a run's result."""

    status: RunnableStatus
    input: Any = None
    output: Any = None
    error: dict[str, Any] | None = None


class FlowResult(Wire):
    """A run's result, also in the details of its failure. `checkpoint` has all that `output` does not say already."""

    status: str
    run_id: str
    output: dict[str, NodeOutcome] = Field(default_factory=dict[str, NodeOutcome])
    checkpoint: dict[str, Any] = Field(default_factory=dict[str, Any])
    started: Started | None = None
    """Of a run that failed: who resumes it finds all that is needed in one place."""


class NodeCall(Wire):
    """A node's execution as an activity gets it."""

    node_id: str
    path: str
    type: str
    params: dict[str, Any] = Field(default_factory=dict[str, Any])
    input_data: Any = None
    internal_state: dict[str, Any] = Field(default_factory=dict[str, Any])
    run_id: str
    flow_id: str
    idempotency_key: str
    cache: bool = False
    stream: bool = False
    files: dict[str, Any] | None = None
    """For a tool of an agent with a file store: the `store`, and what its registry has as `files`."""


class NodeReply(Wire):
    """What an execution gave. `attempt` counts Temporal's attempts, this one included."""

    output: Any = None
    internal_state: dict[str, Any] = Field(default_factory=dict[str, Any])
    attempt: int = 1
    cached: bool = False
    warnings: list[str] = Field(default_factory=list[str])
    usage: dict[str, Any] | None = None
    """What its model calls have used; the fields of `messages.Usage`."""
    files: dict[str, Any] = Field(default_factory=dict[str, Any])
    """What was put into the agent's file store, by path: entries of `contracts.files`, registered with this reply."""


class NodeFailure(Wire):
    """The details of an activity's failure."""

    error: dict[str, Any]
    internal_state: dict[str, Any] = Field(default_factory=dict[str, Any])
    attempt: int = 1


class PureBatch(Wire):
    """Pure nodes that run together, dependencies first, with the results from outside that they read."""

    nodes: list[NodeSpec]
    flow_input: Any = None
    results: dict[str, NodeOutcome] = Field(default_factory=dict[str, NodeOutcome])
    tolerated: list[str] = Field(default_factory=list[str])
    above: dict[str, list[str]] = Field(default_factory=dict[str, list[str]])
    """For a node with a transformer, which may read all that is above it (`$..x`): which of `results` that is."""
    inputs: dict[str, Any] = Field(default_factory=dict[str, Any])
    """Inputs that are given, for nodes that have no place in a flow: items of a map."""
    run_id: str
    flow_id: str
    key_base: str


class PureOutcome(Wire):
    """One node of a batch. Its input is not repeated here: the workflow can compute it."""

    node_id: str
    status: Literal["success", "failure", "skip"]
    output: Any = None
    error: dict[str, Any] | None = None
    reason: str = ""
    internal_state: dict[str, Any] = Field(default_factory=dict[str, Any])
    started_at: datetime
    completed_at: datetime


class PureReply(Wire):
    outcomes: list[PureOutcome] = Field(default_factory=list[PureOutcome])


class PauseMessage(Wire):
    """Who wants a run to be paused, or to go on."""

    by: str | None = None


class ChildMessage(Wire):
    """A flow inside a run says that it waits for people, or no longer does."""

    run_id: str
    waits: bool


class CheckpointQuery(Wire):
    """Which checkpoint; the latest when `sequence_number` is not given."""

    sequence_number: int | None = None


class ListQuery(Wire):
    """A page: entries after `after`, at most `limit`."""

    after: int = 0
    limit: int = Field(default=200, ge=1, le=2000)
