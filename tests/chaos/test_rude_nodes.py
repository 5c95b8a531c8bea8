"""Nodes that end in ways an event loop takes personally, and a worker that is frozen instead of killed."""

import signal

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.exceptions import ApplicationError

from holdfast.contracts.calls import RunConfig
from holdfast.contracts.names import FLOW_FAILED
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from tests.chaos.harness import Stage, recorded, result_of, start_run, until

WAYS = ("exit", "interrupt", "cancelled", "stop")
QUITS = """
id: rude
nodes:
  rude: {{type: {kind}, way: {way}}}
"""
POLITE = read_flow("""
id: polite
nodes:
  sync: {type: Work}
  async: {type: WorkAsync}
""")
FROZEN = read_flow("""
id: frozen
nodes:
  sync: {type: Long, steps: 60}
  async: {type: LongAsync, steps: 60}
  end: {type: Work, depends: [sync, async]}
""")


async def test_a_node_that_quits_fails_alone(client: Client, temporal: embedded.Running, stage: Stage) -> None:
    worker = await stage.start_worker(temporal.address).ready()
    for kind in ("Quits", "QuitsAsync"):
        for way in WAYS:
            handle = await start_run(client, stage, read_flow(QUITS.format(kind=kind, way=way)))
            with pytest.raises(WorkflowFailureError) as caught:
                await result_of(handle)
            cause = caught.value.cause
            assert isinstance(cause, ApplicationError), (kind, way)
            assert cause.type == FLOW_FAILED
    # The worker, its loop for async nodes included, serves others as before.
    assert (await result_of(await start_run(client, stage, POLITE))).status == "completed"
    assert worker.ended() is None


@pytest.mark.req("FL-2", "FL-8", "PR-7")
async def test_a_worker_that_freezes_and_wakes_does_no_harm(
    client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    frozen = await stage.start_worker(temporal.address).ready()
    handle = await start_run(client, stage, FROZEN, config=RunConfig(heartbeat_seconds=2))
    nodes = ("sync", "async")
    await until(lambda: all(len(stage.entries(handle.id, node, "step")) > 12 for node in nodes), "some steps")
    frozen.send(signal.SIGSTOP)
    other = await stage.start_worker(temporal.address).ready()

    def taken_over() -> bool:
        return all(other.pid in [entry.pid for entry in stage.entries(handle.id, node, "started")] for node in nodes)

    await until(taken_over, "the other worker to take over")
    frozen.send(signal.SIGCONT)

    # Awake, it learns that its executions are no longer wanted and ends them.
    def given_up() -> bool:
        ended = [entry.node for entry in stage.entries(handle.id, event="cancelled") if entry.pid == frozen.pid]
        return set(ended) == set(nodes)

    await until(given_up, "the frozen worker's executions to be given up")
    assert (await result_of(handle)).status == "completed"
    known = await recorded(client, handle.id)
    for node in nodes:
        # It may have been handed a task while it was frozen, and begun that too: the key is the same, the result is not
        # taken.
        started = stage.entries(handle.id, node, "started")
        assert started[0].pid == frozen.pid
        assert {entry.key for entry in started} == {f"{handle.id}/{node}"}
        assert [entry.step for entry in started if entry.pid == other.pid] != [0]
        assert known.completed_by[node] == other.pid
