"""What the engine asks of the world. The product answers with Temporal commands, the simulator with a script."""

from datetime import datetime
from typing import Any, Protocol

from holdfast.checkpoints.ledger import Transition
from holdfast.contracts.calls import FlowResult, FlowStart, NodeCall, NodeReply, PureBatch, PureReply
from holdfast.contracts.messages import ModelCall, ModelReply
from holdfast.contracts.people import HumanAnswer, HumanRequest
from holdfast.flows.spec import NodeSpec


class NodeError(Exception):
    """A node failed for good: its retries are used up, or another attempt could not help."""

    def __init__(self, error: dict[str, Any], internal_state: dict[str, Any] | None = None, attempts: int = 1) -> None:
        super().__init__(error.get("message", "the node failed"))
        self.error = error
        self.internal_state = internal_state or {}
        self.attempts = attempts


class Ports(Protocol):
    """Every method may be replayed: the same calls in the same order must give the same answers."""

    def now(self) -> datetime:
        """The run's time, in UTC."""
        ...

    async def run_node(self, node: NodeSpec, call: NodeCall) -> NodeReply:
        """Executes an effectful node, with its retries; NodeError when it failed for good."""
        ...

    async def call_model(self, node: NodeSpec, call: ModelCall) -> ModelReply:
        """Asks a model, with the retries of `node`; NodeError when it failed for good."""
        ...

    async def run_child(self, node: NodeSpec, start: FlowStart, run_id: str) -> FlowResult:
        """Runs a flow as a run of its own, to its end. A failed one is a result; NodeError when it has none."""
        ...

    async def run_pure(self, batch: PureBatch) -> PureReply:
        """Executes pure nodes together. A failing node is an outcome, not an exception."""
        ...

    async def sleep(self, node: NodeSpec, seconds: float) -> None:
        """A durable timer."""
        ...

    def is_cancelled(self) -> bool:
        """Whether somebody wants the run to end. A worker that puts it away cancels its tasks as well."""
        ...

    def new_id(self) -> str:
        """An id that nobody can guess."""
        ...

    async def wait_answer(self, request: HumanRequest, until: datetime | None) -> HumanAnswer | None:
        """The first answer to the question that fits it; None when there was none until then."""
        ...

    def at_rest(self) -> None:
        """Told when nothing is in flight: the run waits for time or for people, and may do so for long."""
        ...

    def should_park(self) -> bool:
        """Whether nothing new may be started, because the run is to go on in a new execution."""
        ...

    def recorded(self, transition: Transition) -> None:
        """Told of every transition, after the ledger has it."""
        ...
