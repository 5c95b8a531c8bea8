"""Runs a flow without a server: scripted results, a virtual clock, the real drivers. 30 days pass in no time.

For unit tests and `holdfast simulate`. What it shows is the flow's logic; retries and crashes are Temporal's.
"""

import asyncio
import selectors as io_selectors
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from holdfast.checkpoints import values
from holdfast.checkpoints.ledger import Ledger, RunStarted, Transition
from holdfast.checkpoints.models import CheckpointRecord
from holdfast.checkpoints.resuming import plan_resume, rebase
from holdfast.contracts.calls import NodeCall, NodeReply, PureBatch, PureReply
from holdfast.engine.batch import run_batch, run_pure_node
from holdfast.engine.ports import NodeError
from holdfast.engine.pure import PURE_NODES
from holdfast.engine.scheduler import FlowDriver
from holdfast.flows.kinds import INLINE
from holdfast.flows.spec import FlowSpec, NodeSpec

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Scripted(BaseModel):
    """What a node does in the simulation."""

    model_config = ConfigDict(extra="forbid")

    output: Any = None
    error: str | None = None
    seconds: float = Field(default=0.0, ge=0)


class NotScriptedError(LookupError):
    """Nodes that would touch the world and have no scripted result."""

    def __init__(self, missing: list[str]) -> None:
        self.missing = missing
        names = ", ".join(map(repr, missing))
        super().__init__(
            f"[simulate/not-scripted] no scripted result for {names}; "
            f"add for example '{missing[0]}: {{output: {{…}}}}' to the script"
        )


class _InstantSelector(io_selectors.SelectSelector):
    """Never waits: where a loop would block until its next timer, the clock is moved there instead."""

    def __init__(self) -> None:
        super().__init__()
        self.elapsed = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("the simulated flow waits for something that never happens")
        self.elapsed += max(0.0, timeout)
        return []


class _VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._clock = _InstantSelector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.elapsed


class Simulation:
    """One simulated run: the ports, and what happened."""

    def __init__(
        self,
        flow: FlowSpec,
        script: Mapping[str, Scripted],
        *,
        run_id: str = "simulated",
        park_after: int | None = None,
    ) -> None:
        self.flow = flow
        self.executed: list[str] = []
        self.started_at = EPOCH
        self._script = script
        self._run_id = run_id
        self._park_after = park_after
        self.ledger = Ledger(CheckpointRecord(flow_id=flow.id, run_id=run_id))
        missing = [node.id for node in flow.nodes if node.id not in script and _needs_script(node)]
        if missing:
            raise NotScriptedError(missing)

    def run(self, input_data: Any = None, base: CheckpointRecord | None = None) -> CheckpointRecord:
        """Runs from the beginning, or from a checkpoint, and returns the last state."""
        with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
            runner.run(self._run(values.encode(input_data, "input"), base))
        return self.ledger.at()

    async def _run(self, input_data: Any, base: CheckpointRecord | None) -> None:
        if base is None:
            ids = [node.id for node in self.flow.nodes]
            base = CheckpointRecord(
                flow_id=self.flow.id,
                run_id=self._run_id,
                pending_node_ids=ids,
                original_input=input_data,
                created_at=self.now(),
                updated_at=self.now(),
            )
            self.ledger = Ledger(base)
            self.ledger.record(RunStarted(at=self.now()))
        else:
            self.started_at = base.updated_at
            plan = plan_resume(self.flow, base)
            self.ledger = Ledger(rebase(base, self.flow, self._run_id))
            self.ledger.record(plan.transition(base.id, self.now()))
        while not await FlowDriver(self.flow, self.ledger, self, self._run_id).run():
            # Parked: what the product does with continue-as-new.
            self._park_after = None
            self.ledger = Ledger(CheckpointRecord.model_validate_json(self.ledger.at().model_dump_json()))

    def now(self) -> datetime:
        return self.started_at + timedelta(seconds=asyncio.get_running_loop().time())

    async def run_node(self, node: NodeSpec, call: NodeCall) -> NodeReply:
        # A pure node with retries or a timeout of its own comes here too.
        return await run_pure_node(call, self._perform)

    async def run_pure(self, batch: PureBatch) -> PureReply:
        return await run_batch(batch, self._perform, self.now)

    async def sleep(self, node: NodeSpec, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def should_park(self) -> bool:
        return self._park_after is not None and self.ledger.seq >= self._park_after

    def recorded(self, transition: Transition) -> None:
        pass

    async def _perform(self, call: NodeCall) -> NodeReply:
        self.executed.append(call.node_id)
        scripted = self._script.get(call.node_id, Scripted())
        await asyncio.sleep(scripted.seconds)
        if scripted.error is not None:
            raise NodeError({"type": "Scripted", "message": scripted.error})
        return NodeReply(output=values.encode(scripted.output, f"the scripted output of {call.node_id!r}"))


def _needs_script(node: NodeSpec) -> bool:
    return node.type not in INLINE and node.type not in PURE_NODES and node.type != "delay"
