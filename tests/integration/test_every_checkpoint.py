"""For every example and every point of its run: a fork ends the same, and executes exactly what comes after.

The executions are counted in the worker, by an interceptor around all of its activities; a batch of pure nodes counts
as each of them. What had been recorded at a point is read from the ledger, transition by transition.
"""

import asyncio
import importlib
import json
import pkgutil
import re
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client
from temporalio.client import Interceptor as ClientInterceptor
from temporalio.worker import ActivityInboundInterceptor, ExecuteActivityInput
from temporalio.worker import Interceptor as WorkerInterceptor

import examples
from examples import contract_nodes, document_map, library, survey_tools
from holdfast import Flow, HoldfastClient, Node, read_flow
from holdfast.checkpoints.ledger import InputReceived, InputRequested, NodeAdvanced, NodeCompleted, Transition
from holdfast.contracts.calls import PureBatch
from holdfast.flows.kinds import INLINE
from holdfast.flows.spec import FlowSpec
from tests.going_on import essence
from tests.integration.conftest import Bench

EXAMPLES = Path(examples.__file__).parent
AT_ONCE = 10

Executions = dict[str, Counter[str]]


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


class Counting(ClientInterceptor, WorkerInterceptor):
    """Notes every execution of a worker, by run. A client's interceptor is its workers' as well."""

    def __init__(self) -> None:
        self.executions: Executions = defaultdict(Counter[str])

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _Counted(next, self.executions)


class _Counted(ActivityInboundInterceptor):
    def __init__(self, following: ActivityInboundInterceptor, executions: Executions) -> None:
        super().__init__(following)
        self._executions = executions

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        info = activity.info()
        (call,) = input.args
        names = [info.activity_id]
        if isinstance(call, PureBatch):
            # A choice is decided wherever it is: in a batch, or in the workflow itself.
            names = [node.id for node in call.nodes if node.type not in INLINE]
        self._executions[str(info.workflow_id)].update(names)
        return await super().execute_activity(input)


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
async def counted(client: Client, counting: Counting, tmp_path: Path) -> AsyncGenerator[Bench]:
    """A bench whose workers are counted."""
    configured = client.config()
    configured["interceptors"] = [counting]
    async with AsyncExitStack() as stack:
        yield Bench(Client(**configured), stack, tmp_path)


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


@pytest.mark.req("FL-2", "FL-3", "AG-2", "OR-3")
@pytest.mark.parametrize("name", RUN_AS)
async def test_every_checkpoint_leads_to_the_same_end_and_executes_what_comes_after_it(
    counted: Bench, counting: Counting, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    example, client, flow = RUN_AS[name], counted.client, flow_of(name)
    example.quicker(flow)
    monkeypatch.setattr(survey_tools, "time", SimpleNamespace(sleep=_at_once))
    await counted.worker(example.nodes)
    run_id = await client.start(flow, example.input_data)
    # Only where somebody is asked: following a run costs more than running it.
    asked = await answering(client, run_id, example.answers) if example.answers else []
    undisturbed = await left_by(client, run_id)
    transitions = await client.transitions(run_id)
    every = counting.executions[run_id]
    places = asyncio.Semaphore(AT_ONCE)

    async def fork_at(seq: int) -> tuple[str, list[str], Counter[str]]:
        async with places:
            fork = await client.fork(f"{run_id}@{seq}")
            questions = await answering(client, fork, example.answers) if example.answers else []
            return await left_by(client, fork, run_id), questions, counting.executions[fork]

    forks = await asyncio.gather(*(fork_at(transition.seq) for transition in transitions))

    had: Counter[str] = Counter()
    answered: list[str] = []
    for transition, (left, questions, executed) in zip(transitions, forks, strict=True):
        had.update(path for path in recorded_by(transition) if path in every)
        answered += [transition.path] if isinstance(transition, InputReceived) else []
        where = f"{name}, from {transition.seq} ({transition.kind} {transition.path})"
        assert executed == every - had, where
        assert questions == asked[len(answered) :], where
        assert left == undisturbed, where
    assert had == every, "every execution was recorded once"
    assert set(asked) == set(example.answers)
