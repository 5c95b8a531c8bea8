"""Time travel: any checkpoint as the beginning of a new run.

A *resume* takes the place of a run that has ended; a run has one at most, whose id follows from its own, so that of
two who try it at once Temporal lets one win. A *fork* goes its own way beside the old run, as often as one likes.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import RawValue

from holdfast.checkpoints import values
from holdfast.checkpoints.editing import apply_edits, retry_failed
from holdfast.checkpoints.items import carry_items
from holdfast.checkpoints.ledger import add_usage
from holdfast.checkpoints.models import CheckpointRecord, FlowCheckpoint, NodeRecord, RunStatus
from holdfast.checkpoints.resuming import ResumePlan, plan_resume
from holdfast.checkpoints.serial import seal, unseal_record
from holdfast.contracts import names
from holdfast.contracts.calls import FlowStart, Given, InnerRun, RunConfig, Started
from holdfast.contracts.successor import Shown, has_runs, shown
from holdfast.flows.check import ensure
from holdfast.flows.ids import RunId, checkpoint_id, is_within, root_of, split_checkpoint_id, successor
from holdfast.flows.spec import FlowSpec, NodeSpec
from holdfast.starter.errors import (
    AlreadyResumedError,
    InnerRunError,
    NoCheckpointError,
    NoDefinitionError,
    NoSuchNodeError,
    OtherFlowError,
    RunActiveError,
    RunExistsError,
    RunNotFoundError,
)
from holdfast.starter.people import quoted
from holdfast.starter.reader import RunReader
from holdfast.starter.rebuild import argument_of, started_with
from holdfast.starter.starting import FAMILY, Origin, start_run

_KEYS = uuid.UUID("1d2f8a64-3a5b-5d0e-8c57-5b0c3f1c9e02")


@dataclass(frozen=True)
class Changes:
    """What is to be different in the new run.

    `edits` maps addresses to values (`checkpoints.editing`). `rerun` names nodes that start from nothing, with all that
    comes after them; with `only_failed` they are maps, of which only the failed items run. `keep` names nodes whose
    result is kept although their definition has changed.
    """

    flow: FlowSpec | None = None
    input_data: Any = None
    edits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    rerun: Sequence[str] = ()
    only_failed: bool = False
    keep: Sequence[str] = ()

    @property
    def are_none(self) -> bool:
        """But for the definition, which may be given and be the one that the run had."""
        return self.input_data is None and not (self.edits or self.rerun or self.keep)


@dataclass(frozen=True)
class NewRun:
    """A run that was started from a checkpoint. `created`: False when the same key has started it before."""

    run_id: str
    plan: ResumePlan
    created: bool = True


@dataclass(frozen=True)
class Source:
    """All that a new run needs of an old one."""

    record: CheckpointRecord
    flow: FlowSpec | None = None
    config: RunConfig = field(default_factory=RunConfig)
    children: Mapping[str, InnerRun] = field(default_factory=dict[str, InnerRun])
    family: str | None = None
    ended: bool = True
    lost: Sequence[str] = ()


class Traveller:
    """Starts runs from checkpoints."""

    def __init__(self, client: Client, reader: RunReader, task_queue: str) -> None:
        self._client = client
        self._reader = reader
        self._task_queue = task_queue

    async def resume(
        self, checkpoint: str | FlowCheckpoint, changes: Changes | None = None, key: str | None = None
    ) -> NewRun:
        """Takes the place of a run that has ended. AlreadyResumedError names the run that has done so before."""
        changes = changes or Changes()
        # Mostly it is a run that failed, which has left everything in its last event.
        run, seq = split_checkpoint_id(checkpoint) if isinstance(checkpoint, str) else (None, None)
        closing = await self._reader.closing(run) if run is not None else None
        left = await self._reader.successor(closing) if closing is not None and changes.are_none else None
        if run is not None and left is not None and left[0].serves(seq, changes.flow):
            head, argument = left
            origin = Origin(how="resume", checkpoint_id=head.checkpoint_id, family=head.family or run, key=key)
            return await self._begin(_unread(argument), head.shown, head.plan, successor(run), origin)
        try:
            source = await self._source(checkpoint, resume=True, closing=closing)
        except NoCheckpointError:
            if run is None or seq is not None or changes != Changes():
                raise
            return await self._resume_unbegun(run, key)
        start = _start(source, changes)
        old = source.record.run_id
        # The same keys for the same work: an effect whose reply was lost is not had twice.
        if start.input_data is None:
            start.key_base = _key_base(source)
        return await self._begin_from(start, successor(old), self._origin("resume", source, key))

    async def _resume_unbegun(self, run: RunId, key: str | None) -> NewRun:
        """A run that was ended before any worker took it up stands where it was to begin."""
        known, start = await asyncio.gather(started_with(self._client, run), argument_of(self._client, run, FlowStart))
        if known.outer is not None:
            raise InnerRunError(run, known.outer)
        start.key_base = start.key_base or run
        at = checkpoint_id(run, start.base.sequence_number if start.base is not None else 0)
        origin = Origin(how="resume", checkpoint_id=at, family=known.family or run, key=key)
        return await self._begin_from(start, successor(run), origin)

    async def fork(
        self,
        checkpoint: str | FlowCheckpoint,
        changes: Changes | None = None,
        *,
        run_id: str | None = None,
        key: str | None = None,
    ) -> NewRun:
        """A new run beside the old one, which may be running. With a `key`, the same key again is the same fork."""
        changes = changes or Changes()
        source = await self._source(checkpoint)
        start = _start(source, changes)
        if changes.rerun and changes.only_failed and source.ended:
            # Tried again, not done anew: the keys stay.
            start.key_base = _key_base(source)
        if run_id is None:
            run_id = f"{start.flow.id}-{uuid.uuid5(_KEYS, f'{source.record.run_id} {key}') if key else uuid.uuid4()}"
        how = "rerun" if changes.rerun else "fork"
        return await self._begin_from(start, run_id, self._origin(how, source, key))

    async def plan(
        self, checkpoint: str | FlowCheckpoint, changes: Changes | None = None, *, resume: bool = False
    ) -> ResumePlan:
        """What would become of each node, without starting anything; with `resume`, what refuses one is said, too."""
        source = await self._source(checkpoint, resume=resume)
        plan = _start(source, changes or Changes()).plan or ResumePlan()
        if resume:
            old = source.record.run_id
            with contextlib.suppress(RunNotFoundError):
                await self._reader.describe(successor(old))
                raise AlreadyResumedError(old, successor(old))
        return plan

    async def start_from(self, source: Source, run_id: str, *, key: str, paused: bool, changes: Changes) -> NewRun:
        """A run from a checkpoint that came from elsewhere, or from here. The same again is the same run."""
        source = replace(source, family=await self._family(source.record.run_id) or source.family)
        start = _start(source, changes)
        start.paused = paused
        start.key_base = _key_base(source)
        return await self._begin_from(start, run_id, self._origin("import", source, key))

    async def source(self, checkpoint: str) -> Source:
        """A checkpoint with all that belongs to it; a run's id means its latest."""
        return await self._source(checkpoint)

    async def _begin_from(self, start: FlowStart, run_id: str, origin: Origin) -> NewRun:
        return await self._begin(start, shown(start.flow), start.plan or ResumePlan(), run_id, origin)

    async def _begin(
        self, argument: FlowStart | RawValue, shown: Shown, plan: ResumePlan, run_id: str, origin: Origin
    ) -> NewRun:
        try:
            await start_run(self._client, self._task_queue, argument, shown, run_id, origin, len(plan.kept))
        except RunExistsError:
            taken = await self._taken(run_id)
            old = split_checkpoint_id(origin.checkpoint_id)[0]
            if taken is None or split_checkpoint_id(taken.checkpoint_id)[0] != old:
                raise
            if origin.key is None or taken.key != origin.key:
                raise AlreadyResumedError(old, run_id) if origin.how == "resume" else RunExistsError(run_id) from None
            return NewRun(run_id, plan, created=False)
        return NewRun(run_id, plan)

    def _origin(self, how: Any, source: Source, key: str | None) -> Origin:
        record = source.record
        return Origin(how=how, checkpoint_id=record.id, family=source.family or record.run_id, key=key)

    async def _family(self, run_id: str) -> str | None:
        """That of a run that may be here or not. A flow inside a run is of the outer run's: their files go together."""
        with contextlib.suppress(RunNotFoundError):
            known = await self._reader.describe(run_id)
            if known.parent_id is not None and known.root_id is not None:
                return await self._family(known.root_id) or known.root_id
            return known.typed_search_attributes.get(FAMILY)
        return None

    async def _taken(self, run_id: str) -> Origin | None:
        """Where the run that has this id comes from; None when it comes from no other."""
        known = (await (await self._reader.describe(run_id)).memo()).get(names.MEMO_ORIGIN)
        return Origin.model_validate(known) if known else None

    async def _source(
        self, checkpoint: str | FlowCheckpoint, *, resume: bool = False, closing: HistoryEvent | None = None
    ) -> Source:
        if isinstance(checkpoint, FlowCheckpoint):
            return await self._given(unseal_record(seal(checkpoint)), resume=resume)
        run, seq = split_checkpoint_id(checkpoint)
        left = await self._reader.left_behind(closing) if closing is not None else None
        ended = left is not None
        if left is not None and seq in (None, left[0].sequence_number):
            record, start = left
        else:
            known, start = await asyncio.gather(self._reader.describe(run), started_with(self._client, run))
            ended = known.status != WorkflowExecutionStatus.RUNNING
            if resume and not ended:
                raise RunActiveError(run)
            if seq is None:
                record = await self._reader.latest_record(run, known)
            else:
                record = unseal_record(await self._reader.at(run, seq, known))
        if resume and start.outer is not None:
            raise InnerRunError(run, start.outer)
        moment = None if seq is None else await self._moment(record, ended=ended)
        record, children, lost = await self._with_children(record, moment)
        return Source(record, start.flow, start.config, children, await self._family_of(start), ended, lost)

    async def _given(self, record: CheckpointRecord, *, resume: bool) -> Source:
        """A checkpoint that the caller holds. Its run may be here or not."""
        try:
            known = await self._reader.describe(record.run_id)
        except RunNotFoundError:
            return Source(record)
        ended = known.status != WorkflowExecutionStatus.RUNNING
        if resume and not ended:
            raise RunActiveError(record.run_id)
        start = await started_with(self._client, record.run_id)
        if resume and start.outer is not None:
            raise InnerRunError(record.run_id, start.outer)
        record, children, lost = await self._with_children(record, await self._moment(record, ended=ended))
        return Source(record, start.flow, start.config, children, await self._family_of(start), ended, lost)

    async def _family_of(self, start: Started) -> str | None:
        """A flow inside a run is of the outer run's family: their files go together."""
        return start.family if start.outer is None else await self._family(start.outer) or start.outer

    async def _moment(self, record: CheckpointRecord, *, ended: bool) -> datetime | None:
        """When flows inside are looked at: None is as they are now, which is what a run's last checkpoint means."""
        if ended and any(has_runs(state.internal_state) for _, state in _unfinished(record)):
            last = await self._reader.latest_record(record.run_id)
            return None if last.sequence_number == record.sequence_number else record.updated_at
        return record.updated_at

    async def _with_children(
        self, record: CheckpointRecord, moment: datetime | None
    ) -> tuple[CheckpointRecord, dict[str, InnerRun], list[str]]:
        """The flows inside it that had not ended, as they were then, and where one was that is there no more."""
        found: dict[str, InnerRun] = {}
        lost: list[str] = []
        given: dict[str, InnerRun] | None = None
        record = await self._with_batches(record, moment)
        for path, state in _unfinished(record):
            inside = state.internal_state
            if "child_run_id" not in inside or ("checkpoint" in inside and inside["status"] == RunStatus.FAILED):
                continue
            own = inside["child_run_id"].startswith(f"{record.run_id}/")
            inner = await self._inner(inside["child_run_id"], moment) if own else None
            if "checkpoint" in inside:
                # It has failed before, and was begun again from there.
                if inner is None or inner.checkpoint.sequence_number <= inside["checkpoint"]["sequence_number"]:
                    continue
                record = record.fork()
                gone_on = {name: value for name, value in inside.items() if name not in ("checkpoint", "flow")}
                record.node_states[path] = state.model_copy(update={"internal_state": gone_on})
            if inner is None:
                # This run had not begun it yet: it is where the run that this one comes from had left it.
                given = (await argument_of(self._client, record.run_id, Given)).children if given is None else given
                before = {name: known for name, known in given.items() if is_within(name, path)}
                found |= before
                lost += [path] if own and not before else []
                continue
            checkpoint, below, gone = await self._with_children(inner.checkpoint, moment)
            found[path] = inner.model_copy(update={"checkpoint": checkpoint})
            found |= {f"{path}/{name}": known for name, known in below.items()}
            lost += [f"{path}/{name}" for name in gone]
        return record, found, lost

    async def _with_batches(self, record: CheckpointRecord, moment: datetime | None) -> CheckpointRecord:
        """With what the batches of its maps had done. An item of a batch may be a map with batches of its own."""
        for path, state in _unfinished(record):
            batches: dict[str, dict[str, Any]] = state.internal_state.get("children") or {}
            for child, known in batches.items():
                if known["status"] == RunStatus.COMPLETED:
                    continue
                own = child.startswith(f"{record.run_id}/")
                batch = await self._inner(child, moment) if own else None
                record = _without_batch(record, path, child)
                if batch is not None:
                    checkpoint = await self._with_batches(batch.checkpoint, moment)
                    record = _absorb(record, path, batch.flow.nodes[0], checkpoint)
        return record

    async def _inner(self, run_id: str, moment: datetime | None) -> InnerRun | None:
        try:
            if moment is not None:
                return await self._inner_at(run_id, moment)
            record = await self._reader.latest_record(run_id)
            start = await started_with(self._client, run_id)
        except (RunNotFoundError, NoCheckpointError):
            return None
        return InnerRun(flow=start.flow, checkpoint=record)

    async def _inner_at(self, run_id: str, moment: datetime) -> InnerRun | None:
        with contextlib.suppress(NoCheckpointError):
            flow, record = await self._reader.as_of(run_id, moment)
            return InnerRun(flow=flow, checkpoint=record)
        # What is tried again is begun again under its id: what it had done before is in another history.
        query = f"WorkflowId = '{quoted(run_id)}' AND StartTime <= '{moment.isoformat()}'"
        begun = [(known.start_time, known.run_id) async for known in self._client.list_workflows(query)]
        for _, execution in sorted(begun, reverse=True):
            with contextlib.suppress(NoCheckpointError):
                flow, record = await self._reader.as_of(run_id, moment, execution)
                return InnerRun(flow=flow, checkpoint=record)
        return None


