"""Runs a flow without a server: scripted results, a virtual clock, the real drivers. 30 days pass in no time.

For unit tests and `holdfast simulate`. What it shows is the flow's logic; retries and crashes are Temporal's.
"""

import asyncio
import math
import selectors as io_selectors
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from holdfast.checkpoints import values
from holdfast.checkpoints.ledger import Ledger, RunStarted, Transition
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus
from holdfast.checkpoints.resuming import ResumePlan, plan_resume, rebase
from holdfast.contracts.calls import FlowResult, FlowStart, NodeCall, NodeReply, PureBatch, PureReply
from holdfast.contracts.file_calls import FileCalls, FilesLostError
from holdfast.contracts.file_tools import Kept
from holdfast.contracts.files import FileStore
from holdfast.contracts.memory_files import MemoryFiles
from holdfast.contracts.messages import ModelCall, ModelReply, Usage
from holdfast.contracts.names import ADOPT_FILES, KEEP_FILES, OPEN_AGENT, USE_FILES
from holdfast.contracts.people import HumanAnswer, HumanRequest, complete, faults
from holdfast.contracts.prompts import open_agent
from holdfast.contracts.results import pack
from holdfast.contracts.scripted import NoReplyError, scripted_reply
from holdfast.engine.batch import describe_error, run_batch, run_pure_node
from holdfast.engine.ports import NodeError
from holdfast.engine.pure import PURE_NODES
from holdfast.engine.scheduler import FlowDriver
from holdfast.flows.files import FileStoreParams
from holdfast.flows.kinds import COMPOSITE, INLINE
from holdfast.flows.spec import FlowSpec, NodeSpec

# Parts of a path that say when, not what.
_STEPS = frozenset({"loop", "step", "task"})
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


class Scripted(BaseModel):
    """What a node does in the simulation."""

    model_config = ConfigDict(extra="forbid")

    output: Any = None
    outputs: list[Any] | None = None
    error: str | None = None
    seconds: float = Field(default=0.0, ge=0)
    replies: list[Any] | None = None
    """For an agent or a manager: what its model says, in turn."""
    answer: dict[str, Any] | None = None
    """For a question or an approval: what a person answers, after `seconds`."""


