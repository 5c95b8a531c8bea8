"""Which runs come from which: the tree of resumes, forks, reruns and imports."""

from collections.abc import AsyncGenerator, Sequence

from pydantic import Field
from temporalio.client import Client, WorkflowExecution

from holdfast.contracts import names
from holdfast.flows.ids import split_checkpoint_id
from holdfast.starter.people import can_be_quoted, quoted
from holdfast.starter.reader import RunReader
from holdfast.starter.runs import RunInfo, info_of
from holdfast.starter.starting import FAMILY, Origin


class Member(RunInfo):
    """A run in its family. `parent_checkpoint_id` is where it comes from, `how` says in which way."""

    how: str | None = None
    parent_checkpoint_id: str | None = None
    children: list["Member"] = Field(default_factory=list["Member"])


async def members_of(client: Client, first: str) -> AsyncGenerator[WorkflowExecution]:
    """The runs of the family that began with this one, from the visibility store; one that was reset several times."""
    query = f"WorkflowType = '{names.FLOW_RUN}' AND ExecutionStatus != 'ContinuedAsNew'"
    if can_be_quoted(first):
        query += f" AND ({names.ATTRIBUTE_FAMILY} = '{quoted(first)}' OR WorkflowId = '{quoted(first)}')"
    async for execution in client.list_workflows(query):
        if first in (execution.id, execution.typed_search_attributes.get(FAMILY)):
            yield execution


async def family(client: Client, reader: RunReader, run_id: str) -> list[Member]:
    """The family of a run, oldest first, from the visibility store. Several trees when a common ancestor is gone."""
    known = await reader.describe(run_id)
    members: dict[str, Member] = {}
    async for execution in members_of(client, known.typed_search_attributes.get(FAMILY) or run_id):
        if execution.id in members:
            continue  # An older execution of a run that was reset.
        info = await info_of(execution)
        told = (await execution.memo()).get(names.MEMO_ORIGIN)
        origin = Origin.model_validate(told) if told else None
        members[execution.id] = Member(
            **info.model_dump(),
            how=origin.how if origin else None,
            parent_checkpoint_id=origin.checkpoint_id if origin else None,
        )
    return _grown(sorted(members.values(), key=lambda member: (member.started_at, member.run_id)))


def _grown(members: Sequence[Member]) -> list[Member]:
    by_id = {member.run_id: member for member in members}
    roots: list[Member] = []
    for member in members:
        parent = split_checkpoint_id(member.parent_checkpoint_id)[0] if member.parent_checkpoint_id else None
        if parent is not None and parent in by_id and parent != member.run_id:
            by_id[parent].children.append(member)
        else:
            roots.append(member)
    return roots
