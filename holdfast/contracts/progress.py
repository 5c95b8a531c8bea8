"""How far a run is, counted as it goes, and said in Markdown for the Temporal Web UI."""

from itertools import islice

from holdfast.checkpoints.ledger import (
    NodeCompleted,
    NodeFailed,
    NodeSkipped,
    NodeStarted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    Transition,
)
from holdfast.checkpoints.models import CheckpointRecord
from holdfast.flows.spec import FlowSpec

_SHOWN = 15


class Progress:
    """Follows the ledger. Costs the same at every transition, however large the flow is."""

    def __init__(self, flow: FlowSpec, base: CheckpointRecord) -> None:
        self._flow = flow
        self._total = len(flow.nodes)
        self._done = len(base.completed_node_ids)
        self._skipped = 0
        self._running: dict[str, str] = {}
        self._failed: dict[str, str] = {}
        self._last = ""
        self._state = "running"

    def note(self, transition: Transition) -> None:
        match transition:
            case NodeStarted():
                self._running[transition.path] = transition.node_type
            case NodeCompleted():
                self._running.pop(transition.path, None)
                self._done += 1
                self._last = transition.path
            case NodeFailed():
                self._running.pop(transition.path, None)
                self._failed[transition.path] = str(transition.error.get("message", ""))
                self._done += transition.handled
            case NodeSkipped():
                self._done += 1
                self._skipped += 1
            case RunCompleted():
                self._state = "completed"
            case RunFailed():
                self._state = "failed"
            case RunCancelled():
                self._state = "cancelled"
            case _:
                pass

    def counts(self) -> dict[str, int]:
        return {"done": self._done, "total": self._total, "skipped": self._skipped, "failed": len(self._failed)}

    def markdown(self) -> str:
        lines = [f"**{self._flow.name or self._flow.id}** is {self._state}: {self._done} of {self._total} nodes done"]
        if self._skipped:
            lines[0] += f" ({self._skipped} skipped)"
        if self._last:
            lines.append(f"- last done: `{self._last}`")
        for title, entries in (("running", self._running), ("failed", self._failed)):
            shown = [f"`{path}` {text}".rstrip() for path, text in islice(entries.items(), _SHOWN)]
            if shown:
                more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
                lines.append(f"- {title}: " + ", ".join(shown) + more)
        return "\n".join(lines)
