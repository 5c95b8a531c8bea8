"""Flows for library users: `Flow(nodes=[…]).run_sync(…)`. The worker runs in this process.

A composition root like `worker.py`: it brings starter and worker together, so that nodes defined in a notebook or a
test work as they are. All of it lives on a thread of its own; the caller may have an event loop or none.
"""

import asyncio
import atexit
import contextlib
import threading
import uuid
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import yaml

from holdfast.activities.registry import Registry
from holdfast.checkpoints.models import FlowCheckpoint
from holdfast.contracts.calls import RunConfig
from holdfast.contracts.names import DEFAULT_TASK_QUEUE
from holdfast.flows.check import ensure
from holdfast.flows.nodes import Node, flow_nodes
from holdfast.flows.reading import read_flow
from holdfast.flows.spec import CheckpointConfig, FlowSpec
from holdfast.starter import embedded
from holdfast.starter.client import HoldfastClient
from holdfast.starter.connecting import is_configured
from holdfast.starter.runs import RunnableResult
from holdfast.worker import running_worker

_Answer = TypeVar("_Answer")


class _Engine:
    """The thread on which everything asynchronous happens, and the embedded server if there has to be one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._server = contextlib.ExitStack()
        self._address: str | None = None
        self._home: Path | None = None

    def submit(self, work: Coroutine[Any, Any, _Answer]) -> "Future[_Answer]":
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name="holdfast", daemon=True)
                self._thread.start()
                atexit.register(self.close)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def client(self, task_queue: str) -> HoldfastClient:
        return await HoldfastClient.connect(self._embedded_address(), task_queue=task_queue)

    def _embedded_address(self) -> str | None:
        """None when Temporal's own settings say where it is. The server is started on this thread and dies with it."""
        if is_configured():
            return None
        if self._address is None or self._home != embedded.home():
            self._server.close()
            self._home = embedded.home()
            self._address = self._server.enter_context(embedded.server(self._home)).address
        return self._address

    def close(self) -> None:
        """Stops the embedded server; its state stays on disk."""
        with self._lock:
            loop, self._loop = self._loop, None
        if loop is None or self._thread is None:
            return
        self._address = None
        loop.call_soon_threadsafe(self._server.close)
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(30)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


_engine = _Engine()


