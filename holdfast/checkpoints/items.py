"""Items of a map that somebody was in the middle of, on their way between a run and its batches.

A batch is a run of its own, and a new run makes other batches. What is known of an item's inside goes along with it, so
that an agent in its third loop does not begin anew.
"""

from collections.abc import Collection
from typing import Any

from holdfast.checkpoints.models import CheckpointRecord
from holdfast.flows.ids import item_of


def carry_items(
    source: CheckpointRecord, at: str, target: CheckpointRecord, to: str, indices: Collection[int]
) -> list[str]:
    """Puts what `source` knows of the insides of these items onto `target`, in place of what that one knows of them.

    `at` and `to` are the map's paths in the two; `target` is the caller's own. Returns where the states are now.
    """
    wanted = set(map(str, indices))

    def moved(known: dict[str, Any]) -> dict[str, Any]:
        return {f"{to}{path.removeprefix(at)}": value for path, value in known.items() if item_of(path, at) in wanted}

    def others(known: dict[str, Any]) -> dict[str, Any]:
        return {path: value for path, value in known.items() if item_of(path, to) not in wanted}

    states = {path: state.model_copy(update={"node_id": path}) for path, state in moved(source.node_states).items()}
    target.node_states = {**others(target.node_states), **states}
    approvals = {**others(_approvals(target)), **moved(_approvals(source))}
    asked = {**others(dict.fromkeys(asked_by(target))), **moved(dict.fromkeys(asked_by(source)))}
    target.metadata |= {"approvals": approvals} if approvals else {}
    target.metadata |= {"asked_before": list(asked)} if asked else {}
    return list(states)


def _approvals(record: CheckpointRecord) -> dict[str, Any]:
    return record.metadata.get("approvals") or {}


def asked_by(record: CheckpointRecord) -> list[str]:
    """Where somebody has been asked: who goes on from here asks again, and says so."""
    open_now = [request["path"] for request in record.pending_inputs.values()]
    return list(dict.fromkeys([*record.metadata.get("asked_before", []), *open_now]))
