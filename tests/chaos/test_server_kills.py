"""SIGKILL of the Temporal server while runs are under way; it comes back on its port and file, the worker stays up.

A worker that lives is not taken for dead because the server was away for a moment: nothing runs twice, and what
finishes while nobody can be told is told later. When the server is away for longer than the heartbeat timeout, it may
find on its return that nobody has beaten: then what was in flight is run again, with the same key.
"""

import asyncio
import socket
import subprocess
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from holdfast.contracts.calls import FlowResult, RunConfig
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from tests.chaos.harness import (
    RECOVERIES,
    Recorded,
    Stage,
    connected,
    executions,
    lasting_port,
    recorded,
    result_of,
    start_run,
    timeless,
    until,
)

FLOW = read_flow("""
id: outage
nodes:
  a: {type: Work}
  b: {type: Work, depends: a}
  c: {type: WorkAsync, depends: a, error_handling: {max_retries: 2, retry_interval_seconds: 0.2}}
  shape: {type: transform, template: "{{ subject }}", depends: [b, c]}
  tick: {type: Work, pure: true, seconds: 0.05, depends: shape}
  wait: {type: delay, seconds: 2, depends: a}
  end:
    type: Work
    depends: [tick, wait]
    input_transformer: {selector: {ticked: $.tick.output, subject: $.subject}}
""")
INPUT = {"subject": "outages"}


class Server:
    """The embedded server with a file of its own, killed by its pid."""

    def __init__(self, stage: Stage) -> None:
        self._state = stage.root / "temporal"
        self._process: subprocess.Popen[bytes] | None = None
        self._ports = lasting_port(), lasting_port()
        self.address = f"127.0.0.1:{self._ports[0]}"

    def start(self) -> None:
        self._process, running = embedded.start(self._state, *self._ports)
        assert running.address == self.address, "the server came back on another port"

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None:
            embedded.stop(self._process)


@dataclass
class Stand:
    server: Server
    client: Client
    stage: Stage
    worker_pid: int
    undisturbed: dict[str, Any]

    async def start(self, *holds: tuple[str, str], config: RunConfig | None = None) -> WorkflowHandle[Any, FlowResult]:
        handle = await start_run(self.client, self.stage, FLOW, INPUT, config=config, holds=holds)
        for node, event in holds:
            await until(lambda: bool(self.stage.entries(handle.id, node, event)), f"{node} {event}")  # noqa: B023
        return handle

    async def finished(self, handle: WorkflowHandle[Any, FlowResult]) -> Recorded:
        """Waits for the run; whatever happened, its result is right and each key belongs to its node."""
        assert timeless(await result_of(handle)) == self.undisturbed
        for node, started in executions(self.stage.entries(handle.id)).items():
            assert {entry.key for entry in started} == {f"{handle.id}/{node}"}
        return await recorded(self.client, handle.id)

    def counts(self, handle: WorkflowHandle[Any, FlowResult]) -> dict[str, int]:
        return {node: len(started) for node, started in executions(self.stage.entries(handle.id)).items()}


ONCE = dict.fromkeys(("a", "b", "c", "tick", "end"), 1)


@pytest.fixture
async def stand(stage: Stage) -> AsyncGenerator[Stand]:
    server = Server(stage)
    server.start()
    try:
        client = await connected(server.address)
        worker = await stage.start_worker(server.address).ready()
        handle = await start_run(client, stage, FLOW, INPUT)
        undisturbed = timeless(await result_of(handle))
        yield Stand(server, client, stage, worker.pid, undisturbed)
        assert worker.ended() is None, "the worker did not outlive the server"
    finally:
        stage.close()
        server.stop()


