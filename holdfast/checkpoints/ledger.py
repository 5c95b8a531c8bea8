"""The one idea: everything that happens in a run is a transition, and a checkpoint is a fold over transitions.

Pure data and pure functions. A transition is never changed once recorded; a state shares the values of the
transitions it was folded from, so they must not be changed either.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from holdfast.checkpoints.items import asked_by
from holdfast.checkpoints.models import (
    CheckpointRecord,
    CheckpointStatus,
    CheckpointSummary,
    NodeRecord,
    PendingInputRecord,
    RunnableStatus,
)
from holdfast.flows.ids import checkpoint_id, is_nested, is_within, root_of
from holdfast.flows.spec import CheckpointConfig


class _Base(BaseModel):
    model_config = ConfigDict(extra="ignore")

    at: datetime
    seq: int = 0
    path: str = ""


class RunStarted(_Base):
    kind: Literal["run_started"] = "run_started"


class RunResumed(_Base):
    """The run goes on from another run's checkpoint.

    `kept` will not be executed again, `forgotten` goes on from the state it was in, `reset` starts from nothing.
    `edited` says what a person has changed on the way. `changed` goes on with another definition: who has approved it
    has approved something else.
    """

    kind: Literal["run_resumed"] = "run_resumed"
    checkpoint_id: str
    kept: list[str] = Field(default_factory=list[str])
    forgotten: list[str] = Field(default_factory=list[str])
    reset: list[str] = Field(default_factory=list[str])
    edited: list[str] = Field(default_factory=list[str])
    changed: list[str] = Field(default_factory=list[str])
    warnings: list[str] = Field(default_factory=list[str])


class NodeStarted(_Base):
    kind: Literal["node_started"] = "node_started"
    node_type: str
    input_data: Any = None
    internal_state: dict[str, Any] = Field(default_factory=dict[str, Any])


class NodeCompleted(_Base):
    kind: Literal["node_completed"] = "node_completed"
    output_data: Any = None
    internal_state: dict[str, Any] = Field(default_factory=dict[str, Any])
    attempts: int = 1
    cached: bool = False
    warnings: list[str] = Field(default_factory=list[str])
    usage: dict[str, Any] | None = None


class NodeAdvanced(_Base):
    """A step inside a node that has several: an agent's loop, a tool's result, an item of a map, a state of a graph.

    `event` says which. The step changes the node's `internal_state`: fields are assigned, lists extended, mappings
    merged. `forget` names a path inside the node whose own state is no longer needed, because its result is in here.
    """

    kind: Literal["node_advanced"] = "node_advanced"
    event: str
    assign: dict[str, Any] = Field(default_factory=dict[str, Any])
    extend: dict[str, list[Any]] = Field(default_factory=dict[str, list[Any]])
    merge: dict[str, dict[str, Any]] = Field(default_factory=dict[str, dict[str, Any]])
    forget: str | None = None
    usage: dict[str, Any] | None = None
    detail: dict[str, Any] = Field(default_factory=dict[str, Any])


class InputRequested(_Base):
    """A person is asked. `request` has the fields of `contracts.people.HumanRequest`."""

    kind: Literal["input_requested"] = "input_requested"
    request: dict[str, Any]


class InputReminded(_Base):
    """The answer is still missing: a reminder is due, or with `overdue` the deadline has passed and it waits on."""

    kind: Literal["input_reminded"] = "input_reminded"
    request_id: str
    number: int
    overdue: bool = False


class InputReceived(_Base):
    """The question is closed: answered by a person, by its deadline (`by: deadline`), or handed on to somebody else."""

    kind: Literal["input_received"] = "input_received"
    request_id: str
    answer: dict[str, Any]


class RunPaused(_Base):
    kind: Literal["run_paused"] = "run_paused"
    by: str | None = None


class RunContinued(_Base):
    kind: Literal["run_continued"] = "run_continued"
    by: str | None = None


class NodeFailed(_Base):
    """`handled`: the flow goes on (an error edge, or a behaviour of `return` or `skip`), and a resume keeps it so."""

    kind: Literal["node_failed"] = "node_failed"
    error: dict[str, Any]
    internal_state: dict[str, Any] = Field(default_factory=dict[str, Any])
    attempts: int = 1
    handled: bool = False


class NodeSkipped(_Base):
    """`blocked`: because something upstream failed unhandled. The node is still to do, and a resume decides anew."""

    kind: Literal["node_skipped"] = "node_skipped"
    node_type: str
    reason: str
    blocked: bool = False


class RunCompleted(_Base):
    kind: Literal["run_completed"] = "run_completed"


class RunFailed(_Base):
    kind: Literal["run_failed"] = "run_failed"
    error: dict[str, Any]


class RunCancelled(_Base):
    kind: Literal["run_cancelled"] = "run_cancelled"


Transition = Annotated[
    RunStarted
    | RunResumed
    | NodeStarted
    | NodeCompleted
    | NodeAdvanced
    | InputRequested
    | InputReminded
    | InputReceived
    | RunPaused
    | RunContinued
    | NodeFailed
    | NodeSkipped
    | RunCompleted
    | RunFailed
    | RunCancelled,
    Field(discriminator="kind"),
]

_ANSWERED = 1000
_DONE = {"node_completed", "node_failed", "node_skipped"}
# Steps that are listed as checkpoints: always, and only when the author wants those inside a node as well.
_STATES = {"state_completed", "task_completed", "batch_completed"}
_INSIDE = {"loop_completed", "iteration_completed"}


def apply(state: CheckpointRecord, transition: Transition) -> None:
    """Moves `state`, which the caller owns, one transition on."""
    if transition.seq != state.sequence_number + 1:
        raise ValueError(f"transition {transition.seq} cannot follow {state.sequence_number}: the ledger has a hole")
    state.sequence_number = transition.seq
    state.id = checkpoint_id(state.run_id, transition.seq)
    state.created_at = state.updated_at = transition.at
    match transition:
        case NodeStarted():
            state.node_states[transition.path] = NodeRecord(
                node_id=transition.path,
                node_type=transition.node_type,
                status=RunnableStatus.RUNNING,
                input_data=transition.input_data,
                internal_state=transition.internal_state,
                started_at=transition.at,
            )
        case NodeCompleted():
            _finish(state, transition, RunnableStatus.SUCCESS, output_data=transition.output_data, done=True)
            _add_usage(state, transition.usage)
        case NodeAdvanced():
            _advance(state, transition)
        case NodeFailed():
            _finish(state, transition, RunnableStatus.FAILURE, error=transition.error, done=transition.handled)
        case NodeSkipped():
            state.node_states[transition.path] = NodeRecord(
                node_id=transition.path,
                node_type=transition.node_type,
                status=RunnableStatus.SKIP,
                error=skipped(transition.reason),
                completed_at=transition.at,
            )
            if not transition.blocked:
                _complete(state, transition.path)
        case InputRequested() | InputReminded() | InputReceived():
            _ask(state, transition)
        case RunPaused():
            state.metadata["paused"] = {"at": transition.at.isoformat(), "by": transition.by}
            _wait(state)
        case RunContinued():
            state.metadata.pop("paused", None)
            _wait(state)
        case RunStarted():
            state.status = CheckpointStatus.ACTIVE
        case RunResumed():
            _resume(state, transition)
        case RunCompleted():
            state.status = CheckpointStatus.COMPLETED
        case RunFailed():
            _close_inputs(state)
            state.status = CheckpointStatus.FAILED
            state.metadata["error"] = transition.error
        case RunCancelled():
            _close_inputs(state)
            state.status = CheckpointStatus.FAILED
            state.metadata["error"] = {"type": "cancelled", "message": "the run was cancelled"}


def skipped(reason: str) -> dict[str, Any]:
    """Why a node was skipped, where other nodes' errors are."""
    return {"type": "skipped", "message": reason}


