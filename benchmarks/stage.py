"""What a measurement runs on: one tuned embedded server, and for each side a worker with the same settings."""

import contextlib
import gc
import tempfile
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from temporalio.client import Client
from temporalio.worker import Worker
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner

from benchmarks.bare_workflows import BareChain, BareFanout
from benchmarks.steps import BenchItem, BenchMark, BenchPureStep, BenchStep, bare_step
from holdfast.activities.registry import Registry
from holdfast.flows.spec import FlowSpec
from holdfast.starter import embedded
from holdfast.starter.client import HoldfastClient
from holdfast.starter.connecting import connect
from holdfast.worker import CACHED_RUNS, running_worker

FLOWS = "benchmark-holdfast"
BARE = "benchmark-bare"
BARE_UNSANDBOXED = "benchmark-bare-unsandboxed"


@dataclass(frozen=True)
class Stage:
    """A server that runs, and how each side is started on it."""

    client: Client
    cache: Path

    @property
    def holdfast(self) -> HoldfastClient:
        return HoldfastClient(self.client, task_queue=FLOWS)

    async def run_flow(self, flow: FlowSpec, run_id: str | None = None, input_data: Any = None) -> dict[str, Any]:
        """One flow to its end, as a user of the library waits for it; what each node gave."""
        return (await self.holdfast.run(flow, input_data, run_id=run_id)).output

    async def run_bare(self, workflow: type[BareChain | BareFanout], count: int, task_queue: str = BARE) -> Any:
        """The same on the bare side, with the same eager start."""
        handle = await self.client.start_workflow(
            workflow.__name__,
            count,
            id=f"{workflow.__name__}-{uuid.uuid4()}",
            task_queue=task_queue,
            request_eager_start=True,
        )
        return await handle.result()

    @contextlib.asynccontextmanager
    async def flow_worker(self, *, max_cached_workflows: int = CACHED_RUNS) -> AsyncGenerator[Worker]:
        """A Holdfast worker with the benchmarks' nodes."""
        registry = Registry()
        for node in (BenchStep, BenchPureStep, BenchItem, BenchMark):
            registry.add_class(node)
        async with running_worker(
            self.client,
            task_queue=FLOWS,
            registry=registry,
            cache=self.cache,
            max_cached_workflows=max_cached_workflows,
        ) as worker:
            # As a worker's own process does.
            gc.freeze()
            yield worker

    @contextlib.asynccontextmanager
    async def all_workers(self) -> AsyncGenerator[None]:
        """The bare workers take their settings from Holdfast's own: whatever is tuned there is tuned here.

        Except for the sandbox, in which a user's own workflows run by default: one bare worker has it and is what the
        bars are about, the other has Holdfast's runner and says what the engine itself costs.
        """
        async with self.flow_worker() as worker:
            settings = cast(dict[str, Any], worker.config())
            settings.update(workflows=[BareChain, BareFanout], activities=[bare_step], interceptors=[])
            sandboxed = dict(settings)
            sandboxed.update(task_queue=BARE, workflow_runner=SandboxedWorkflowRunner())
            settings.update(task_queue=BARE_UNSANDBOXED)
            async with Worker(**sandboxed), Worker(**settings):
                yield


@contextlib.asynccontextmanager
async def stage() -> AsyncGenerator[Stage]:
    """On ports and a directory of its own, so that it disturbs no other server."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        directory = Path(name)
        with embedded.server(directory, 0, 0) as server:
            yield Stage(await connect(server.address), directory / "cache.db")
