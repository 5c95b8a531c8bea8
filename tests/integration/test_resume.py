"""Resume: only what is left runs, from the failed checkpoint itself, from any other, and through the library."""

import sqlite3
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowFailureError
from temporalio.contrib.pydantic import pydantic_data_converter

from holdfast import (
    CheckpointMixin,
    CheckpointStatus,
    CheckpointStore,
    FlowFailedError,
    HoldfastClient,
    InvalidCheckpointError,
    NoCheckpointError,
    Node,
    RunActiveError,
    RunConfig,
    RunNotFoundError,
    read_flow,
)
from holdfast.activities.registry import Registry
from holdfast.contracts import names
from holdfast.contracts.calls import FlowStart
from holdfast.flows.reading import flow_from_data
from holdfast.flows.spec import NodeSpec
from holdfast.starter import embedded
from holdfast.starter.connecting import connect
from holdfast.starter.errors import AlreadyResumedError
from holdfast.worker import running_worker
from tests.integration.conftest import Bench

EXECUTIONS: list[tuple[str, str]] = []
BROKEN: set[str] = set()


class Work(Node):
    """Fails while its id is among the broken ones."""

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        EXECUTIONS.append((kwargs["node_id"], kwargs["idempotency_key"]))
        if kwargs["node_id"] in BROKEN:
            raise RuntimeError(f"{kwargs['node_id']} is broken")
        return {"by": kwargs["node_id"]}


class Counts(Node, CheckpointMixin):
    """Keeps a count across failures."""

    _count: int = 0

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"count": self._count}

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        self._count = state["count"]

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        self._count += 1
        if self._count < 3:
            raise RuntimeError(f"only {self._count}")
        return {"count": self._count, "resumed": self.is_resumed}


FLOW = """
id: resumable
nodes:
  a: {type: Work}
  b: {type: Work, depends: a, error_handling: {max_retries: 2, retry_interval_seconds: 0.05}}
  c: {type: Work, depends: b}
  side: {type: Work, depends: a}
  end: {type: transform, depends: [c, side], template: "{{ c.output.by }} and {{ side.output.by }}"}
"""


@pytest.fixture(autouse=True)
def fresh() -> None:
    EXECUTIONS.clear()
    BROKEN.clear()


@pytest.mark.req("FL-2", "FL-3", "FL-10")
async def test_a_node_that_fails_three_times_and_is_then_mended_runs_alone_with_what_follows(bench: Bench) -> None:
    await bench.worker([Work])
    BROKEN.add("b")
    with pytest.raises(FlowFailedError) as caught:
        await bench.run(FLOW)
    failed = await bench.client.latest_checkpoint(caught.value.run_id)
    before = [node for node, _ in EXECUTIONS]
    EXECUTIONS.clear()
    BROKEN.clear()
    assert caught.value.checkpoint_id is not None
    resumed = await bench.client.resume(caught.value.checkpoint_id)
    result = await bench.client.result(resumed)
    checkpoint = await bench.client.latest_checkpoint(resumed)

    assert failed.status == CheckpointStatus.FAILED
    assert sorted(failed.completed_node_ids) == ["a", "side"]
    assert sorted(failed.pending_node_ids) == ["b", "c", "end"]
    assert before.count("b") == 3
    assert [node for node, _ in EXECUTIONS] == ["b", "c"]
    assert EXECUTIONS[0][1] == f"{caught.value.run_id}/b", "the same key as before: one key for one effect"
    assert result.output["end"]["output"] == "c and side"
    assert checkpoint.parent_checkpoint_id == failed.id


