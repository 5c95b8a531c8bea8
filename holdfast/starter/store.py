"""The checkpoint store as the schema's other backends have it, over Temporal's visibility and history.

A checkpoint is part of its run's history and goes with it: what is deleted is always a whole run, with the flows inside
it and all its executions. A run that has not ended is never deleted: it may wait for somebody.
"""

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, Field
from temporalio.api.common.v1 import WorkflowExecution as Execution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import WorkflowExecution, WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.service import RPCError, RPCStatusCode

from holdfast.checkpoints.models import CheckpointStatus, CheckpointSummary, FlowCheckpoint
from holdfast.codecs.faults import DAMAGED, WORTH_WAITING
from holdfast.contracts import names
from holdfast.contracts.calls import Started
from holdfast.file_stores import stores_of
from holdfast.flows.ids import split_checkpoint_id, successor
from holdfast.starter.client import HoldfastClient
from holdfast.starter.errors import (
    InnerRunError,
    NoCheckpointError,
    NotAFlowError,
    PartOfRunError,
    RunActiveError,
    RunNotFoundError,
)
from holdfast.starter.families import members_of
from holdfast.starter.people import can_be_quoted, quoted
from holdfast.starter.rebuild import started_with
from holdfast.starter.run_blobs import RunBlobs
from holdfast.starter.run_files import delete_files
from holdfast.starter.starting import FLOW

_OURS = f"WorkflowType = '{names.FLOW_RUN}'"
_ENDED = "ExecutionStatus != 'Running' AND ExecutionStatus != 'ContinuedAsNew'"


@dataclass(frozen=True)
class Retention:
    """Which runs may go. `keep`: the newest of each flow that stay; `older_than`: how long a run has ended.

    With neither, each flow's own `checkpoint.retention_days` decides, and a flow without it keeps everything.
    """

    flow_id: str | None = None
    keep: int | None = None
    older_than: timedelta | None = None
    grace: timedelta = timedelta(days=1)
    """How old a blob has to be before it is swept because nothing refers to it."""
    deep: bool = False
    """Whether to look for such blobs in runs that are there and have ended, too: reads all their histories."""


class Collected(BaseModel):
    """What a clean-up found. `orphans` are flows inside a run that is there no more."""

    runs: list[str] = Field(default_factory=list[str])
    orphans: list[str] = Field(default_factory=list[str])
    kept_open: int = 0
    """Runs that have not ended, waiting and paused ones among them: never touched."""
    executions: int = 0
    blobs: int = 0
    """Blobs that nothing refers to: of runs that are gone, or left behind by a crash."""
    blob_bytes: int = 0
    dry_run: bool = False


