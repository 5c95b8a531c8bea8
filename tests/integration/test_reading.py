"""Reading a run: with a worker, without one, while it runs and after it ended, always the same."""

import asyncio
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from holdfast import CheckpointConfig, CheckpointStatus, FlowSpec, Node, NodeSpec, RunStatus, read_flow
from holdfast.checkpoints.ledger import NodeCompleted
from holdfast.contracts import names
from holdfast.contracts.calls import FlowStart, RunConfig
from holdfast.flows.reading import flow_from_data
from holdfast.starter.errors import NoCheckpointError
from tests.integration.conftest import Bench


class Colour(Enum):
    RED = "red"


class Point(BaseModel):
    x: int
    when: datetime


EVERYTHING = {
    "bytes": b"\x00\xff",
    "when": datetime(2026, 1, 2, 3, 4, 5, 6, UTC),
    "day": date(2026, 1, 2),
    "set": {1, 2},
    "tuple": (1, "a"),
    "enum": Colour.RED,
    "model": Point(x=1, when=datetime(2026, 1, 1, tzinfo=UTC)),
    "uuid": UUID(int=7),
    "decimal": Decimal("1.10"),
    "keys": {1: "one", "__bytes__": "not bytes"},
}


class Gives(Node):
    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        return EVERYTHING


class Takes(Node):
    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        assert input_data["gives"]["output"] == EVERYTHING
        assert type(input_data["gives"]["output"]["model"]) is Point
        return input_data["gives"]["output"]["model"].x


class Waits(Node):
    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(60)


@pytest.mark.req("DM-7")
async def test_values_reach_the_next_node_and_the_reader_as_they_were(bench: Bench) -> None:
    await bench.worker([Gives, Takes])
    run_id = await bench.start("""
id: values
nodes:
  gives: {type: Gives}
  takes: {type: Takes, depends: gives}
  selects: {type: pass, depends: gives, input_transformer: {selector: {x: $.gives.output.model.x}}}
""", EVERYTHING)  # fmt: skip
    result = await bench.client.result(run_id)
    checkpoint = await bench.client.latest_checkpoint(run_id)

    assert result.output["gives"]["output"] == EVERYTHING
    assert result.output["takes"]["output"] == 1
    assert result.output["selects"]["output"] == {"x": 1}
    assert checkpoint.original_input == EVERYTHING
    assert checkpoint.node_states["gives"].output_data == EVERYTHING


@pytest.mark.req("FL-2", "PR-9")
async def test_a_run_read_live_and_rebuilt_from_its_history_is_the_same_at_every_transition(bench: Bench) -> None:
    await bench.worker([Gives, Takes])
    run_id = await bench.start("""
id: same
nodes:
  gives: {type: Gives}
  takes: {type: Takes, depends: gives}
  t: {type: transform, template: "{{ takes.output }}", depends: takes}
  u: {type: transform, template: "{{ t.output }}", depends: t}
""")
    await bench.client.result(run_id)
    handle = bench.client.temporal.get_workflow_handle(run_id)
    transitions = await bench.client.transitions(run_id)
    for transition in transitions:
        live = await handle.query(names.QUERY_CHECKPOINT, {"sequence_number": transition.seq})
        rebuilt = await bench.client.get_checkpoint(f"{run_id}@{transition.seq}")
        assert live["checksum"] == rebuilt.checksum
    assert [t.seq for t in transitions] == list(range(1, len(transitions) + 1))
    assert await handle.query(names.QUERY_TRANSITIONS, {"after": len(transitions) - 1}) == [
        transitions[-1].model_dump(mode="json")
    ]


@pytest.mark.req("FL-2")
async def test_the_latest_checkpoint_of_a_run_at_rest_needs_no_worker(bench: Bench) -> None:
    run_ids: dict[str, str] = {}
    async with asyncio.timeout(60):
        from holdfast.worker import running_worker

        async with running_worker(bench.client.temporal, task_queue=bench.task_queue):
            run_ids["completed"] = await bench.start("id: a\nnodes:\n  n: {type: transform, template: x}")
            run_ids["failed"] = await bench.start("id: b\nnodes:\n  n: {type: transform, template: '{{ nothing }}'}")
            run_ids["cancelled"] = await bench.start("id: c\nnodes:\n  n: {type: delay, seconds: 1h}")
            await bench.client.result(run_ids["completed"])
            with pytest.raises(RuntimeError):
                await bench.client.result(run_ids["failed"])
            await bench.client.cancel(run_ids["cancelled"])
            with pytest.raises(RuntimeError):
                await bench.client.result(run_ids["cancelled"])
    # The worker is gone; a query would wait for one until it times out.
    for expected, run_id in run_ids.items():
        checkpoint = await asyncio.wait_for(bench.client.latest_checkpoint(run_id), 3)
        assert checkpoint.run_id == run_id
        assert checkpoint.status == (CheckpointStatus.COMPLETED if expected == "completed" else CheckpointStatus.FAILED)
        assert (await bench.client.get_run(run_id)).status == RunStatus(expected)


