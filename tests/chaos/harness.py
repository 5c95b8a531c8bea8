"""What the tests that kill things share: processes they own, the journal the nodes write, and what history says."""

import asyncio
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import Client, WorkflowHandle

from holdfast.contracts.calls import FlowResult, FlowStart, PureReply, RunConfig
from holdfast.contracts.names import FLOW_RUN
from holdfast.flows.spec import FlowSpec
from holdfast.starter import embedded
from holdfast.starter.connecting import NotReachableError, connect

NODES = str(Path(__file__).with_name("chaos_nodes.py"))
PATIENCE = 90.0


@dataclass(frozen=True)
class Entry:
    """One line of the journal."""

    event: str
    run: str
    node: str
    key: str
    pid: int
    at: float
    attempt: int = 1
    step: int | None = None
    resumed: bool | None = None


class Stage:
    """A directory of its own: the journal, the holds, and the workers that were started here."""

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self.root = root
        self._journal = root / "journal.jsonl"
        self._journal.touch()
        self._control = root / "control"
        self._control.mkdir(exist_ok=True)
        self._workers: list[WorkerProcess] = []
        self.queue = f"chaos-{uuid4().hex[:8]}"

    def start_worker(self, address: str, *options: str) -> "WorkerProcess":
        """Returns at once; `await worker.ready()` when it matters."""
        environment = {
            **os.environ,
            "CHAOS_JOURNAL": str(self._journal),
            "CHAOS_CONTROL": str(self._control),
            "HOLDFAST_HOME": str(self.root / "home"),
            # A node's mistake with coroutines or files is to be seen in the worker's log.
            "PYTHONWARNINGS": "always::RuntimeWarning,always::ResourceWarning",
        }
        log = self.root / f"worker-{len(self._workers) + 1}.log"
        arguments = ["--address", address, "--task-queue", self.queue, "--load", NODES, *options]
        worker = WorkerProcess([sys.executable, "-m", "holdfast.worker", *arguments], log, environment)
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        """Leaves no process behind, and no node of ours waiting."""
        self.release()
        for worker in self._workers:
            worker.end()

    def logs(self) -> str:
        return "\n".join(worker.log.read_text(errors="replace") for worker in self._workers)

    def hold(self, run: str, node: str, event: str) -> None:
        # A node inside another one, and a run inside another one, have a slash in their name.
        (self._control / f"{run}.{node}.{event}".replace("/", "~")).touch()

    def release(self, run: str = "*", node: str = "*") -> None:
        for path in self._control.glob(f"{run}.{node}.*"):
            path.unlink(missing_ok=True)

    def entries(self, run: str | None = None, node: str | None = None, event: str | None = None) -> list[Entry]:
        """What the journal has, in the order it was written. A line that a kill cut short is not there yet."""
        lines = self._journal.read_text().split("\n")[:-1]
        found = [Entry(**json.loads(line)) for line in lines]
        return [
            entry
            for entry in found
            if run in (None, entry.run) and node in (None, entry.node) and event in (None, entry.event)
        ]


