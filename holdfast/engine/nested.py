"""A flow inside a flow: a run of its own, with checkpoints of its own."""

from typing import Any

from holdfast.checkpoints.models import CheckpointRecord, RunStatus
from holdfast.checkpoints.resuming import plan_resume
from holdfast.contracts.calls import FlowStart, NodeReply
from holdfast.contracts.results import unpack
from holdfast.engine.ports import NodeError
from holdfast.engine.scope import Job, Scope
from holdfast.flows.composites import FlowParams
from holdfast.flows.ids import checkpoint_id, root_of
from holdfast.flows.spec import FlowSpec


async def run_flow(scope: Scope, job: Job) -> NodeReply:
    """Starts the flow, or goes on from the checkpoint at which it failed."""
    flow = FlowParams.model_validate(job.node.params).flow
    run_id = f"{scope.run_id}/{job.path}"
    failed_at = scope.state(job.path).get("checkpoint")
    known = scope.children.get(job.path)
    if known is not None and known.checkpoint.original_input != job.input_data:
        known = None  # It was about something else.
    scope.advance(job.path, "child_started", assign={"child_run_id": run_id, "status": RunStatus.RUNNING.value})
    base = plan = None
    if failed_at:
        base = CheckpointRecord.model_validate(failed_at)
        base.metadata.pop("usage", None)  # This run has counted it already.
        made_with = scope.state(job.path).get("flow")
        before = FlowSpec.model_validate(made_with) if made_with else None
        plan = plan_resume(flow, base, before=before)
    elif known is not None:
        base, plan = known.checkpoint, plan_resume(flow, known.checkpoint, before=known.flow)
    start = FlowStart(
        flow=flow,
        input_data=job.input_data,
        key_base=scope.key(job.path),
        parent_checkpoint_id=checkpoint_id(scope.run_id, scope.ledger.seq),
        base=base,
        plan=plan,
        children={
            path: inner
            for path, inner in ({} if failed_at else scope.children_of(job.path)).items()
            # What starts from nothing has nothing inside.
            if plan is None or root_of(path) not in plan.reset
        },
        resumed_from=base.id if base is not None else None,
    )
    result = await scope.ports.run_child(job.node, start, run_id)
    usage: dict[str, Any] | None = result.checkpoint.get("metadata", {}).get("usage")
    if result.status != RunStatus.COMPLETED:
        # Kept here, so that a resume of this run finds what that one had done, wherever it takes place.
        # With its definition: a resume may bring another one, and has to see what has changed.
        assign = {"status": result.status, "checkpoint": unpack(result), "flow": flow.model_dump(mode="json")}
        scope.advance(job.path, "child_failed", assign=assign, usage=usage)
        error: dict[str, Any] = result.checkpoint.get("metadata", {}).get("error") or {}
        message = f"the flow {flow.id!r} failed in run {run_id!r}: {error.get('message', 'unknown error')}"
        raise NodeError({"type": "FlowFailed", "message": message, "child_run_id": run_id})
    output = {
        node_id: outcome.model_dump(mode="json", include={"status", "output", "error"})
        for node_id, outcome in result.output.items()
    }
    return NodeReply(output=output, internal_state={"child_run_id": run_id, "status": result.status}, usage=usage)
