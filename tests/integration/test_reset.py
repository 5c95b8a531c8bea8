"""Temporal's own reset on our runs: what was done before the point stays done, and the rest is done again."""

import asyncio
from collections import Counter
from typing import Any
from uuid import uuid4

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.enums.v1 import EventType
from temporalio.api.workflowservice.v1 import ResetWorkflowExecutionRequest
from temporalio.client import WorkflowExecutionStatus

from holdfast import FlowFailedError, Node, NonRetryableError
from holdfast.contracts.people import HumanAnswer
from holdfast.starter import embedded
from tests.integration.conftest import Bench

RAN: list[str] = []
BROKEN: set[str] = set()
HELD: set[str] = set()


class Work(Node):
    """Says that it ran, by its key; fails or waits while its id is among the broken or the held ones."""

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        RAN.append(kwargs["idempotency_key"])
        while kwargs["node_id"] in HELD:
            await asyncio.sleep(0.02)
        if kwargs["node_id"] in BROKEN:
            raise NonRetryableError(f"{kwargs['node_id']} is broken")
        return {"by": kwargs["node_id"], "item": input_data if isinstance(input_data, int) else None}


@pytest.fixture(autouse=True)
def fresh() -> None:
    RAN.clear()
    BROKEN.clear()
    HELD.clear()


CHAIN = """
id: chain
nodes:
  a: {type: Work}
  b: {type: Work, depends: a}
  c: {type: Work, depends: b}
"""


async def point_after(bench: Bench, run: str, node: str) -> int:
    """The first workflow task that knows a node's result, as Temporal's own tools would have it."""
    scheduled, done = None, False
    async for event in bench.client.temporal.get_workflow_handle(run).fetch_history_events():
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                if event.activity_task_scheduled_event_attributes.activity_id == node:
                    scheduled = event.event_id
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                done = done or event.activity_task_completed_event_attributes.scheduled_event_id == scheduled
            case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED if done:
                return event.event_id
            case _:
                pass
    raise AssertionError(f"{node} has not completed in {run}")


async def reset(bench: Bench, run: str, after: str) -> None:
    """`temporal workflow reset --workflow-id RUN --event-id N`."""
    client = bench.client.temporal
    await client.workflow_service.reset_workflow_execution(
        ResetWorkflowExecutionRequest(
            namespace=client.namespace,
            workflow_execution=WorkflowExecution(workflow_id=run),
            reason="a test",
            workflow_task_finish_event_id=await point_after(bench, run, after),
            request_id=str(uuid4()),
        )
    )


async def statuses(bench: Bench, run: str) -> list[WorkflowExecutionStatus | None]:
    """Of the executions of a run, oldest first, when the visibility store has both of them."""
    while True:
        listed = [entry async for entry in bench.client.temporal.list_workflows(f"WorkflowId = '{run}'")]
        if len(listed) >= 2 and all(entry.status != WorkflowExecutionStatus.RUNNING for entry in listed):
            return [entry.status for entry in sorted(listed, key=lambda entry: entry.start_time)]
        await asyncio.sleep(0.05)


def ran(run: str) -> Counter[str]:
    return Counter(key.removeprefix(f"{run}/") for key in RAN if key.startswith(f"{run}/"))


async def readable(bench: Bench, run: str, *nodes: str) -> None:
    """Whatever is read of the run is there, and of one piece."""
    latest = await bench.client.latest_checkpoint(run)
    listed = await bench.client.list_checkpoints(run)
    told = await bench.client.transitions(run)
    streamed = [event async for event in bench.client.stream(run)]
    loaded = [await bench.client.get_checkpoint(entry.id) for entry in listed]

    assert sorted(latest.completed_node_ids) == sorted(nodes)
    assert [entry.seq for entry in told] == list(range(1, latest.sequence_number + 1))
    assert [entry.sequence_number for entry in listed] == [entry.sequence_number for entry in loaded]
    numbers = [entry.sequence_number for entry in listed]
    assert numbers == sorted(set(numbers), reverse=True)
    assert numbers[0] == latest.sequence_number
    assert {event.seq for event in streamed} == {entry.seq for entry in told}
    assert [event.id for event in streamed] == sorted({event.id for event in streamed if event.id})
    completed = [event.path for event in streamed if event.event == "node_completed" and "/" not in event.path]
    assert sorted(completed) == sorted(nodes)


