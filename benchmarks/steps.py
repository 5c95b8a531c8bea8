"""The work that is measured: one trivial step, as a bare activity, as an effectful node and as a pure node."""

import asyncio
import os
import time
from typing import Any

from pydantic import BaseModel
from temporalio import activity

from holdfast.flows.nodes import Node, NonRetryableError

JOURNAL = "BENCH_JOURNAL"
TEXT = "a step's text is about as long as this, so that payloads are not empty"


class Step(BaseModel):
    """What one step gets and gives."""

    number: int = 0
    text: str = TEXT


@activity.defn
async def bare_step(step: Step) -> Step:
    """Async, so that the bare side pays for no thread."""
    return Step(number=step.number + 1, text=step.text)


class BenchStep(Node):
    """The same work as an effectful node."""

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        """The input has the result of the one step before this one, or nothing yet."""
        done = [value["output"]["number"] for name, value in input_data.items() if name.startswith("step-")]
        return {"number": max(done, default=0) + 1, "text": TEXT}


class BenchItem(Node):
    """The same work for an item of a map. With a journal, each execution is a line in it."""

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        if path := os.environ.get(JOURNAL):
            handle = os.open(path, os.O_WRONLY | os.O_APPEND)
            os.write(handle, f"{input_data}\n".encode())
            os.close(handle)
        return {"number": input_data + 1}


_BEGUN: dict[str, float] = {}


class BenchMark(BenchStep):
    """Says when it began; a chain's last one fails then."""

    fails: bool = False

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        _BEGUN.setdefault(kwargs["run_id"], time.perf_counter())
        if self.fails:
            raise NonRetryableError("to be resumed from")
        return await super().execute(input_data)

    @classmethod
    async def first(cls, run_id: str) -> float:
        """When the first of them in a run began."""
        while run_id not in _BEGUN:
            await asyncio.sleep(0.0005)
        return _BEGUN[run_id]


class BenchPureStep(BenchStep):
    """The same work again, declared to be free of effects."""

    pure = True
