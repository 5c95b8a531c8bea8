"""What an author writes for the kinds that have other nodes inside: agents, maps, nested flows, orchestrators."""

from collections.abc import Mapping
from typing import Any, Literal, cast

from pydantic import Field, field_validator, model_validator

from holdfast.flows.conditions import Condition
from holdfast.flows.files import FileStoreParams
from holdfast.flows.params import FUNCTION, ModelParams, Params
from holdfast.flows.people import ApprovalRule
from holdfast.flows.spec import ErrorHandling, FlowSpec, NodeSpec

END = "end"
"""The state after which a graph orchestrator is done."""


def _model_retries() -> ErrorHandling:
    return ErrorHandling(max_retries=4, backoff_rate=2, max_retry_interval_seconds=60)


class InnerNode(NodeSpec):
    """A node inside another one. Its parameters may stand beside its other fields, as they do in a flow."""

    id: str = ""

    @model_validator(mode="before")
    @classmethod
    def _gather(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        body = dict(cast(Mapping[str, Any], data))
        known = cls.model_fields
        beside = {name: body.pop(name) for name in list(body) if name not in known}
        if beside and isinstance(body.get("params") or {}, Mapping):
            body["params"] = {**beside, **(body.get("params") or {})}
        body.setdefault("id", body.get("name") or body.get("type"))
        return body


class ToolSpec(InnerNode):
    """A node as an agent's tool. `id` is the name the model knows it by.

    `side_effects` is the author's word for what the tool does to the world. `on_error`: a failure is an observation
    for the model, or fails the agent. `reuse`: the same call gets the result it had before, and does not run again.
    """

    input_schema: dict[str, Any] | None = None
    side_effects: Literal["read", "write"] | None = None
    on_error: Literal["observe", "fail"] = "observe"
    reuse: bool = True


class MemoryParams(Params):
    """Earlier conversations of the same user and session. `backend` is a name the worker knows."""

    backend: str = "sqlite"
    limit: int = Field(default=20, ge=1)


class SummariseParams(Params):
    """When a prompt has passed `after_tokens`, everything but the last `keep_last` messages becomes a summary."""

    after_tokens: int = Field(default=100_000, ge=1)
    keep_last: int = Field(default=6, ge=0)
    llm: ModelParams | None = None


class AgentParams(Params):
    """A model that works in a loop with tools. `system` and `prompt` are templates over the node's input.

    Without `prompt` the model is asked the input's field `input`.
    """

    llm: ModelParams
    system: str | None = None
    prompt: str | None = None
    tools: list[ToolSpec] = Field(default_factory=list[ToolSpec])
    mode: Literal["function_calling", "structured_output", "xml", "react"] = "function_calling"
    max_loops: int = Field(default=15, ge=1)
    on_max_loops: Literal["raise", "return", "answer"] = "raise"
    max_repairs: int = Field(default=3, ge=0)
    parallel_tool_calls: bool = True
    output_schema: dict[str, Any] | None = None
    delegate: bool = False
    ask_before: Literal["write", "never", "always"] | list[ApprovalRule] = "write"
    memory: MemoryParams | None = None
    summarise: SummariseParams | None = None
    file_store: FileStoreParams | None = None
    llm_error_handling: ErrorHandling = Field(default_factory=_model_retries)


class MapParams(Params):
    """The same node for every item. `items` is a JSONPath to the list; without it, the input's field `input`.

    `indices` is for a map's own batches: where in the whole list their items are.
    """

    node: InnerNode
    items: str | None = None
    max_workers: int = Field(default=10, ge=1, le=1000)
    behavior: Literal["raise", "return"] = "raise"
    inline_limit: int = Field(default=500, ge=0, le=2000)
    batch_size: int = Field(default=500, ge=1, le=2000)
    indices: list[int] | None = None


class FlowParams(Params):
    """A whole flow as a node."""

    flow: FlowSpec


class GraphEdge(Params):
    """To another state (or `end`), if the condition on `{context, result}` holds; without one, always."""

    to: str
    condition: Condition | None = None


class GraphState(Params):
    """One or more tasks that run side by side, and where to go then.

    `route` is a function `module:name` that gets `{context, result}` and returns a state's id. Several edges without
    a condition leave the choice to the manager.
    """

    id: str
    description: str | None = None
    tasks: list[InnerNode] = Field(default_factory=list[InnerNode])
    next: list[GraphEdge] = Field(default_factory=list[GraphEdge])
    route: str | None = Field(default=None, pattern=FUNCTION)


class GraphParams(Params):
    """A graph of states with a context that they share. It begins at `start`, or at the first state."""

    states: list[GraphState] = Field(min_length=1)
    start: str | None = None
    context: dict[str, Any] = Field(default_factory=dict[str, Any])
    manager: ModelParams | None = None
    max_steps: int = Field(default=50, ge=1)
    llm_error_handling: ErrorHandling = Field(default_factory=_model_retries)

    @field_validator("states")
    @classmethod
    def _distinct(cls, states: list[GraphState]) -> list[GraphState]:
        ids = [state.id for state in states]
        repeated = next((name for name in ids if ids.count(name) > 1 or name == END), None)
        if repeated is not None:
            raise ValueError(f"the state {repeated!r} is there twice, or has the name of the end")
        return states

    @model_validator(mode="after")
    def _known(self) -> "GraphParams":
        ids = {state.id for state in self.states} | {END}
        named = [edge.to for state in self.states for edge in state.next] + ([self.start] if self.start else [])
        unknown = next((name for name in named if name not in ids), None)
        if unknown is not None:
            raise ValueError(f"there is no state {unknown!r}; there are: {', '.join(sorted(ids))}")
        for state in self.states:
            free = [edge for edge in state.next if edge.condition is None]
            if len(free) > 1 and self.manager is None:
                raise ValueError(f"state {state.id!r} leaves a choice to a manager, and there is none: add 'manager'")
        return self


class LinearParams(Params):
    """A manager plans tasks for the input, the agents do them in order, and the manager puts the results together."""

    manager: ModelParams
    agents: list[InnerNode] = Field(min_length=1)
    max_tasks: int = Field(default=20, ge=1)
    llm_error_handling: ErrorHandling = Field(default_factory=_model_retries)
