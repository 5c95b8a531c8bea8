"""The work that is measured: one trivial step, as a bare activity, as an effectful node and as a pure node."""

from typing import Any

from pydantic import BaseModel
from temporalio import activity

from holdfast.flows.nodes import Node

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


class BenchPureStep(BenchStep):
    """The same work again, declared to be free of effects."""

    pure = True
