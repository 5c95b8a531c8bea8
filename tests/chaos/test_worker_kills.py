"""SIGKILL of a worker at more than twenty places of a flow.

What had completed never runs again; what was in flight runs again with the same key; the result is the undisturbed
run's. Most places are made, not hit: a node is held where the run is wanted, and the kill comes when all runs are in
place. The rest is hit at seeded moments, for the places nobody thought of.
"""

import asyncio
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from holdfast.contracts.calls import FlowResult
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from tests.chaos.harness import (
    RECOVERIES,
    Entry,
    Recorded,
    Stage,
    WorkerProcess,
    connected,
    executions,
    recorded,
    result_of,
    start_run,
    timeless,
    until,
)

FLOW = read_flow("""
id: twelve
nodes:
  a: {type: Work, seconds: 0.2}
  b: {type: Work, seconds: 0.2, depends: a, error_handling: {max_retries: 2, retry_interval_seconds: 0.2}}
  c: {type: WorkAsync, seconds: 0.3, depends: a}
  d: {type: WorkAsync, seconds: 0.2, depends: [b, c]}
  shape:
    type: transform
    template: "{{ subject }} by {{ a.output.node }}"
    depends: a
  tick: {type: Work, pure: true, seconds: 0.05, depends: shape}
  route:
    type: choice
    depends: d
    options:
      - {id: left, condition: {variable: $.side, operator: string-equals, value: left}}
      - {id: right}
  left: {type: WorkAsync, seconds: 0.2, depends: [{node: route, option: left}]}
  right: {type: Work, seconds: 0.2, depends: [{node: route, option: right}]}
  merge: {type: pass, join: any, depends: [left, right]}
  wait: {type: delay, seconds: 3, depends: a}
  end:
    type: Work
    depends: [merge, wait, tick]
    input_transformer: {selector: {merged: $.merge.output, ticked: $.tick.output, subject: $.subject}}
""")

# Where each run is held: nodes in flight, either still working or finished and not yet reported.
HELD: dict[str, tuple[tuple[str, str], ...]] = {
    "first node working": (("a", "started"),),
    "first node finished, unreported": (("a", "finished"),),
    "pure node working": (("tick", "started"),),
    "pure node finished, unreported": (("tick", "finished"),),
    "left of the diamond working": (("b", "started"),),
    "left of the diamond finished, unreported": (("b", "finished"),),
    "right of the diamond working": (("c", "started"),),
    "right of the diamond finished, unreported": (("c", "finished"),),
    "both sides of the diamond working": (("b", "started"), ("c", "started")),
    "both sides finished, unreported": (("b", "finished"), ("c", "finished")),
    "one side working, one unreported": (("b", "started"), ("c", "finished")),
    "one side unreported, one working": (("b", "finished"), ("c", "started")),
    "join working": (("d", "started"),),
    "join finished, unreported": (("d", "finished"),),
    "chosen branch working": (("left", "started"),),
    "chosen branch finished, unreported": (("left", "finished"),),
    "other branch working": (("right", "started"),),
    "other branch finished, unreported": (("right", "finished"),),
    "last node working": (("end", "started"),),
    "last node finished, unreported": (("end", "finished"),),
}
TIMER = "only the timer pending"
SEEDS = (1, 2)
AT_RANDOM = [f"moment {index} of seed {seed}" for seed in SEEDS for index in range(4)]
POINTS = [*HELD, TIMER, *AT_RANDOM]


@dataclass
class Evidence:
    """What is known of one run whose worker was killed."""

    run: str
    input: dict[str, Any]
    old: int
    new: int
    killed_at: float
    at_kill: Recorded
    journal_at_kill: list[Entry]
    result: FlowResult | None = None
    failure: BaseException | None = None
    history: Recorded = field(default_factory=Recorded)
    journal: list[Entry] = field(default_factory=list[Entry])

    @property
    def in_flight(self) -> dict[str, str]:
        """Node -> how far it was, of those the old worker had begun and never reported."""
        latest = {entry.node: entry.event for entry in self.journal_at_kill}
        return {node: event for node, event in latest.items() if self.history.completed_by.get(node) != self.old}

    @property
    def place(self) -> tuple[Any, ...]:
        """Where in the flow the run was."""
        done = sorted(node for node, pid in self.history.completed_by.items() if pid == self.old)
        waiting = self.at_kill.timers_started > len(self.at_kill.timers_fired)
        return self.input["side"], tuple(done), tuple(sorted(self.in_flight.items())), waiting

    def seconds_to_progress(self) -> float:
        """From the kill (or from the end of the timer that the run waited for) to the next node begun."""
        after = [entry.at for entry in self.journal if entry.event == "started" and entry.pid == self.new]
        begin = self.killed_at
        if not self.in_flight and self.at_kill.timers_started and not self.at_kill.timers_fired:
            begin = max(begin, *self.history.timers_fired)
        return min(after) - begin


