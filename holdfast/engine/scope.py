"""What all drivers of a run share: the ledger, the ports, the gate, and how a node inside another one is run."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.checkpoints.ledger import (
    InputReceived,
    Ledger,
    NodeAdvanced,
    NodeCompleted,
    NodeFailed,
    NodeStarted,
    Transition,
)
from holdfast.checkpoints.models import RunnableStatus
from holdfast.contracts.calls import InnerRun, NodeCall, NodeReply, PureBatch, PureOutcome
from holdfast.contracts.messages import ModelCall, ModelReply
from holdfast.engine.gate import Gate
from holdfast.engine.ports import NodeError, Ports
from holdfast.flows.ids import is_within, root_of
from holdfast.flows.kinds import COMPOSITE
from holdfast.flows.params import ModelParams
from holdfast.flows.selectors import transform
from holdfast.flows.spec import ErrorHandling, NodeSpec


@dataclass(frozen=True)
class Job:
    """One execution of a node. `path` is where in the run; `node_id` is which node of the definition (`agent/tool`).

    `again`: it has failed before, and is tried again from the state it was in. `files`: the file store of the agent
    whose tool it is.
    """

    node: NodeSpec
    path: str
    node_id: str
    input_data: Any
    again: bool = False
    files: dict[str, Any] | None = None

    def inside(self, node: NodeSpec, path: str, input_data: Any) -> "Job":
        """A node that belongs to this one."""
        return Job(node, path, f"{self.node_id}/{node.id}", transform(node.input_transformer, input_data))


Driver = Callable[["Scope", Job], Awaitable[NodeReply]]
"""Runs a composite node from the state its record is in; NodeError when it failed for good."""


class Scope:
    """One for a run."""

    def __init__(
        self,
        flow_id: str,
        ledger: Ledger,
        ports: Ports,
        gate: Gate,
        key_base: str,
        drivers: Mapping[str, Driver],
        children: Mapping[str, InnerRun],
    ) -> None:
        self.flow_id = flow_id
        self.ledger = ledger
        self.ports = ports
        self.gate = gate
        self.key_base = key_base
        self.children = children
        self._drivers = drivers

    @property
    def run_id(self) -> str:
        return self.ledger.state.run_id

    def now(self) -> datetime:
        return self.ports.now()

    def record(self, transition: Transition) -> None:
        self.ledger.record(transition)
        self.ports.recorded(transition)

    def state(self, path: str) -> dict[str, Any]:
        """What is known of the inside of the node at `path`."""
        known = self.ledger.state.node_states.get(path)
        return known.internal_state if known is not None else {}

    def advance(self, path: str, event: str, **changes: Any) -> None:
        """Records a step inside the node at `path`; the fields are those of `NodeAdvanced`."""
        self.record(NodeAdvanced(at=self.now(), path=path, event=event, **changes))

    def key(self, path: str) -> str:
        """An idempotency key. What a person has changed on the way is other work, and has other keys."""
        fresh: dict[str, str] = self.ledger.state.metadata.get("key_bases") or {}
        return f"{fresh.get(root_of(path), self.key_base)}/{path}"

    def children_of(self, path: str) -> dict[str, InnerRun]:
        """The runs inside the one at `path`, as it names them."""
        return {
            name.removeprefix(f"{path}/"): known for name, known in self.children.items() if name.startswith(f"{path}/")
        }

    async def run_inside(self, job: Job) -> NodeReply:
        """Runs a node inside another one. A composite one has a state of its own; any other is one activity."""
        reply = await (self._nested(job) if job.node.type in COMPOSITE else self.leaf(job))
        return reply.model_copy(update={"output": transform(job.node.output_transformer, reply.output)})

    async def _nested(self, job: Job) -> NodeReply:
        known = self.ledger.state.node_states.get(job.path)
        if known is not None and known.status == RunnableStatus.SUCCESS and known.input_data == job.input_data:
            # The run was interrupted between its end and the step in which the outer node takes its result.
            return NodeReply(output=known.output_data, internal_state=known.internal_state, attempt=known.attempts)
        job = self.begin(job)
        try:
            reply = await self.composite(job)
        except NodeError as error:
            self.record(
                NodeFailed(
                    at=self.now(),
                    path=job.path,
                    error=error.error,
                    internal_state=error.internal_state,
                    attempts=error.attempts,
                    handled=True,
                )
            )
            raise
        self.record(
            NodeCompleted(
                at=self.now(),
                path=job.path,
                output_data=reply.output,
                internal_state=reply.internal_state,
                attempts=reply.attempt,
                usage=reply.usage,
            )
        )
        # Counted here, and not again by the outer node.
        return reply.model_copy(update={"usage": None})

    def begin(self, job: Job) -> Job:
        """Says that a composite node starts, unless it is going on in a new execution of the same run.

        What an earlier execution left behind is given back to it, if it was about the same input.
        """
        known = self.ledger.state.node_states.get(job.path)
        same = known is not None and known.input_data == job.input_data
        if same and known is not None and known.status == RunnableStatus.RUNNING:
            return job
        self.record(
            NodeStarted(
                at=self.now(),
                path=job.path,
                node_type=job.node.type,
                input_data=job.input_data,
                internal_state=_settled(known.internal_state) if same and known is not None else {},
            )
        )
        return replace(job, again=same)

    async def composite(self, job: Job) -> NodeReply:
        """The node's driver, with the node's own retries and timeout. A retry goes on where the failure was.

        Which attempt it is, and when it begins, is in the node's state: a run may be carried over in between.
        """
        handling = job.node.error_handling
        while True:
            retry: dict[str, Any] = self.state(job.path).get("retry") or {}
            attempt = retry.get("attempt", 1)
            if retry:
                job = replace(job, again=True)
                await self._wait_until(job.node, datetime.fromisoformat(retry["at"]))
            try:
                reply = await self._in_time(job)
            except NodeError as error:
                if attempt > handling.max_retries:
                    raise NodeError(error.error, _settled(self.state(job.path)), attempt) from error
                at = self.now() + timedelta(seconds=pause_before_retry(handling, attempt))
                planned = {"retry": {"attempt": attempt + 1, "at": at.isoformat()}}
                self.advance(job.path, "retry_planned", assign=planned, detail={"error": error.error, **planned})
            else:
                state = _settled(reply.internal_state)
                return reply.model_copy(update={"attempt": attempt, "internal_state": state})

    async def _wait_until(self, node: NodeSpec, moment: datetime) -> None:
        remaining = (moment - self.now()).total_seconds()
        if remaining > 0:
            async with self.gate.rest():
                await self.ports.sleep(node, remaining)

    async def _in_time(self, job: Job) -> NodeReply:
        driver = self._drivers[job.node.type]
        limit = job.node.error_handling.timeout_seconds
        if limit is None:
            return await driver(self, job)
        known = self.ledger.state.node_states[job.path]
        retry: dict[str, Any] = known.internal_state.get("retry") or {}
        began = datetime.fromisoformat(retry["at"]) if retry else known.started_at or self.now()
        remaining = began + timedelta(seconds=limit) - self.now()
        clock = asyncio.timeout(max(0.0, remaining.total_seconds()))
        try:
            async with clock:
                return await driver(self, job)
        except TimeoutError:
            if not clock.expired():
                raise
            self._close_questions(job.path)
            message = f"it took longer than {limit:g} s (error_handling.timeout_seconds)"
            raise NodeError({"type": "Timeout", "message": message}) from None

    def _close_questions(self, path: str) -> None:
        """Nobody is to answer what nobody waits for."""
        for request in list(self.ledger.state.pending_inputs.values()):
            if is_within(request["path"], path):
                answer = {"by": "timeout"}
                where, which = request["path"], request["id"]
                self.record(InputReceived(at=self.now(), path=where, request_id=which, answer=answer))

    async def leaf(self, job: Job, state: dict[str, Any] | None = None) -> NodeReply:
        """A node that is one activity. A model's fallback is asked when the model itself has failed for good."""
        node, state = job.node, state or {}
        fallback = fallback_params(node) if node.type == "llm" else None
        if fallback is None:
            return await self.ports.run_node(node, self._call(job, node.params, state))
        if not state.get("is_fallback_run"):
            try:
                return await self.ports.run_node(node, self._call(job, node.params, state))
            except NodeError as error:
                if job.path in self.ledger.state.node_states:
                    self.advance(job.path, "fallback", assign={"is_fallback_run": True}, detail={"error": error.error})
        second = Job(node, f"{job.path}/fallback", job.node_id, job.input_data)
        reply = await self.ports.run_node(node, self._call(second, fallback, {}))
        return reply.model_copy(update={"internal_state": {**reply.internal_state, "is_fallback_run": True}})

    def _call(self, job: Job, params: dict[str, Any], state: dict[str, Any]) -> NodeCall:
        return NodeCall(
            node_id=job.node_id,
            path=job.path,
            type=job.node.type,
            params=params,
            input_data=job.input_data,
            internal_state=state,
            run_id=self.run_id,
            flow_id=self.flow_id,
            idempotency_key=self.key(job.path),
            cache=job.node.caching.enabled,
            stream=job.node.streaming.enabled,
            files=job.files,
        )

    async def run_pure(self, nodes: Sequence[NodeSpec], inputs: dict[str, Any]) -> list[PureOutcome]:
        """Pure nodes with given inputs, together, in one local activity."""
        batch = PureBatch(
            nodes=list(nodes), inputs=inputs, run_id=self.run_id, flow_id=self.flow_id, key_base=self.key_base
        )
        return (await self.ports.run_pure(batch)).outcomes

    async def ask_model(
        self, owner: Job, path: str, model: ModelParams, handling: ErrorHandling, **request: Any
    ) -> ModelReply:
        """One call of a model for the driver of `owner`.

        Once the fallback had to be taken, the same node stays with it: the model would be waited for again and again.
        """
        summary = f"{owner.node.name or owner.node.id}: {path.removeprefix(owner.path).strip('/')}"
        node = NodeSpec(id=owner.node.id, type="llm", name=summary, error_handling=handling)

        async def ask(params: ModelParams, at: str) -> ModelReply:
            dumped = params.model_dump(mode="json", exclude_defaults=True, exclude={"fallback"})
            call = ModelCall(
                path=at,
                run_id=self.run_id,
                idempotency_key=self.key(at),
                model=dumped,
                stream=owner.node.streaming.enabled,
                **request,
            )
            return await self.ports.call_model(node, call)

        if model.fallback is None:
            return await ask(model, path)
        if not self.state(owner.path).get("is_fallback_run"):
            try:
                return await ask(model, path)
            except NodeError as error:
                self.advance(owner.path, "fallback", assign={"is_fallback_run": True}, detail={"error": error.error})
        return await ask(model.fallback, f"{path}/fallback")


