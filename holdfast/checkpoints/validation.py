"""Finds every fault of a checkpoint. An invalid one is refused by name; nothing is started from it."""

from collections.abc import Sequence

from holdfast.checkpoints.models import SCHEMA_VERSION, CheckpointRecord, CheckpointStatus, NodeRecord, RunnableStatus

_STATUSES = frozenset(RunnableStatus)


class InvalidCheckpointError(ValueError):
    """Data that claims to be a checkpoint and cannot be used as one."""

    code = "checkpoint/invalid"

    def __init__(self, faults: Sequence[str]) -> None:
        self.faults = tuple(faults)
        super().__init__(f"[{self.code}] " + "; ".join(self.faults))


def validate_node_state(state: NodeRecord) -> list[str]:
    """Every fault of one node's state."""
    status, begun, ended = state.status, state.started_at, state.completed_at
    late = begun is not None and ended is not None and ended < begun
    failed = status == RunnableStatus.FAILURE
    if state.node_id and state.node_type and status in _STATUSES and not late and not (failed and not state.error):
        return []
    name = state.node_id or "without an id"
    faults = [
        f"node {name}: missing {field}" for field in ("node_id", "node_type", "status") if not getattr(state, field)
    ]
    if status and status not in _STATUSES:
        faults.append(f"node {name}: unknown status {status!r}")
    if failed and not state.error:
        faults.append(f"node {name}: failed without an error")
    if late:
        faults.append(f"node {name}: completed before it started")
    return faults


def validate_checkpoint(checkpoint: CheckpointRecord) -> list[str]:
    """Every fault of a checkpoint; an empty list means that it can be resumed from."""
    faults = [f"missing {field}" for field in ("id", "flow_id", "run_id") if not getattr(checkpoint, field)]
    if checkpoint.version != SCHEMA_VERSION:
        faults.append(f"unknown checkpoint version {checkpoint.version!r}; this library knows {SCHEMA_VERSION!r}")
    if checkpoint.sequence_number < 0:
        faults.append(f"negative sequence_number {checkpoint.sequence_number}")
    faults += _validate_nodes(checkpoint)
    waiting = checkpoint.pending_input_context
    if checkpoint.status == CheckpointStatus.PENDING_INPUT and waiting is None:
        faults.append("status is pending_input, but there is no pending_input_context")
    if checkpoint.status != CheckpointStatus.PENDING_INPUT and waiting is not None:
        faults.append(f"status is {checkpoint.status}, but there is a pending_input_context")
    return faults


def _validate_nodes(checkpoint: CheckpointRecord) -> list[str]:
    faults: list[str] = []
    completed = set(checkpoint.completed_node_ids)
    if len(completed) != len(checkpoint.completed_node_ids):
        faults.append("completed_node_ids lists a node twice")
    for node_id in checkpoint.completed_node_ids:
        state = checkpoint.node_states.get(node_id)
        if state is None:
            faults.append(f"completed node {node_id} missing from node_states")
        elif state.status in (RunnableStatus.RUNNING, RunnableStatus.UNDEFINED):
            faults.append(f"completed node {node_id} has status {state.status}")
    for node_id in checkpoint.pending_node_ids:
        if node_id in completed:
            faults.append(f"node {node_id} is both completed and pending")
    for key, state in checkpoint.node_states.items():
        if key != state.node_id:
            faults.append(f"node_states[{key!r}] describes node {state.node_id!r}")
        faults += validate_node_state(state)
    return faults


def ensure_valid(checkpoint: CheckpointRecord) -> None:
    """Raises InvalidCheckpointError with every fault."""
    if faults := validate_checkpoint(checkpoint):
        raise InvalidCheckpointError(faults)