@dataclass
class Aftermath:
    """All runs, and what undisturbed ones gave."""

    evidence: dict[str, Evidence] = field(default_factory=dict[str, Evidence])
    undisturbed: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    logs: str = ""


def _input(point: str) -> dict[str, Any]:
    return {"subject": "kills", "side": "right" if point.startswith("other branch") else "left"}


class Scenario:
    """One worker after another on one queue, each killed while several runs are under way."""

    def __init__(self, client: Client, stage: Stage, address: str) -> None:
        self._client = client
        self._stage = stage
        self._address = address
        self._found = Aftermath()

    async def play(self) -> Aftermath:
        worker = await self._stage.start_worker(self._address).ready()
        await self._undisturbed()
        worker = await self._kill_at_held_places(worker)
        for seed in SEEDS:
            worker = await self._kill_at_random(worker, seed)
        self._found.logs = self._stage.logs()
        return self._found

    async def _undisturbed(self) -> None:
        handles = {side: await self._start("other branch" if side == "right" else "") for side in ("left", "right")}
        for side, handle in handles.items():
            self._found.undisturbed[side] = timeless(await result_of(handle))

    async def _start(self, point: str) -> WorkflowHandle[Any, FlowResult]:
        holds = HELD.get(point, ())
        return await start_run(self._client, self._stage, FLOW, _input(point), name="kill", holds=holds)

    async def _kill_at_held_places(self, worker: WorkerProcess) -> WorkerProcess:
        handles = {point: await self._start(point) for point in HELD}
        for point, handle in handles.items():
            for node, event in HELD[point]:
                await until(lambda: bool(self._stage.entries(handle.id, node, event)), f"{point}: {node} {event}")  # noqa: B023
        # Everything else of these runs comes to rest: all that remains is in the nodes that are held.
        await self._until_quiet(handles)
        handles[TIMER] = await self._start(TIMER)

        async def waiting() -> bool:
            known = await recorded(self._client, handles[TIMER].id)
            return {"left", "tick"} <= known.completed_by.keys() and not known.timers_fired

        await until(waiting, "the run that only waits for its timer")
        return await self._kill(worker, handles)

    async def _until_quiet(self, handles: dict[str, WorkflowHandle[Any, FlowResult]]) -> None:
        async def quiet() -> bool:
            for point, handle in handles.items():
                begun = executions(self._stage.entries(handle.id)).keys() - {node for node, _ in HELD[point]}
                if begun - (await recorded(self._client, handle.id)).completed_by.keys():
                    return False
            return True

        # A pure node that is held keeps its run's workflow task open; what completes meanwhile is not history yet.
        await until(quiet, "the runs to rest at their places", pause=0.2)

    async def _kill_at_random(self, worker: WorkerProcess, seed: int) -> WorkerProcess:
        moments = random.Random(seed)
        handles: dict[str, WorkflowHandle[Any, FlowResult]] = {}
        for point in (point for point in AT_RANDOM if point.endswith(f"seed {seed}")):
            handles[point] = await self._start(point)
            await asyncio.sleep(moments.uniform(0.05, 0.8))
        return await self._kill(worker, handles)

    async def _kill(self, worker: WorkerProcess, handles: dict[str, WorkflowHandle[Any, FlowResult]]) -> WorkerProcess:
        killed_at = worker.kill()
        successor = self._stage.start_worker(self._address)
        # Read before the holds are lifted: this is where the runs were.
        for point, handle in handles.items():
            self._found.evidence[point] = Evidence(
                run=handle.id,
                input=_input(point),
                old=worker.pid,
                new=successor.pid,
                killed_at=killed_at,
                at_kill=await recorded(self._client, handle.id),
                journal_at_kill=[entry for entry in self._stage.entries(handle.id) if entry.pid == worker.pid],
            )
        self._stage.release()
        await successor.ready()
        await asyncio.gather(*(self._finish(self._found.evidence[point], handles[point]) for point in handles))
        return successor

    async def _finish(self, evidence: Evidence, handle: WorkflowHandle[Any, FlowResult]) -> None:
        try:
            evidence.result = await result_of(handle)
        except Exception as error:
            # One run that fails must not hide what became of the others.
            evidence.failure = error
        evidence.history = await recorded(self._client, handle.id)
        evidence.journal = self._stage.entries(handle.id)


