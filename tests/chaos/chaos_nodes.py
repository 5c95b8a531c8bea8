"""Nodes that leave traces outside Temporal, loaded by worker processes with `--load` as a file.

Every execution writes to a journal (CHAOS_JOURNAL: JSON lines, synced before the node goes on), so that a test can
count what really ran, whatever the run's own history says. A file `<run>.<node>.<event>` in CHAOS_CONTROL holds the
node at that place until the file is gone, which is how a test puts a run exactly where it wants to kill it.
"""

import asyncio
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.checkpoints.protocol import CheckpointMixin
from holdfast.flows.nodes import Node, NodeCancelledError

_STEP = 0.02
_LONGEST_HOLD = 120.0


def note(event: str, context: dict[str, Any], **more: Any) -> None:
    """One line, whole or not at all: the file is opened for appending, and each entry is one write."""
    entry = {
        "event": event,
        "run": context["run_id"],
        "node": context["node_id"],
        "key": context["idempotency_key"],
        "attempt": context["attempt"],
        "pid": os.getpid(),
        "at": time.time(),
        **more,
    }
    handle = os.open(os.environ["CHAOS_JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, json.dumps(entry).encode() + b"\n")
        os.fsync(handle)
    finally:
        os.close(handle)


def _held(event: str, context: dict[str, Any]) -> bool:
    name = f"{context['run_id']}.{context['node_id']}.{event}".replace("/", "~")
    return (Path(os.environ["CHAOS_CONTROL"]) / name).exists()


def hold(event: str, context: dict[str, Any]) -> None:
    """Waits while the test wants the node to stay here."""
    deadline = time.monotonic() + _LONGEST_HOLD
    while _held(event, context) and time.monotonic() < deadline:
        time.sleep(_STEP)


async def hold_async(event: str, context: dict[str, Any]) -> None:
    deadline = time.monotonic() + _LONGEST_HOLD
    while _held(event, context) and time.monotonic() < deadline:
        await asyncio.sleep(_STEP)


def digest(input_data: Any) -> str:
    """The same input gives the same output, on whichever worker and attempt."""
    written = json.dumps(input_data, sort_keys=True, default=lambda value: hashlib.sha256(value).hexdigest())
    return hashlib.sha256(written.encode()).hexdigest()[:16]


class Work(Node):
    """Some sync work."""

    seconds: float = 0.1

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        note("started", kwargs)
        hold("started", kwargs)
        deadline = time.monotonic() + self.seconds
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_STEP, left))
        note("finished", kwargs)
        hold("finished", kwargs)
        return {"node": kwargs["node_id"], "saw": digest(input_data)}


class Bulky(Work):
    """The same, with an output that is stored apart."""

    size: int = 200_000

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        done = super().execute(input_data, **kwargs)
        return {**done, "bytes": hashlib.shake_256(kwargs["node_id"].encode()).digest(self.size)}


class WorkAsync(Node):
    """Some async work. A cancellation is journalled."""

    seconds: float = 0.1

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        note("started", kwargs)
        try:
            await hold_async("started", kwargs)
            await asyncio.sleep(self.seconds)
        except asyncio.CancelledError:
            note("cancelled", kwargs)
            raise
        note("finished", kwargs)
        await hold_async("finished", kwargs)
        return {"node": kwargs["node_id"], "saw": digest(input_data)}


class Long(CheckpointMixin, Node):
    """A long sync loop that saves where it is."""

    steps: int = 40
    step_seconds: float = 0.1
    first_step: int = 0

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"step": self.first_step}

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        self.first_step = int(state["step"])

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        note("started", kwargs, step=self.first_step, resumed=self.is_resumed)
        resumed_at = self.first_step
        for step in range(resumed_at, self.steps):
            time.sleep(self.step_seconds)
            note("step", kwargs, step=step)
            try:
                self.checkpoint({"step": step + 1})
            except NodeCancelledError:
                note("cancelled", kwargs, step=step)
                raise
            hold("step", kwargs)
        note("finished", kwargs)
        self.first_step = self.steps
        return {"steps": self.steps, "saw": digest(input_data)}


class LongAsync(Long):
    """The same as a coroutine."""

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        note("started", kwargs, step=self.first_step, resumed=self.is_resumed)
        try:
            for step in range(self.first_step, self.steps):
                await asyncio.sleep(self.step_seconds)
                note("step", kwargs, step=step)
                self.checkpoint({"step": step + 1})
                await hold_async("step", kwargs)
        except (asyncio.CancelledError, NodeCancelledError):
            note("cancelled", kwargs)
            raise
        note("finished", kwargs)
        self.first_step = self.steps
        return {"steps": self.steps, "saw": digest(input_data)}


class Forgetful(Long):
    """Cannot read the state it saved, and fails at it halfway."""

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        super().restore_from_checkpoint(state)
        raise ValueError("an old format")


class Quits(Node):
    """Ends in ways that are no ordinary exceptions."""

    way: str

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        note("started", kwargs)
        _quit(self.way)


class QuitsAsync(Node):
    """The same on the loop that all async nodes of a worker share."""

    way: str

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        note("started", kwargs)
        _quit(self.way)


def _quit(way: str) -> None:
    match way:
        case "exit":
            sys.exit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "cancelled":
            raise asyncio.CancelledError
        case "stop":
            raise StopIteration
        case _:
            raise ValueError(way)
