"""SIGTERM: nodes in flight get the grace period, and what does not end within it is run again by the next worker."""

import signal
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from holdfast.contracts.calls import FlowResult
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from tests.chaos.harness import PATIENCE, Stage, connected, result_of, start_run, until

GRACE = 10
PAIR = """
id: stopped
nodes:
  sync: {{type: Work, seconds: {seconds}, error_handling: {{max_retries: {retries}}}}}
  async: {{type: WorkAsync, seconds: {seconds}, error_handling: {{max_retries: {retries}}}}}
  end: {{type: Work, depends: [sync, async]}}
"""
LONG = """
id: stopped-long
nodes:
  long: {{type: {kind}, steps: 60, step_seconds: 0.25}}
"""
PURE = f"""
id: stopped-pure
nodes:
  pure: {{type: Work, pure: true, seconds: {GRACE + 4}}}
  end: {{type: Work, depends: pure}}
"""


@pytest.mark.req("FL-2", "FL-8", "PR-7")
async def test_a_stopped_worker_loses_nothing(client: Client, temporal: embedded.Running, stage: Stage) -> None:
    worker = await stage.start_worker(temporal.address).ready()

    async def start(text: str) -> WorkflowHandle[Any, FlowResult]:
        return await start_run(client, stage, read_flow(text))

    # Longer than the grace period, also without a single retry; and one that ends within it.
    slow = [await start(PAIR.format(seconds=GRACE + 4, retries=retries)) for retries in (0, 1)]
    quick = await start(PAIR.format(seconds=4, retries=0))
    long = [await start(LONG.format(kind=kind)) for kind in ("Long", "LongAsync")]

    def begun() -> bool:
        pairs = [stage.entries(handle.id, node, "started") for handle in [*slow, quick] for node in ("sync", "async")]
        return all(pairs) and all(stage.entries(handle.id, event="step") for handle in long)

    await until(begun, "every node to begin")
    worker.send(signal.SIGTERM)
    successor = await stage.start_worker(temporal.address).ready()
    await until(lambda: worker.ended() is not None, "the stopped worker to end", seconds=GRACE + PATIENCE)
    assert worker.ended() == 0

    for handle in slow:
        assert (await result_of(handle)).status == "completed"
        for node in ("sync", "async"):
            first, second = stage.entries(handle.id, node, "started")
            assert (first.pid, second.pid) == (worker.pid, successor.pid)
            assert first.key == second.key == f"{handle.id}/{node}"
        [cancelled] = stage.entries(handle.id, event="cancelled")
        assert (cancelled.node, cancelled.pid) == ("async", worker.pid)
        # The process is gone: what it had begun did not finish beside the successor.
        assert {entry.pid for entry in stage.entries(handle.id, event="finished")} == {successor.pid}

    assert (await result_of(quick)).status == "completed"
    for node in ("sync", "async"):
        assert [entry.pid for entry in stage.entries(quick.id, node, "started")] == [worker.pid]
    assert [entry.pid for entry in stage.entries(quick.id, "end", "started")] == [successor.pid]

    for handle in long:
        assert (await result_of(handle)).status == "completed"
        first, second = stage.entries(handle.id, event="started")
        assert (first.pid, second.pid) == (worker.pid, successor.pid)
        steps = [entry.step or 0 for entry in stage.entries(handle.id, event="step") if entry.pid == worker.pid]
        # The state is said when the worker stops and not only with a beat, so hardly a step is done again.
        assert second.step is not None
        assert max(steps) - 1 <= second.step <= max(steps) + 1
    assert "never awaited" not in stage.logs()
    assert "was destroyed but it is pending" not in stage.logs()


@pytest.mark.req("FL-2")
async def test_a_slow_pure_node_does_not_fail_when_its_worker_is_stopped(
    client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    worker = await stage.start_worker(temporal.address).ready()
    handle = await start_run(client, stage, read_flow(PURE))
    await until(lambda: bool(stage.entries(handle.id, "pure", "started")), "the pure node to begin")
    worker.send(signal.SIGTERM)
    await stage.start_worker(temporal.address).ready()
    assert (await result_of(handle)).status == "completed"
    started = stage.entries(handle.id, "pure", "started")
    assert {entry.key for entry in started} == {f"{handle.id}/pure"}
    await until(lambda: worker.ended() is not None, "the stopped worker to end")
    assert worker.ended() == 0


@pytest.mark.req("PR-6")
async def test_a_worker_without_a_server_can_be_stopped(stage: Stage) -> None:
    process, server = embedded.start(stage.root / "temporal", 0, 0)
    try:
        client = await connected(server.address)
        worker = await stage.start_worker(server.address).ready()
        handle = await start_run(client, stage, read_flow(PAIR.format(seconds=60, retries=0)))
        await until(lambda: bool(stage.entries(handle.id, "sync", "started")), "a node to begin")
        process.kill()
        process.wait()
        worker.send(signal.SIGTERM)
        await until(lambda: worker.ended() is not None, "the worker to end without a server", seconds=PATIENCE)
    finally:
        embedded.stop(process)
