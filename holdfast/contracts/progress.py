"""How far a run is, counted as it goes, and said in Markdown for the Temporal Web UI."""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from holdfast.checkpoints.ledger import (
    NodeAdvanced,
    NodeCompleted,
    NodeFailed,
    NodeSkipped,
    NodeStarted,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunResumed,
    Transition,
)
from holdfast.checkpoints.models import CheckpointRecord, RunnableStatus
from holdfast.flows.ids import is_nested, root_of
from holdfast.flows.spec import FlowSpec

_SHOWN = 15
_MESSAGE = 200


class Progress:
    """Follows the ledger. Costs the same at every transition, however large the flow is."""

    def __init__(self, flow: FlowSpec, base: CheckpointRecord) -> None:
        self._flow = flow
        self._total = len(flow.nodes)
        states = [known for path, known in base.node_states.items() if not is_nested(path)]
        self._done = set(base.completed_node_ids)
        self._skipped = {known.node_id for known in states if known.status == RunnableStatus.SKIP}
        self._running = {known.node_id: known.node_type for known in states if known.status == RunnableStatus.RUNNING}
        self._failed = {
            known.node_id: _first_line(known.error) for known in states if known.status == RunnableStatus.FAILURE
        }
        self._last = ""
        self._state = "running"

    def note(self, transition: Transition) -> None:
        if isinstance(transition, NodeAdvanced):
            self._step(transition)
        elif not is_nested(transition.path):
            self._note(transition)

    def _step(self, transition: NodeAdvanced) -> None:
        """Where a node with several steps is."""
        path, detail = root_of(transition.path), transition.detail
        if path != transition.path or path not in self._running:
            return
        if "loop" in detail:
            self._running[path] = f"loop {detail['loop']} of {detail['max_loops']}"
        elif "total" in detail and "done" in detail:
            self._running[path] = f"{detail['done']} of {detail['total']}"
        elif "state" in detail:
            self._running[path] = f"after state {detail['state']}"

    def _note(self, transition: Transition) -> None:
        match transition:
            case NodeStarted():
                self._running[transition.path] = transition.node_type
            case NodeCompleted():
                self._running.pop(transition.path, None)
                self._done.add(transition.path)
                self._last = transition.path
            case NodeFailed():
                self._running.pop(transition.path, None)
                self._failed[transition.path] = _first_line(transition.error)
                if transition.handled:
                    self._done.add(transition.path)
            case NodeSkipped():
                if not transition.blocked:
                    self._done.add(transition.path)
                self._skipped.add(transition.path)
            case RunResumed():
                for node_id in transition.forgotten:
                    self._forget(node_id)
            case RunCompleted():
                self._state = "completed"
            case RunFailed():
                self._state = "failed"
            case RunCancelled():
                self._state = "cancelled"
            case _:
                pass

    def _forget(self, node_id: str) -> None:
        self._done.discard(node_id)
        self._skipped.discard(node_id)
        self._running.pop(node_id, None)
        self._failed.pop(node_id, None)

    def counts(self) -> dict[str, int]:
        return {
            "done": len(self._done),
            "total": self._total,
            "skipped": len(self._skipped),
            "failed": len(self._failed),
        }

    def markdown(self) -> str:
        name, done = self._flow.name or self._flow.id, len(self._done)
        lines = [f"**{name}** is {self._state}: {done} of {self._total} nodes done"]
        if self._skipped:
            lines[0] += f" ({len(self._skipped)} skipped)"
        if self._last:
            lines.append(f"- last done: `{self._last}`")
        for title, entries in (("running", self._running), ("failed", self._failed)):
            shown = [f"`{path}` {text}".rstrip() for path, text in islice(entries.items(), _SHOWN)]
            if shown:
                more = f" and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
                lines.append(f"- {title}: " + ", ".join(shown) + more)
        return "\n".join(lines)


def _first_line(error: Mapping[str, Any] | None) -> str:
    """A list entry is one line; the whole message is in the checkpoint."""
    lines = str((error or {}).get("message", "")).splitlines()
    return lines[0][:_MESSAGE] if lines else ""
