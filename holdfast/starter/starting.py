"""Starting a run, new or from a checkpoint: the one place that knows what a run is given besides its argument."""

from typing import Literal

from pydantic import BaseModel
from temporalio.client import Client
from temporalio.common import (
    RawValue,
    SearchAttributeKey,
    SearchAttributePair,
    TypedSearchAttributes,
    WorkflowIDReusePolicy,
)
from temporalio.exceptions import WorkflowAlreadyStartedError

from holdfast.checkpoints.models import RunStatus
from holdfast.contracts import names
from holdfast.contracts.calls import FlowStart
from holdfast.contracts.successor import Shown
from holdfast.flows.ids import split_checkpoint_id
from holdfast.starter.errors import BadRunIdError, RunExistsError

STATUS = SearchAttributeKey.for_keyword(names.ATTRIBUTE_STATUS)
FLOW = SearchAttributeKey.for_keyword(names.ATTRIBUTE_FLOW)
FAMILY = SearchAttributeKey.for_keyword(names.ATTRIBUTE_FAMILY)


class Origin(BaseModel):
    """Where a run comes from, found without reading it. `family` is the first run of them all."""

    how: Literal["resume", "fork", "rerun", "import"]
    checkpoint_id: str
    family: str
    key: str | None = None


async def start_run(
    client: Client,
    task_queue: str,
    argument: FlowStart | RawValue,
    shown: Shown,
    run_id: str,
    origin: Origin | None = None,
    done: int = 0,
) -> None:
    """RunExistsError when there is one of this id, open or closed; BadRunIdError when nobody would find it by it."""
    if split_checkpoint_id(run_id)[1] is not None:
        raise BadRunIdError(run_id)
    attributes = [SearchAttributePair(FLOW, shown.flow_id), SearchAttributePair(STATUS, RunStatus.RUNNING)]
    memo: dict[str, object] = {names.MEMO_PROGRESS: {"done": done, "total": shown.nodes, "skipped": 0, "failed": 0}}
    if origin is not None:
        attributes.append(SearchAttributePair(FAMILY, origin.family))
        memo[names.MEMO_ORIGIN] = origin.model_dump(mode="json")
    try:
        await client.start_workflow(
            names.FLOW_RUN,
            argument,
            id=run_id,
            task_queue=task_queue,
            id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
            search_attributes=TypedSearchAttributes(attributes),
            memo=memo,
            static_summary=shown.summary,
            static_details=shown.details,
            request_eager_start=True,
        )
    except WorkflowAlreadyStartedError as error:
        raise RunExistsError(run_id) from error
