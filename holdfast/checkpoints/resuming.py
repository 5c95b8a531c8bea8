"""What a new run keeps of an old one's checkpoint, and what it has to do again. Nothing is guessed: each is named."""

from dataclasses import dataclass, field
from datetime import datetime

from holdfast.checkpoints.ledger import RunResumed
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus, RunnableStatus
from holdfast.flows import graph
from holdfast.flows.check import dependencies
from holdfast.flows.ids import checkpoint_id, is_nested, root_of
from holdfast.flows.spec import FlowSpec


@dataclass(frozen=True)
class ResumePlan:
    """`kept` is never executed again; `forgotten` had begun or failed and is; `warnings` name what changed."""

    kept: list[str] = field(default_factory=list[str])
    forgotten: list[str] = field(default_factory=list[str])
    warnings: list[str] = field(default_factory=list[str])

    def transition(self, checkpoint: str, at: datetime) -> RunResumed:
        return RunResumed(
            at=at, checkpoint_id=checkpoint, kept=self.kept, forgotten=self.forgotten, warnings=self.warnings
        )


def plan_resume(flow: FlowSpec, record: CheckpointRecord) -> ResumePlan:
    """Restores in dependency order, so that what was skipped because of a failure is decided anew."""
    depends = dependencies(flow)
    types = {node.id: node.type for node in flow.nodes}
    kept: list[str] = []
    forgotten: list[str] = []
    warnings = [
        f"node {node_id!r} is no longer in the flow; its state is dropped"
        for node_id in record.node_states
        if root_of(node_id) not in types
    ]
    completed = set(record.completed_node_ids)
    # Whatever is done again, or has such a node upstream.
    affected: set[str] = set()
    for node_id in graph.topological(depends):
        state = record.node_states.get(node_id)
        downstream = any(name in affected for name in depends[node_id])
        if downstream or state is None:
            affected.add(node_id)
        if state is None:
            continue
        if state.node_type != types[node_id]:
            warnings.append(f"node {node_id!r} was a {state.node_type} and is a {types[node_id]} now; it runs again")
            keep = False
        else:
            keep = node_id in completed and not (downstream and state.status == RunnableStatus.SKIP)
        (kept if keep else forgotten).append(node_id)
        if not keep:
            affected.add(node_id)
    return ResumePlan(kept, forgotten, warnings)


def rebase(record: CheckpointRecord, flow: FlowSpec, run_id: str) -> CheckpointRecord:
    """The checkpoint as the base of a run with this id and definition. The sequence goes on where it was."""
    types = {node.id: node.type for node in flow.nodes}
    # What a node of another type has left behind would mean nothing to this one.
    states = {node_id: state for node_id, state in record.node_states.items() if types.get(node_id) == state.node_type}
    states |= {path: state for path, state in record.node_states.items() if is_nested(path) and root_of(path) in states}
    completed = [node_id for node_id in record.completed_node_ids if node_id in states]
    done = set(completed)
    metadata = {name: value for name, value in record.metadata.items() if name != "paused"}
    if record.pending_inputs:
        metadata["asked_before"] = [request["path"] for request in record.pending_inputs.values()]
    return record.fork(
        id=checkpoint_id(run_id, record.sequence_number),
        run_id=run_id,
        flow_id=flow.id,
        status=CheckpointStatus.ACTIVE,
        node_states=states,
        completed_node_ids=completed,
        pending_node_ids=[node_id for node_id in types if node_id not in done],
        pending_input_context=None,
        pending_inputs={},
        checksum=None,
        metadata=metadata,
    )