def _finish(
    state: CheckpointRecord,
    transition: NodeCompleted | NodeFailed,
    status: RunnableStatus,
    *,
    done: bool,
    **fields: Any,
) -> None:
    before = state.node_states[transition.path]
    state.node_states[transition.path] = before.model_copy(
        update={
            "status": status,
            "completed_at": transition.at,
            "attempts": transition.attempts,
            "internal_state": transition.internal_state,
            **fields,
        }
    )
    _forget_approvals(state, transition.path)
    if done and not is_nested(transition.path):
        _complete(state, transition.path)


def _forget_approvals(state: CheckpointRecord, path: str) -> None:
    """An approval is for one execution; what comes after it has to be approved again."""
    known: dict[str, Any] = state.metadata.get("approvals") or {}
    if known:
        state.metadata["approvals"] = {name: given for name, given in known.items() if not is_within(name, path)}


def _advance(state: CheckpointRecord, transition: NodeAdvanced) -> None:
    before = state.node_states[transition.path]
    known = before.internal_state
    now = {**known, **transition.assign}
    now |= {name: [*(known.get(name) or []), *items] for name, items in transition.extend.items()}
    now |= {name: {**(known.get(name) or {}), **entries} for name, entries in transition.merge.items()}
    state.node_states[transition.path] = before.model_copy(update={"internal_state": now})
    if transition.forget is not None:
        inside = [path for path in state.node_states if is_within(path, transition.forget)]
        for path in inside:
            del state.node_states[path]
        _forget_approvals(state, transition.forget)
    _add_usage(state, transition.usage)


