"""One workflow at a time on the real server, with a worker in this process."""

import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client

from holdfast import HoldfastClient, Node, RunConfig, RunnableResult, read_flow
from holdfast.activities.registry import Registry
from holdfast.flows.spec import FlowSpec
from holdfast.worker import running_worker
from tests.integration.counting import Counting


class Bench:
    """Starts workers on a task queue of the test's own and runs flows there."""

    def __init__(self, client: Client, stack: AsyncExitStack, home: Path) -> None:
        self.task_queue = f"test-{uuid.uuid4().hex}"
        self.client = HoldfastClient(client, self.task_queue)
        self._stack = stack
        self._home = home

    async def worker(self, nodes: Sequence[type[Node]] = (), **options: Any) -> None:
        registry = Registry()
        for node in nodes:
            registry.add_class(node)
        await self._stack.enter_async_context(
            running_worker(
                self.client.temporal,
                task_queue=self.task_queue,
                registry=registry,
                cache=self._home / "cache.db",
                graceful_seconds=1,
                **options,
            )
        )

    async def start(self, flow: str | FlowSpec, input_data: Any = None, config: RunConfig | None = None) -> str:
        spec = read_flow(flow) if isinstance(flow, str) else flow
        return await self.client.start(spec, input_data, config=config)

    async def run(
        self, flow: str | FlowSpec, input_data: Any = None, config: RunConfig | None = None
    ) -> RunnableResult:
        return await self.client.result(await self.start(flow, input_data, config))


@pytest.fixture
async def bench(client: Client, tmp_path: Path) -> AsyncGenerator[Bench]:
    async with AsyncExitStack() as stack:
        yield Bench(client, stack, tmp_path)


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
async def counted(client: Client, counting: Counting, tmp_path: Path) -> AsyncGenerator[Bench]:
    """A bench whose workers are counted."""
    configured = client.config()
    configured["interceptors"] = [counting]
    async with AsyncExitStack() as stack:
        yield Bench(Client(**configured), stack, tmp_path)


@pytest.fixture
def outputs() -> Callable[[RunnableResult], dict[str, Any]]:
    """A result's outputs by node, for the nodes that ran."""

    def of(result: RunnableResult) -> dict[str, Any]:
        return {node: outcome["output"] for node, outcome in result.output.items() if outcome["status"] == "success"}

    return of


async def remove_executions(client: Client, query: str) -> None:
    """As a namespace's retention does it: without a look at what belongs together."""
    async for found in client.list_workflows(query):
        gone = WorkflowExecution(workflow_id=found.id, run_id=found.run_id)
        request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=gone)
        await client.workflow_service.delete_workflow_execution(request)
