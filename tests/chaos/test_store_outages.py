"""The blob store goes away, and comes back: a run that needs it waits, loses nothing and does nothing twice."""

import asyncio
import hashlib
import itertools
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client

from holdfast import CheckpointStore, HoldfastClient
from holdfast.contracts.calls import FlowResult, RunConfig
from holdfast.flows.reading import flow_from_data
from holdfast.flows.spec import FlowSpec
from holdfast.starter import embedded
from holdfast.starter.connecting import connect
from holdfast.starter.run_blobs import payloads_in
from holdfast.starter.store import Retention
from tests.chaos.harness import Stage, result_of, start_run, until
from tests.servers.s3 import S3Server

AWAY_SECONDS = 60.0
NODES = [f"n{number}" for number in range(6)]
QUICK = RunConfig(heartbeat_seconds=3)


SIZE = 200_000


def chain(first: int = SIZE) -> FlowSpec:
    """No retries: whatever is done again was lost, or paid for twice."""
    nodes: dict[str, Any] = {"n0": {"type": "Bulky", "size": first, "error_handling": {"max_retries": 0}}}
    for above, node in itertools.pairwise(NODES):
        nodes[node] = {"type": "Bulky", "size": SIZE, "depends": [above], "error_handling": {"max_retries": 0}}
    return flow_from_data({"id": "bulky", "nodes": nodes})


@pytest.fixture
async def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[S3Server]:
    with S3Server(tmp_path / "s3") as server:
        for name, value in {**server.environment, "HOLDFAST_BLOBS": server.url("runs")}.items():
            monkeypatch.setenv(name, value)
        yield server


async def assert_whole(address: str, run: str, result: FlowResult, first: int = SIZE) -> None:
    """Everything in the history can be read, by somebody who remembers nothing of it, and is what was written."""
    client = await connect(address)
    codec = client.data_converter.payload_codec
    assert codec is not None
    history = await client.get_workflow_handle(run).fetch_history()
    for event in history.events:
        await codec.decode(list(payloads_in(event)))
    found = (await HoldfastClient(client).result(run)).output
    for node in NODES:
        size = first if node == "n0" else SIZE
        assert found[node]["output"]["bytes"] == hashlib.shake_256(node.encode()).digest(size), node
    assert result.status == "completed"


@pytest.mark.req("PR-6")
@pytest.mark.timeout(300)
async def test_a_run_waits_for_a_store_that_is_away_for_a_minute(
    temporal: embedded.Running, stage: Stage, s3: S3Server
) -> None:
    client = await connect(temporal.address)
    await stage.start_worker(temporal.address).ready()
    # One node has its result and nowhere to put it; another run is to begin one whose input it cannot read.
    kept = await start_run(client, stage, chain(), config=QUICK, holds=[("n2", "finished")])
    begun = await start_run(client, stage, chain(), config=QUICK, holds=[("n3", "started")])
    for run, node, event in ((kept.id, "n2", "finished"), (begun.id, "n3", "started")):
        await until(lambda run=run, node=node, event=event: bool(stage.entries(run, node, event)), f"{node} of {run}")
    s3.kill()
    stage.release()
    await asyncio.sleep(AWAY_SECONDS)
    during = {run: len(stage.entries(run, event="started")) for run in (kept.id, begun.id)}
    s3.start()
    for handle in (kept, begun):
        result = await result_of(handle, 120)
        await assert_whole(temporal.address, handle.id, result)

    assert during == {kept.id: 3, begun.id: 4}
    for run in (kept.id, begun.id):
        assert [entry.node for entry in stage.entries(run, event="finished")] == NODES
    assert "[blob/unavailable]" in stage.logs()


@pytest.mark.req("PR-6")
async def test_a_node_whose_input_cannot_be_read_waits_and_the_run_says_why(
    temporal: embedded.Running, stage: Stage, s3: S3Server
) -> None:
    client = await connect(temporal.address)
    first = await stage.start_worker(temporal.address).ready()
    run = await start_run(client, stage, chain(), config=QUICK, holds=[("n2", "started")])
    await until(lambda: bool(stage.entries(run.id, "n2", "started")), "n2")
    first.kill()
    s3.kill()
    # A worker that remembers nothing gets the node again, when its heartbeats are missed.
    second = await stage.start_worker(temporal.address).ready()
    await until(lambda: "[blob/unavailable]" in second.log.read_text(), "the worker to ask in vain", 60)
    stage.release()
    s3.start()
    result = await result_of(run, 120)
    await assert_whole(temporal.address, run.id, result)

    assert [entry.node for entry in stage.entries(run.id, event="finished")] == NODES


@pytest.mark.req("PR-6", "PR-1")
@pytest.mark.parametrize("delay", [0.05, 0.3, 0.9])
async def test_a_store_killed_in_the_middle_of_a_put_leaves_no_reference_to_what_is_not_there(
    temporal: embedded.Running, stage: Stage, s3: S3Server, delay: float
) -> None:
    size = 24 * 2**20
    client = await connect(temporal.address)
    await stage.start_worker(temporal.address).ready()
    definition = chain(size)
    run = await start_run(client, stage, definition, config=QUICK, holds=[("n0", "finished")])
    await until(lambda: bool(stage.entries(run.id, "n0", "finished")), "n0")
    stage.release()
    await asyncio.sleep(delay)
    s3.kill()
    await asyncio.sleep(1)
    s3.start()
    result = await result_of(run, 180)
    await assert_whole(temporal.address, run.id, result, size)

    assert [entry.node for entry in stage.entries(run.id, event="finished")] == NODES


@pytest.mark.req("PR-1", "FL-9")
async def test_workers_killed_between_a_blob_and_its_reference_leave_nothing_but_garbage(
    temporal: embedded.Running, stage: Stage, client: Client
) -> None:
    """Seven kills at moments nobody chose. What they leave is found, swept, and missed by nobody."""
    worker = await stage.start_worker(temporal.address).ready()
    run = await start_run(client, stage, chain(), config=QUICK)
    for number in range(7):
        await asyncio.sleep(0.3 + 0.11 * number)
        worker.kill()
        worker = await stage.start_worker(temporal.address).ready()
    result = await result_of(run, 180)
    store = CheckpointStore(HoldfastClient(client))
    folder = Path(os.environ["HOLDFAST_BLOBS"]) / client.namespace / run.id
    before = sum(path.stat().st_size for path in folder.iterdir())
    for path in folder.iterdir():
        os.utime(path, (0, 0))
    await store.collect(Retention(keep=10**6, deep=True))
    after = sum(path.stat().st_size for path in folder.iterdir())
    await assert_whole(temporal.address, run.id, result)

    assert after <= before
    # Each output once, and what the list of them takes.
    assert after < 1.2 * len(NODES) * SIZE