def _ask(state: CheckpointRecord, transition: InputRequested | InputReminded | InputReceived) -> None:
    match transition:
        case InputRequested():
            state.pending_inputs[transition.request["id"]] = transition.request
        case InputReminded():
            known = state.pending_inputs[transition.request_id]
            said = {"reminded": transition.number, "overdue": transition.overdue}
            state.pending_inputs[transition.request_id] = {**known, **said}
        case InputReceived():
            request = state.pending_inputs.pop(transition.request_id)
            answer = transition.answer
            if request["kind"] == "approval" and answer.get("is_approved"):
                known: dict[str, Any] = state.metadata.get("approvals") or {}
                state.metadata["approvals"] = {**known, request["path"]: {**answer, "about": request.get("data")}}
            closed = {"path": request["path"], "by": answer.get("by"), "at": transition.at.isoformat()}
            # Who comes late is told who was first; after a thousand others nobody asks any more.
            recent = list(state.answered_inputs.items())[-_ANSWERED + 1 :]
            state.answered_inputs = {**dict(recent), transition.request_id: closed}
    _wait(state)


def _close_inputs(state: CheckpointRecord) -> None:
    """Nobody waits for an answer any more. A resume asks again, and says that it does."""
    if asked := asked_by(state):
        state.metadata["asked_before"] = asked
    state.pending_inputs = {}
    state.pending_input_context = None
    state.metadata.pop("paused", None)


def _wait(state: CheckpointRecord) -> None:
    """Whom the run waits for, as the schema says it: one status, and the first of the open questions."""
    first = next(iter(state.pending_inputs.values()), None)
    if "paused" in state.metadata:
        state.status = CheckpointStatus.PAUSED
    else:
        state.status = CheckpointStatus.PENDING_INPUT if first is not None else CheckpointStatus.ACTIVE
    waiting = first is not None and state.status == CheckpointStatus.PENDING_INPUT
    state.pending_input_context = (
        PendingInputRecord(
            node_id=first["path"], prompt=first["prompt"], timestamp=first["created_at"], metadata={"request": first}
        )
        if waiting and first is not None
        else None
    )


def _add_usage(state: CheckpointRecord, usage: dict[str, Any] | None) -> None:
    """What all model calls of the run have used. A sum without a known price stays without one."""
    if not usage:
        return
    known: dict[str, Any] = state.metadata.get("usage") or {}
    state.metadata["usage"] = add_usage(known, usage)