async def test_a_running_run_is_read_live_and_listed_as_running(bench: Bench) -> None:
    await bench.worker([Gives, Waits])
    flow_id = f"flow-of-{bench.task_queue}"
    run_id = await bench.start(f"id: {flow_id}\nnodes:\n  a: {{type: Gives}}\n  b: {{type: Waits, depends: a}}")
    async for transition in bench.client.follow(run_id):
        if isinstance(transition, NodeCompleted):
            break
    checkpoint = await bench.client.latest_checkpoint(run_id)
    while not (detail := await bench.client.get_run(run_id)).pending:
        await asyncio.sleep(0.05)
    while not (listed := await bench.client.list_runs(flow_id=flow_id, status=RunStatus.RUNNING)):
        await asyncio.sleep(0.05)

    assert checkpoint.status == CheckpointStatus.ACTIVE
    assert checkpoint.completed_node_ids == ["a"]
    assert [pending.node_id for pending in detail.pending] == ["b"]
    assert [run.run_id for run in listed] == [run_id]
    assert await bench.client.list_runs(flow_id=flow_id, status=RunStatus.COMPLETED) == []
    await bench.client.cancel(run_id)


async def test_following_a_run_gives_every_transition_once_and_adds_nothing_to_it(bench: Bench) -> None:
    await bench.worker([Gives])
    flow = "id: f\nnodes:\n  a: {type: Gives}\n  b: {type: Gives, depends: a}\n  c: {type: Gives, depends: b}"
    unseen, seen = await bench.start(flow), await bench.start(flow)
    followed = [transition.seq async for transition in bench.client.follow(seen)]
    await bench.client.result(unseen)

    assert followed == list(range(1, len(followed) + 1))
    assert len(followed) == 8
    lengths = [(await bench.client.get_run(run_id)).history_events for run_id in (unseen, seen)]
    assert lengths[0] == lengths[1]


@pytest.mark.req("FL-9", "DM-6")
async def test_only_the_checkpoints_the_author_wants_are_listed(bench: Bench) -> None:
    await bench.worker()

    async def listed(config: CheckpointConfig) -> list[str]:
        nodes = read_flow("id: f\nnodes:\n  a: {type: transform, template: x}\n  b: {type: pass, depends: a}").nodes
        run_id = await bench.start(FlowSpec(id="f", nodes=nodes, checkpoint=config))
        await bench.client.result(run_id)
        return [entry.node_id or entry.event for entry in reversed(await bench.client.list_checkpoints(run_id))]

    assert await listed(CheckpointConfig()) == ["a", "b", "run_completed"]
    assert await listed(CheckpointConfig(exclude_nodes=["a"])) == ["b", "run_completed"]
    assert await listed(CheckpointConfig(checkpoint_after_node=False)) == ["run_completed"]
    assert await listed(CheckpointConfig(enabled=False)) == []


def test_a_definition_needs_no_checkpoint_options() -> None:
    assert FlowSpec(id="f", nodes=[NodeSpec(id="a", type="pass")]).checkpoint.enabled


@pytest.mark.req("RT-3")
async def test_a_run_that_begins_later_is_read_without_waiting_for_it(bench: Bench) -> None:
    start = FlowStart(flow=read_flow("id: later\nnodes: {a: {type: transform, template: x}}"))
    handle = await bench.client.temporal.start_workflow(
        names.FLOW_RUN, start, id=f"later-{UUID(int=8)}", task_queue=bench.task_queue, start_delay=timedelta(hours=1)
    )
    async with asyncio.timeout(20):
        with pytest.raises(NoCheckpointError, match="no worker has taken the run up yet"):
            await bench.client.latest_checkpoint(handle.id)
        happened = await bench.client.transitions(handle.id)
    await handle.terminate()

    assert happened == []


@pytest.mark.req("RT-3")
async def test_a_run_is_read_at_any_moment_between_two_of_its_executions(bench: Bench) -> None:
    """Temporal lets a second pass before it begins a continued one, in which its history is one event."""
    await bench.worker([Gives])
    nodes = {f"n{number}": {"type": "Gives", "depends": [f"n{number - 1}"] if number else []} for number in range(12)}
    run_id = await bench.start(
        flow_from_data({"id": "steps", "nodes": nodes}), None, RunConfig(continue_after_events=15)
    )
    ending = asyncio.create_task(bench.client.result(run_id))
    seen: list[int] = []
    executions: set[str | None] = set()
    async with asyncio.timeout(90):
        while not ending.done():
            executions.add((await bench.client.temporal.get_workflow_handle(run_id).describe()).run_id)
            seen.append(len(await bench.client.transitions(run_id)))
            await asyncio.sleep(0.1)

    assert (await ending).status == "success"
    assert len(executions) > 2
    assert seen == sorted(seen)