class NodeDriver:
    """What the drivers have in common: the node they run, and its state, from which alone they decide what is next."""

    def __init__(self, scope: Scope, job: Job) -> None:
        self._scope = scope
        self._job = job

    @property
    def _state(self) -> dict[str, Any]:
        return self._scope.state(self._job.path)

    def _advance(self, event: str, **changes: Any) -> None:
        self._scope.advance(self._job.path, event, **changes)


def _settled(state: dict[str, Any]) -> dict[str, Any]:
    """Without the count of attempts: whoever runs the node again counts anew."""
    return {name: value for name, value in state.items() if name != "retry"}


def fallback_params(node: NodeSpec) -> dict[str, Any] | None:
    """The parameters of an `llm` node with its second model in place of the first."""
    second = node.params.get("fallback")
    if second is None:
        return None
    own = {name: value for name, value in node.params.items() if name not in ModelParams.model_fields}
    return {**own, **second}


def pause_before_retry(handling: ErrorHandling, attempt: int) -> float:
    """Seconds to wait after the failure of `attempt`, as Temporal counts them for activities."""
    seconds = handling.retry_interval_seconds * handling.backoff_rate ** (attempt - 1)
    return min(seconds, handling.max_retry_interval_seconds or 100 * handling.retry_interval_seconds)
