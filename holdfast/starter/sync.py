"""The client for code that is not async: the same methods, on a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from holdfast.checkpoints.diff import CheckpointDiff
from holdfast.checkpoints.ledger import Transition
from holdfast.checkpoints.models import CheckpointSummary, FlowCheckpoint
from holdfast.checkpoints.node_history import NodeMoment
from holdfast.checkpoints.resuming import ResumePlan
from holdfast.contracts.names import DEFAULT_TASK_QUEUE
from holdfast.contracts.people import AnswerReceipt
from holdfast.flows.spec import FlowSpec
from holdfast.starter.client import HoldfastClient
from holdfast.starter.events import StreamEvent
from holdfast.starter.families import Member
from holdfast.starter.people import OpenRequest
from holdfast.starter.runs import RunDetail, RunInfo, RunnableResult

_Answer = TypeVar("_Answer")


class SyncHoldfastClient:
    """Use it in a `with` block, or close it. What the methods take is what those of `HoldfastClient` take."""

    def __init__(
        self, address: str | None = None, namespace: str | None = None, task_queue: str = DEFAULT_TASK_QUEUE
    ) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="holdfast-client", daemon=True)
        self._thread.start()
        self._client = self._wait(HoldfastClient.connect(address, namespace, task_queue))

    def _wait(self, work: Coroutine[Any, Any, _Answer]) -> _Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def __enter__(self) -> "SyncHoldfastClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def start(self, *args: Any, **kwargs: Any) -> str:
        return self._wait(self._client.start(*args, **kwargs))

    def create_run(self, *args: Any, **kwargs: Any) -> str:
        return self.start(*args, **kwargs)

    def run(self, *args: Any, **kwargs: Any) -> RunnableResult:
        return self._wait(self._client.run(*args, **kwargs))

    def result(self, run_id: str) -> RunnableResult:
        return self._wait(self._client.result(run_id))

    def get_run(self, run_id: str) -> RunDetail:
        return self._wait(self._client.get_run(run_id))

    def list_runs(self, *args: Any, **kwargs: Any) -> list[RunInfo]:
        return self._wait(self._client.list_runs(*args, **kwargs))

    def list_checkpoints(self, run_id: str, limit: int | None = None) -> list[CheckpointSummary]:
        return self._wait(self._client.list_checkpoints(run_id, limit))

    def get_checkpoint(self, checkpoint_id: str) -> FlowCheckpoint:
        return self._wait(self._client.get_checkpoint(checkpoint_id))

    def latest_checkpoint(self, run_id: str) -> FlowCheckpoint:
        return self._wait(self._client.latest_checkpoint(run_id))

    def transitions(self, run_id: str, after: int = 0) -> list[Transition]:
        return self._wait(self._client.transitions(run_id, after))

    def definition(self, run_id: str) -> FlowSpec:
        return self._wait(self._client.definition(run_id))

    def resume(self, *args: Any, **kwargs: Any) -> str:
        return self._wait(self._client.resume(*args, **kwargs))

    def resume_run(self, *args: Any, **kwargs: Any) -> str:
        return self.resume(*args, **kwargs)

    def plan(self, *args: Any, **kwargs: Any) -> ResumePlan:
        return self._wait(self._client.plan(*args, **kwargs))

    def fork(self, *args: Any, **kwargs: Any) -> str:
        return self._wait(self._client.fork(*args, **kwargs))

    def rerun(self, *args: Any, **kwargs: Any) -> str:
        return self._wait(self._client.rerun(*args, **kwargs))

    def diff(self, left: str, right: str) -> CheckpointDiff:
        return self._wait(self._client.diff(left, right))

    def node_history(self, run_id: str, path: str, field: str | None = None) -> list[NodeMoment]:
        return self._wait(self._client.node_history(run_id, path, field))

    def tree(self, run_id: str) -> list[Member]:
        return self._wait(self._client.tree(run_id))

    def inbox(self, *args: Any, **kwargs: Any) -> list[OpenRequest]:
        return self._wait(self._client.inbox(*args, **kwargs))

    def send_input(self, *args: Any, **kwargs: Any) -> AnswerReceipt:
        return self._wait(self._client.send_input(*args, **kwargs))

    def pause(self, run_id: str, by: str | None = None) -> None:
        self._wait(self._client.pause(run_id, by))

    def continue_run(self, run_id: str, by: str | None = None) -> None:
        self._wait(self._client.continue_run(run_id, by))

    def cancel(self, run_id: str) -> None:
        self._wait(self._client.cancel(run_id))

    def stream(self, run_id: str, after: int = 0, *, tokens: bool = False) -> Generator[StreamEvent]:
        """Events as they happen, until the run ends."""
        events = self._client.stream(run_id, after, tokens=tokens)

        async def following() -> StreamEvent | None:
            return await anext(events, None)

        async def leave() -> None:
            await events.aclose()

        try:
            while (event := self._wait(following())) is not None:
                yield event
        finally:
            self._wait(leave())
