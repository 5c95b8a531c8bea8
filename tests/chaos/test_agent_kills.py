"""SIGKILL of a worker at every loop of fifteen of an agent: in each tool, and at each call of the model.

The model is a real HTTP server that speaks the provider's protocol and keeps a journal of the requests it got; a proxy
before it keeps requests and answers on their way, so that a kill finds them there.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from holdfast.contracts.calls import FlowResult
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from tests.chaos.harness import RECOVERIES, Entry, Stage, connected, executions, result_of, start_run, until
from tests.servers.holding import HoldingProxy
from tests.servers.llm import LlmServer

LOOPS = 15
TOOLS = str(Path(__file__).with_name("chaos_tools.py"))
FLOW = read_flow("""
id: fifteen
nodes:
  agent:
    type: agent
    llm: {model: m, connection: chaos}
    system: You work in steps.
    tools:
      - id: step
        type: tool
        function: chaos_tools:step
        description: Does one step.
        input_schema: {type: object, properties: {number: {type: integer}}, required: [number]}
""")


def fixtures() -> dict[str, Any]:
    """Fourteen calls of the tool, then the answer. Each reply is chosen by what came before it."""

    def reply(loop: int) -> dict[str, Any]:
        if loop == LOOPS:
            return {"content": "all steps are done"}
        arguments = json.dumps({"number": loop})
        return {"toolCalls": [{"id": f"call_{loop}", "name": "step", "arguments": arguments}]}

    first = {"match": {"userMessage": "work", "hasToolResult": False}, "response": reply(1)}
    rest = [{"match": {"toolCallId": f"call_{loop}"}, "response": reply(loop + 1)} for loop in range(1, LOOPS)]
    return {"fixtures": [first, *rest]}


# Where each run is when its worker dies.
IN_TOOL = [f"tool {number} {event}" for number in range(1, LOOPS) for event in ("started", "finished")]
BEFORE_MODEL = [f"loop {loop}, the model not asked yet" for loop in range(1, LOOPS + 1)]
IN_MODEL = [f"loop {loop}, the model's answer on its way" for loop in range(1, LOOPS + 1)]
POINTS = [*IN_TOOL, *BEFORE_MODEL, *IN_MODEL]


@dataclass
class Evidence:
    """What became of one run."""

    run: str
    result: FlowResult | None = None
    failure: BaseException | None = None
    asked: Counter[str] = field(default_factory=Counter[str])
    journal: list[Entry] = field(default_factory=list[Entry])
    effects: int = 0
    seconds: float = 0.0


class Scenario:
    """All runs at once, each held at its own place; one kill; one successor."""

    def __init__(self, client: Client, stage: Stage, address: str, llm: LlmServer, proxy: HoldingProxy) -> None:
        self._client = client
        self._stage = stage
        self._address = address
        self._llm = llm
        self._proxy = proxy

    async def play(self) -> tuple[Evidence, dict[str, Evidence]]:
        worker = await self._stage.start_worker(self._address, "--load", TOOLS).ready()
        undisturbed = await self._finish(await self._start(""))
        handles = {point: await self._start(point) for point in POINTS}
        for point, handle in handles.items():
            await until(lambda: self._is_held(point, handle.id), f"{point} in {handle.id}", pause=0.05)  # noqa: B023
        killed_at = worker.kill()
        self._proxy.drop()
        self._stage.release()
        successor = self._stage.start_worker(self._address, "--load", TOOLS)
        found = await asyncio.gather(*(self._finish(handle) for handle in handles.values()))
        for evidence in found:
            later = [entry.at for entry in evidence.journal if entry.pid == successor.pid]
            evidence.seconds = min(later, default=killed_at) - killed_at
        return undisturbed, dict(zip(handles, found, strict=True))

    async def _start(self, point: str) -> WorkflowHandle[Any, FlowResult]:
        name = f"agent-{POINTS.index(point) if point else 'undisturbed'}"
        words = point.replace(",", "").split()
        holds = [(f"step-{words[1]}", words[2])] if point in IN_TOOL else []
        handle = await start_run(self._client, self._stage, FLOW, {"input": "work"}, name=name, holds=holds)
        if point in BEFORE_MODEL or point in IN_MODEL:
            self._proxy.hold(_key(handle.id, int(words[1])), "before" if point in BEFORE_MODEL else "after")
        return handle

    def _is_held(self, point: str, run: str) -> bool:
        words = point.replace(",", "").split()
        if point in IN_TOOL:
            return bool(self._stage.entries(run, f"step-{words[1]}", words[2]))
        return self._proxy.arrived(_key(run, int(words[1])), "before" if point in BEFORE_MODEL else "after")

    async def _finish(self, handle: WorkflowHandle[Any, FlowResult]) -> Evidence:
        evidence = Evidence(handle.id)
        try:
            evidence.result = await result_of(handle, 240)
        except Exception as error:
            # One run that fails must not hide what became of the others.
            evidence.failure = error
        keys = [entry["headers"]["idempotency-key"] for entry in self._llm.journal()]
        evidence.asked = Counter(key for key in keys if key.startswith(f"{handle.id}/"))
        evidence.journal = self._stage.entries(handle.id)
        effects = self._stage.root / "effects"
        evidence.effects = sum(path.name.startswith(f"{handle.id}~") for path in effects.iterdir())
        return evidence


def _key(run: str, loop: int) -> str:
    return f"{run}/agent/loop[{loop}]/llm"


@dataclass
class Aftermath:
    undisturbed: Evidence
    evidence: dict[str, Evidence]
    logs: str


@pytest.fixture(scope="module")
def aftermath(temporal: embedded.Running, tmp_path_factory: pytest.TempPathFactory) -> Generator[Aftermath]:
    root = tmp_path_factory.mktemp("agents")
    (root / "llm.json").write_text(json.dumps(fixtures()))
    stage = Stage(root / "stage")

    async def play(llm: LlmServer, proxy: HoldingProxy) -> tuple[Evidence, dict[str, Evidence]]:
        client = await connected(temporal.address)
        return await Scenario(client, stage, temporal.address, llm, proxy).play()

    with LlmServer(root / "llm.json") as llm, HoldingProxy(llm.port) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_CONNECTION_CHAOS_BASE_URL", proxy.url)
        patch.setenv("HOLDFAST_CONNECTION_CHAOS_API_KEY", "none")
        try:
            undisturbed, evidence = asyncio.run(play(llm, proxy))
            RECOVERIES["agent's worker killed, to the next step of its runs"] = [
                found.seconds for found in evidence.values() if found.seconds
            ]
            yield Aftermath(undisturbed, evidence, stage.logs())
        finally:
            stage.close()


def _said(evidence: Evidence) -> tuple[Any, Any]:
    """The answer, and the whole conversation behind it."""
    assert evidence.failure is None, repr(evidence.failure)
    assert evidence.result is not None
    saved = evidence.result.checkpoint["node_states"]["agent"]["internal_state"]
    return evidence.result.output["agent"].output, saved["prompt_messages"]


@pytest.mark.req("AG-2")
def test_undisturbed_the_agent_asks_fifteen_times_and_does_fourteen_steps(aftermath: Aftermath) -> None:
    evidence = aftermath.undisturbed
    answer, messages = _said(evidence)

    assert answer == {"content": "all steps are done", "finished": True, "loops": LOOPS}
    assert len(messages) == 2 + LOOPS + (LOOPS - 1)
    assert evidence.asked == Counter({_key(evidence.run, loop): 1 for loop in range(1, LOOPS + 1)})


@pytest.mark.req("AG-2", "PR-7")
@pytest.mark.parametrize("point", POINTS)
def test_the_answer_and_the_conversation_are_those_of_an_undisturbed_run(point: str, aftermath: Aftermath) -> None:
    assert _said(aftermath.evidence[point]) == _said(aftermath.undisturbed)


@pytest.mark.req("AG-2", "AG-3")
@pytest.mark.parametrize("point", POINTS)
def test_the_model_is_asked_once_for_every_loop_except_where_its_answer_was_lost(
    point: str, aftermath: Aftermath
) -> None:
    evidence = aftermath.evidence[point]
    expected = Counter({_key(evidence.run, loop): 1 for loop in range(1, LOOPS + 1)})
    if point in IN_MODEL:
        expected[_key(evidence.run, int(point.replace(",", "").split()[1]))] = 2

    assert evidence.asked == expected


@pytest.mark.req("AG-2", "AG-3")
@pytest.mark.parametrize("point", POINTS)
def test_only_the_tool_in_flight_runs_again_and_its_key_makes_it_one_effect(point: str, aftermath: Aftermath) -> None:
    evidence = aftermath.evidence[point]
    ran = {name: len(entries) for name, entries in executions(evidence.journal).items()}
    expected = {f"step-{number}": 1 for number in range(1, LOOPS)}
    if point in IN_TOOL:
        expected[f"step-{point.split()[1]}"] = 2

    assert ran == expected
    for entries in executions(evidence.journal).values():
        assert len({entry.key for entry in entries}) == 1
    assert evidence.effects == LOOPS - 1


def test_no_workflow_task_failed_on_the_way(aftermath: Aftermath) -> None:
    assert "Failed activation" not in aftermath.logs
    assert "Nondeterminism" not in aftermath.logs