def add_usage(known: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of two usages, field by field."""
    total = dict(known)
    for name, value in more.items():
        if value is not None:
            total[name] = (total.get(name) or 0) + value
    return total


def _complete(state: CheckpointRecord, path: str) -> None:
    state.completed_node_ids.append(path)
    if path in state.pending_node_ids:
        state.pending_node_ids.remove(path)


def _resume(state: CheckpointRecord, transition: RunResumed) -> None:
    state.status = CheckpointStatus.ACTIVE
    state.parent_checkpoint_id = transition.checkpoint_id
    state.metadata.pop("error", None)
    for node_id in transition.forgotten:
        known = state.node_states.pop(node_id, None)
        if known is not None and known.internal_state:
            # The state of an unfinished node is given back to it; its old outcome is not.
            state.node_states[node_id] = known.model_copy(
                update={"status": RunnableStatus.UNDEFINED, "output_data": None, "error": None, "completed_at": None}
            )
    forgotten = set(transition.forgotten)
    for path, inside in state.node_states.items():
        if is_nested(path) and root_of(path) in forgotten and inside.status == RunnableStatus.RUNNING:
            state.node_states[path] = inside.model_copy(update={"status": RunnableStatus.UNDEFINED})
    for node_id in transition.reset:
        for path in [path for path in state.node_states if is_within(path, node_id)]:
            del state.node_states[path]
    for node_id in (*transition.reset, *transition.changed):
        _forget_approvals(state, node_id)
    again = dict.fromkeys([*transition.forgotten, *transition.reset])
    state.completed_node_ids = [node_id for node_id in state.completed_node_ids if node_id not in again]
    known_pending = set(state.pending_node_ids)
    state.pending_node_ids += [node_id for node_id in again if node_id not in known_pending]


def fold(base: CheckpointRecord, transitions: Iterable[Transition]) -> CheckpointRecord:
    """The state after `transitions`; `base` is left as it was."""
    state = base.fork()
    for transition in transitions:
        apply(state, transition)
    return state


def is_checkpoint(transition: Transition, config: CheckpointConfig) -> bool:
    """Whether the author wants a checkpoint listed after this transition. The state exists at every one of them."""
    if not config.enabled or transition.kind in ("run_started", "node_started"):
        return False
    if root_of(transition.path) in config.exclude_nodes:
        return False
    if transition.kind == "node_advanced":
        return config.checkpoint_mid_agent_loop if transition.event in _INSIDE else transition.event in _STATES
    if transition.kind in ("input_requested", "input_received", "run_paused", "run_continued"):
        return True
    if is_nested(transition.path) or transition.kind == "input_reminded":
        return False
    if transition.kind in _DONE:
        return config.checkpoint_on_failure if transition.kind == "node_failed" else config.checkpoint_after_node
    if transition.kind == "run_failed":
        return config.checkpoint_on_failure
    return True


def summaries(
    base: CheckpointRecord, transitions: Sequence[Transition], config: CheckpointConfig
) -> list[CheckpointSummary]:
    """The listed checkpoints, oldest first."""
    found: list[CheckpointSummary] = []
    state = base.fork()
    for transition in transitions:
        apply(state, transition)
        if is_checkpoint(transition, config):
            found.append(
                CheckpointSummary(
                    id=state.id,
                    sequence_number=state.sequence_number,
                    status=state.status,
                    created_at=transition.at,
                    event=transition.event if isinstance(transition, NodeAdvanced) else transition.kind,
                    node_id=transition.path or None,
                    detail=transition.detail if isinstance(transition, NodeAdvanced) else {},
                    completed=len(state.completed_node_ids),
                    total=len(state.completed_node_ids) + len(state.pending_node_ids),
                )
            )
    return found


class Ledger:
    """The transitions of one execution since its base, and the state they have led to."""

    def __init__(self, base: CheckpointRecord) -> None:
        self._base = base
        self._transitions: list[Transition] = []
        self.state = base.fork()

    @property
    def seq(self) -> int:
        return self.state.sequence_number

    @property
    def base_seq(self) -> int:
        return self._base.sequence_number

    def record(self, transition: Transition) -> None:
        """Numbers the transition and moves the state on."""
        transition.seq = self.seq + 1
        apply(self.state, transition)
        self._transitions.append(transition)

    def since(self, seq: int, limit: int | None = None) -> Sequence[Transition]:
        """Transitions after `seq`, oldest first."""
        start = max(0, seq - self.base_seq)
        return self._transitions[start : None if limit is None else start + limit]

    def at(self, seq: int | None = None) -> CheckpointRecord:
        """The state after transition `seq` (now, when None); LookupError when this execution does not have it."""
        if seq is None:
            return self.state.fork()
        if not self.base_seq <= seq <= self.seq:
            raise LookupError(f"there is no checkpoint {seq}: this execution has {self.base_seq} to {self.seq}")
        return fold(self._base, self._transitions[: seq - self.base_seq])

    def checkpoint(self, seq: int | None = None) -> CheckpointRecord:
        """As `at`, but what the run was resumed from is another run's: it does not know what was to become of it."""
        if seq == self.base_seq and self._transitions and isinstance(self._transitions[0], RunResumed):
            raise LookupError(f"there is no checkpoint {seq}: this execution has {self.base_seq + 1} to {self.seq}")
        return self.at(seq)

    def summaries(self, config: CheckpointConfig) -> list[CheckpointSummary]:
        """The checkpoints the author wants listed, oldest first."""
        return summaries(self._base, self._transitions, config)