@pytest.fixture(scope="module")
def aftermath(temporal: embedded.Running, tmp_path_factory: pytest.TempPathFactory) -> Generator[Aftermath]:
    async def play(stage: Stage) -> Aftermath:
        return await Scenario(await connected(temporal.address), stage, temporal.address).play()

    stage = Stage(tmp_path_factory.mktemp("kills"))
    try:
        yield asyncio.run(play(stage))
    finally:
        stage.close()


@pytest.mark.req("FL-2", "PR-7")
@pytest.mark.parametrize("point", POINTS)
def test_a_run_survives_the_death_of_its_worker(point: str, aftermath: Aftermath) -> None:
    evidence = aftermath.evidence[point]
    assert evidence.failure is None, repr(evidence.failure)
    assert evidence.result is not None
    assert timeless(evidence.result) == aftermath.undisturbed[evidence.input["side"]]
    assert not evidence.history.task_failures


@pytest.mark.req("FL-2", "PR-7")
@pytest.mark.parametrize("point", POINTS)
def test_only_what_was_in_flight_runs_again_and_with_its_key(point: str, aftermath: Aftermath) -> None:
    evidence = aftermath.evidence[point]
    ran = executions(evidence.journal)
    other = "left" if evidence.input["side"] == "right" else "right"
    assert ran.keys() == {"a", "b", "c", "d", "tick", "left", "right", "end"} - {other}
    for node, started in ran.items():
        assert {entry.key for entry in started} == {f"{evidence.run}/{node}"}
        workers = [entry.pid for entry in started]
        if evidence.history.completed_by[node] == evidence.old:
            assert workers == [evidence.old], f"{node} had completed and ran again"
        elif node in evidence.in_flight:
            assert workers == [evidence.old, evidence.new], f"{node} was in flight"
        else:
            assert workers == [evidence.new], f"{node} had not begun"
    # History knew of these when the worker died, and the successor did not touch them.
    assert all(evidence.history.completed_by[node] == evidence.old for node in evidence.at_kill.completed_by)


@pytest.mark.parametrize("point", HELD)
def test_the_kill_came_where_it_was_meant(point: str, aftermath: Aftermath) -> None:
    assert aftermath.evidence[point].in_flight == dict(HELD[point])


def test_the_kills_came_at_twenty_different_places(aftermath: Aftermath) -> None:
    timer = aftermath.evidence[TIMER]
    assert not timer.in_flight
    assert timer.place[-1]
    assert len({evidence.place for evidence in aftermath.evidence.values()}) >= 20


@pytest.mark.req("PR-7")
@pytest.mark.parametrize("point", POINTS)
def test_a_dead_worker_is_noticed_in_seconds(
    point: str, aftermath: Aftermath, record_property: Callable[[str, object], None]
) -> None:
    seconds = aftermath.evidence[point].seconds_to_progress()
    record_property("seconds_to_progress", round(seconds, 2))
    RECOVERIES.setdefault("worker killed to next node begun", []).append(seconds)
    print(f"{point}: {seconds:.1f} s")
    assert seconds < 15


def test_the_workers_log_no_mistake_of_ours(aftermath: Aftermath) -> None:
    for sign in ("never awaited", "was destroyed but it is pending", "ResourceWarning", "never retrieved", "TMPRL1100"):
        assert sign not in aftermath.logs