@pytest.mark.req("FL-2")
async def test_a_completed_run_is_reset_and_does_again_what_came_after_the_point(bench: Bench) -> None:
    await bench.worker([Work])
    run = await bench.start(CHAIN)
    first = await bench.client.result(run)
    before = await bench.client.list_checkpoints(run)
    await reset(bench, run, "b")
    second = await bench.client.result(run)
    await readable(bench, run, "a", "b", "c")
    after = await bench.client.list_checkpoints(run)
    fork = await bench.client.fork(after[-1].id)
    results = [await bench.client.result(name) for name in (fork, await bench.client.resume(run))]

    assert ran(run) == {"a": 1, "b": 1, "c": 2}
    assert second == first
    # One travels from it as from any other run.
    assert ran(fork) == {"b": 1, "c": 1}
    assert [result.output for result in results] == [first.output] * 2
    # The same names; before the point they mean the same, from there on what was noted last.
    assert [entry.id for entry in after] == [entry.id for entry in before]
    assert after[-1:] == before[-1:]
    assert all(new.created_at > old.created_at for new, old in zip(after[:-1], before[:-1], strict=True))
    assert await statuses(bench, run) == [WorkflowExecutionStatus.COMPLETED] * 2


@pytest.mark.req("FL-2")
async def test_a_failed_run_is_reset_with_temporals_own_program_and_comes_to_its_end(
    bench: Bench, temporal: embedded.Running
) -> None:
    await bench.worker([Work])
    BROKEN.add("c")
    run = await bench.start(CHAIN)
    with pytest.raises(FlowFailedError, match="c is broken"):
        await bench.client.result(run)
    BROKEN.clear()
    point = str(await point_after(bench, run, "b"))
    words = ["workflow", "reset", "--workflow-id", run, "--event-id", point, "--reason", "c is mended"]
    program = await asyncio.create_subprocess_exec(
        embedded.binary(), *words, "--address", temporal.address, stdout=asyncio.subprocess.DEVNULL
    )
    code = await program.wait()
    result = await bench.client.result(run)
    await readable(bench, run, "a", "b", "c")

    assert code == 0
    assert ran(run) == {"a": 1, "b": 1, "c": 2}
    assert result.output["c"]["output"]["by"] == "c"
    assert (await bench.client.get_run(run)).status == "completed"


@pytest.mark.req("FL-2")
async def test_a_running_run_is_reset_and_goes_on_under_its_name(bench: Bench) -> None:
    await bench.worker([Work])
    HELD.add("c")
    run = await bench.start(CHAIN)
    while "c" not in ran(run):
        await asyncio.sleep(0.02)
    waiting = asyncio.create_task(bench.client.result(run))
    await asyncio.sleep(0.1)
    await reset(bench, run, "a")
    while ran(run)["b"] < 2:
        await asyncio.sleep(0.02)
    latest = await bench.client.latest_checkpoint(run)
    HELD.clear()
    # Who has waited since before goes on waiting.
    result = await waiting
    await readable(bench, run, "a", "b", "c")

    assert ran(run) == {"a": 1, "b": 2, "c": 2}
    assert "a" in latest.completed_node_ids
    assert result.output["c"]["status"] == "success"
    assert await statuses(bench, run) == [WorkflowExecutionStatus.TERMINATED, WorkflowExecutionStatus.COMPLETED]


ASKING = """
id: asking
nodes:
  a: {type: Work}
  ask: {type: human, prompt: "Go on?", depends: a}
  pay: {type: Work, depends: ask, approval: {enabled: true}}
"""


async def answered(bench: Bench, run: str, how: str) -> None:
    """Answers both questions, as they come."""
    for answer in (HumanAnswer(feedback="yes"), HumanAnswer(is_approved=True)):
        while not (found := await bench.client.inbox(run)):
            await asyncio.sleep(0.05)
        (asked,) = found
        match how:
            case "signal":
                message = {"entity_id": asked.path, "data": answer.model_dump(mode="json")}
                await bench.client.temporal.get_workflow_handle(run).signal("provide_input", message)
            case "by node":
                await bench.client.send_input(run, answer, entity_id=asked.path)
            case "by question":
                await bench.client.send_input(run, answer, request_id=asked.id)
            case _:
                await bench.client.send_input(run, answer)
        while asked.id in [entry.id for entry in await bench.client.inbox(run)]:
            await asyncio.sleep(0.05)


@pytest.mark.req("RT-4", "FL-2")
@pytest.mark.parametrize("how", ["signal", "by node"])
async def test_answers_that_name_the_node_are_given_again_by_temporal(bench: Bench, how: str) -> None:
    await bench.worker([Work])
    run = await bench.start(ASKING)
    await answered(bench, run, how)
    await bench.client.result(run)
    await reset(bench, run, "a")
    async with asyncio.timeout(30):
        result = await bench.client.result(run)
    await readable(bench, run, "a", "ask", "pay")

    assert ran(run) == {"a": 1, "pay": 2}
    assert result.output["ask"]["output"]["feedback"] == "yes"


