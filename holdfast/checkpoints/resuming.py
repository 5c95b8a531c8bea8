"""What a new run keeps of an old one's checkpoint, and what it has to do again. Nothing is guessed: each is named."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from holdfast.checkpoints.items import asked_by
from holdfast.checkpoints.ledger import RunResumed
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus, NodeRecord, RunnableStatus
from holdfast.flows import graph
from holdfast.flows.check import dependencies
from holdfast.flows.ids import checkpoint_id, is_nested, root_of
from holdfast.flows.kinds import COMPOSITE
from holdfast.flows.spec import FlowSpec, NodeSpec

# What a node's result depends on. The rest says how it is run, shown or guarded, and may change freely.
_DECISIVE = ("depends", "join", "input_transformer", "output_transformer")


class ResumePlan(BaseModel):
    """What becomes of each node of a checkpoint.

    `kept` is never executed again. `forgotten` had begun or failed: it goes on from the state it was in. `reset` starts
    from nothing, because somebody wants it so, or what it was made from has changed. `fresh` is all that comes of such
    changes: new work, with new idempotency keys. `changed` goes on with another definition, and is approved anew.
    `warnings` name what has changed.
    """

    model_config = ConfigDict(extra="ignore")

    kept: list[str] = Field(default_factory=list[str])
    forgotten: list[str] = Field(default_factory=list[str])
    reset: list[str] = Field(default_factory=list[str])
    fresh: list[str] = Field(default_factory=list[str])
    edited: list[str] = Field(default_factory=list[str])
    changed: list[str] = Field(default_factory=list[str])
    warnings: list[str] = Field(default_factory=list[str])

    def transition(self, checkpoint: str, at: datetime) -> RunResumed:
        return RunResumed(
            at=at,
            checkpoint_id=checkpoint,
            kept=self.kept,
            forgotten=self.forgotten,
            reset=self.reset,
            edited=self.edited,
            changed=self.changed,
            warnings=self.warnings,
        )


def plan_resume(
    flow: FlowSpec,
    record: CheckpointRecord,
    *,
    before: FlowSpec | None = None,
    edited: Iterable[str] = (),
    rerun: Collection[str] = (),
    retried: Collection[str] = (),
    keep: Collection[str] = (),
) -> ResumePlan:
    """Restores in dependency order, so that what was skipped because of a failure is decided anew.

    `before` is the definition the checkpoint was made with; without it only a node's type can be compared. `edited`
    are addresses (`node:output.text`); `rerun` starts from nothing; `retried` goes on with what of it had failed;
    `keep` stays although its definition has changed.
    """
    return _Planner(flow, record, before, list(edited), rerun, retried, keep).plan()


class _Planner:
    def __init__(
        self,
        flow: FlowSpec,
        record: CheckpointRecord,
        before: FlowSpec | None,
        edited: list[str],
        rerun: Collection[str],
        retried: Collection[str],
        keep: Collection[str],
    ) -> None:
        self._nodes = {node.id: node for node in flow.nodes}
        self._before = {node.id: node for node in before.nodes} if before is not None else {}
        self._states = record.node_states
        self._completed = set(record.completed_node_ids)
        self._depends = dependencies(flow)
        self._outputs = {node for node, _, field in map(_parts, edited) if field.startswith("output")}
        self._inside = {root_of(node) for node, _, field in map(_parts, edited) if not field.startswith("output")}
        self._rerun = rerun
        self._retried = retried
        self._keep = keep
        self._plan = ResumePlan(edited=edited)
        # Done again or not done yet, or below such a node: what was skipped there is decided anew.
        self._open: set[str] = set()
        # Other than it was, or below such a node.
        self._changed: set[str] = set()
        # To be tried again, but not as it was: one key must not stand for two requests.
        self._other: set[str] = set()

    def plan(self) -> ResumePlan:
        warnings = self._plan.warnings
        warnings += [
            f"node {node_id!r} is no longer in the flow; its state is dropped"
            for node_id in self._states
            if root_of(node_id) not in self._nodes
        ]
        if self._before:
            added = [node_id for node_id in self._nodes if node_id not in self._before]
            warnings += [f"node {node_id!r} is new in the flow" for node_id in added]
        for node_id in graph.topological(self._depends):
            self._judge(self._nodes[node_id])
        # What is tried again is the same work; what a person has changed is not.
        other = (self._changed | self._other) - {*self._plan.kept, *self._retried}
        self._plan.fresh = [node_id for node_id in self._nodes if node_id in other]
        return self._plan

    def _judge(self, node: NodeSpec) -> None:
        plan, state, upstream = self._plan, self._states.get(node.id), self._depends[node.id]
        below_open = any(name in self._open for name in upstream)
        below_change = any(name in self._changed for name in upstream)
        if node.id in self._outputs:
            # Given by hand: it stands, whatever is above it, and what is below is made from it.
            self._changed.add(node.id)
            plan.kept.append(node.id)
            return
        if below_open or state is None:
            self._open.add(node.id)
        if below_change or node.id in self._rerun:
            self._changed.add(node.id)
        if state is None:
            return
        if self._reset(node, state, below_change=below_change):
            self._changed.add(node.id)
            self._open.add(node.id)
            plan.reset.append(node.id)
            return
        keep = node.id in self._completed and not (below_open and state.status == RunnableStatus.SKIP)
        (plan.kept if keep else plan.forgotten).append(node.id)
        if not keep:
            self._open.add(node.id)
        if node.id in self._inside or node.id in self._retried:
            self._changed.add(node.id)

    def _reset(self, node: NodeSpec, state: NodeRecord, *, below_change: bool) -> bool:
        if node.id in self._rerun:
            return True
        if below_change:
            self._plan.warnings.append(f"node {node.id!r} runs again: what it is made from changes")
            return True
        if state.node_type != node.type:
            self._plan.warnings.append(
                f"node {node.id!r} was a {state.node_type} and is a {node.type} now; it runs again"
            )
            return True
        different = self._different(node)
        if not different:
            return False
        what = ", ".join(different)
        if node.id in self._keep:
            self._plan.warnings.append(f"node {node.id!r} has changed ({what}); its old result is kept, as you wish")
            return False
        if node.id not in self._completed:
            self._plan.warnings.append(f"node {node.id!r} has changed ({what}); it goes on from where it was")
            self._plan.changed.append(node.id)
            if node.type not in COMPOSITE:
                self._other.add(node.id)
            return False
        self._plan.warnings.append(f"node {node.id!r} has changed ({what}); it runs again")
        return True

    def _different(self, node: NodeSpec) -> list[str]:
        old = self._before.get(node.id)
        if old is None or old == node:
            return []
        params = [f"params.{name}" for name in _unequal(old.params, node.params)]
        return [*params, *(name for name in _DECISIVE if getattr(old, name) != getattr(node, name))]


def _parts(address: str) -> tuple[str, str, str]:
    return address.partition(":")


def _unequal(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[str]:
    return [name for name in {**left, **right} if left.get(name) != right.get(name)]


def rebase(record: CheckpointRecord, flow: FlowSpec, run_id: str) -> CheckpointRecord:
    """The checkpoint as the base of a run with this id and definition. The sequence goes on where it was."""
    types = {node.id: node.type for node in flow.nodes}
    # What a node of another type has left behind would mean nothing to this one.
    states = {node_id: state for node_id, state in record.node_states.items() if types.get(node_id) == state.node_type}
    states |= {path: state for path, state in record.node_states.items() if is_nested(path) and root_of(path) in states}
    completed = [node_id for node_id in record.completed_node_ids if node_id in states]
    done = set(completed)
    metadata = {name: value for name, value in record.metadata.items() if name != "paused"}
    if asked := asked_by(record):
        metadata["asked_before"] = asked
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
