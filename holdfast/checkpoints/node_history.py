"""How one node came to be what it is: every transition that changed it, and what it changed."""

from collections.abc import Iterable
from datetime import datetime

from pydantic import BaseModel, ConfigDict

from holdfast.checkpoints.diff import Change, node_changes
from holdfast.checkpoints.ledger import (
    NodeAdvanced,
    NodeCompleted,
    NodeFailed,
    NodeSkipped,
    NodeStarted,
    RunResumed,
    Transition,
    apply,
)
from holdfast.checkpoints.models import CheckpointRecord, NodeRecord
from holdfast.flows.ids import checkpoint_id, is_nested, is_within
from holdfast.flows.shapes import is_object

_ABOUT_A_NODE = NodeStarted | NodeAdvanced | NodeCompleted | NodeFailed | NodeSkipped
_NAMED = 20


class NodeMoment(BaseModel):
    """A transition that changed the node. `status` is None where its own state is no longer kept."""

    model_config = ConfigDict(extra="ignore")

    sequence_number: int
    checkpoint_id: str
    at: datetime
    event: str
    status: str | None
    changes: list[Change]


def node_history(
    base: CheckpointRecord, transitions: Iterable[Transition], path: str, field: str | None = None
) -> list[NodeMoment]:
    """How the node at `path`, or one field of it, went through a run, oldest first; `base` is left as it was.

    `field` has the names that `diff` gives. Only what concerns the node is folded, so the rest of a long run costs
    nothing. LookupError when the run never had such a node.
    """
    alone = {path: base.node_states[path]} if path in base.node_states else {}
    state = base.fork(node_states=alone)
    known = dict.fromkeys([*base.completed_node_ids, *base.pending_node_ids, *base.node_states])
    moments: list[NodeMoment] = []
    for transition in transitions:
        if isinstance(transition, NodeStarted | NodeSkipped):
            known[transition.path] = None
        before = state.node_states.get(path)
        _follow(state, transition, path)
        after = state.node_states.get(path)
        if changes := node_changes(*_thinned(before, after, transition), field):
            moments.append(
                NodeMoment(
                    sequence_number=transition.seq,
                    checkpoint_id=checkpoint_id(base.run_id, transition.seq),
                    at=transition.at,
                    event=transition.event if isinstance(transition, NodeAdvanced) else transition.kind,
                    status=None if after is None else str(after.status),
                    changes=changes,
                )
            )
    if path not in known:
        raise LookupError(_unknown(path, list(known)))
    return moments


def _follow(state: CheckpointRecord, transition: Transition, path: str) -> None:
    """Moves a state that has only the node at `path` one transition on."""
    about = isinstance(transition, _ABOUT_A_NODE) and transition.path == path
    if about or isinstance(transition, RunResumed) or transition.seq != state.sequence_number + 1:
        apply(state, transition)  # Also where the ledger has a hole: it is refused there.
        return
    state.sequence_number = transition.seq
    if isinstance(transition, NodeAdvanced) and transition.forget is not None and is_within(path, transition.forget):
        state.node_states.pop(path, None)


def _thinned(
    before: NodeRecord | None, after: NodeRecord | None, transition: Transition
) -> tuple[NodeRecord | None, NodeRecord | None]:
    """The node before and after a step, of large mappings only the entries that the step has merged.

    A map of thousands of items has as many steps; the other items are the same by construction.
    """
    if before is None or after is None or before is after or not isinstance(transition, NodeAdvanced):
        return before, after
    merged = {
        name: entries
        for name, entries in transition.merge.items()
        # An object of one such name would look like the marked form of something else.
        if is_object(before.internal_state.get(name)) and not any(key.startswith("__") for key in entries)
    }

    def thin(record: NodeRecord) -> NodeRecord:
        inside = record.internal_state
        parts = {
            name: {key: inside[name][key] for key in entries if key in inside[name]} for name, entries in merged.items()
        }
        return record.model_copy(update={"internal_state": {**inside, **parts}})

    return thin(before), thin(after)


def _unknown(path: str, known: list[str]) -> str:
    known.sort(key=is_nested)  # The flow's own nodes first: a map may have thousands inside.
    more = f" and {len(known) - _NAMED} more" if len(known) > _NAMED else ""
    owner, _, item = path.rpartition("[")
    # An item that is one call has no states of its own.
    field = f"; what came of an item is in 'iterations[{item}' of {owner!r}" if item and owner in known else ""
    return f"the run never had a node {path!r}; it has: {', '.join(known[:_NAMED]) or 'none'}{more}{field}"