@pytest.mark.req("FL-2")
async def test_resuming_a_completed_run_executes_nothing(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await bench.start(FLOW)
    first = await bench.client.result(run_id)
    EXECUTIONS.clear()
    second = await bench.client.result(await bench.client.resume(run_id))

    assert EXECUTIONS == []
    assert second.output == first.output


@pytest.mark.req("FL-2")
async def test_every_checkpoint_of_a_run_leads_to_the_same_end(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await bench.start(FLOW)
    undisturbed = await bench.client.result(run_id)
    for summary in await bench.client.list_checkpoints(run_id):
        EXECUTIONS.clear()
        done = (await bench.client.get_checkpoint(summary.id)).completed_node_ids
        result = await bench.client.result(await bench.client.fork(summary.id))
        assert result.output == undisturbed.output
        assert sorted(node for node, _ in EXECUTIONS) == sorted({"a", "b", "c", "side"} - set(done))


@pytest.mark.req("DM-1", "FL-8")
async def test_a_failed_nodes_state_is_given_back_to_it(bench: Bench) -> None:
    await bench.worker([Counts])
    checkpoint = ""
    with pytest.raises(FlowFailedError) as caught:
        await bench.run("id: f\nnodes:\n  n: {type: Counts}")
    checkpoint = caught.value.checkpoint_id or ""
    with pytest.raises(FlowFailedError, match="only 2") as caught:
        await bench.client.result(await bench.client.resume(checkpoint))
    result = await bench.client.result(await bench.client.resume(caught.value.run_id))

    assert result.output["n"]["output"] == {"count": 3, "resumed": True}


async def test_a_run_that_is_not_there_or_not_over_is_refused_by_name(bench: Bench) -> None:
    run_id = await bench.start("id: f\nnodes:\n  n: {type: delay, seconds: 1h}")
    with pytest.raises(RunActiveError, match=run_id):
        await bench.client.resume(run_id)
    with pytest.raises(RunNotFoundError, match="nobody"):
        await bench.client.resume("nobody@3")
    await bench.client.cancel(run_id)


async def test_a_checkpoint_that_a_run_never_had_is_refused_by_name(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await bench.start("id: f\nnodes:\n  n: {type: Work}")
    await bench.client.result(run_id)
    with pytest.raises(NoCheckpointError, match="there is no checkpoint 99"):
        await bench.client.get_checkpoint(f"{run_id}@99")


@pytest.mark.req("RT-1", "RT-7")
async def test_a_run_that_was_ended_before_a_worker_took_it_up_is_resumed_where_it_was_to_begin(bench: Bench) -> None:
    await bench.worker([Work])
    BROKEN.add("c")
    run_id = await bench.start(FLOW)
    with pytest.raises(FlowFailedError):
        await bench.client.result(run_id)
    BROKEN.clear()
    EXECUTIONS.clear()
    unattended = HoldfastClient(bench.client.temporal, f"{bench.task_queue}-unattended")
    second = await unattended.resume(run_id)
    await bench.client.temporal.get_workflow_handle(second).terminate()
    third = await bench.client.resume(second)
    await bench.client.result(third)
    first = await unattended.start(read_flow("id: f\nnodes:\n  n: {type: Work}"))
    await bench.client.temporal.get_workflow_handle(first).terminate()
    await bench.client.result(await bench.client.resume(first))

    assert [("c", f"{run_id}/c"), ("n", f"{first}/n")] == EXECUTIONS
    with pytest.raises(AlreadyResumedError, match=third):
        await bench.client.resume(second)


@pytest.mark.req("DM-8")
async def test_an_invalid_checkpoint_is_refused_and_nothing_is_started(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await bench.start("id: f\nnodes:\n  n: {type: Work}")
    await bench.client.result(run_id)
    checkpoint = await bench.client.latest_checkpoint(run_id)
    checkpoint.completed_node_ids.append("ghost")
    with pytest.raises(InvalidCheckpointError, match="ghost"):
        await bench.client.resume(checkpoint)
    with pytest.raises(RunNotFoundError):
        await bench.client.get_run(f"{run_id}~2")


@pytest.mark.req("FL-2", "RT-1")
@pytest.mark.parametrize("ended", ["terminated", "timed out"])
async def test_a_run_that_was_ended_from_outside_is_read_and_resumed_from_its_history(bench: Bench, ended: str) -> None:
    await bench.worker([Work])
    flow = read_flow("id: f\nnodes:\n  a: {type: Work}\n  wait: {type: delay, seconds: 1h, depends: a}")
    run_id = f"ended-{bench.task_queue}"
    handle = await bench.client.temporal.start_workflow(
        names.FLOW_RUN,
        FlowStart(flow=flow),
        id=run_id,
        task_queue=bench.task_queue,
        run_timeout=timedelta(seconds=6) if ended == "timed out" else None,
    )
    while not EXECUTIONS:
        await bench.client.get_run(run_id)
    while not (await bench.client.latest_checkpoint(run_id)).completed_node_ids:
        pass
    if ended == "terminated":
        await handle.terminate()
    with pytest.raises(WorkflowFailureError):
        await handle.result()
    checkpoint = await bench.client.latest_checkpoint(run_id)
    resumed = await bench.client.resume(run_id)

    assert checkpoint.completed_node_ids == ["a"]
    assert (await bench.client.get_run(run_id)).status == "failed"
    await bench.client.cancel(resumed)
    assert [node for node, _ in EXECUTIONS] == ["a"]


def forged(blob: bytes) -> bytes:
    """Another text of the same length. The last of its places is the closing event; the marker with the node's own
    result stays as it was."""
    assert blob.count(b"completed_node_ids") == 1
    return b"FORGERY".join(blob.rsplit(b"GENUINE", 1))


def forged_wherever_it_is(blob: bytes) -> bytes:
    return blob.replace(b"GENUINE", b"FORGERY")


def flipped(blob: bytes) -> bytes:
    """One bit of the last encoded payload."""
    at = blob.rindex(b"binary/holdfast") + 150
    return blob[:at] + bytes([blob[at] ^ 1]) + blob[at + 1 :]


def damage(state: Path, mark: str, change: Callable[[bytes], bytes]) -> None:
    """The bytes are changed where they lie: in the server's own database, while it is down."""
    with sqlite3.connect(state / "temporal.db") as database:
        row, blob = database.execute(
            "SELECT rowid, data FROM history_node WHERE instr(data, ?) ORDER BY node_id DESC LIMIT 1", (mark,)
        ).fetchone()
        database.execute("UPDATE history_node SET data = ? WHERE rowid = ?", (change(blob), row))


async def plainly(address: str) -> HoldfastClient:
    await connect(address)  # Waits until the server is ready.
    return HoldfastClient(await Client.connect(address, data_converter=pydantic_data_converter))


@pytest.mark.req("PR-1")
@pytest.mark.parametrize(
    ("connecting", "mark", "change", "fault"),
    [(plainly, "GENUINE", forged, "its checksum says"), (HoldfastClient.connect, "holdfast", flipped, "codec/damaged")],
    ids=["without a codec", "with the codec"],
)
async def test_a_damaged_last_checkpoint_is_named_and_the_history_is_used(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    connecting: Callable[[str], Awaitable[HoldfastClient]],
    mark: str,
    change: Callable[[bytes], bytes],
    fault: str,
) -> None:
    state = tmp_path / "state"
    with embedded.server(state, 0, 0) as server:
        client = await connecting(server.address)
        async with running_worker(client.temporal, cache=tmp_path / "cache.db"):
            run_id = await client.start(read_flow("id: f\nnodes:\n  n: {type: transform, template: GENUINE}"))
            await client.result(run_id)
    damage(state, mark, change)
    with embedded.server(state, 0, 0) as server:
        client = await connecting(server.address)
        checkpoint = await client.latest_checkpoint(run_id)

    assert checkpoint.node_states["n"].output_data == "GENUINE"
    assert f"run {run_id}: its last checkpoint is damaged" in caplog.text
    assert fault in caplog.text


async def left_by(client: HoldfastClient, run_id: str) -> int:
    """How many things a failed run has left in its closing event: its result, and what is ready for the next run."""
    handle = client.temporal.get_workflow_handle(run_id)
    events = [event async for event in handle.fetch_history_events()]
    failure = events[-1].workflow_execution_failed_event_attributes.failure
    return len(failure.application_failure_info.details.payloads)


async def argument_of(client: HoldfastClient, run_id: str) -> dict[str, Any]:
    history = await client.temporal.get_workflow_handle(run_id).fetch_history()
    payloads = history.events[0].workflow_execution_started_event_attributes.input.payloads
    [argument] = await client.temporal.data_converter.decode(payloads)
    argument["base"].pop("checksum")
    return argument


@pytest.mark.req("FL-2", "FL-10")
async def test_what_a_failed_run_leaves_ready_is_what_its_checkpoint_would_give(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.worker([Work])
    BROKEN.add("b")
    run_id = await bench.start(FLOW, {"n": 1}, RunConfig(heartbeat_seconds=5))
    with pytest.raises(FlowFailedError):
        await bench.client.result(run_id)
    arguments: list[dict[str, Any]] = []
    plans: list[Any] = []
    seen: list[Any] = []
    for version in (None, "from another library"):
        if version is not None:
            monkeypatch.setattr("holdfast.contracts.successor.LIBRARY_VERSION", version)
        new = await bench.client.travel.resume(run_id)
        with pytest.raises(FlowFailedError):
            await bench.client.result(new.run_id)
        described = await bench.client.temporal.get_workflow_handle(new.run_id).describe()
        arguments.append(await argument_of(bench.client, new.run_id))
        plans.append(new.plan)
        seen.append((described.typed_search_attributes, await described.static_summary(), await described.memo()))
        await CheckpointStore(bench.client).delete(new.run_id)

    assert await left_by(bench.client, run_id) == 3
    assert arguments[0] == arguments[1]
    assert arguments[0]["config"]["heartbeat_seconds"] == 5
    assert plans[0] == plans[1]
    assert seen[0] == seen[1]


@pytest.mark.req("FL-2")
async def test_a_resume_without_changes_reads_no_checkpoint_and_one_with_changes_does(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> None:
        raise AssertionError("the checkpoint was read")

    await bench.worker([Work])
    BROKEN.add("b")
    runs = [await bench.start(FLOW) for _ in range(3)]
    for run_id in runs:
        with pytest.raises(FlowFailedError):
            await bench.client.result(run_id)
    last = (await bench.client.latest_checkpoint(runs[2])).id
    BROKEN.clear()
    flow = read_flow(FLOW)
    changed = flow.model_copy(update={"nodes": [*flow.nodes, NodeSpec(id="more", type="Work")]})
    monkeypatch.setattr("holdfast.starter.reader.RunReader.left_behind", refuse)
    changes: list[dict[str, Any]] = [{"edits": {"a:output.by": "hand"}}, {"flow": changed}, {"input_data": {}}]
    for different in changes:
        with pytest.raises(AssertionError, match="was read"):
            await bench.client.resume(runs[0], **different)
    # The last one by its name, with the definition that the run had: what the library does.
    resumed = [await bench.client.resume(runs[1]), await bench.client.resume(last, flow=flow)]
    results = [await bench.client.result(run_id) for run_id in resumed]

    assert resumed == [f"{runs[1]}~2", f"{runs[2]}~2"]
    assert [result.output["end"]["output"] for result in results] == ["c and side"] * 2


@pytest.mark.req("FL-2")
async def test_nothing_is_left_ready_where_it_is_large_or_other_runs_have_to_be_asked(bench: Bench) -> None:
    await bench.worker([Work])
    BROKEN.add("b")
    large = await bench.start(FLOW, "x" * 300_000)
    inner = {"id": "inner", "nodes": {"b": {"type": "Work"}}}
    outer = await bench.start(flow_from_data({"id": "outer", "nodes": {"f": {"type": "flow", "flow": inner}}}))
    for run_id in (large, outer):
        with pytest.raises(FlowFailedError):
            await bench.client.result(run_id)
    left = {name: await left_by(bench.client, run) for name, run in (("large", large), ("outer", outer))}
    left["inner"] = await left_by(bench.client, f"{outer}/f")
    BROKEN.clear()
    resumed = [await bench.client.result(await bench.client.resume(run_id)) for run_id in (large, outer)]

    assert left == {"large": 1, "outer": 1, "inner": 1}
    assert [result.status for result in resumed] == ["success", "success"]


@pytest.mark.req("PR-1")
@pytest.mark.parametrize(
    ("connecting", "mark", "change"),
    [
        (plainly, "GENUINE", forged_wherever_it_is),
        (HoldfastClient.connect, "holdfast", flipped),
    ],
    ids=["without a codec", "with the codec"],
)
async def test_a_failed_run_whose_last_event_is_damaged_is_resumed_from_what_is_whole(
    tmp_path: Path,
    connecting: Callable[[str], Awaitable[HoldfastClient]],
    mark: str,
    change: Callable[[bytes], bytes],
) -> None:
    state = tmp_path / "state"
    failing = "id: f\nnodes:\n  n: {type: transform, template: GENUINE}\n  w: {type: Work, depends: n}"
    BROKEN.add("w")
    registry = Registry()
    registry.add_class(Work)
    with embedded.server(state, 0, 0) as server:
        client = await connecting(server.address)
        async with running_worker(client.temporal, registry=registry, cache=tmp_path / "cache.db"):
            run_id = await client.start(read_flow(failing))
            with pytest.raises(FlowFailedError):
                await client.result(run_id)
    damage(state, mark, change)
    BROKEN.clear()
    with embedded.server(state, 0, 0) as server:
        client = await connecting(server.address)
        async with running_worker(client.temporal, registry=registry, cache=tmp_path / "cache.db"):
            result = await client.result(await client.resume(run_id))

    assert result.output["n"]["output"] == "GENUINE"
    assert result.output["w"]["output"] == {"by": "w"}
