"""A map in batches, ended in the middle of its items: a new run goes on inside each of them, and repeats nothing.

The executions are counted in the worker. What was in flight when the run ended is all that may run twice.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from examples.models import calls, model
from holdfast import Agent, Flow, FlowFailedError, HoldfastClient, Human, Map, Node, RunCancelledError, SubFlow
from holdfast.checkpoints.models import CheckpointStatus
from holdfast.flows.spec import FlowSpec
from tests.integration.conftest import Bench
from tests.integration.counting import Counting
from tests.integration.held_tools import GO, HELD, Quick, Slow, look, ponder

ITEMS = ["kelp", "dulse", "laver", "wrack", "nori"]
WINDOW = 4


@pytest.fixture(autouse=True)
def held() -> Iterator[None]:
    HELD.clear()
    GO.clear()
    yield
    GO.set()


def reader(**params: Any) -> Agent:
    replies = [calls(("look", {"word": "it"})), calls(("ponder", {"word": "it"})), "done"]
    return Agent(id="reader", prompt="Tell me of {{ input }}.", tools=[look, ponder], llm=model(*replies), **params)


def steps() -> SubFlow:
    quick = Quick(id="x")
    return SubFlow(id="steps", flow=Flow(id="inner", nodes=[quick, Slow(id="y").depends_on(quick)]))


def mapped(node: Node, max_workers: int = WINDOW) -> FlowSpec:
    each = Map(id="each", node=node, inline_limit=2, batch_size=3, max_workers=max_workers)
    return Flow(id="mapped", nodes=[each]).spec()


async def terminated_in_flight(client: HoldfastClient, run_id: str, number: int) -> None:
    """Ends a run while so many items are held in a step, and lets go of them."""
    while len(HELD) < number:
        await asyncio.sleep(0.02)
    inside = [inner.id async for inner in client.temporal.list_workflows(f"RootWorkflowId = '{run_id}'")]
    await client.temporal.get_workflow_handle(run_id).terminate()
    for inner in {*inside, run_id}:
        with pytest.raises(WorkflowFailureError):
            await client.temporal.get_workflow_handle(inner).result()
    GO.set()


def executed(counting: Counting, *run_ids: str) -> Counter[str]:
    """What these runs and those inside them have executed, by its place in the map, whatever batch it was in."""
    every: Counter[str] = Counter()
    for run, executions in counting.executions.items():
        for outer in run_ids:
            if run == outer or run.startswith(f"{outer}/"):
                inside = re.sub(r"^/each\[\d+-\d+\]/?|\[\d+-\d+\]", "", run.removeprefix(outer))
                every.update({f"{inside}/{name}".lstrip("/"): count for name, count in executions.items()})
    return every


async def undisturbed(client: HoldfastClient, flow: FlowSpec, items: list[Any]) -> tuple[str, Any, Any]:
    GO.set()
    run_id = await client.start(flow, {"input": items})
    output = (await client.result(run_id)).output["each"]["output"]
    return run_id, output, (await client.latest_checkpoint(run_id)).metadata.get("usage")


KINDS = {
    "agents": (reader(), ITEMS, "ponder", WINDOW),
    "flows": (steps(), ITEMS, "/y", WINDOW),
    "maps of agents in batches": (
        Map(id="deep", node=reader(), items="$", inline_limit=1, batch_size=2, max_workers=2),
        [["kelp", "dulse"], ["laver", "wrack"], ["nori", "moss"]],
        "ponder",
        6,
    ),
}


@pytest.mark.req("OR-3", "AG-2", "FL-2")
@pytest.mark.parametrize("times", [1, 2], ids=["once", "twice"])
@pytest.mark.parametrize("kind", KINDS)
async def test_items_in_the_middle_of_their_work_go_on_in_the_next_run(
    counted: Bench, counting: Counting, kind: str, times: int
) -> None:
    (node, items, step, in_flight), client = KINDS[kind], counted.client
    flow = mapped(node)
    await counted.worker([Quick, Slow])
    run_id = await client.start(flow, {"input": items})
    runs, again = [run_id], Counter[str]()
    for _ in range(times):
        await terminated_in_flight(client, runs[-1], in_flight)
        again.update(name for name in executed(counting, runs[-1]) if step in name)
        HELD.clear()
        GO.clear()
        runs.append(await client.resume(runs[-1]))
    GO.set()
    output = (await client.result(runs[-1])).output["each"]["output"]
    last = await client.latest_checkpoint(runs[-1])
    other, expected, usage = await undisturbed(client, flow, items)

    every = executed(counting, other)
    assert output == expected
    assert set(every.values()) == {1}
    assert set(again.values()) == {times}
    assert len(again) == in_flight
    assert executed(counting, *runs) == every + again
    # Nothing of what was carried along is left over.
    assert last.node_states.keys() == {"each"}
    assert last.metadata.get("usage") == usage


@pytest.mark.req("OR-3", "AG-2")
async def test_a_failed_item_of_a_batch_goes_on_where_it_failed(counted: Bench, counting: Counting) -> None:
    client = counted.client
    await counted.worker()
    GO.set()
    run_id = await client.start(mapped(reader(max_loops=2), max_workers=1), {"input": ITEMS})
    with pytest.raises(FlowFailedError, match="3 of 5 items failed; item 0"):
        await client.result(run_id)
    flow = mapped(reader(max_loops=5), max_workers=1)
    resumed = await client.resume(run_id, flow=flow)
    output = (await client.result(resumed)).output["each"]["output"]
    last = await client.latest_checkpoint(resumed)
    other, expected, usage = await undisturbed(client, flow, ITEMS)

    assert output == expected
    assert executed(counting, run_id, resumed) == executed(counting, other)
    assert last.node_states.keys() == {"each"}
    assert last.metadata.get("usage") == usage


@pytest.mark.req("OR-5", "EX-2", "AG-2")
async def test_a_question_in_a_batch_is_asked_again_in_the_next_run_and_nothing_before_it(
    counted: Bench, counting: Counting
) -> None:
    client = counted.client
    await counted.worker()
    GO.set()
    replies = [calls(("look", {"word": "it"})), calls(("ask", {"question": "Is it edible?"})), "done"]
    agent = Agent(id="reader", prompt="{{ input }}", tools=[look, Human(id="ask")], llm=model(*replies))
    flow = mapped(agent, max_workers=3)
    run_id = await client.start(flow, {"input": ITEMS[:3]})

    async def asked(run: str) -> list[Any]:
        while True:
            found = [entry for entry in await client.people.inbox() if entry.run_id.startswith(f"{run}/")]
            if len(found) == 3:
                return found
            await asyncio.sleep(0.05)

    first = await asked(run_id)
    await client.cancel(run_id)
    with pytest.raises(RunCancelledError):
        await client.result(run_id)
    resumed = await client.resume(run_id)
    again = await asked(resumed)
    for entry in again:
        await client.send_input(entry.run_id, {"feedback": "yes"}, request_id=entry.id)
    await client.result(resumed)

    assert [entry.is_resumed for entry in first] == [False] * 3
    assert [entry.is_resumed for entry in again] == [True] * 3
    # A question's text is made again; nothing else is.
    twice = [name for name, count in executed(counting, run_id, resumed).items() if count > 1]
    assert all(name.endswith("/prompt") for name in twice), twice
    assert sum("look" in name for name in executed(counting, run_id)) == 3
    assert (await client.latest_checkpoint(resumed)).status == CheckpointStatus.COMPLETED