def _unread(argument: bytes) -> RawValue:
    return RawValue(Payload(metadata={"encoding": b"json/plain"}, data=argument))


def _key_base(source: Source) -> str:
    return source.record.metadata.get("key_base") or source.record.run_id


def _start(source: Source, changes: Changes) -> FlowStart:
    """The new run's argument and what it will do. Everything that can be wrong is said here, before anything runs."""
    record, run_id = source.record, source.record.run_id
    # The definition that a run had was checked when it began.
    flow = ensure(changes.flow) if changes.flow is not None else source.flow
    if flow is None:
        raise NoDefinitionError(run_id)
    if changes.flow is not None:
        ensure_belongs(flow, run_id, record.node_states)
    known = [node.id for node in flow.nodes]
    for node_id in [*changes.rerun, *changes.keep]:
        if node_id not in known:
            raise NoSuchNodeError(run_id, f"its flow has no node {node_id!r}; it has: {', '.join(known)}")
    if changes.only_failed:
        for node_id in changes.rerun:
            record = retry_failed(record, node_id)
    record = apply_edits(flow, record, changes.edits)
    plan = plan_resume(
        flow,
        record,
        before=source.flow if changes.flow is not None else None,
        edited=changes.edits,
        rerun=() if changes.only_failed else changes.rerun,
        retried=changes.rerun if changes.only_failed else (),
        keep=changes.keep,
    )
    if source.flow is None:
        # Nobody knows what it was that somebody has approved.
        plan.changed = list(plan.forgotten)
    plan.warnings += [
        f"the flow inside {path!r} is there no more; it starts from its beginning" for path in source.lost
    ]
    return FlowStart(
        flow=flow,
        input_data=values.encode(changes.input_data, "input"),
        config=source.config,
        base=record,
        resumed_from=record.id,
        plan=plan,
        # What starts from nothing has nothing inside.
        children={path: known for path, known in source.children.items() if root_of(path) not in plan.reset},
    )


