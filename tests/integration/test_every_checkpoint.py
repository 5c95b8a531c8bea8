"""For every example and every point of its run: a fork or a resume ends the same, and executes what comes after.

The executions are counted in the worker, by an interceptor around all of its activities; a batch of pure nodes counts
as each of them. What had been recorded at a point is read from the ledger, transition by transition.
"""

import asyncio
import importlib
import json
import pkgutil
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import examples
from examples import contract_nodes, document_map, library, survey_tools
from holdfast import Flow, HoldfastClient, Node, read_flow
from holdfast.checkpoints.ledger import InputReceived, InputRequested, NodeAdvanced, NodeCompleted, Transition
from holdfast.flows.spec import FlowSpec
from tests.going_on import essence
from tests.integration.conftest import Bench
from tests.integration.counting import Counting

EXAMPLES = Path(examples.__file__).parent
AT_ONCE = 10


@dataclass(frozen=True)
class Example:
    """How one is run here: its input, the classes its worker needs, what a person answers, and what is made quicker."""

    input_data: dict[str, Any]
    nodes: Sequence[type[Node]] = ()
    answers: dict[str, Any] = field(default_factory=dict[str, Any])
    quicker: Callable[[FlowSpec], None] = lambda _: None


def _hurried_review(flow: FlowSpec) -> None:
    for node in flow.nodes:
        if node.type in ("Read", "Assess", "Notify"):
            node.params["seconds"] = 0.3 if node.id == "finance" else 0.1


def _hurried_survey(flow: FlowSpec) -> None:
    for reply in flow.node("surveyor").params["llm"]["replies"]:
        reply["seconds"] = 0


def _at_once(_: float) -> None:
    """A measurement that takes no time."""


RUN_AS = {
    "hello": Example({"name": "World"}),
    "contract_review": Example(
        {"contract": "nda.pdf"},
        [contract_nodes.Read, contract_nodes.Assess, contract_nodes.Notify],
        quicker=_hurried_review,
    ),
    "expense": Example({"claim": "Lunch with Ada"}, answers={"pay": {"is_approved": True, "data": {"amount": 40}}}),
    "document_map": Example({"documents": [{"name": name} for name in document_map.DOCUMENTS]}),
    "essay_graph": Example({"input": "kelp"}),
    "research_agent": Example({"input": "How does kelp survive a storm?"}),
    "notes": Example({"input": "When does the tide turn?"}),
    "short_agent": Example({"input": "What do I need in Lund?"}),
    "survey_agent": Example({"input": "Where is the current strongest?"}, quicker=_hurried_survey),
    "library": Example({"pages": 3}, [library.Fetch, library.Read]),
}


def flow_of(name: str) -> FlowSpec:
    source = EXAMPLES / f"{name}.yaml"
    if source.exists():
        return read_flow(source.read_text(), str(source))
    return importlib.import_module(f"examples.{name}").flow.spec()


def _has_flow(module: ModuleType) -> bool:
    return any(isinstance(value, Flow) for value in vars(module).values())


def test_every_example_is_run_here() -> None:
    modules = [entry.name for entry in pkgutil.iter_modules([str(EXAMPLES)])]
    flows = [name for name in modules if _has_flow(importlib.import_module(f"examples.{name}"))]

    assert sorted(RUN_AS) == sorted([*flows, *(path.stem for path in EXAMPLES.glob("*.yaml"))])


def recorded_by(transition: Transition) -> list[str]:
    """The executions whose result a transition has in it: from then on they are not to be repeated."""
    match transition:
        case NodeCompleted():
            return [transition.path]
        case NodeAdvanced(event="agent_opened"):
            return [f"{transition.path}/open"]
        case NodeAdvanced(event="iteration_completed"):
            return [f"{transition.path}[{transition.detail['index']}]"]
        case NodeAdvanced():
            return [entry["node"]["path"] for entry in transition.assign.get("run_depends", [])]
        case InputReceived():
            # A question that was open is asked again, and its text made again.
            return [f"{transition.path}/prompt"]
        case _:
            return []


async def answering(client: HoldfastClient, run_id: str, answers: dict[str, Any]) -> list[str]:
    """Answers what a run asks until it ends, and says what that was."""
    asked: list[str] = []
    async for transition in client.follow(run_id):
        if isinstance(transition, InputRequested):
            asked.append(transition.path)
            await client.send_input(run_id, answers[transition.path], request_id=transition.request["id"])
    return asked


async def left_by(client: HoldfastClient, run_id: str, *names: str) -> str:
    """All that a run leaves behind, without the names of runs, which are in idempotency keys, and times of files."""
    result = await client.result(run_id)
    left = {"output": result.output, "state": essence(await client.latest_checkpoint(run_id))}
    text = json.dumps(left, sort_keys=True, default=str)
    for name in (run_id, *names):
        text = text.replace(name, "RUN")
    return re.sub(r'"written_at": "[^"]*"', '"written_at": "THEN"', text)


@dataclass(frozen=True)
class Ended:
    """A run that has ended: what it left behind, whom it asked, and what it executed."""

    run_id: str
    left: str
    asked: list[str]
    executed: Counter[str]


@dataclass(frozen=True)
class Stage:
    client: HoldfastClient
    counting: Counting
    flow: FlowSpec
    example: Example

    async def undisturbed(self) -> Ended:
        return await self.ended(await self.client.start(self.flow, self.example.input_data))

    async def ended(self, run_id: str, *names: str) -> Ended:
        answers = self.example.answers
        # Only where somebody is asked: following a run costs more than running it.
        asked = await answering(self.client, run_id, answers) if answers else []
        left = await left_by(self.client, run_id, *names)
        return Ended(run_id, left, asked, self.counting.executions[run_id])


@pytest.mark.req("FL-2", "FL-3", "AG-2", "OR-3")
@pytest.mark.parametrize("how", ["fork", "resume"])
@pytest.mark.parametrize("name", RUN_AS)
async def test_every_checkpoint_leads_to_the_same_end_and_executes_what_comes_after_it(
    counted: Bench, counting: Counting, name: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = counted.client
    stage = Stage(client, counting, flow_of(name), RUN_AS[name])
    stage.example.quicker(stage.flow)
    monkeypatch.setattr(survey_tools, "time", SimpleNamespace(sleep=_at_once))
    await counted.worker(stage.example.nodes)
    first = await stage.undisturbed()
    every = await client.transitions(first.run_id)
    places = asyncio.Semaphore(AT_ONCE)

    async def go_on_from(number: int) -> None:
        """A fork of the one run; a resume of a run of its own, since a run is resumed once."""
        async with places:
            old = first if how == "fork" else await stage.undisturbed()
            before = (every if how == "fork" else await client.transitions(old.run_id))[: number + 1]
            new = await (client.fork if how == "fork" else client.resume)(f"{old.run_id}@{before[-1].seq}")
            found = await stage.ended(new, old.run_id)
        had = Counter(path for entry in before for path in recorded_by(entry) if path in first.executed)
        answered = sum(isinstance(entry, InputReceived) for entry in before)
        where = f"{name}, from {before[-1].seq} ({before[-1].kind} {before[-1].path})"
        assert found.executed == first.executed - had, where
        assert found.asked == first.asked[answered:], where
        assert found.left == first.left, where

    await asyncio.gather(*(go_on_from(number) for number in range(len(every))))

    assert Counter(path for entry in every for path in recorded_by(entry) if path in first.executed) == first.executed
    assert set(first.asked) == set(stage.example.answers)
