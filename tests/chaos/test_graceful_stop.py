"""SIGTERM: nodes in flight get the grace period, and what does not end within it is run again by the next worker."""

import signal
import time

import pytest
from temporalio.client import Client

from holdfast.contracts.calls import RunConfig
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from tests.chaos.harness import Stage, result_of, start_run, until

PAIR = """
id: stopped
nodes:
  sync: {{type: Work, seconds: {seconds}, error_handling: {{max_retries: {retries}, retry_interval_seconds: 0.1}}}}
  async: {{type: WorkAsync, seconds: {seconds}, error_handling: {{max_retries: {retries}, retry_interval_seconds: 0.1}}}}
  end: {{type: Work, depends: [sync, async]}}
"""
LONG = """
id: stopped-long
nodes:
  long: {{type: {kind}, steps: 60}}
"""


async def begun(stage: Stage, run: str, *nodes: str) -> None:
    await until(lambda: all(stage.entries(run, node, "started") for node in nodes), f"{nodes} to begin")


@pytest.mark.req("FL-2", "PR-7")
async def test_nodes_longer_than_the_grace_period_run_again_and_nothing_fails(
    client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    worker = await stage.start_worker(temporal.address, "--grace", "1").ready()
    runs = [
        await start_run(client, stage, read_flow(PAIR.format(seconds=8, retries=retries)), name=f"retries-{retries}")
        for retries in (0, 1)
    ]
    for handle in runs:
        await begun(stage, handle.id, "sync", "async")
    worker.send(signal.SIGTERM)
    successor = await stage.start_worker(temporal.address).ready()
    await until(lambda: worker.ended() is not None, "the stopped worker to end")
    assert worker.ended() == 0

    for handle in runs:
        result = await result_of(handle)
        assert result.status == "completed"
        for node in ("sync", "async"):
            first, second = stage.entries(handle.id, node, "started")
            assert (first.pid, second.pid) == (worker.pid, successor.pid)
            assert first.key == second.key == f"{handle.id}/{node}"
        [cancelled] = stage.entries(handle.id, event="cancelled")
        assert (cancelled.node, cancelled.pid) == ("async", worker.pid)
        # The process ended: what it had begun did not finish behind the successor's back.
        assert {entry.pid for entry in stage.entries(handle.id, event="finished")} == {successor.pid}


@pytest.mark.req("FL-2")
async def test_nodes_that_end_within_the_grace_period_are_not_run_again(
    client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    worker = await stage.start_worker(temporal.address, "--grace", "30").ready()
    handle = await start_run(client, stage, read_flow(PAIR.format(seconds=3, retries=0)))
    await begun(stage, handle.id, "sync", "async")
    worker.send(signal.SIGTERM)
    successor = await stage.start_worker(temporal.address).ready()
    assert (await result_of(handle)).status == "completed"

    for node in ("sync", "async"):
        assert [entry.pid for entry in stage.entries(handle.id, node, "started")] == [worker.pid]
    assert [entry.pid for entry in stage.entries(handle.id, "end", "started")] == [successor.pid]
    await until(lambda: worker.ended() is not None, "the stopped worker to end")
    assert worker.ended() == 0


@pytest.mark.req("FL-8")
@pytest.mark.parametrize("kind", ["Long", "LongAsync"])
async def test_a_stopped_long_node_goes_on_from_its_saved_step(
    kind: str, client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    worker = await stage.start_worker(temporal.address, "--grace", "0.5").ready()
    handle = await start_run(client, stage, read_flow(LONG.format(kind=kind)), config=RunConfig(heartbeat_seconds=3))
    await until(lambda: len(stage.entries(handle.id, event="step")) >= 25, "twenty-five steps")
    worker.send(signal.SIGTERM)
    successor = await stage.start_worker(temporal.address).ready()
    assert (await result_of(handle)).status == "completed"

    first, second = stage.entries(handle.id, event="started")
    assert (first.pid, second.pid) == (worker.pid, successor.pid)
    steps = [entry.step or 0 for entry in stage.entries(handle.id, event="step") if entry.pid == worker.pid]
    # Said at the end and not only with a beat, so almost nothing is lost.
    assert second.step is not None
    assert max(steps) - 2 <= second.step <= max(steps) + 1
    await until(lambda: worker.ended() is not None, "the stopped worker to end")


@pytest.mark.req("PR-6")
async def test_a_worker_without_a_server_can_be_stopped(stage: Stage) -> None:
    process, server = embedded.start(stage.root / "temporal", 0, 0)
    try:
        worker = await stage.start_worker(server.address, "--grace", "1").ready()
        process.kill()
        process.wait()
        began = time.monotonic()
        worker.send(signal.SIGTERM)
        await until(lambda: worker.ended() is not None, "the worker to end without a server", seconds=60)
        assert time.monotonic() - began < 60
    finally:
        embedded.stop(process)