@pytest.mark.req("FL-2")
@pytest.mark.parametrize("how", ["by question", "as the only one"])
async def test_answers_that_name_a_question_are_not_taken_for_the_one_that_is_asked_anew(
    bench: Bench, how: str
) -> None:
    await bench.worker([Work])
    run = await bench.start(ASKING)
    await answered(bench, run, how)
    await bench.client.result(run)
    await reset(bench, run, "a")
    # The question has another id now. Nobody has approved this one yet, so nothing is paid.
    await answered(bench, run, how)
    async with asyncio.timeout(30):
        result = await bench.client.result(run)
    await readable(bench, run, "a", "ask", "pay")

    assert ran(run) == {"a": 1, "pay": 2}
    assert result.output["ask"]["output"]["feedback"] == "yes"


NESTED = """
id: outer
nodes:
  a: {type: Work}
  sub: {type: flow, depends: a, flow: {id: inner, nodes: {x: {type: Work}, y: {type: Work, depends: x}}}}
  c: {type: Work, depends: sub}
"""


@pytest.mark.req("FL-7", "FL-2")
@pytest.mark.parametrize("held", ["", "y"], ids=["the inner one ended", "the inner one under way"])
async def test_a_flow_inside_that_began_after_the_point_begins_again_under_its_name(bench: Bench, held: str) -> None:
    await bench.worker([Work])
    HELD.update({held} - {""})
    run = await bench.start(NESTED)
    if held:
        while "sub/y" not in ran(run):
            await asyncio.sleep(0.02)
    else:
        await bench.client.result(run)
    await reset(bench, run, "a")
    while ran(run)["sub/y"] < 2:
        await asyncio.sleep(0.02)
    HELD.clear()
    result = await bench.client.result(run)
    await readable(bench, run, "a", "sub", "c")
    await readable(bench, f"{run}/sub", "x", "y")

    assert ran(run) == {"a": 1, "sub/x": 2, "sub/y": 2, "c": 1 if held else 2}
    assert result.output["sub"]["output"]["y"]["output"]["by"] == "y"


BESIDE = """
id: beside
nodes:
  a: {type: Work}
  sub: {type: flow, depends: a, flow: {id: inner, nodes: {x: {type: Work}, y: {type: Work, depends: x}}}}
  b: {type: Work, depends: a}
  c: {type: Work, depends: b}
  d: {type: Work, depends: [c, sub]}
"""


@pytest.mark.req("FL-7", "FL-2")
@pytest.mark.parametrize("ended", [True, False], ids=["ended after the point", "under way"])
async def test_a_flow_inside_that_began_before_the_point_is_kept_with_its_result(bench: Bench, ended: bool) -> None:
    await bench.worker([Work])
    HELD.add("y")
    run = await bench.start(BESIDE)
    while not {"c", "sub/y"} <= ran(run).keys():
        await asyncio.sleep(0.02)
    if ended:
        HELD.clear()
        await bench.client.result(run)
    await reset(bench, run, "b")
    while ran(run)["c"] < 2:
        await asyncio.sleep(0.02)
    HELD.clear()
    async with asyncio.timeout(30):
        result = await bench.client.result(run)
    await readable(bench, run, "a", "sub", "b", "c", "d")

    assert ran(run) == {"a": 1, "b": 1, "sub/x": 1, "sub/y": 1, "c": 2, "d": 2 if ended else 1}
    assert result.output["sub"]["output"]["y"]["output"]["by"] == "y"


BATCHES = """
id: batches
nodes:
  a: {type: Work}
  each: {type: map, depends: a, items: $.items, inline_limit: 2, batch_size: 3, node: {id: item, type: Work}}
  c: {type: Work, depends: each, input_transformer: {selector: {all: $.each.output}}}
"""


@pytest.mark.req("OR-3", "FL-2")
@pytest.mark.parametrize("held", ["", "each/item"], ids=["ended", "under way"])
async def test_a_map_in_batches_that_began_after_the_point_is_done_again(bench: Bench, held: str) -> None:
    await bench.worker([Work])
    HELD.update({held} - {""})
    run = await bench.start(BATCHES, {"items": list(range(8))})
    if held:
        while len(ran(run)) < 3:
            await asyncio.sleep(0.02)
    else:
        await bench.client.result(run)
    await reset(bench, run, "a")
    while max(ran(run).values()) < 2:
        await asyncio.sleep(0.02)
    HELD.clear()
    result = await bench.client.result(run)
    await readable(bench, run, "a", "each", "c")

    assert [entry["item"] for entry in result.output["each"]["output"]["output"]] == list(range(8))
    assert ran(run)["a"] == 1
    assert ran(run)["c"] == (1 if held else 2)
