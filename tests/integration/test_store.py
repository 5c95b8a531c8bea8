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
    RunConfig,
    read_flow,
)
from holdfast.contracts import names
from holdfast.flows.reading import flow_from_data
from holdfast.flows.spec import FlowSpec
from holdfast.starter.errors import InnerRunError, NotAFlowError, PartOfRunError
from holdfast.starter.store import Collected, Retention
from tests.integration.conftest import Bench, remove_executions
from tests.integration.test_reset import reset

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
    await remove_executions(bench.client.temporal, f"WorkflowId = '{run_id}'")
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


@pytest.mark.req("FL-9")
async def test_a_run_that_was_reset_and_is_open_again_is_not_taken_for_one_that_has_ended(bench: Bench) -> None:
    await bench.worker([Work])
    store = CheckpointStore(bench.client)
    flow = simple(bench)
    flow.nodes += read_flow("id: w\nnodes:\n  ask: {type: human, prompt: Well}").nodes
    ended = await bench.start(simple(bench))
    await bench.client.result(ended)
    waiting = await bench.start(flow)
    while not await bench.client.inbox(waiting):
        await asyncio.sleep(0.1)
    await reset(bench, waiting, "a")
    await listed(bench.client.temporal, f"HoldfastFlow = '{flow.id}'", 3, running=1)
    # The execution that was ended by the reset is no run of its own, among those that stay either.
    kept = await store.collect(Retention(flow.id, keep=1))
    found = await store.collect(Retention(flow.id, older_than=timedelta(0)))

    assert (kept.runs, kept.kept_open) == ([], 1)
    assert (found.runs, found.executions, found.kept_open) == ([ended], 1, 1)
    assert (await bench.client.get_run(waiting)).closed_at is None
    await bench.client.cancel(waiting)


@pytest.mark.req("FL-9")
async def test_a_run_that_was_reset_and_has_ended_goes_once_and_whole(bench: Bench) -> None:
    await bench.worker([Work])
    store, flow = CheckpointStore(bench.client), simple(bench)
    run_id = await bench.start(flow)
    await bench.client.result(run_id)
    await reset(bench, run_id, "a")
    await bench.client.result(run_id)
    await listed(bench.client.temporal, f"HoldfastFlow = '{flow.id}'", 2)
    looked = await store.collect(Retention(flow.id, keep=0), dry_run=True)
    every = await store.list_by_flow(flow.id, limit=100)
    deleted = await store.cleanup(flow.id, 0)
    await gone(bench, run_id)

    assert (looked.runs, looked.executions) == ([run_id], 2)
    assert len({entry.id for entry in every}) == len(every)
    assert deleted == 1


@pytest.mark.req("FL-9", "RT-3")
async def test_a_run_of_many_executions_is_listed_once_and_so_are_its_checkpoints(bench: Bench) -> None:
    await bench.worker([Work])
    flow, store = long_one(bench), CheckpointStore(bench.client)
    run_id = await bench.start(flow, None, RunConfig(continue_after_events=15))
    await bench.client.result(run_id)
    await listed(bench.client.temporal, f"HoldfastFlow = '{flow.id}' AND ExecutionStatus = 'Completed'", 1)
    executions = (await bench.client.temporal.count_workflows(f"WorkflowId = '{run_id}'")).count
    runs = await bench.client.list_runs(flow.id)
    every = await store.list_by_flow(flow.id, limit=1000)

    assert executions > 2
    assert [(run.run_id, run.status) for run in runs] == [(run_id, "completed")]
    assert [entry.id for entry in every] == [entry.id for entry in await bench.client.list_checkpoints(run_id)]


def long_one(bench: Bench) -> FlowSpec:
    nodes = {f"n{number}": {"type": "Work", "depends": [f"n{number - 1}"] if number else []} for number in range(12)}
    return flow_from_data({"id": f"l-{bench.task_queue}", "nodes": nodes})