def _die_with_parent() -> None:
    """On Linux, a test process that is killed itself leaves no worker behind either."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class WorkerProcess:
    """A real worker, killed and stopped by its own pid."""

    def __init__(self, arguments: list[str], log: Path, environment: dict[str, str]) -> None:
        self.log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                preexec_fn=_die_with_parent,
            )
        self.pid = self._process.pid

    async def ready(self) -> "WorkerProcess":
        def up() -> bool:
            if self._process.poll() is not None:
                raise AssertionError(f"the worker ended:\n{self.log.read_text(errors='replace')[-4000:]}")
            return b"on task queue" in self.log.read_bytes()

        await until(up, "the worker to be ready")
        return self

    def kill(self) -> float:
        """SIGKILL; the time just before it. Returns when the process is gone."""
        at = time.time()
        self._process.kill()
        self._process.wait()
        return at

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def ended(self) -> int | None:
        """The exit code, if it has ended."""
        return self._process.poll()

    def end(self) -> None:
        if self._process.poll() is None:
            # A stopped process cannot end, and a graceful end is not what a test's cleanup waits for.
            self._process.kill()
            self._process.wait()


async def until(
    condition: Callable[[], bool | Awaitable[bool]], what: str, seconds: float = PATIENCE, pause: float = 0.02
) -> None:
    """Polls until the condition holds; says what was waited for when it does not."""
    deadline = time.monotonic() + seconds
    while True:
        answer = condition()
        if answer if isinstance(answer, bool) else await answer:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        await asyncio.sleep(pause)


async def start_run(
    client: Client,
    stage: Stage,
    flow: FlowSpec,
    input_data: dict[str, Any] | None = None,
    *,
    name: str = "run",
    config: RunConfig | None = None,
    holds: Iterable[tuple[str, str]] = (),
) -> WorkflowHandle[Any, FlowResult]:
    """Starts the flow; the run will stay where `holds` (node, event) say until they are released."""
    run = f"{name}-{uuid4().hex[:8]}"
    for node, event in holds:
        stage.hold(run, node, event)
    return await client.start_workflow(
        FLOW_RUN,
        FlowStart(flow=flow, input_data=input_data or {}, config=config or RunConfig()),
        id=run,
        task_queue=stage.queue,
        result_type=FlowResult,
    )


def lasting_port() -> int:
    """A free port for a server that comes back to it.

    Not one of those the kernel gives to outgoing connections: one of them could take it while the server is away.
    """
    while True:
        port = random.randrange(12000, 32000)
        if embedded.free_port(port) == port:
            return port


async def connected(address: str) -> Client:
    """A client, once the server answers requests and not only connections."""
    found: list[Client] = []

    async def attempt() -> bool:
        try:
            found.append(await connect(address))
        except NotReachableError:
            return False
        return True

    await until(attempt, f"Temporal at {address}", pause=0.1)
    return found[0]


async def result_of(handle: WorkflowHandle[Any, FlowResult], seconds: float = PATIENCE) -> FlowResult:
    async with asyncio.timeout(seconds):
        return await handle.result()


def timeless(result: FlowResult) -> dict[str, Any]:
    """What a run gave, without the times in it: equal for equal runs."""
    outcome = {node_id: node.model_dump(mode="json") for node_id, node in result.output.items()}
    return {"status": result.status, "output": _without_times(outcome)}


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        items: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType] (JSON)
        return {key: _without_times(item) for key, item in items.items() if key != "wake_at"}
    if isinstance(value, list):
        return [_without_times(item) for item in value]  # pyright: ignore[reportUnknownVariableType] (JSON)
    return value


@dataclass
class Recorded:
    """What a run's history says of its nodes. A worker signs what it reports with its pid."""

    completed_by: dict[str, int] = field(default_factory=dict[str, int])
    scheduled: dict[str, int] = field(default_factory=dict[str, int])
    timers_started: int = 0
    timers_fired: list[float] = field(default_factory=list[float])
    task_failures: list[str] = field(default_factory=list[str])


async def recorded(client: Client, run: str, execution: str | None = None) -> Recorded:
    """Reads the history of one execution. Node ids are activity ids; a batch of pure nodes is a marker."""
    found = Recorded()
    activities: dict[int, str] = {}
    tasks: dict[int, int] = {}
    handle = client.get_workflow_handle(run, run_id=execution)
    async for event in handle.fetch_history_events():
        match event.event_type:
            case EventType.EVENT_TYPE_ACTIVITY_TASK_SCHEDULED:
                node = event.activity_task_scheduled_event_attributes.activity_id.partition("~")[0]
                activities[event.event_id] = node
                found.scheduled[node] = found.scheduled.get(node, 0) + 1
            case EventType.EVENT_TYPE_ACTIVITY_TASK_COMPLETED:
                completed = event.activity_task_completed_event_attributes
                node = activities[completed.scheduled_event_id]
                assert node not in found.completed_by, f"{node} completed twice in history"
                found.completed_by[node] = _pid(completed.identity)
            case EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
                tasks[event.event_id] = _pid(event.workflow_task_completed_event_attributes.identity)
            case EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
                found.task_failures.append(event.workflow_task_failed_event_attributes.failure.message)
            case EventType.EVENT_TYPE_MARKER_RECORDED:
                await _read_batch(client, event, tasks, found)
            case EventType.EVENT_TYPE_TIMER_STARTED:
                found.timers_started += 1
            case EventType.EVENT_TYPE_TIMER_FIRED:
                found.timers_fired.append(event.event_time.ToNanoseconds() / 1e9)
            case _:
                pass
    return found


async def _read_batch(client: Client, event: HistoryEvent, tasks: dict[int, int], found: Recorded) -> None:
    marker = event.marker_recorded_event_attributes
    payloads = marker.details["result"].payloads
    for reply in await client.data_converter.decode(payloads, [PureReply]):
        for outcome in reply.outcomes:
            assert outcome.node_id not in found.completed_by, f"{outcome.node_id} completed twice in history"
            found.completed_by[outcome.node_id] = tasks[marker.workflow_task_completed_event_id]


def _pid(identity: str) -> int:
    return int(identity.partition("@")[0])


def executions(entries: Iterable[Entry]) -> dict[str, list[Entry]]:
    """The 'started' entries by node."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.event == "started":
            found.setdefault(entry.node, []).append(entry)
    return found


RECOVERIES: dict[str, list[float]] = {}
"""Seconds from a kill to the next sign of progress, by what was killed; shown when the tests have ended."""
