"""The definition of a flow as data: what YAML and Python both become, and what a run carries with it.

Models here ignore unknown fields, because a run started by a newer version must stay readable for an older worker;
`check.py` is where an author's misspelt field is caught.
"""

from functools import lru_cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_serializer, model_validator
from pydantic.fields import FieldInfo

from holdfast.flows.conditions import Condition

LONGEST_SECONDS = 100 * 365 * 24 * 3600.0
"""A century. Beyond it, and at infinity, the clocks of Python and Temporal overflow in the middle of a run."""


class SpecModel(BaseModel):
    """Leaves out what equals its default: a definition of 200 nodes travels with every run, in every history."""

    model_config = ConfigDict(extra="ignore")

    @model_serializer(mode="plain")
    def _compact(self) -> dict[str, Any]:
        # Writing every default out, only to leave it out, was most of what writing a definition took.
        known, written = self.__dict__, _written(type(self))
        # Mostly it is the shared default itself; to compare models takes its time.
        kept = {name: value for name, default in written if (value := known[name]) is not default and value != default}
        return {**kept, **(self.model_extra or {})}


_REQUIRED = object()


@lru_cache(maxsize=64)
def _written(cls: type[BaseModel]) -> list[tuple[str, Any]]:
    """The fields that are written, each with the value at which it is not."""
    return [(name, _default(field)) for name, field in cls.model_fields.items() if not field.exclude]


def _default(field: FieldInfo) -> Any:
    if field.is_required():
        return _REQUIRED
    # Itself where it is shared: `get_default` would give a copy.
    return field.default if field.default_factory is None else field.get_default(call_default_factory=True)


class Dependency(SpecModel):
    """An edge. `option` is a Choice's, `condition` looks at the upstream result, `trigger` picks its outcome."""

    node: str
    option: str | None = None
    condition: Condition | None = None
    trigger: Literal["success", "failure"] = "success"


class Transformer(SpecModel):
    """`path` narrows the data, `selector` then builds a new object from it: key -> JSONPath (`a || b || literal`)."""

    path: str | None = None
    selector: dict[str, Any] | None = None


class ErrorHandling(SpecModel):
    """Retries and timeouts are Temporal's. `behavior` says what a final failure means for the rest of the flow."""

    model_config = ConfigDict(frozen=True)

    timeout_seconds: float | None = Field(default=None, gt=0, le=LONGEST_SECONDS)
    max_retries: int = Field(default=0, ge=0, lt=2**31 - 1)  # Temporal counts attempts in 32 bits.
    retry_interval_seconds: float = Field(default=1.0, gt=0, le=LONGEST_SECONDS)
    backoff_rate: float = Field(default=1.0, ge=1, allow_inf_nan=False)
    max_retry_interval_seconds: float | None = Field(default=None, gt=0, le=LONGEST_SECONDS)
    behavior: Literal["raise", "return", "skip"] = "raise"


class Caching(SpecModel):
    """Reuse the output of an earlier execution with the same type, parameters and input, on the worker that has it."""

    model_config = ConfigDict(frozen=True)

    enabled: bool = False


class Deadline(SpecModel):
    """When an answer is due, and what happens if there is none.

    `wait`: the question stays open. `default`: `answer` is taken. `fail`: the node fails. `escalate`: somebody else is
    asked, `to`, with the deadline `then`.
    """

    after: float | str
    effect: Literal["wait", "default", "fail", "escalate"] = "wait"
    answer: dict[str, Any] | None = None
    to: str | None = None
    then: "Deadline | None" = None

    @model_validator(mode="after")
    def _complete(self) -> "Deadline":
        if (self.effect == "default") != (self.answer is not None):
            raise ValueError("'answer' belongs to the effect 'default', and it needs one")
        if (self.effect == "escalate") != (self.to is not None):
            raise ValueError("'to' belongs to the effect 'escalate', and it needs one")
        return self


class Approval(SpecModel):
    """Asks a person before the node runs. `prompt` is a template over the node's input; `editable` names the fields of
    it that the answer may change. Words without a yes or no are a yes if they fit `accept_pattern`."""

    model_config = ConfigDict(frozen=True)

    enabled: bool = False
    prompt: str | None = None
    accept_pattern: str | None = None
    editable: tuple[str, ...] = ()
    to: str | None = None
    deadline: Deadline | None = None
    reminders: tuple[float | str, ...] = ()


class Streaming(SpecModel):
    """Reserved: publishing partial results. `check` refuses it until it works."""

    model_config = ConfigDict(extra="allow", frozen=True)
    enabled: bool = False


class CheckpointConfig(SpecModel):
    """Which checkpoints are listed. They cost nothing, so they are on unless switched off.

    `backend` is accepted for definitions that come from elsewhere and selects nothing: the store is Temporal's history.
    """

    enabled: bool = True
    backend: Any | None = Field(default=None, exclude=True)
    checkpoint_after_node: bool = True
    checkpoint_on_failure: bool = True
    checkpoint_mid_agent_loop: bool = False
    max_checkpoints: int = Field(default=10, ge=1)
    retention_days: int | None = Field(default=None, ge=1)
    exclude_nodes: list[str] = Field(default_factory=list)


class NodeSpec(SpecModel):
    """One node. Everything a kind needs beyond the common fields is in `params`."""

    id: str
    type: str
    name: str | None = None
    description: str | None = None
    group: str | None = None
    depends: list[Dependency] = Field(default_factory=list[Dependency])
    join: Literal["all", "any"] = "all"
    input_transformer: Transformer | None = None
    output_transformer: Transformer | None = None
    # Frozen, so that all nodes can share the defaults: to make them anew took most of reading a definition.
    error_handling: ErrorHandling = ErrorHandling()
    caching: Caching = Caching()
    pure: bool | None = None
    approval: Approval = Approval()
    streaming: Streaming = Streaming()
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])
    params: dict[str, Any] = Field(default_factory=dict[str, Any])


class FlowSpec(SpecModel):
    """A whole flow: a DAG of nodes. The order of `nodes` is the author's and decides ties."""

    id: str
    name: str | None = None
    description: str | None = None
    nodes: list[NodeSpec] = Field(default_factory=list[NodeSpec])
    checkpoint: CheckpointConfig = Field(default_factory=CheckpointConfig)
    metadata: dict[str, Any] = Field(default_factory=dict[str, Any])

    def node(self, node_id: str) -> NodeSpec:
        """The node with this id; KeyError names it."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise KeyError(node_id)