@pytest.mark.req("FL-9", "RT-3")
async def test_a_run_whose_first_executions_are_gone_is_read_from_where_its_history_begins(bench: Bench) -> None:
    await bench.worker([Work])
    flow, store = long_one(bench), CheckpointStore(bench.client)
    run_id = await bench.start(flow, None, RunConfig(continue_after_events=15))
    await bench.client.result(run_id)
    await listed(bench.client.temporal, f"WorkflowId = '{run_id}' AND ExecutionStatus = 'Completed'", 1)
    whole = await bench.client.list_checkpoints(run_id)
    happened = await bench.client.transitions(run_id)
    # As a namespace's retention does it: an execution that was continued has ended long before its run.
    first = await bench.client.temporal.get_workflow_handle(
        run_id, run_id=await first_execution(bench, run_id)
    ).describe()
    await remove_executions(bench.client.temporal, f"RunId = '{first.run_id}'")
    await listed(bench.client.temporal, f"RunId = '{first.run_id}'", 0)
    left = await bench.client.list_checkpoints(run_id)
    since = await bench.client.transitions(run_id)
    newest = await store.list_by_flow(flow.id, limit=len(left))
    fork = await bench.client.fork(left[-1].id)

    assert 0 < len(left) < len(whole)
    assert left == whole[: len(left)]
    assert since == happened[-len(since) :]
    assert len(since) < len(happened)
    assert await store.load(whole[-1].id) is None
    assert [entry.id for entry in newest] == [entry.id for entry in left]
    assert (await bench.client.node_history(run_id, "n11"))[-1].sequence_number == happened[-2].seq
    assert (await bench.client.result(fork)).status == "success"


async def first_execution(bench: Bench, run_id: str) -> str:
    found = [run async for run in bench.client.temporal.list_workflows(f"WorkflowId = '{run_id}'")]
    return min(found, key=lambda run: run.start_time).run_id


@pytest.mark.req("FL-9")
async def test_of_no_checkpoints_none_are_listed(bench: Bench) -> None:
    await bench.worker([Work])
    flow, store = simple(bench), CheckpointStore(bench.client)
    await bench.run(flow)
    await listed(bench.client.temporal, f"HoldfastFlow = '{flow.id}'", 1)

    assert await store.list_by_flow(flow.id, limit=0) == []
    assert await store.list_by_flow(flow.id, limit=-1) == []
    for number in (-1, -10):
        with pytest.raises(ValueError, match=f"keep .*{number}"):
            await store.cleanup(flow.id, number)
    assert await store.get_latest(flow.id) is not None
    assert not await store.delete("")


@pytest.mark.req("FL-9")
@pytest.mark.parametrize(
    "odd", ["it's", "'lead", "tail'", "back\\slash", "tail\\", 'say "so"', "two\nlines", "Zürich 日本", "'", "a/b"]
)
async def test_a_run_with_an_odd_id_goes_with_all_inside_it_and_no_other_does(bench: Bench, odd: str) -> None:
    await bench.worker([Work])
    store, run_id = CheckpointStore(bench.client), f"{odd}{bench.task_queue}{odd}"
    # What Temporal's queries make of some of them.
    namesake = run_id.strip("'").replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    others = [f"{run_id}-2"] if namesake == run_id else [f"{run_id}-2", namesake]
    flow = read_flow(NESTED.format(id=f"odd-{bench.task_queue}"))
    for name in (run_id, *others):
        await bench.client.start(flow, {"items": [1]}, run_id=name)
        await bench.client.result(name)
    fork = await bench.client.fork(run_id)
    await bench.client.result(fork)
    family = f"HoldfastFlow = '{flow.id}' AND ExecutionStatus = 'Completed'"
    await listed(bench.client.temporal, family, 2 + len(others))
    [tree] = await bench.client.tree(fork)
    looked = await store.collect(Retention(flow.id, keep=0), dry_run=True)
    deleted = await store.delete(run_id)
    ours = f"WorkflowType = '{names.FLOW_RUN}'"
    async with asyncio.timeout(30):
        while [run.id async for run in bench.client.temporal.list_workflows(ours) if run.root_id == run_id]:
            await asyncio.sleep(0.1)

    assert deleted
    assert (tree.run_id, [member.run_id for member in tree.children]) == (run_id, [fork])
    assert looked.executions == 2 * (1 + len(others)) + 1
    assert await store.load(run_id) is None
    assert await store.load(f"{run_id}/sub") is None
    for name in others:
        assert await store.load(name) is not None
        assert await store.load(f"{name}/sub") is not None


@pytest.mark.req("FL-9")
async def test_what_is_no_run_of_ours_is_not_deleted(bench: Bench) -> None:
    store, other = CheckpointStore(bench.client), f"other-{bench.task_queue}"
    handle = await bench.client.temporal.start_workflow("Somebodys", id=other, task_queue=bench.task_queue)
    await handle.terminate()

    assert not await store.delete(other)
    assert (await handle.describe()).id == other