class Flow:
    """A graph of nodes. `id` is what its runs and checkpoints are found by: give one to find them again tomorrow."""

    def __init__(
        self,
        nodes: Sequence[Node] = (),
        *,
        id: str | None = None,  # noqa: A002
        name: str | None = None,
        description: str | None = None,
        checkpoint_config: CheckpointConfig | None = None,
        checkpoint: CheckpointConfig | None = None,
        metadata: dict[str, Any] | None = None,
    ) -> None:
        """`checkpoint` is another name for `checkpoint_config`: it is what the definition calls it."""
        self.id = id or f"flow-{uuid.uuid4().hex}"
        self.name = name
        self.description = description
        self.nodes = list(nodes)
        self.checkpoint_config = checkpoint_config or checkpoint or CheckpointConfig()
        self.metadata = metadata or {}
        self._read: FlowSpec | None = None
        self._runs: list[str] = []

    @classmethod
    def from_yaml(cls, path: str | Path) -> "Flow":
        """A flow read from a file; custom nodes in it must be known to a worker on the default task queue."""
        spec = read_flow(Path(path).read_text(), str(path))
        flow = cls(id=spec.id, name=spec.name, description=spec.description, checkpoint_config=spec.checkpoint)
        flow._read = spec
        return flow

    def spec(self) -> FlowSpec:
        """The definition, checked; FlowDefinitionError names everything that is wrong with it."""
        if self._read is not None:
            return self._read
        return ensure(
            FlowSpec(
                id=self.id,
                name=self.name,
                description=self.description,
                nodes=flow_nodes(self.nodes),
                checkpoint=self.checkpoint_config,
                metadata=self.metadata,
            )
        )

    def to_yaml(self) -> str:
        """The same definition in YAML, for a file and the command line."""
        return yaml.safe_dump(self.spec().model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def run_sync(
        self,
        input_data: Any = None,
        *,
        resume_from: str | FlowCheckpoint | None = None,
        fork_from: str | FlowCheckpoint | None = None,
        run_id: str | None = None,
        config: RunConfig | None = None,
    ) -> RunnableResult:
        """Runs the flow to its end. With `resume_from` only what that checkpoint had not completed is executed.

        A run is resumed once, and its successor has an id that follows from its own; `fork_from` is the same for a new
        run beside it, as often as you like.
        """
        return _engine.submit(self._run(input_data, resume_from, fork_from, run_id, config)).result()

    async def run_async(
        self,
        input_data: Any = None,
        *,
        resume_from: str | FlowCheckpoint | None = None,
        fork_from: str | FlowCheckpoint | None = None,
        run_id: str | None = None,
        config: RunConfig | None = None,
    ) -> RunnableResult:
        """The same for async callers. Their event loop is not used, so it may be busy."""
        return await asyncio.wrap_future(_engine.submit(self._run(input_data, resume_from, fork_from, run_id, config)))

    async def _run(
        self,
        input_data: Any,
        resume_from: str | FlowCheckpoint | None,
        fork_from: str | FlowCheckpoint | None,
        run_id: str | None,
        config: RunConfig | None,
    ) -> RunnableResult:
        if resume_from is not None and (fork_from is not None or run_id is not None):
            raise ValueError("a run that is resumed has its own id: give 'fork_from' and 'run_id' for another one")
        spec = self.spec()
        registry = Registry()
        registry.add_flow(self)
        # A queue of the flow's own: only this process knows its nodes. After a crash, the same flow takes it up again.
        client = await _engine.client(f"{DEFAULT_TASK_QUEUE}-{self.id}")
        async with running_worker(client.temporal, task_queue=client.task_queue, registry=registry, graceful_seconds=1):
            if resume_from is not None:
                started = await client.resume(resume_from, flow=spec, input_data=input_data)
            elif fork_from is not None:
                started = await client.fork(fork_from, flow=spec, input_data=input_data, run_id=run_id)
            else:
                started = await client.start(spec, input_data, run_id=run_id, config=config)
            self._runs.append(started)
            return await client.result(started)

    def list_checkpoints(self, limit: int | None = None) -> list[FlowCheckpoint]:
        """The checkpoints of this flow's runs, newest first, within `max_checkpoints` and `retention_days`."""
        return _engine.submit(self._checkpoints(limit)).result()

    def get_latest_checkpoint(self) -> FlowCheckpoint | None:
        """The newest checkpoint of the newest run."""
        return _engine.submit(self._latest()).result()

    async def _run_ids(self, client: HoldfastClient) -> list[str]:
        # The visibility store lags a little; our own runs we know.
        listed = [run.run_id for run in await client.list_runs(flow_id=self.id, limit=200)]
        own = [run_id for run_id in reversed(self._runs) if run_id not in listed]
        return [*own, *listed]

    async def _latest(self) -> FlowCheckpoint | None:
        client = await _engine.client(DEFAULT_TASK_QUEUE)
        for run_id in self._runs[-1:] or await self._run_ids(client):
            return await client.latest_checkpoint(run_id)
        return None

    async def _checkpoints(self, limit: int | None) -> list[FlowCheckpoint]:
        client = await _engine.client(DEFAULT_TASK_QUEUE)
        wanted = min(limit or self.checkpoint_config.max_checkpoints, self.checkpoint_config.max_checkpoints)
        days = self.checkpoint_config.retention_days
        oldest = datetime.now(UTC) - timedelta(days=days) if days else None
        found: list[FlowCheckpoint] = []
        for run_id in await self._run_ids(client):
            for summary in await client.list_checkpoints(run_id):
                if len(found) == wanted or (oldest and summary.created_at < oldest):
                    return found
                found.append(await client.get_checkpoint(summary.id))
        return found


class Workflow:
    """A flow with the memory of its last run: `run`, and `resume` after a failure."""

    def __init__(self, flow: Flow, *, id: str | None = None) -> None:  # noqa: A002
        self.flow = flow
        self.id = id or flow.id

    def run(self, input_data: Any = None, **options: Any) -> RunnableResult:
        return self.flow.run_sync(input_data, **options)

    async def run_async(self, input_data: Any = None, **options: Any) -> RunnableResult:
        return await self.flow.run_async(input_data, **options)

    def resume(self, input_data: Any = None) -> RunnableResult:
        """Goes on from the latest checkpoint; LookupError when the flow has never run."""
        checkpoint = self.get_latest_checkpoint()
        if checkpoint is None:
            raise LookupError(f"flow {self.flow.id!r} has no checkpoint to resume from: run it first")
        return self.flow.run_sync(input_data, resume_from=checkpoint)

    def get_latest_checkpoint(self) -> FlowCheckpoint | None:
        return self.flow.get_latest_checkpoint()
