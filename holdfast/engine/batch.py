"""Runs pure nodes together, by the same rules as the scheduler, and reports what became of each."""

from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any

from holdfast.checkpoints import values
from holdfast.checkpoints.ledger import skipped
from holdfast.checkpoints.models import RunnableStatus
from holdfast.contracts.calls import NodeCall, NodeOutcome, NodeReply, PureBatch, PureOutcome, PureReply
from holdfast.engine.ports import NodeError
from holdfast.engine.pure import PURE_NODES
from holdfast.engine.rules import decide, node_input, verdict
from holdfast.flows import graph
from holdfast.flows.kinds import INLINE
from holdfast.flows.selectors import transform
from holdfast.flows.spec import NodeSpec

Execute = Callable[[NodeCall], Awaitable[NodeReply]]
"""Runs a pure node that is not built in. Raises NodeError when it fails."""


def describe_error(error: BaseException) -> dict[str, Any]:
    """An exception as it is kept in a checkpoint."""
    return {"type": type(error).__name__, "message": str(error) or type(error).__name__}


async def run_pure_node(call: NodeCall, execute: Execute) -> NodeReply:
    """One pure node; NodeError when it fails."""
    if call.type not in PURE_NODES:
        return await execute(call)
    try:
        output = PURE_NODES[call.type](call.params, values.decode(call.input_data))
        return NodeReply(output=values.encode(output, f"the output of node {call.node_id!r}"))
    except (ValueError, TypeError, RecursionError) as error:
        raise NodeError(describe_error(error)) from error


async def run_batch(batch: PureBatch, execute: Execute, now: Callable[[], datetime]) -> PureReply:
    """The nodes in their order, which has dependencies first."""
    return await _Batch(batch, execute, now).run()


class _Batch:
    def __init__(self, batch: PureBatch, execute: Execute, now: Callable[[], datetime]) -> None:
        self._batch = batch
        self._execute = execute
        self._now = now
        self._results = dict(batch.results)
        self._depends = {node.id: [dependency.node for dependency in node.depends] for node in batch.nodes}

    async def run(self) -> PureReply:
        reply = PureReply()
        for node in self._batch.nodes:
            started = self._now()
            result = await self._run(node, started)
            reply.outcomes.append(result)
            self._results[node.id] = NodeOutcome(
                status=RunnableStatus(result.status),
                input=self._input(node) if result.status != "skip" else None,
                output=result.output,
                error=skipped(result.reason) if result.status == "skip" else result.error,
            )
        return reply

    def _input(self, node: NodeSpec) -> Any:
        if node.id in self._batch.inputs:
            return self._batch.inputs[node.id]
        above: set[str] = set()
        if node.input_transformer is not None:
            outside = self._batch.above.get(node.id, self._batch.results.keys())
            above = graph.upstream(self._depends, node.id).union(outside)
        return node_input(node, self._batch.flow_input, above, self._results.__getitem__)

    async def _run(self, node: NodeSpec, started: datetime) -> PureOutcome:
        decision = verdict(node, self._batch.tolerated, self._results.__getitem__)
        if not decision.run:
            return PureOutcome(
                node_id=node.id, status="skip", reason=decision.reason, started_at=started, completed_at=started
            )
        try:
            reply = await self._reply(node)
        except NodeError as error:
            return PureOutcome(
                node_id=node.id,
                status="failure",
                error=error.error,
                internal_state=error.internal_state,
                started_at=started,
                completed_at=self._now(),
            )
        return PureOutcome(
            node_id=node.id,
            status="success",
            output=transform(node.output_transformer, reply.output),
            internal_state=reply.internal_state,
            started_at=started,
            completed_at=self._now(),
        )

    async def _reply(self, node: NodeSpec) -> NodeReply:
        input_data = self._input(node)
        if node.type in INLINE:
            return NodeReply(output=decide(node, input_data, self._results.__getitem__))
        return await run_pure_node(
            NodeCall(
                node_id=node.id,
                path=node.id,
                type=node.type,
                params=node.params,
                input_data=input_data,
                run_id=self._batch.run_id,
                flow_id=self._batch.flow_id,
                idempotency_key=f"{self._batch.key_base}/{node.id}",
            ),
            self._execute,
        )
