"""A flow inside a flow: a run of its own, with checkpoints of its own."""

from typing import Any

from holdfast.checkpoints.models import CheckpointRecord, RunStatus
from holdfast.contracts.calls import FlowStart, NodeReply
from holdfast.contracts.results import unpack
from holdfast.engine.ports import NodeError
from holdfast.engine.scope import Job, Scope
from holdfast.flows.composites import FlowParams
from holdfast.flows.ids import checkpoint_id


async def run_flow(scope: Scope, job: Job) -> NodeReply:
    """Starts the flow, or goes on from the checkpoint at which it failed."""
    flow = FlowParams.model_validate(job.node.params).flow
    run_id = f"{scope.run_id}/{job.path}"
    failed_at = scope.state(job.path).get("checkpoint")
    scope.advance(job.path, "child_started", assign={"child_run_id": run_id, "status": RunStatus.RUNNING.value})
    base = CheckpointRecord.model_validate(failed_at) if failed_at else None
    if base is not None:
        base.metadata.pop("usage", None)  # This run has counted it already.
    start = FlowStart(
        flow=flow,
        input_data=job.input_data,
        key_base=scope.key(job.path),
        parent_checkpoint_id=checkpoint_id(scope.run_id, scope.ledger.seq),
        base=base,
        resumed_from=base.id if base is not None else None,
    )
    result = await scope.ports.run_child(job.node, start, run_id)
    usage: dict[str, Any] | None = result.checkpoint.get("metadata", {}).get("usage")
    if result.status != RunStatus.COMPLETED:
        # Kept here, so that a resume of this run finds what that one had done, wherever it takes place.
        assign = {"status": result.status, "checkpoint": unpack(result)}
        scope.advance(job.path, "child_failed", assign=assign, usage=usage)
        error: dict[str, Any] = result.checkpoint.get("metadata", {}).get("error") or {}
        message = f"the flow {flow.id!r} failed in run {run_id!r}: {error.get('message', 'unknown error')}"
        raise NodeError({"type": "FlowFailed", "message": message, "child_run_id": run_id})
    output = {
        node_id: outcome.model_dump(mode="json", include={"status", "output", "error"})
        for node_id, outcome in result.output.items()
    }
    return NodeReply(output=output, internal_state={"child_run_id": run_id, "status": result.status}, usage=usage)
