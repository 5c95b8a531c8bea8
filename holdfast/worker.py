"""The composition root: the one module that knows workflows and activities, and makes a worker of them."""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from temporalio import activity
from temporalio.client import Client
from temporalio.worker import Worker, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from holdfast.activities.agents import AgentServices
from holdfast.activities.cache import OutputCache
from holdfast.activities.connections import Connections, learn_configured
from holdfast.activities.custom import CustomNodes, FunctionTools, PythonFunctions
from holdfast.activities.execution import Body, Execution, NodeActivity, named
from holdfast.activities.files import FileServices
from holdfast.activities.heartbeat import HeartbeatInterceptor
from holdfast.activities.http import HttpNode
from holdfast.activities.llm import LlmNode
from holdfast.activities.masking import MaskingInterceptor, guard_logs
from holdfast.activities.memory import SqliteMemory
from holdfast.activities.model_calls import ModelCalls
from holdfast.activities.models import Models
from holdfast.activities.pure import PureNodes
from holdfast.activities.registry import Registry, load
from holdfast.activities.threads import NodeThreads
from holdfast.codecs.blobs import StoreRefusedError, StoreUnavailableError
from holdfast.codecs.codec import HoldfastCodec
from holdfast.codecs.faults import BAD_SETTINGS
from holdfast.codecs.runner import FlowRunner
from holdfast.contracts import names
from holdfast.contracts.calls import NodeCall
from holdfast.contracts.messages import ModelCall, ModelReply
from holdfast.engine.batch import run_batch
from holdfast.engine.ports import NodeError
from holdfast.engine.pure import PURE_NODES
from holdfast.file_stores import Address, FileStores, files_root
from holdfast.flows.kinds import KINDS
from holdfast.loading import LoadError
from holdfast.starter.connecting import NotReachableError, connect, ensure_search_attributes
from holdfast.starter.embedded import home
from holdfast.workflows.flow_run import FlowRun

PURE = (
    "holdfast.flows",
    "holdfast.checkpoints",
    "holdfast.contracts",
    "holdfast.engine",
    "holdfast.workflows.ports",
    "pydantic",
    "pydantic_core",
    "jsonpath",
    "jinja2",
    "jsonschema",
    "yaml",
)

_TASK_SECONDS = 10
CACHED_RUNS = 200
"""How many runs a worker remembers. One takes about 150 KB; a run that is not remembered is replayed when it goes on,
so those that wait for people cost nothing, and those that work want to be among the remembered."""


def runner() -> WorkflowRunner:
    """What our workers run workflows with: no sandbox. See docs/decisions/0010."""
    return FlowRunner()


def sandbox() -> SandboxedWorkflowRunner:
    """The sandbox as our workflows fit into it: for workers that host others' workflows too, and for the tests."""
    return SandboxedWorkflowRunner(restrictions=SandboxRestrictions.default.with_passthrough_modules(*PURE))


class Bodies:
    """What runs each node type on this worker."""

    def __init__(self, registry: Registry, memory: SqliteMemory) -> None:
        self.threads = NodeThreads()
        connections = Connections(registry.connections, self.threads)
        self.http = HttpNode(connections)
        self.models = Models(connections)
        self.files = FileServices(FileStores(files_root(home(), os.environ), _address(connections)))
        agents = AgentServices({memory.name: memory, **registry.memories}, self.threads, self.files)
        self._custom = CustomNodes(registry, self.threads).run
        self.by_activity: dict[str, Body] = {
            names.RUN_HTTP: self.http.run,
            names.RUN_LLM: LlmNode(self.models).run,
            names.RUN_PYTHON: PythonFunctions(registry, self.threads).run,
            names.RUN_TOOL: FunctionTools(registry, self.threads).run,
            names.OPEN_AGENT: agents.open,
            names.WRITE_MEMORY: agents.remember,
            names.USE_FILES: self.files.use,
            names.KEEP_FILES: self.files.keep,
            names.ADOPT_FILES: self.files.adopt,
        }
        for kind_name, kind in KINDS.items():
            if kind_name in PURE_NODES and kind.activity is not None:
                self.by_activity[kind.activity] = _pure_body(PURE_NODES[kind_name])
        for type_name in registry.classes:
            self.by_activity[type_name] = self._custom

    def for_type(self, type_name: str) -> Body:
        """For pure nodes that are not built in; a class nobody loaded is an error of the node that names it."""
        kind = KINDS.get(type_name)
        name = kind.activity if kind is not None and kind.activity else type_name
        if name not in self.by_activity:
            raise LookupError(f"this worker has no node type {type_name!r}; start it with --load MODULE")
        return self.by_activity[name]

    async def close(self) -> None:
        await self.threads.close()
        await self.http.close()
        await self.models.close()


def _address(connections: Connections) -> Address:
    async def address(name: str) -> str | None:
        return (await connections.resolve(name)).base_url

    return address


def _pure_body(function: Callable[[dict[str, Any], Any], Any]) -> Body:
    async def body(call: NodeCall, input_data: Any) -> Execution:
        return Execution(function(call.params, input_data))

    return body


def _model_activity(calls: ModelCalls) -> Callable[[ModelCall], Awaitable[ModelReply]]:
    @activity.defn(name=names.CALL_MODEL)
    async def call_model(call: ModelCall) -> ModelReply:
        return await calls(call)

    return call_model