def ensure_belongs(flow: FlowSpec, run_id: str, states: Iterable[str]) -> None:
    """A flow that has nothing of what a checkpoint is about was taken by mistake: all of it would run anew."""
    had, has = list(dict.fromkeys(map(root_of, states))), [node.id for node in flow.nodes]
    if had and not {*had} & {*has}:
        raise OtherFlowError(run_id, flow.id, had, has)


def _unfinished(record: CheckpointRecord) -> list[tuple[str, NodeRecord]]:
    completed = set(record.completed_node_ids)
    return [(path, state) for path, state in record.node_states.items() if root_of(path) not in completed]


def _without_batch(record: CheckpointRecord, path: str, batch: str) -> CheckpointRecord:
    """The map without one of its batches: it is not to be looked at once more when the new run is resumed in turn."""
    state, without = record.node_states[path], record.fork()
    inside = state.internal_state
    others = {name: known for name, known in inside["children"].items() if name != batch}
    without.node_states[path] = state.model_copy(update={"internal_state": {**inside, "children": others}})
    return without


def _absorb(record: CheckpointRecord, path: str, node: NodeSpec, batch: CheckpointRecord) -> CheckpointRecord:
    """The map with what one of its batches, a run of its own, had done by then, also of the items it had not done."""
    indices: list[int] = node.params["indices"]
    there = batch.node_states.get(node.id)
    if there is None:
        return record
    failed: dict[str, Any] = there.internal_state.get("failed_iterations") or {}
    done: dict[str, Any] | None = there.internal_state.get("completed_iterations")
    if done is None:
        # It has ended, and has its results in its output alone.
        output: list[Any] = there.output_data["output"] if there.output_data else []
        done = {str(index): item for index, item in zip(indices, output, strict=False) if str(index) not in failed}
    state = record.node_states[path]
    inside = state.internal_state
    merged = {
        **inside,
        "completed_iterations": {**inside["completed_iterations"], **done},
        "failed_iterations": {**inside["failed_iterations"], **failed},
    }
    usage = add_usage(record.metadata.get("usage") or {}, batch.metadata.get("usage") or {})
    taken = record.fork(metadata={**record.metadata, **({"usage": usage} if usage else {})})
    taken.node_states[path] = state.model_copy(update={"internal_state": merged})
    carry_items(batch, node.id, taken, path, indices)
    return taken