class CheckpointStore:
    """List, load and delete over all runs of a namespace."""

    def __init__(self, client: HoldfastClient) -> None:
        self._client = client
        self._temporal = client.temporal
        self._blobs = RunBlobs(client.temporal)

    async def list_by_flow(
        self, flow_id: str, status: CheckpointStatus | None = None, limit: int = 10
    ) -> list[FlowCheckpoint]:
        """Checkpoints of all runs of a flow, newest first."""
        return [await self._client.get_checkpoint(entry.id) for entry in await self._newest(flow_id, status, limit)]

    async def get_latest(self, flow_id: str) -> FlowCheckpoint | None:
        found = await self.list_by_flow(flow_id, limit=1)
        return found[0] if found else None

    async def load(self, checkpoint_id: str) -> FlowCheckpoint | None:
        """By id; None when there is no such checkpoint."""
        try:
            return await self._client.get_checkpoint(checkpoint_id)
        except (RunNotFoundError, NoCheckpointError):
            return None

    async def delete(self, run_id: str) -> bool:
        """Deletes a run that has ended, with all that belongs to it. False when there is none."""
        run, seq = split_checkpoint_id(run_id)
        if seq is not None:
            raise PartOfRunError(run_id, run)
        try:
            known = await self._temporal.get_workflow_handle(run_id).describe()
        except RPCError as error:
            if error.status in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
                return False
            raise
        if known.workflow_type != names.FLOW_RUN:
            return False  # Somebody else's workflow, in the same namespace.
        if known.status == WorkflowExecutionStatus.RUNNING:
            raise RunActiveError(run_id)
        if known.parent_id is not None:
            raise InnerRunError(run_id, known.root_id or known.parent_id)
        await self._delete({run_id: known.run_id})
        return True

    async def cleanup(self, flow_id: str, keep_count: int) -> int:
        """Deletes the ended runs of a flow but the newest `keep_count`; how many went."""
        if keep_count < 0:
            raise ValueError(f"cannot keep {keep_count} runs of flow {flow_id!r}: to keep none, say 0")
        return len((await self.collect(Retention(flow_id, keep=keep_count))).runs)

    async def collect(self, retention: Retention | None = None, *, dry_run: bool = False) -> Collected:
        """Deletes what may go. Interrupted and begun again it ends in the same state: a run itself goes last."""
        wanted = retention or Retention()
        found = Collected(dry_run=dry_run)
        kept: dict[str, int] = {}
        only = f" AND {names.ATTRIBUTE_FLOW} = '{quoted(wanted.flow_id)}'" if wanted.flow_id is not None else ""
        found.kept_open = await self._count(
            f"{_OURS} AND ParentWorkflowId IS NULL AND ExecutionStatus = 'Running'{only}"
        )
        going: dict[str, str] = {}
        async for run in self._temporal.list_workflows(f"{_OURS} AND ParentWorkflowId IS NULL AND {_ENDED}{only}"):
            if await self._may_go(run, wanted, kept):
                going.setdefault(run.id, run.run_id)
        orphans = await self._orphans() if wanted.flow_id is None else {}
        found.runs, found.orphans = list(going), list(orphans)
        for run_id in (*going, *orphans):
            found.executions += len(await self._executions(run_id))
        if not dry_run:
            await self._delete(going, orphans)
        if wanted.flow_id is None:
            await self._sweep(found, wanted)
        return found

    async def _sweep(self, found: Collected, wanted: Retention) -> None:
        unneeded = await self._blobs.unneeded(_now() - wanted.grace, self._ended_at, deep=wanted.deep)
        found.blobs, found.blob_bytes = len(unneeded), sum(blob.size for blob in unneeded)
        if not found.dry_run:
            await self._blobs.sweep(unneeded, wanted.grace)

    async def _ended_at(self, run_id: str) -> datetime | None:
        known = await self._described(run_id)
        if known is None:
            raise LookupError(run_id)
        return known.close_time

    async def _may_go(self, run: WorkflowExecution, wanted: Retention, kept: dict[str, int]) -> bool:
        flow = run.typed_search_attributes.get(FLOW) or ""
        if wanted.keep is not None and await self._was_reset(run):
            return False  # It is none of those that are kept.
        if wanted.keep is not None:
            kept[flow] = kept.get(flow, 0) + 1
            if kept[flow] <= wanted.keep:
                return False
        older_than = wanted.older_than
        if wanted.keep is None and older_than is None:
            try:
                days = (await started_with(self._temporal, run.id)).flow.checkpoint.retention_days
            except RunNotFoundError:
                return False  # Somebody has deleted it since it was listed.
            except (NotAFlowError, *DAMAGED, *WORTH_WAITING):
                return False  # Nothing says that it may go.
            if days is None:
                return False
            older_than = timedelta(days=days)
        old = older_than is None or (run.close_time is not None and run.close_time <= _now() - older_than)
        return old and (wanted.keep is not None or not await self._was_reset(run))

    async def _was_reset(self, run: WorkflowExecution) -> bool:
        """Whether it is an execution that a reset has ended. Its run goes on in another one, which may be open."""
        known = await self._described(run.id)
        return known is not None and known.run_id != run.run_id

    async def _orphans(self) -> dict[str, str]:
        """Ended flows inside a run whose outermost run is gone, each with its last execution."""
        there: dict[str, bool] = {}
        found: dict[str, str] = {}
        async for run in self._temporal.list_workflows(f"{_OURS} AND ParentWorkflowId IS NOT NULL AND {_ENDED}"):
            root = run.root_id or run.parent_id or run.id
            if root not in there:
                there[root] = await self._exists(root)
            if not there[root] and not await self._was_reset(run):
                found.setdefault(run.id, run.run_id)
        return found

    async def _described(self, run_id: str) -> WorkflowExecutionDescription | None:
        """As Temporal has it, and no more: what the run itself has left there may be unreadable."""
        try:
            return await self._temporal.get_workflow_handle(run_id).describe()
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise

    async def _exists(self, run_id: str) -> bool:
        return await self._described(run_id) is not None

    async def _count(self, query: str) -> int:
        return (await self._temporal.count_workflows(query)).count

    async def _executions(self, run_id: str) -> list[WorkflowExecution]:
        """Those of a run and of all inside it, as they are listed. What no query can name is looked for among all."""
        name = quoted(run_id)
        query = f"RootWorkflowId = '{name}' OR WorkflowId = '{name}'" if can_be_quoted(run_id) else _OURS
        return [run async for run in self._temporal.list_workflows(query) if run_id in (run.id, run.root_id)]

    async def _delete(self, runs: Mapping[str, str], orphans: Mapping[str, str] | None = None) -> None:
        """Runs that have ended, each with the execution that it is found by."""
        ended = {**runs, **(orphans or {})}
        owners = {*ended}
        for run_id in runs:
            within = {run.id for run in await self._executions(run_id)} - {run_id}
            await self._delete_files(run_id, within, going=runs)
            owners |= within
        blobs = await self._blobs.release(owners)
        for run_id, last in ended.items():
            await self._delete_executions(await self._executions(run_id), run_id, last)
        # Interrupted before this, a later clean-up sweeps what is left.
        await self._blobs.delete(blobs)

    async def _delete_files(self, run_id: str, within: Collection[str], going: Mapping[str, str]) -> None:
        """Not those of orphans: who has taken their outputs over could only be found by the run that is gone."""
        started: dict[str, Started] = {}
        for owner in (run_id, *within):
            # Of a run that cannot be read nobody knows which files it has; it may go all the same.
            with contextlib.suppress(RunNotFoundError, NotAFlowError, *DAMAGED, *WORTH_WAITING):
                started[owner] = await started_with(self._temporal, owner)
        flows = {owner: known.flow for owner, known in started.items() if stores_of(known.flow)}
        if flows:
            family = (started[run_id].family if run_id in started else None) or run_id
            others = await self._others(run_id, family, going)
            await delete_files(flows, self._temporal.namespace, family, going[run_id], others)

    async def _others(self, run_id: str, family: str, going: Collection[str]) -> dict[str, str]:
        """Who of its family stays. Listings lag: who resumed it is asked for by name, and each whether it is there."""
        listed = [member.id async for member in members_of(self._temporal, family)]
        named = dict.fromkeys([successor(run_id), *listed])
        asked = {other: await self._described(other) for other in named if other not in (run_id, *going)}
        return {other: known.run_id for other, known in asked.items() if known is not None}

    async def _delete_executions(self, listed: Collection[WorkflowExecution], run_id: str, last: str) -> None:
        inside = sorted((run.start_time, run.id, run.run_id) for run in listed if run.id != run_id)
        # Not one that is open: somebody has deleted the run meanwhile, and its id was taken again.
        ended = [run for run in listed if run.id == run_id and run.status != WorkflowExecutionStatus.RUNNING]
        earlier = sorted((run.start_time, run.id, run.run_id) for run in ended if run.run_id != last)
        # What is inside goes first: interrupted here, the run is still found, and taken up again. What it is found by
        # goes last, also where it is not listed yet.
        for _, workflow_id, execution in (*inside, *earlier):
            await self._delete_execution(workflow_id, execution)
        await self._delete_execution(run_id, last)

    async def _delete_execution(self, workflow_id: str, execution: str) -> None:
        request = DeleteWorkflowExecutionRequest(
            namespace=self._temporal.namespace,
            workflow_execution=Execution(workflow_id=workflow_id, run_id=execution),
        )
        try:
            await self._temporal.workflow_service.delete_workflow_execution(request)
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise

    async def _newest(self, flow_id: str, status: CheckpointStatus | None, limit: int) -> list[CheckpointSummary]:
        if limit <= 0:
            return []
        found: list[CheckpointSummary] = []
        seen: set[str] = set()
        cursor: str | None = None
        while True:
            runs, cursor = await self._client.page_of_runs(flow_id, limit=50, cursor=cursor)
            for run in runs:
                if run.run_id in seen:
                    continue  # An older execution of a run that was reset.
                seen.add(run.run_id)
                if len(found) >= limit and run.closed_at is not None and run.closed_at < found[limit - 1].created_at:
                    continue  # It ended before the oldest of those that are wanted.
                entries = await self._client.list_checkpoints(run.run_id)
                found += [entry for entry in entries if status is None or entry.status == status]
                found.sort(key=_newest_first)
            if cursor is None:
                return found[:limit]


def _now() -> datetime:
    return datetime.now(UTC)


def _newest_first(entry: CheckpointSummary) -> Any:
    return (-entry.created_at.timestamp(), -entry.sequence_number)
