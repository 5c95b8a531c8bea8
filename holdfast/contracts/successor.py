"""What a failed run leaves for the one that takes its place: its argument, ready to be passed on unread.

A resume would otherwise read the checkpoint, verify it, and write it again for the new run, which reads it once more.
"""

import hashlib
from typing import Any

from pydantic_core import to_json

from holdfast.checkpoints.models import LIBRARY_VERSION, CheckpointRecord
from holdfast.checkpoints.resuming import ResumePlan, plan_resume
from holdfast.contracts.calls import FlowStart, RunConfig, Wire
from holdfast.flows.ids import root_of, split_checkpoint_id
from holdfast.flows.spec import FlowSpec

_LARGEST = 256 * 1024
"""Beyond it the checkpoint is read: Temporal takes two megabytes in a closing event, which has it once already."""
_MOST_LISTED = 50


class Shown(Wire):
    """What is told of a run before anybody reads its argument. `details` is Markdown for the Temporal Web UI."""

    flow_id: str
    nodes: int
    summary: str
    details: str


def shown(flow: FlowSpec) -> Shown:
    lines = [flow.description or f"Flow `{flow.id}`", "", "| node | type | after |", "| --- | --- | --- |"]
    for node in flow.nodes[:_MOST_LISTED]:
        after = ", ".join(dependency.node for dependency in node.depends)
        lines.append(f"| {node.id} | {node.type} | {after} |")
    if len(flow.nodes) > _MOST_LISTED:
        lines.append(f"\n… and {len(flow.nodes) - _MOST_LISTED} more nodes")
    summary = (flow.name or flow.id)[:200]
    return Shown(flow_id=flow.id, nodes=len(flow.nodes), summary=summary, details="\n".join(lines))


class Successor(Wire):
    """All that is read of the argument by whoever passes it on. Another version's may have to be migrated first."""

    library: str
    checkpoint_id: str
    family: str | None = None
    shown: Shown
    plan: ResumePlan
    sha256: str
    flow_sha256: str

    def fits(self, argument: bytes) -> bool:
        return self.library == LIBRARY_VERSION and _digest(argument) == self.sha256

    def serves(self, seq: int | None, flow: FlowSpec | None) -> bool:
        """Whether it is for this checkpoint (None: the latest), and the definition given, if any, is the one it has."""
        if seq is not None and seq != split_checkpoint_id(self.checkpoint_id)[1]:
            return False
        return flow is None or _digest(to_json(flow)) == self.flow_sha256


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def successor_of(
    flow: FlowSpec, config: RunConfig, record: CheckpointRecord, key_base: str, family: str | None
) -> tuple[Successor, bytes] | None:
    """For a resume without changes; None where it has to look at other runs first, or the argument is large."""
    completed = set(record.completed_node_ids)
    inside = (state.internal_state for path, state in record.node_states.items() if root_of(path) not in completed)
    if any(map(has_runs, inside)):
        return None
    plan = plan_resume(flow, record)
    start = FlowStart(flow=flow, config=config, base=record, resumed_from=record.id, plan=plan, key_base=key_base)
    argument = to_json(start)
    if len(argument) > _LARGEST:
        return None
    head = Successor(
        library=LIBRARY_VERSION,
        checkpoint_id=record.id,
        family=family,
        shown=shown(flow),
        plan=plan,
        sha256=_digest(argument),
        flow_sha256=_digest(to_json(flow)),
    )
    return head, argument


def has_runs(internal_state: dict[str, Any]) -> bool:
    """Whether a node has runs inside, which know more of it."""
    return "child_run_id" in internal_state or bool(internal_state.get("children"))