@pytest.mark.req("PR-6", "RT-5", "FL-2")
async def test_a_short_outage_makes_nothing_run_twice(stand: Stand) -> None:
    # In flight throughout; finished meanwhile, sync and async; a pure node in an open workflow task; a timer that ends.
    throughout = await stand.start(("b", "started"))
    meanwhile = await stand.start(("b", "started"), ("c", "started"))
    unreported = await stand.start(("c", "finished"))
    pure = await stand.start(("tick", "started"))
    timer = await stand.start()

    async def waiting() -> bool:
        known = await recorded(stand.client, timer.id)
        return "tick" in known.completed_by and not known.timers_fired

    await until(waiting, "the run that only waits for its timer")
    held = (throughout, meanwhile, unreported, pure)
    before = {handle.id: await recorded(stand.client, handle.id) for handle in held}
    stand.server.kill()
    await asyncio.sleep(1.5)
    # The SDK keeps trying to report a finished node for some seconds only, so these finish late in the outage.
    for handle in (meanwhile, unreported, pure):
        stand.stage.release(handle.id)
    await until(lambda: len(stand.stage.entries(meanwhile.id, event="finished")) == 3, "nodes to finish in the outage")
    await until(lambda: bool(stand.stage.entries(pure.id, "tick", "finished")), "the pure node to finish in the outage")
    back = time.time()
    stand.server.start()
    stand.stage.release(throughout.id)

    for handle in (*held, timer):
        known = await stand.finished(handle)
        assert stand.counts(handle) == ONCE
        assert known.scheduled == {"a": 1, "b": 1, "c": 1, "end": 1}
        assert before.get(handle.id, Recorded()).completed_by.items() <= known.completed_by.items()
        begun = [entry.at for entry in stand.stage.entries(handle.id, "end", "started")]
        RECOVERIES.setdefault("server back to last node begun", []).append(max(begun) - back)


@pytest.mark.req("PR-6", "FL-2")
async def test_an_outage_longer_than_the_heartbeat_timeout_repeats_only_what_was_in_flight(stand: Stand) -> None:
    impatient = RunConfig(heartbeat_seconds=2)
    throughout = await stand.start(("b", "started"), config=impatient)
    meanwhile = await stand.start(("b", "started"), config=impatient)
    handles = (throughout, meanwhile)

    async def at_rest() -> bool:
        known = [await recorded(stand.client, handle.id) for handle in handles]
        return all("c" in found.completed_by for found in known)

    await until(at_rest, "everything but the held node to be in history")
    stand.server.kill()
    stand.stage.release(meanwhile.id)
    await until(lambda: bool(stand.stage.entries(meanwhile.id, "b", "finished")), "the node to finish in the outage")
    await asyncio.sleep(5)
    stand.server.start()
    back = time.time()

    async def decided() -> bool:
        # A race that either may win: the server finds that nobody has beaten, or the worker's next beat comes first.
        if len(stand.stage.entries(throughout.id, "b", "started")) == 2:
            return True
        pending = (await throughout.describe()).raw_description.pending_activities
        return any(found.last_heartbeat_time.ToNanoseconds() / 1e9 > back + 4 for found in pending)

    await until(decided, "the node to be run again, or to be known to live")
    stand.stage.release(throughout.id)

    for handle in handles:
        known = await stand.finished(handle)
        counts = stand.counts(handle)
        # What history had is done once, come what may.
        assert {**counts, "b": 1} == ONCE
        # What was in flight is run again at most once: also when it finished meanwhile and could not say so in time.
        assert counts["b"] <= known.scheduled["b"]
        assert 1 <= counts["b"] <= 2
        assert known.completed_by["b"] == stand.worker_pid


@pytest.mark.req("PR-6", "FL-2")
async def test_one_outage_after_another(stand: Stand) -> None:
    handles = [await stand.start() for _ in range(3)]
    for pause in (0.3, 0.7, 1.1):
        await asyncio.sleep(pause)
        stand.server.kill()
        stand.server.start()
    for handle in handles:
        await stand.finished(handle)
        assert {**stand.counts(handle), "tick": 1} == ONCE


def test_a_port_that_somebody_takes_at_the_last_moment_is_left_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    free_port = embedded.free_port
    with socket.create_server(("127.0.0.1", 0)) as taken:

        def too_late(preferred: int = 0) -> int:
            looked.append(preferred)
            return int(taken.getsockname()[1]) if len(looked) == 2 else free_port(preferred)

        monkeypatch.setattr(embedded, "free_port", too_late)
        with embedded.server(tmp_path / "state", 0, 0) as server:
            assert taken.getsockname()[1] not in (server.port, server.ui_port)
    assert len(looked) == 6
