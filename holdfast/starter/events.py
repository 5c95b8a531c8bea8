"""What a run's stream tells: events with numbers, so that a client that comes back misses nothing and sees none twice.

A transition is one event, and where the run lists a checkpoint for it, a second one says so. The numbers are made from
the transition's own, so every server gives the same ones: `2 * seq`, and one more for the checkpoint.
"""

from datetime import datetime
from typing import Any

from pydantic import BaseModel, Field

from holdfast.checkpoints.ledger import (
    InputReceived,
    InputReminded,
    InputRequested,
    NodeAdvanced,
    RunResumed,
    Transition,
    is_checkpoint,
)
from holdfast.flows.ids import checkpoint_id
from holdfast.flows.spec import CheckpointConfig
from holdfast.starter.showing import redact

_OWN = {"kind", "seq", "at", "path", "internal_state"}


class StreamEvent(BaseModel):
    """`id` is the offset to come back with. Tokens have none: to lose one is harmless, the whole text follows."""

    id: int | None = None
    event: str
    seq: int | None = None
    at: datetime | None = None
    path: str = ""
    data: dict[str, Any] = Field(default_factory=dict[str, Any])


def seq_before(after: int) -> int:
    """The transition after which to read, for a client that has seen the events up to number `after`."""
    return after // 2 - (after % 2 == 0 and after > 0)


def events_of(run_id: str, transition: Transition, config: CheckpointConfig) -> list[StreamEvent]:
    """The events of a transition, in their order."""
    known = checkpoint_id(run_id, transition.seq) if is_checkpoint(transition, config) else None
    common: dict[str, Any] = {"seq": transition.seq, "at": transition.at, "path": transition.path}
    name, data = _named(transition, known)
    events = [StreamEvent(id=2 * transition.seq, event=name, data=redact(data), **common)]
    if known is not None:
        said = {"checkpoint_id": known, "node_id": transition.path or None, "event": name}
        events.append(StreamEvent(id=2 * transition.seq + 1, event="checkpoint_created", data=said, **common))
    return events


def _named(transition: Transition, known: str | None) -> tuple[str, dict[str, Any]]:
    match transition:
        case InputRequested():
            request = transition.request
            asked = {"entity_id": request["path"], "prompt": request["prompt"], "request": request}
            return "approval", {**asked, "checkpoint_id": known, "is_resumed": request.get("is_resumed", False)}
        case InputReceived() | InputReminded():
            return transition.kind, transition.model_dump(mode="json", exclude=_OWN)
        case RunResumed():
            return "checkpoint_resumed", {"checkpoint_id": transition.checkpoint_id, "skipped_nodes": transition.kept}
        case NodeAdvanced():
            # The state itself is in the checkpoint; a stream says that it has moved, and where to.
            return transition.event, transition.detail
        case _:
            return transition.kind, transition.model_dump(mode="json", exclude=_OWN)
