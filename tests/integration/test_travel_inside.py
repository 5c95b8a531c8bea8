"""Travel again and again, through runs that have flows inside: what had been done inside is neither lost nor repeated.

The executions are counted in the worker.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError

from holdfast import CheckpointStore, FlowFailedError, HoldfastClient, Node, NonRetryableError, RunCancelledError
from holdfast.checkpoints.ledger import NodeAdvanced, Transition
from holdfast.contracts import names
from holdfast.contracts.calls import ChildMessage
from holdfast.starter.moving import export, import_bundle
from tests.integration.conftest import Bench
from tests.integration.counting import Counting

BROKEN: set[str] = set()
HELD: set[str] = set()


class Step(Node):
    """Fails while it is among the broken ones, and waits while it is among the held ones."""

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        name = kwargs["node_id"]
        while name in HELD or str(input_data.get("input")) in HELD:
            time.sleep(0.01)
        if name in BROKEN:
            raise NonRetryableError(f"{name} is broken")
        return name


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    BROKEN.clear()
    HELD.clear()
    yield
    HELD.clear()


FLOW = """
id: outer
nodes:
  sub:
    type: flow
    flow:
      id: inner
      nodes:
        x: {type: Step}
        y: {type: Step, depends: x}
        z: {type: Step, depends: y}
"""


def executed(counting: Counting, run_id: str) -> Counter[str]:
    """What a run and those inside it have executed, by its place."""
    every: Counter[str] = Counter()
    for run, executions in counting.executions.items():
        if run == run_id or run.startswith(f"{run_id}/"):
            inside = run.removeprefix(run_id)
            every.update({f"{inside}/{name}".lstrip("/"): count for name, count in executions.items()})
    return every


async def terminated_in(counting: Counting, client: HoldfastClient, run_id: str, *places: str) -> None:
    """Ends a run, and those inside it, while it is held in these places."""
    while not executed(counting, run_id).keys() >= {*places}:
        await asyncio.sleep(0.02)
    inside = [inner for inner in counting.executions if inner.startswith(f"{run_id}/")]
    await client.temporal.get_workflow_handle(run_id).terminate()
    for inner in {*inside, run_id}:
        with contextlib.suppress(WorkflowFailureError):
            await client.temporal.get_workflow_handle(inner).result()


def _is_started_inside(transition: Transition) -> bool:
    return isinstance(transition, NodeAdvanced) and transition.event == "child_started"


def _is_failed_inside(transition: Transition) -> bool:
    return isinstance(transition, NodeAdvanced) and transition.event == "child_failed"


async def seq_of(client: HoldfastClient, run_id: str, wanted: Callable[[Transition], bool]) -> int:
    return next(entry.seq for entry in await client.transitions(run_id) if wanted(entry))


@pytest.mark.req("FL-7")
async def test_a_flow_inside_that_went_on_after_its_failure_goes_on_from_there(
    counted: Bench, counting: Counting
) -> None:
    client = counted.client
    await counted.worker([Step])
    BROKEN.add("y")
    run_id = await counted.start(FLOW)
    with pytest.raises(FlowFailedError):
        await client.result(run_id)
    BROKEN.clear()
    HELD.add("z")
    second = await client.resume(run_id)
    await terminated_in(counting, client, second, "sub/z")
    HELD.clear()
    third = await client.resume(second)
    await client.result(third)

    assert executed(counting, second) == Counter(["sub/y", "sub/z"])
    assert executed(counting, third) == Counter(["sub/z"])


@pytest.mark.req("FL-7")
async def test_a_fork_of_a_fork_does_not_take_what_a_flow_inside_the_first_run_did_later(
    counted: Bench, counting: Counting
) -> None:
    client = counted.client
    await counted.worker([Step])
    run_id = await counted.start(FLOW)
    await client.result(run_id)
    fork = await client.fork(f"{run_id}@{await seq_of(client, run_id, _is_started_inside)}")
    await client.result(fork)
    first = (await client.transitions(fork))[0]
    again = await client.fork(f"{fork}@{first.seq}")
    await client.result(again)

    assert executed(counting, fork) == Counter(["sub/x", "sub/y", "sub/z"])
    assert executed(counting, again) == executed(counting, fork)


@pytest.mark.req("FL-7")
@pytest.mark.parametrize("where", ["first", "child"])
@pytest.mark.parametrize("gone", [False, True])
async def test_a_fork_of_a_fork_has_what_the_flow_inside_the_first_run_had_done(
    counted: Bench, counting: Counting, gone: bool, where: str
) -> None:
    client = counted.client
    await counted.worker([Step])
    HELD.add("z")
    run_id = await counted.start(FLOW)
    await terminated_in(counting, client, run_id, "sub/z")
    HELD.clear()
    fork = await client.fork(run_id)
    await client.result(fork)
    if gone:
        await CheckpointStore(client).delete(run_id)
    seq = await seq_of(client, fork, lambda entry: where == "first" or _is_started_inside(entry))
    again = await client.fork(f"{fork}@{seq}")
    await client.result(again)

    assert executed(counting, fork) == Counter(["sub/z"])
    assert executed(counting, again) == Counter(["sub/z"])


@pytest.mark.req("FL-7")
async def test_an_import_that_is_ended_while_it_is_paused_has_what_the_flow_inside_had_done(
    counted: Bench, counting: Counting
) -> None:
    client = counted.client
    await counted.worker([Step])
    HELD.add("z")
    run_id = await counted.start(FLOW)
    await terminated_in(counting, client, run_id, "sub/z")
    HELD.clear()
    bundle = await export(client, run_id)
    await CheckpointStore(client).delete(run_id)
    imported = (await import_bundle(client, bundle)).run_id
    await client.cancel(imported)
    with pytest.raises(RunCancelledError):
        await client.result(imported)
    again = (await import_bundle(client, await export(client, imported), paused=False)).run_id
    await client.result(again)
    resumed = await client.resume(imported)
    await client.result(resumed)

    assert executed(counting, imported) == Counter()
    assert executed(counting, again) == executed(counting, resumed) == Counter(["sub/z"])


@pytest.mark.req("FL-7")
async def test_an_unfinished_flow_inside_that_is_done_again_starts_from_nothing(
    counted: Bench, counting: Counting
) -> None:
    client = counted.client
    await counted.worker([Step])
    HELD.add("z")
    run_id = await counted.start(FLOW)
    await terminated_in(counting, client, run_id, "sub/z")
    HELD.clear()
    again = await client.rerun(run_id, "sub")
    await client.result(again)

    assert executed(counting, again) == Counter(["sub/x", "sub/y", "sub/z"])


@pytest.mark.req("FL-7")
@pytest.mark.parametrize("given", ["id", "checkpoint"])
async def test_the_last_checkpoint_of_a_run_that_has_ended_means_the_same_by_its_name(
    counted: Bench, counting: Counting, given: str
) -> None:
    client = counted.client
    await counted.worker([Step])
    HELD.add("z")
    run_id = await counted.start(FLOW)
    await terminated_in(counting, client, run_id, "sub/z")
    HELD.clear()
    last = await client.latest_checkpoint(run_id)
    again = await client.fork(last.id if given == "id" else last)
    await client.result(again)

    assert executed(counting, again) == Counter(["sub/z"])


ITEMS = """
id: outer
nodes:
  each:
    type: map
    max_workers: 2
    node: {type: flow, flow: {id: inner, nodes: {x: {type: Step}}}}