@contextlib.asynccontextmanager
async def running_worker(
    client: Client,
    *,
    task_queue: str = names.DEFAULT_TASK_QUEUE,
    registry: Registry | None = None,
    cache: Path | None = None,
    graceful_seconds: float = 10.0,
    max_concurrent_activities: int = 100,
    max_cached_workflows: int = CACHED_RUNS,
) -> AsyncGenerator[Worker]:
    """A worker that runs while the block lasts."""
    learn_configured()
    guard_logs()
    memory = SqliteMemory(home() / "memory.db")
    bodies = Bodies(registry or Registry(), memory)
    outputs = OutputCache(cache or home() / "cache.db")
    pure = PureNodes(run_batch, bodies.for_type, NodeError)
    worker = Worker(
        client,
        task_queue=task_queue,
        workflows=[FlowRun],
        activities=[
            pure.run,
            _model_activity(ModelCalls(bodies.models)),
            *(
                named(name, NodeActivity(body, outputs, bodies.files.keep_reply))
                for name, body in bodies.by_activity.items()
            ),
        ],
        workflow_runner=runner(),
        interceptors=[HeartbeatInterceptor(client.data_converter), MaskingInterceptor()],
        max_concurrent_activities=max_concurrent_activities,
        max_cached_workflows=max_cached_workflows,
        # A dead worker is noticed in seconds: by its heartbeats, and by its own queue of workflow tasks.
        sticky_queue_schedule_to_start_timeout=timedelta(seconds=3),
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        default_heartbeat_throttle_interval=timedelta(seconds=1),
        graceful_shutdown_timeout=timedelta(seconds=graceful_seconds),
    )
    _allow_much(worker)
    if isinstance(client.data_converter.payload_codec, HoldfastCodec):
        client.data_converter.payload_codec.learn()
    try:
        async with worker:
            yield worker
    finally:
        await bodies.close()
        outputs.close()
        memory.close()


def _allow_much(worker: Worker) -> None:
    """The SDK takes two seconds of work for a deadlock, and tries the task again for ever. A run with 64 MB in its
    checkpoint has that much to do, so it gets what a workflow task has, ten seconds. There is no public setting."""
    workflows = worker._workflow_worker  # pyright: ignore[reportPrivateUsage]
    if workflows is not None:
        workflows._deadlock_timeout_seconds = _TASK_SECONDS  # pyright: ignore[reportPrivateUsage]


async def serve(options: argparse.Namespace) -> None:
    """Runs a worker until it is asked to stop."""
    registry = load(options.load)
    client = await connect(options.address, options.namespace)
    await ensure_search_attributes(client)
    await _check_blobs(client)
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    cached = options.cached_runs
    async with running_worker(client, task_queue=options.task_queue, registry=registry, max_cached_workflows=cached):
        # What is loaded by now stays; the collector would look at it again and again, a tenth of a second each time.
        gc.freeze()
        _say(options, "ready", f"worker {os.getpid()} on task queue {options.task_queue!r}", list(registry.classes))
        await stopping.wait()
        _say(options, "stopping", "worker stopping: waiting for nodes in flight", [])


async def _check_blobs(client: Client) -> None:
    """A store that will never let us in is said now; one that is away for a moment does not keep a worker from it."""
    codec = client.data_converter.payload_codec
    if isinstance(codec, HoldfastCodec) and codec.blobs is not None:
        try:
            await codec.blobs.check()
        except StoreUnavailableError as error:
            print(error, file=sys.stderr, flush=True)


def _say(options: argparse.Namespace, event: str, text: str, classes: list[str]) -> None:
    if options.json:
        data = {"event": event, "pid": os.getpid(), "task_queue": options.task_queue, "custom_nodes": classes}
        print(json.dumps(data), flush=True)
    else:
        print(text + (f", custom nodes: {', '.join(classes)}" if classes else ""), flush=True)


def parser() -> argparse.ArgumentParser:
    """The options of `holdfast worker`."""
    found = argparse.ArgumentParser(prog="holdfast worker", description="Run a worker until Ctrl-C.")
    found.add_argument(
        "--load", action="append", default=[], metavar="MODULE", help="a module with custom nodes; repeatable"
    )
    found.add_argument("--task-queue", default=names.DEFAULT_TASK_QUEUE)
    found.add_argument("--address", help="Temporal's address (default: TEMPORAL_ADDRESS)")
    found.add_argument("--namespace", help="Temporal's namespace (default: TEMPORAL_NAMESPACE)")
    found.add_argument(
        "--cached-runs", type=int, default=CACHED_RUNS, help=f"how many runs it remembers (default: {CACHED_RUNS})"
    )
    found.add_argument("--json", action="store_true", help="say what happens in JSON, one object a line")
    return found


def main(arguments: list[str] | None = None) -> int:
    """Exit codes: 0 stopped, 2 a module cannot be loaded or a setting is bad, 3 Temporal not reachable."""
    options = parser().parse_args(arguments)
    try:
        asyncio.run(serve(options))
    except (LoadError, StoreRefusedError, *BAD_SETTINGS) as error:
        print(error, file=sys.stderr)
        return 2
    except NotReachableError as error:
        print(error, file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A node's own thread may still run; the worker has handed its work back and must not outlive it.
    os._exit(code)
