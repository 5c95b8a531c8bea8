"""The flow driver: starts every node whose dependencies are finished, and records what becomes of it.

A branch never waits for another one: a node's completion starts its dependants there and then. All of it runs on one
event loop, in an order that depends only on the order in which the ports answer, so that a replay repeats it.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.checkpoints.ledger import (
    Ledger,
    NodeCompleted,
    NodeFailed,
    NodeSkipped,
    NodeStarted,
    RunCancelled,
    RunCompleted,
    RunContinued,
    RunFailed,
    RunPaused,
)
from holdfast.checkpoints.models import RunnableStatus, RunStatus
from holdfast.contracts.calls import InnerRun, NodeOutcome, NodeReply, PureBatch, PureOutcome
from holdfast.engine import rules
from holdfast.engine.delays import wake_time
from holdfast.engine.drivers import DRIVERS
from holdfast.engine.gate import Gate
from holdfast.engine.people import RejectedError, already_approved, approved
from holdfast.engine.ports import NodeError, Ports
from holdfast.engine.scope import Job, Scope
from holdfast.flows import graph
from holdfast.flows.check import dependencies
from holdfast.flows.kinds import COMPOSITE, INLINE, is_fusable
from holdfast.flows.selectors import transform
from holdfast.flows.spec import FlowSpec, NodeSpec


class FlowDriver:
    """Runs one flow from the state its ledger is in. Made for one run; not reusable."""

    def __init__(
        self,
        flow: FlowSpec,
        ledger: Ledger,
        ports: Ports,
        key_base: str,
        children: Mapping[str, InnerRun] | None = None,
    ) -> None:
        self._flow = flow
        self._ledger = ledger
        self._ports = ports
        self._key_base = key_base
        self._nodes = {node.id: node for node in flow.nodes}
        depends = dependencies(flow)
        self._depends = depends
        self._order = {node_id: index for index, node_id in enumerate(graph.topological(depends))}
        self._dependants: dict[str, list[str]] = {node_id: [] for node_id in self._nodes}
        for node_id, upstream in depends.items():
            for name in dict.fromkeys(upstream):
                self._dependants[name].append(node_id)
        self._tolerated = rules.tolerant(flow)
        completed = set(ledger.state.completed_node_ids)
        # A failure that nobody handles, and what it blocks, is still to do for a resume; this run is done with it.
        self._stuck = {
            name
            for name, known in ledger.state.node_states.items()
            if known.status in (RunnableStatus.FAILURE, RunnableStatus.SKIP) and name not in completed
        }
        done = completed | self._stuck
        self._waiting = {node_id: sum(name not in done for name in set(up)) for node_id, up in depends.items()}
        self._unfinished = {node_id for node_id in self._nodes if node_id not in done}
        self._queue = deque(
            node_id for node_id in self._nodes if node_id in self._unfinished and not self._waiting[node_id]
        )
        self._pure: list[str] = []
        self._held: list[str] = []
        self._claimed: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._gate = Gate(ports.should_park, self._settled)
        self._scope = Scope(flow.id, ledger, ports, self._gate, key_base, DRIVERS, children or {})
        self._idle: asyncio.Future[None] | None = None

    async def run(self) -> bool:
        """Runs to the end and records it: True. False: everything is parked and the run is to go on elsewhere."""
        self._idle = asyncio.get_running_loop().create_future()
        if "paused" in self._ledger.state.metadata:
            self._gate.pause()
        try:
            self._go_on()
            await self._idle
        except asyncio.CancelledError:
            await self._abandon(list(self._tasks.values()))
            if self._ports.is_cancelled():
                self._scope.record(RunCancelled(at=self._ports.now()))
            raise
        if self._held or self._tasks or self._queue:
            await self._abandon(list(self._tasks.values()))
            return False
        failures = rules.unhandled_failures(self._flow, self._ledger.state)
        if failures:
            first = failures[0]
            error = {
                **(first.error or {}),
                "node_id": first.node_id,
                "failed_nodes": [failed.node_id for failed in failures],
            }
            self._scope.record(RunFailed(at=self._ports.now(), error=error))
        else:
            self._scope.record(RunCompleted(at=self._ports.now()))
        return True

    def pause(self, by: str | None = None) -> None:
        """Lets nothing new begin; what is in flight ends."""
        if not self._gate.paused:
            self._gate.pause()
            self._scope.record(RunPaused(at=self._ports.now(), by=by))
            self._go_on()

    def unpause(self, by: str | None = None) -> None:
        if self._gate.paused:
            self._scope.record(RunContinued(at=self._ports.now(), by=by))
            self._gate.unpause()
            self._go_on()

    def child_waits(self, run_id: str, *, waits: bool) -> None:
        """Says at the node whose flow waits for a person that it does."""
        path, states = run_id.removeprefix(f"{self._ledger.state.run_id}/"), self._ledger.state.node_states
        status = RunStatus.PENDING_INPUT if waits else RunStatus.RUNNING
        owner = path.rpartition("[")[0]
        # It may be heard of after its end: then it is not to be taken for one that runs.
        if path in states:
            if states[path].status == RunnableStatus.RUNNING:
                self._scope.advance(path, "child_waiting", assign={"status": status.value})
        elif owner in states:
            batches: dict[str, dict[str, Any]] = states[owner].internal_state.get("children") or {}
            if run_id in batches and batches[run_id]["status"] != RunStatus.COMPLETED:
                self._scope.advance(owner, "child_waiting", merge={"children": {run_id: {"status": status.value}}})

    def _go_on(self) -> None:
        self._gate.enter()
        self._pump()
        self._gate.leave()

    async def _abandon(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _settled(self) -> None:
        """Nothing is in flight: the run is at its end, or all of it stands where it can be carried over."""
        if self._idle is None or self._idle.done():
            return
        standing = self._held or self._gate.resting or self._gate.parked or self._gate.paused
        if not (self._tasks or self._queue) or (standing and self._ports.should_park()):
            self._idle.set_result(None)
        else:
            self._ports.at_rest()

    def _outcome(self, node_id: str) -> NodeOutcome:
        return rules.outcome(self._ledger.state.node_states[node_id])

    def _above(self, node: NodeSpec) -> set[str]:
        """What a node's transformer may read; without one, its dependencies are all it gets."""
        return graph.upstream(self._depends, node.id) if node.input_transformer is not None else set()

    def _input(self, node: NodeSpec) -> Any:
        return rules.node_input(node, self._ledger.state.original_input, self._above(node), self._outcome)

    def _pump(self) -> None:
        """Starts all that can start, and notices when nothing is left to wait for."""
        while self._queue and not self._gate.paused:
            node = self._nodes[self._queue.popleft()]
            decision = rules.verdict(node, self._tolerated, self._outcome)
            if not decision.run:
                self._skip(node, decision.reason)
            elif node.type in INLINE:
                self._decide(node)
            elif self._ports.should_park():
                self._held.append(node.id)
            elif is_fusable(node):
                if not self._pure:
                    # The task begins after everything else that is ready now, so that all of it is fused.
                    # Another batch may still be running: each needs a name of its own.
                    self._start(f"pure batch of {node.id}", self._run_pure())
                self._pure.append(node.id)
            else:
                self._start(node.id, self._run_delay(node) if node.type == "delay" else self._run_effectful(node))

    def _settle(self, node_id: str) -> None:
        self._unfinished.discard(node_id)
        for dependant in self._dependants[node_id]:
            self._waiting[dependant] -= 1
            # One that is done already (by `join: any`, before this run resumed) is not done again.
            ready = not self._waiting[dependant] and dependant in self._unfinished
            if ready and dependant not in self._claimed:
                self._queue.append(dependant)

    def _start(self, name: str, work: Any) -> None:
        self._gate.enter()
        self._tasks[name] = asyncio.create_task(self._guard(name, work), name=name)

    async def _guard(self, name: str, work: Any) -> None:
        # A failure of the engine itself must reach `run`, which would otherwise wait for ever.
        try:
            await work
            del self._tasks[name]
            self._pump()
            self._gate.leave()
        except (asyncio.CancelledError, GeneratorExit):
            # Cancelled, or thrown away with a run that a worker no longer keeps in memory.
            raise
        except BaseException as error:
            if self._idle is None or self._idle.done():
                raise
            self._idle.set_exception(error)

    def _decide(self, node: NodeSpec) -> None:
        input_data = self._input(node)
        self._begin(node, input_data)
        self._complete(node, NodeReply(output=rules.decide(node, input_data, self._outcome)))

    def _begin(
        self, node: NodeSpec, input_data: Any, state: dict[str, Any] | None = None, at: datetime | None = None
    ) -> None:
        self._scope.record(
            NodeStarted(
                at=at or self._ports.now(),
                path=node.id,
                node_type=node.type,
                input_data=input_data,
                internal_state=state or {},
            )
        )

    def _complete(self, node: NodeSpec, reply: NodeReply, at: datetime | None = None) -> None:
        self._scope.record(
            NodeCompleted(
                at=at or self._ports.now(),
                path=node.id,
                output_data=transform(node.output_transformer, reply.output),
                internal_state=reply.internal_state,
                attempts=reply.attempt,
                cached=reply.cached,
                warnings=reply.warnings,
                usage=reply.usage,
            )
        )
        self._settle(node.id)

    def _skip(self, node: NodeSpec, reason: str, at: datetime | None = None) -> None:
        blocked = any(dependency.node in self._stuck for dependency in node.depends)
        if blocked:
            self._stuck.add(node.id)
        self._scope.record(
            NodeSkipped(at=at or self._ports.now(), path=node.id, node_type=node.type, reason=reason, blocked=blocked)
        )
        self._settle(node.id)

    def _fail(self, node: NodeSpec, error: NodeError, at: datetime | None = None) -> None:
        dependants = [self._nodes[name] for name in self._dependants[node.id]]
        result = self._outcome(node.id).model_copy(update={"status": RunnableStatus.FAILURE, "error": error.error})
        handled = rules.handles_failure(node, dependants, result)
        if not handled:
            self._stuck.add(node.id)
        self._scope.record(
            NodeFailed(
                at=at or self._ports.now(),
                path=node.id,
                error=error.error,
                internal_state=error.internal_state,
                attempts=error.attempts,
                handled=handled,
            )
        )
        self._settle(node.id)

    def _earlier_state(self, node_id: str) -> dict[str, Any]:
        """What an unfinished execution of the node left behind, in this run's base."""
        known = self._ledger.state.node_states.get(node_id)
        return known.internal_state if known is not None else {}

    async def _run_effectful(self, node: NodeSpec) -> None:
        job = Job(node, node.id, node.id, self._input(node))
        try:
            if node.approval.enabled and already_approved(self._scope, job) is None:
                self._scope.begin(job)
                asked, job = job, await approved(self._scope, job)
                # What it had left behind is about what it had been given.
                state = self._earlier_state(node.id) if job.input_data == asked.input_data else {}
                job = replace(job, again=bool(state))
                # Its time, and its timeout, begin now.
                self._begin(node, job.input_data, state)
            elif node.approval.enabled:
                job = await approved(self._scope, job)
            if node.type in COMPOSITE:
                reply = await self._scope.composite(self._scope.begin(job))
            else:
                state = self._earlier_state(node.id)
                self._begin(node, job.input_data, state)
                reply = await self._scope.leaf(job, state)
        except RejectedError as error:
            self._skip(node, str(error))
        except NodeError as error:
            self._fail(node, error)
        else:
            self._complete(node, reply)

    async def _run_delay(self, node: NodeSpec) -> None:
        known = self._ledger.state.node_states.get(node.id)
        if known is not None and known.status == RunnableStatus.RUNNING:
            state, input_data = known.internal_state, known.input_data
        else:
            input_data = self._input(node)
            state = self._earlier_state(node.id)
            if not state:
                try:
                    wake_at = wake_time(node.params, input_data, self._ports.now())
                except ValueError as error:
                    self._begin(node, input_data)
                    self._fail(node, NodeError({"type": "BadDelay", "message": str(error)}))
                    return
                state = {"wake_at": wake_at.isoformat()}
            self._begin(node, input_data, state)
        remaining = datetime.fromisoformat(state["wake_at"]) - self._ports.now()
        # A timer's end is known, so it need not be waited for: the next execution sets it again.
        async with self._gate.rest():
            await self._ports.sleep(node, max(timedelta(), remaining).total_seconds())
        self._complete(node, NodeReply(output=state, internal_state=state))

    async def _run_pure(self) -> None:
        members = self._fuse()
        self._claimed.update(members)
        inside = set(members)
        outside = dict.fromkeys(
            name
            for node_id in members
            for name in rules.reads(self._nodes[node_id], self._above(self._nodes[node_id]))
            if name not in inside
        )
        reply = await self._ports.run_pure(
            PureBatch(
                nodes=[self._nodes[node_id] for node_id in members],
                flow_input=self._ledger.state.original_input,
                results={name: self._outcome(name) for name in outside},
                tolerated=[name for name in [*outside, *members] if name in self._tolerated],
                above={
                    node_id: [name for name in outside if name in self._above(self._nodes[node_id])]
                    for node_id in members
                    if self._nodes[node_id].input_transformer is not None
                },
                run_id=self._ledger.state.run_id,
                flow_id=self._flow.id,
                key_base=self._key_base,
            )
        )
        for result in reply.outcomes:
            self._take(self._nodes[result.node_id], result)

    def _fuse(self) -> list[str]:
        """The ready pure nodes, and all that need nothing but them and what is finished; dependencies first."""
        members, frontier, self._pure = set(self._pure), deque(self._pure), []
        while frontier:
            for name in self._dependants[frontier.popleft()]:
                node = self._nodes[name]
                if name in members or name not in self._unfinished or not (is_fusable(node) or node.type in INLINE):
                    continue
                if all(edge.node in members or edge.node not in self._unfinished for edge in node.depends):
                    members.add(name)
                    frontier.append(name)
        return sorted(members, key=self._order.__getitem__)

    def _take(self, node: NodeSpec, result: PureOutcome) -> None:
        if result.status == "skip":
            self._skip(node, result.reason, at=result.completed_at)
            return
        self._begin(node, self._input(node), at=result.started_at)
        if result.status == "failure":
            self._fail(node, NodeError(result.error or {}, result.internal_state), at=result.completed_at)
        else:
            # The batch has applied the node's output transformer already.
            self._scope.record(
                NodeCompleted(
                    at=result.completed_at,
                    path=node.id,
                    output_data=result.output,
                    internal_state=result.internal_state,
                )
            )
            self._settle(node.id)
