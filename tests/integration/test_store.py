"""The store over Temporal: listing over runs, deleting runs with all inside them, clean-ups that spare the open."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from temporalio.client import Client

from holdfast import (
    CheckpointStatus,
    CheckpointStore,
    FlowFailedError,
    Node,
    NonRetryableError,
    RunActiveError,
    read_flow,
)
from holdfast.contracts import names
from holdfast.flows.spec import FlowSpec
from holdfast.starter.errors import InnerRunError, NotAFlowError, PartOfRunError
from holdfast.starter.store import Collected, Retention
from tests.integration.conftest import Bench

NESTED = """
id: {id}
nodes:
  sub: {{type: flow, flow: {{id: inner, nodes: {{x: {{type: Work}}}}}}}}
  each: {{type: map, inline_limit: 2, batch_size: 2, node: {{id: item, type: Work}}, depends: sub,
          input_transformer: {{selector: {{input: "$.items"}}}}}}
"""


class Work(Node):
    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        if "broken" in str(input_data):
            raise NonRetryableError("broken")
        return {}


def simple(bench: Bench, **checkpoint: Any) -> FlowSpec:
    """A flow that only this test has runs of."""
    flow = read_flow(f"id: f-{bench.task_queue}\nnodes:\n  a: {{type: Work}}\n  b: {{type: Work, depends: a}}")
    for name, value in checkpoint.items():
        setattr(flow.checkpoint, name, value)
    return flow


async def listed(client: Client, query: str, count: int, *, running: int = 0) -> None:
    """The visibility store lags a little: so many have to be there, and so many of them have not ended."""
    async with asyncio.timeout(60):
        while (await client.count_workflows(query)).count != count:
            await asyncio.sleep(0.1)
        while (await client.count_workflows(f"{query} AND ExecutionStatus = 'Running'")).count != running:
            await asyncio.sleep(0.1)


async def gone(bench: Bench, run_id: str) -> None:
    await listed(bench.client.temporal, f"RootWorkflowId = '{run_id}'", 0)


@pytest.mark.req("FL-9")
async def test_checkpoints_of_a_flow_are_listed_over_its_runs_newest_first(bench: Bench) -> None:
    await bench.worker([Work])
    flow, store = simple(bench), CheckpointStore(bench.client)
    runs = [await bench.start(flow) for _ in range(3)]
    for run_id in runs:
        await bench.client.result(run_id)
    with pytest.raises(FlowFailedError):
        await bench.run(flow, "broken")
    await listed(bench.client.temporal, f"HoldfastFlow = '{flow.id}'", 4)
    every = await store.list_by_flow(flow.id, limit=100)
    failed = await store.list_by_flow(flow.id, CheckpointStatus.FAILED)
    latest = await store.get_latest(flow.id)

    assert [entry.created_at for entry in every] == sorted((entry.created_at for entry in every), reverse=True)
    assert {entry.run_id for entry in every} >= set(runs)
    assert [entry.id for entry in await store.list_by_flow(flow.id, limit=4)] == [entry.id for entry in every[:4]]
    assert {entry.status for entry in failed} == {CheckpointStatus.FAILED}
    assert latest is not None
    assert latest.id == every[0].id
    assert await store.get_latest("nobody") is None


@pytest.mark.req("FL-9")
async def test_a_checkpoint_is_loaded_by_its_id_or_is_not_there(bench: Bench) -> None:
    await bench.worker([Work])
    store, run_id = CheckpointStore(bench.client), await bench.start(simple(bench))
    await bench.client.result(run_id)
    found = await store.load(f"{run_id}@3")

    assert found is not None
    assert found.sequence_number == 3
    assert await store.load(f"{run_id}@99") is None
    assert await store.load("nobody@1") is None


@pytest.mark.req("FL-9")
async def test_a_run_is_deleted_with_the_flows_inside_it_and_only_when_it_has_ended(bench: Bench) -> None:
    await bench.worker([Work])
    store = CheckpointStore(bench.client)
    flow = read_flow(NESTED.format(id=f"n-{bench.task_queue}"))
    waiting = await bench.start("id: w\nnodes:\n  ask: {type: human, prompt: Well}")
    run_id = await bench.start(flow, {"items": [1, 2, 3]})
    await bench.client.result(run_id)
    await listed(bench.client.temporal, f"RootWorkflowId = '{run_id}'", 4)
    with pytest.raises(RunActiveError, match=waiting):
        await store.delete(waiting)
    with pytest.raises(PartOfRunError, match=f"delete '{run_id}'"):
        await store.delete(f"{run_id}@2")
    with pytest.raises(InnerRunError, match=f"inside run '{run_id}'"):
        await store.delete(f"{run_id}/sub")
    deleted = await store.delete(run_id)
    await gone(bench, run_id)

    assert deleted
    assert not await store.delete(run_id)
    assert (await bench.client.get_run(waiting)).status in ("pending_input", "running")
    await bench.client.cancel(waiting)


@pytest.mark.req("FL-9")
async def test_a_clean_up_keeps_the_newest_and_all_that_have_not_ended(bench: Bench) -> None:
    await bench.worker([Work])
    flow, store = simple(bench), CheckpointStore(bench.client)
    runs: list[str] = []
    for _ in range(5):
        # One after the other: the newest is the one that ended last.
        runs.append(await bench.start(flow))
        await bench.client.result(runs[-1])
    asking = read_flow(f"id: {flow.id}\nnodes:\n  ask: {{type: human, prompt: Well}}")
    waiting, paused = await bench.start(asking), await bench.start(asking)
    await bench.client.pause(paused)
    await listed(bench.client.temporal, f"HoldfastFlow = '{flow.id}'", 7, running=2)
    looked = await store.collect(Retention(flow.id, keep=2), dry_run=True)
    there = [await store.load(run_id) for run_id in runs]
    deleted = await store.cleanup(flow.id, keep_count=2)
    for run_id in runs[:3]:
        await gone(bench, run_id)
    again = await store.collect(Retention(flow.id, keep=0, older_than=timedelta(days=1)))

    assert sorted(looked.runs) == sorted(runs[:3])
    assert (looked.executions, looked.kept_open, looked.dry_run) == (3, 2, True)
    assert None not in there
    assert deleted == 3
    assert again == Collected(kept_open=2)
    assert await store.load(runs[4]) is not None
    for run_id in (waiting, paused):
        assert (await bench.client.get_run(run_id)).closed_at is None
        await bench.client.cancel(run_id)


@pytest.mark.req("FL-9")
async def test_a_flows_own_retention_decides_when_nothing_else_is_said(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.worker([Work])
    store = CheckpointStore(bench.client)
    short, forever = simple(bench, retention_days=1), simple(bench)
    runs = [await bench.start(flow) for flow in (short, forever)]
    for run_id in runs:
        await bench.client.result(run_id)
    await listed(bench.client.temporal, f"HoldfastFlow = '{short.id}'", 2)
    today = await store.collect(Retention(short.id))
    monkeypatch.setattr("holdfast.starter.store._now", lambda: datetime.now(UTC) + timedelta(days=2))
    later = await store.collect(Retention(short.id))

    assert today.runs == []
    assert later.runs == runs[:1]


@pytest.mark.req("FL-9")
async def test_flows_inside_a_run_that_is_gone_are_found_and_go_too(bench: Bench) -> None:
    await bench.worker([Work])
    store = CheckpointStore(bench.client)
    run_id = await bench.start(NESTED.format(id=f"o-{bench.task_queue}"), {"items": [1, 2, 3]})
    await bench.client.result(run_id)
    await listed(bench.client.temporal, f"RootWorkflowId = '{run_id}'", 4)
    # As it is when a namespace's retention, or somebody's hand, has taken the outer run alone.
    await store.delete_executions(f"WorkflowId = '{run_id}'")
    await listed(bench.client.temporal, f"WorkflowId = '{run_id}'", 0)
    looked = await store.collect(dry_run=True)
    await store.collect()
    await gone(bench, run_id)

    ours = [name for name in looked.orphans if name.startswith(run_id)]
    assert sorted(ours) == [f"{run_id}/each[0-1]", f"{run_id}/each[2-2]", f"{run_id}/sub"]


@pytest.mark.req("FL-9")
@pytest.mark.parametrize("given", [["nonsense"], [None], [], [{}], [{"flow": {}}, 1]], ids=str)
async def test_a_clean_up_passes_over_a_run_that_was_started_with_nonsense(bench: Bench, given: list[Any]) -> None:
    store, run_id = CheckpointStore(bench.client), f"nonsense-{bench.task_queue}"
    await bench.client.temporal.start_workflow(names.FLOW_RUN, args=given, id=run_id, task_queue=bench.task_queue)
    await bench.client.temporal.get_workflow_handle(run_id).terminate()
    await listed(bench.client.temporal, f"WorkflowId = '{run_id}'", 1)
    found = await store.collect(dry_run=True)

    assert run_id not in found.runs
    with pytest.raises(NotAFlowError, match="not-a-flow"):
        await bench.client.definition(run_id)
    assert await store.delete(run_id)