class NotScriptedError(LookupError):
    """Nodes that would touch the world and have no scripted result."""

    def __init__(self, missing: list[str], example: str = "output: {…}") -> None:
        self.missing = missing
        names = ", ".join(map(repr, missing))
        super().__init__(
            f"[simulate/not-scripted] no scripted result for {names}; "
            f"add for example '{missing[0]}: {{{example}}}' to the script"
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
        # After a year, a nanosecond is less than what a float can tell apart: a timer would never be due.
        self._clock_resolution = 1e-6

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
        """Scripts are by node; what is inside a node has its place in front: `agent/tool`, `flow/node`."""
        self.flow = flow
        self.executed: list[str] = []
        self.started_at = EPOCH
        self._script = script
        self._run_id = run_id
        self._park_after = park_after
        self._calls: dict[str, int] = {}
        self._ids = 0
        self._files = FileCalls(_memory_files)
        self.ledger = Ledger(CheckpointRecord(flow_id=flow.id, run_id=run_id))
        missing = [node.id for node in flow.nodes if node.id not in script and _needs_script(node)]
        if missing:
            raise NotScriptedError(missing)

    def run(
        self, input_data: Any = None, base: CheckpointRecord | None = None, plan: ResumePlan | None = None
    ) -> CheckpointRecord:
        """Runs from the beginning, or from a checkpoint, and returns the last state."""
        with asyncio.Runner(loop_factory=_VirtualLoop) as runner:
            runner.run(self.play(values.encode(input_data, "input"), base, plan))
        return self.ledger.at()

    async def play(self, input_data: Any, base: CheckpointRecord | None, plan: ResumePlan | None = None) -> None:
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
            plan = plan or plan_resume(self.flow, base)
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

    async def call_model(self, node: NodeSpec, call: ModelCall) -> ModelReply:
        self.executed.append(call.path)
        owner, scripted = self._scripted(call.path)
        replies = call.model.get("replies") or scripted.replies
        if replies is None:
            raise NotScriptedError([owner], "replies: […]")
        await asyncio.sleep(scripted.seconds)
        try:
            message = scripted_reply(replies, call.messages)
        except NoReplyError as error:
            raise NodeError({"type": "ScriptEnded", "message": str(error)}) from error
        return ModelReply(message=message.as_data(), usage=Usage(llm_calls=1), model="scripted")

    async def run_child(self, node: NodeSpec, start: FlowStart, run_id: str) -> FlowResult:
        # A batch of a map has the map itself inside, with the names it always has.
        inside = {name.removeprefix(f"{node.id}/"): scripted for name, scripted in self._script.items()}
        child = self.inside(start.flow, {**self._script, **inside}, run_id)
        child.started_at = self.started_at
        await child.play(start.input_data, start.base, start.plan)
        state = child.ledger.state
        return pack(state, "completed" if state.status == CheckpointStatus.COMPLETED else "failed")

    def inside(self, flow: FlowSpec, script: Mapping[str, Scripted], run_id: str) -> "Simulation":
        """The simulation of a run inside this one."""
        child = Simulation(flow, script, run_id=run_id)
        child.executed = self.executed
        return child

    def _scripted(self, path: str) -> tuple[str, Scripted]:
        """What is written for the nearest node around a path, and its name; an empty one when nothing is."""
        parts = [part.partition("[")[0] for part in path.split("/")]
        named = [part for part in parts if part not in _STEPS]
        for length in range(len(named), 0, -1):
            name = "/".join(named[:length])
            if name in self._script:
                return name, self._script[name]
        return "/".join(named[:-1]) or named[0], Scripted()

    async def run_pure(self, batch: PureBatch) -> PureReply:
        return await run_batch(batch, self._perform, self.now)

    async def sleep(self, node: NodeSpec, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def is_cancelled(self) -> bool:
        return True

    def new_id(self) -> str:
        self._ids += 1
        return f"request-{self._ids}"

    async def wait_answer(self, request: HumanRequest, until: datetime | None) -> HumanAnswer | None:
        name, scripted = self._scripted(request.path)
        if scripted.answer is None and until is None:
            raise NotScriptedError([name], "answer: {…}")
        patience = math.inf if until is None else (until - self.now()).total_seconds()
        takes = math.inf
        if scripted.answer is not None:
            answered_at = request.created_at + timedelta(seconds=scripted.seconds)
            takes = max(0.0, (answered_at - self.now()).total_seconds())
        await asyncio.sleep(max(0.0, min(patience, takes)))
        if takes > patience or scripted.answer is None:
            return None
        answer = complete(request, HumanAnswer.model_validate({"by": "script", **scripted.answer}))
        if unfit := faults(request, answer):
            raise NodeError({"type": "BadAnswer", "message": "; ".join(unfit)})
        return answer

    def at_rest(self) -> None:
        pass

    def should_park(self) -> bool:
        return self._park_after is not None and self.ledger.seq >= self._park_after

    def recorded(self, transition: Transition) -> None:
        pass

    async def _perform(self, call: NodeCall) -> NodeReply:
        if call.type == OPEN_AGENT:
            try:
                return await self._opened(call, values.decode(call.input_data))
            except ValueError as error:
                raise NodeError(describe_error(error)) from error
        self.executed.append(call.path)
        if call.type in (USE_FILES, KEEP_FILES, ADOPT_FILES):
            return await self._with_files(call, values.decode(call.input_data))
        name, scripted = self._scripted(call.path)
        await asyncio.sleep(scripted.seconds)
        if scripted.error is not None:
            raise NodeError({"type": "Scripted", "message": scripted.error})
        output = scripted.output
        if scripted.outputs is not None:
            number = self._calls[name] = self._calls.get(name, 0) + 1
            output = scripted.outputs[min(number, len(scripted.outputs)) - 1]
        if call.files is not None:
            return _reply(await self._files.keep(call, output))
        return NodeReply(output=values.encode(output, f"the scripted output of {name!r}"))

    async def _opened(self, call: NodeCall, input_data: Any) -> NodeReply:
        stored = await self._files.take_input(call, input_data) if "file_store" in call.params else None
        return _reply(Kept(open_agent(call.params, input_data, [], stored), stored or {}))

    async def _with_files(self, call: NodeCall, input_data: Any) -> NodeReply:
        """Whatever the store is, in a simulation the files are in the checkpoint."""
        if call.type == USE_FILES:
            return _reply(await self._files.use(call, input_data))
        if call.type == KEEP_FILES:
            return _reply(await self._files.keep(call, input_data))
        try:
            return _reply(Kept({}, await self._files.adopt(call)))
        except FilesLostError as error:
            raise NodeError(describe_error(error)) from error


def _reply(kept: Kept) -> NodeReply:
    return NodeReply(output=values.encode(kept.output, "output"), files=values.encode(kept.files, "files"))


async def _memory_files(params: FileStoreParams, call: NodeCall, any_run: bool) -> FileStore:
    return MemoryFiles()


def _needs_script(node: NodeSpec) -> bool:
    """Composite nodes are looked into when they run."""
    known = node.type in INLINE or node.type in PURE_NODES or node.type in COMPOSITE
    return not known and node.type != "delay"