"""


@pytest.mark.req("FL-7", "OR-5")
async def test_a_flow_that_says_too_late_that_it_waits_no_more_is_not_heard(counted: Bench, counting: Counting) -> None:
    client = counted.client
    await counted.worker([Step])
    HELD.add("1")
    run_id = await counted.start(ITEMS, {"input": ["0", "1"]})
    handle = client.temporal.get_workflow_handle(run_id)
    while "0" not in (await client.latest_checkpoint(run_id)).node_states["each"].internal_state.get(
        "completed_iterations", {}
    ):
        await asyncio.sleep(0.02)
    await handle.signal(names.SIGNAL_CHILD, ChildMessage(run_id=f"{run_id}/each[0]", waits=False))
    await terminated_in(counting, client, run_id, "each[1]/x")
    HELD.clear()
    resumed = await client.resume(run_id)
    await client.result(resumed)

    assert executed(counting, resumed) == Counter(["each[1]/x"])


RETRIED = """
id: outer
nodes:
  beside: {type: Step}
  sub:
    type: flow
    error_handling: {max_retries: 1, retry_interval_seconds: 2}
    flow: {id: inner, nodes: {x: {type: Step}, y: {type: Step, depends: x}}}
"""


@pytest.mark.req("FL-7")
async def test_a_checkpoint_from_before_a_retry_has_what_the_flow_inside_had_done_by_then(
    counted: Bench, counting: Counting
) -> None:
    client = counted.client
    await counted.worker([Step])
    BROKEN.add("y")
    HELD.update(["beside", "y"])
    run_id = await counted.start(RETRIED)
    while "y" not in counting.executions[f"{run_id}/sub"]:
        await asyncio.sleep(0.02)
    HELD.remove("beside")
    while "beside" not in (latest := await client.latest_checkpoint(run_id)).completed_node_ids:
        await asyncio.sleep(0.02)
    HELD.remove("y")
    while not any(map(_is_failed_inside, await client.transitions(run_id))):
        await asyncio.sleep(0.02)
    BROKEN.clear()
    await client.result(run_id)
    again = await client.fork(latest.id)
    await client.result(again)

    assert executed(counting, run_id) == Counter(["beside", "sub/x", "sub/y", "sub/y"])
    assert executed(counting, again) == Counter(["sub/y"])
