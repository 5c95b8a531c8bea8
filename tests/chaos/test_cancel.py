"""Cancelling a run reaches the nodes that are under way, and leaves a checkpoint that is read without a worker."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError, WorkflowHandle
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import CancelledError

from holdfast.checkpoints.models import RunStatus
from holdfast.checkpoints.serial import unseal
from holdfast.contracts.calls import FlowResult, RunConfig
from holdfast.contracts.names import ATTRIBUTE_STATUS, MEMO_SNAPSHOT
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from tests.chaos.harness import Stage, result_of, start_run, until

STATUS = SearchAttributeKey.for_keyword(ATTRIBUTE_STATUS)
FLOW = read_flow("""
id: cancelled
nodes:
  first: {type: Work}
  sync: {type: Long, steps: 600, depends: first}
  async: {type: LongAsync, steps: 600, depends: first}
  plain: {type: WorkAsync, seconds: 60, depends: first}
  wait: {type: delay, seconds: 600, depends: first}
  never: {type: Work, depends: [sync, async, plain, wait]}
""")


async def snapshot(handle: WorkflowHandle[Any, FlowResult]) -> Any:
    return unseal((await (await handle.describe()).memo())[MEMO_SNAPSHOT])


async def cancelled(handle: WorkflowHandle[Any, FlowResult]) -> None:
    with pytest.raises(WorkflowFailureError) as caught:
        await result_of(handle)
    assert isinstance(caught.value.cause, CancelledError)
    description = await handle.describe()
    assert description.status == WorkflowExecutionStatus.CANCELED
    assert description.typed_search_attributes.get(STATUS) == RunStatus.CANCELLED


@pytest.mark.req("RT-1")
async def test_cancelling_a_run_ends_its_nodes_and_leaves_a_checkpoint(
    client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    worker = await stage.start_worker(temporal.address).ready()
    handle = await start_run(client, stage, FLOW, config=RunConfig(heartbeat_seconds=4))

    def begun() -> bool:
        long = all(stage.entries(handle.id, node, "step") for node in ("sync", "async"))
        return long and bool(stage.entries(handle.id, "plain", "started"))

    await until(begun, "the long nodes to be under way")
    await handle.cancel()
    await cancelled(handle)

    await until(lambda: len(stage.entries(handle.id, event="cancelled")) == 3, "the nodes to end", seconds=20)
    nodes = [entry.node for entry in stage.entries(handle.id, event="cancelled")]
    assert sorted(nodes) == ["async", "plain", "sync"]
    steps = len(stage.entries(handle.id, event="step"))
    await asyncio.sleep(1)
    assert len(stage.entries(handle.id, event="step")) == steps
    assert not [entry for entry in stage.entries(handle.id, event="finished") if entry.node != "first"]

    # Nobody is needed to read it.
    worker.kill()
    found = await snapshot(handle)
    assert found.status == "failed"
    assert found.metadata["error"]["type"] == "cancelled"
    assert found.completed_node_ids == ["first"]
    assert found.get_node_output("first")["node"] == "first"
    assert set(found.pending_node_ids) == {"sync", "async", "plain", "wait", "never"}
    assert "never awaited" not in stage.logs()
    assert "was destroyed but it is pending" not in stage.logs()


@pytest.mark.req("RT-1")
async def test_a_run_cancelled_before_a_worker_takes_it_up_is_cancelled_all_the_same(
    client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    handle = await start_run(client, stage, FLOW)
    await handle.cancel()
    await stage.start_worker(temporal.address).ready()
    await cancelled(handle)
    found = await snapshot(handle)
    assert (found.status, found.completed_node_ids) == ("failed", [])
    assert "never awaited" not in stage.logs()


@pytest.mark.req("RT-1")
async def test_a_run_cancelled_while_no_worker_lives_is_cancelled_by_the_next(
    client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    worker = await stage.start_worker(temporal.address).ready()
    handle = await start_run(client, stage, FLOW)
    await until(lambda: bool(stage.entries(handle.id, "sync", "step")), "the long node to be under way")
    worker.kill()
    await handle.cancel()
    await stage.start_worker(temporal.address).ready()
    await cancelled(handle)
    assert (await snapshot(handle)).completed_node_ids == ["first"]
    assert {entry.pid for entry in stage.entries(handle.id)} == {worker.pid}
