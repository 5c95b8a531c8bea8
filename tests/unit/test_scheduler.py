"""The flow driver: what starts when, what is recorded, and what becomes of failures."""

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.checkpoints.ledger import Ledger, NodeCompleted, NodeFailed, NodeSkipped
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus
from holdfast.contracts.calls import NodeCall, NodeReply, PureBatch, PureReply
from holdfast.engine.ports import NodeError
from holdfast.engine.scheduler import FlowDriver
from holdfast.engine.simulator import EPOCH, Scripted, Simulation
from holdfast.flows.check import ensure
from holdfast.flows.spec import FlowSpec, NodeSpec

BROKEN = {"type": "Scripted", "message": "it broke"}
FAILING = Scripted(error="it broke")


def node(node_id: str, *upstream: str | dict[str, Any], kind: str = "Task", **fields: Any) -> dict[str, Any]:
    depends = [{"node": edge} if isinstance(edge, str) else edge for edge in upstream]
    return {"id": node_id, "type": kind, "depends": depends, **fields}


def transform(node_id: str, *upstream: str | dict[str, Any], template: Any = "x", **fields: Any) -> dict[str, Any]:
    return node(node_id, *upstream, kind="transform", params={"template": template}, **fields)


def flow(*nodes: dict[str, Any]) -> FlowSpec:
    return ensure(FlowSpec.model_validate({"id": "flow", "nodes": nodes}))


class Run(Simulation):
    """A simulation that keeps the calls and the batches, and fails where it was not told what to do."""

    def __init__(self, flow: FlowSpec, script: Mapping[str, Scripted] | None = None, **options: Any) -> None:
        told = {node.id: Scripted(output=node.id) for node in flow.nodes}
        super().__init__(flow, {**told, **(script or {})}, **options)
        self.calls: dict[str, NodeCall] = {}
        self.batches: list[list[str]] = []

    async def run_node(self, node: NodeSpec, call: NodeCall) -> NodeReply:
        self.calls[node.id] = call
        return await super().run_node(node, call)

    async def run_pure(self, batch: PureBatch) -> PureReply:
        self.batches.append([node.id for node in batch.nodes])
        return await super().run_pure(batch)

    def kinds(self) -> list[str]:
        return [f"{entry.kind} {entry.path}".strip() for entry in self.ledger.since(0)]


def statuses(state: CheckpointRecord) -> dict[str, str]:
    return {node_id: known.status for node_id, known in state.node_states.items()}


@pytest.mark.req("FL-1", "FL-2")
def test_a_chain_runs_in_order_and_everything_is_recorded() -> None:
    run = Run(flow(node("b", "a"), node("a")), run_id="run")

    last = run.run({"q": 1})

    assert run.executed == ["a", "b"]
    assert run.kinds() == [
        "run_started",
        "node_started a",
        "node_completed a",
        "node_started b",
        "node_completed b",
        "run_completed",
    ]
    assert last.status == CheckpointStatus.COMPLETED
    assert (last.completed_node_ids, last.pending_node_ids) == (["a", "b"], [])
    assert last.node_states["b"].input_data == {"q": 1, "a": {"status": "success", "output": "a", "error": None}}


@pytest.mark.req("FL-1")
def test_a_node_begins_when_its_own_dependencies_are_done_and_not_later() -> None:
    run = Run(
        flow(node("slow"), node("quick"), node("after", "quick"), node("join", "slow", "after")),
        {"slow": Scripted(seconds=100), "quick": Scripted(seconds=1), "after": Scripted(seconds=1)},
    )

    states = run.run().node_states

    def started(node_id: str) -> datetime | None:
        return states[node_id].started_at

    assert started("slow") == started("quick") == EPOCH
    assert started("after") == EPOCH + timedelta(seconds=1)
    assert started("join") == EPOCH + timedelta(seconds=100)


@pytest.mark.req("FL-1")
def test_an_effectful_node_is_called_with_what_it_needs() -> None:
    run = Run(
        flow(node("a", params={"x": 1}, caching={"enabled": True}, input_transformer={"path": "$.q"})), run_id="r"
    )

    run.run({"q": "why"})

    assert run.calls["a"] == NodeCall(
        node_id="a",
        path="a",
        type="Task",
        params={"x": 1},
        input_data="why",
        run_id="r",
        flow_id="flow",
        idempotency_key="r/a",
        cache=True,
    )


@pytest.mark.req("FL-1")
def test_pure_neighbours_run_in_one_batch_and_choices_between_them_too() -> None:
    run = Run(
        flow(
            transform("a"),
            transform("b", "a"),
            node("c", "b", kind="choice", params={"options": [{"id": "x"}]}),
            transform("d", {"node": "c", "option": "x"}),
            transform("e"),
            node("effect", "e"),
            transform("f", "effect", "d"),
            transform("alone", error_handling={"timeout_seconds": 5}),
        )
    )

    last = run.run()

    assert run.batches == [["a", "b", "c", "d", "e"], ["f"]]
    assert run.executed == ["effect"]
    assert set(statuses(last).values()) == {"success"}


@pytest.mark.req("OR-4")
def test_choice_and_pass_need_nobody_to_run_them() -> None:
    run = Run(flow(node("c", kind="choice", params={"options": [{"id": "x"}]}), node("p", "c", kind="pass")))

    last = run.run()

    assert (run.executed, run.batches, run.calls) == ([], [], {})
    assert last.node_states["p"].output_data == {"option": "x", "chosen": ["x"]}


def test_a_batch_that_begins_while_another_runs_is_waited_for_too() -> None:
    run = Run(
        flow(node("slow", pure=True), node("effect"), node("later", "effect", pure=True), node("end", "slow", "later")),
        {"slow": Scripted(seconds=10), "effect": Scripted(seconds=1), "later": Scripted(seconds=20)},
    )

    last = run.run()

    assert run.batches == [["slow"], ["later"]]
    assert last.node_states["end"].started_at == EPOCH + timedelta(seconds=21)
    assert set(statuses(last).values()) == {"success"}


@pytest.mark.req("FL-4")
def test_an_output_transformer_is_applied_once_whoever_runs_the_node() -> None:
    narrow: dict[str, Any] = {"output_transformer": {"path": "$.x"}}
    run = Run(
        flow(
            node("effect", **narrow),
            transform("pure", template={"x": {"x": "inner"}}, **narrow),
            node("inline", kind="pass", input_transformer={"selector": {"x": {"x": "inner"}}}, **narrow),
        ),
        {"effect": Scripted(output={"x": {"x": "inner"}})},
    )

    assert [known.output_data for known in run.run().node_states.values()] == [{"x": "inner"}] * 3


@pytest.mark.req("FL-3", "FL-4")
def test_an_unhandled_failure_lets_other_branches_finish_and_then_fails_the_run() -> None:
    run = Run(
        flow(node("bad"), node("below", "bad"), node("further", "below"), node("other"), node("worse", "other")),
        {"bad": FAILING, "other": Scripted(seconds=5), "worse": FAILING},
    )

    last = run.run()

    assert last.status == CheckpointStatus.FAILED
    assert statuses(last) == {
        "bad": "failure",
        "other": "success",
        "below": "skip",
        "further": "skip",
        "worse": "failure",
    }
    assert last.node_states["below"].error == {"type": "skipped", "message": "'bad' failed"}
    assert last.node_states["further"].error == {"type": "skipped", "message": "'below' was skipped"}
    assert last.completed_node_ids == ["other"]
    assert last.metadata["error"] == {**BROKEN, "node_id": "bad", "failed_nodes": ["bad", "worse"]}


@pytest.mark.req("FL-3")
def test_what_a_failure_blocks_is_still_to_do_and_an_untaken_branch_is_not() -> None:
    run = Run(
        flow(
            node("bad"),
            node("below", "bad"),
            transform("pure-below", "below"),
            node("c", kind="choice", params={"options": [{"id": "x"}, {"id": "y"}]}),
            node("untaken", {"node": "c", "option": "y"}),
        ),
        {"bad": FAILING},
    )

    last = run.run()

    skipped = {entry.path: entry.blocked for entry in run.ledger.since(0) if isinstance(entry, NodeSkipped)}
    assert skipped == {"below": True, "pure-below": True, "untaken": False}
    assert last.pending_node_ids == ["bad", "below", "pure-below"]


@pytest.mark.req("FL-4")
@pytest.mark.parametrize(
    ("behavior", "below", "status"),
    [("raise", "skip", "failed"), ("skip", "skip", "completed"), ("return", "success", "completed")],
)
def test_the_behaviour_says_what_a_failure_means(behavior: str, below: str, status: str) -> None:
    run = Run(flow(node("bad", error_handling={"behavior": behavior}), node("below", "bad")), {"bad": FAILING})

    last = run.run()

    assert (statuses(last)["below"], last.status) == (below, status)
    if below == "success":
        assert last.node_states["below"].input_data == {"bad": {"status": "failure", "output": None, "error": BROKEN}}


@pytest.mark.req("FL-4")
def test_an_error_edge_handles_a_failure() -> None:
    rescued = flow(node("bad"), node("normal", "bad"), node("rescue", {"node": "bad", "trigger": "failure"}))

    failed = Run(rescued, {"bad": FAILING}).run()
    went_well = Run(rescued).run()

    assert failed.status == CheckpointStatus.COMPLETED
    assert statuses(failed) == {"bad": "failure", "normal": "skip", "rescue": "success"}
    assert statuses(went_well) == {"bad": "success", "normal": "success", "rescue": "skip"}


@pytest.mark.req("FL-4")
@pytest.mark.parametrize(("message", "status"), [("it broke", "completed"), ("out of money", "failed")])
def test_an_error_edge_with_a_condition_handles_only_what_it_takes(message: str, status: str) -> None:
    condition = {"variable": "$.error.message", "operator": "string-contains", "value": "broke"}
    edge = {"node": "bad", "trigger": "failure", "condition": condition}

    last = Run(flow(node("bad"), node("rescue", edge)), {"bad": Scripted(error=message)}).run()

    assert last.status == status


@pytest.mark.req("FL-4")
def test_branches_come_together_again() -> None:
    run = Run(
        flow(
            node("c", kind="choice", params={"options": [{"id": "x"}, {"id": "y"}]}),
            node("x", {"node": "c", "option": "x"}),
            node("y", {"node": "c", "option": "y"}),
            node("join", "x", "y", kind="pass", join="any"),
            node("strict", "x", "y", kind="pass"),
        )
    )

    last = run.run()

    assert statuses(last) == {"c": "success", "x": "success", "y": "skip", "join": "success", "strict": "skip"}
    assert last.node_states["join"].output_data == "x"


@pytest.mark.req("FL-4")
def test_what_an_execution_reports_is_recorded() -> None:
    class Reporting(Run):
        async def run_node(self, node: NodeSpec, call: NodeCall) -> NodeReply:
            if node.id == "bad":
                raise NodeError(BROKEN, {"half": 1}, attempts=3)
            return NodeReply(output=1, internal_state={"loop": 2}, attempt=4, cached=True, warnings=["careful"])

    run = Reporting(flow(node("good"), node("bad")))
    last = run.run()

    [completed] = [entry for entry in run.ledger.since(0) if isinstance(entry, NodeCompleted)]
    [failed] = [entry for entry in run.ledger.since(0) if isinstance(entry, NodeFailed)]
    assert (completed.attempts, completed.cached, completed.warnings) == (4, True, ["careful"])
    assert (failed.attempts, failed.internal_state, failed.handled) == (3, {"half": 1}, False)
    assert last.node_states["good"].internal_state == {"loop": 2}
    assert last.node_states["bad"].attempts == 3


def test_a_delay_that_gives_no_moment_fails_its_node() -> None:
    last = Run(flow(node("wait", kind="delay", params={"seconds": "$.nowhere"}))).run()

    assert last.node_states["wait"].error == {
        "type": "BadDelay",
        "message": "the delay '$.nowhere' gives None, which is no duration",
    }


def test_a_delay_says_when_it_was_over() -> None:
    last = Run(flow(node("wait", kind="delay", params={"seconds": 60}), node("after", "wait"))).run()

    assert last.node_states["wait"].output_data == {"wake_at": (EPOCH + timedelta(seconds=60)).isoformat()}
    assert last.node_states["after"].started_at == EPOCH + timedelta(seconds=60)


def test_a_delay_until_the_past_is_over_at_once() -> None:
    last = Run(flow(node("wait", kind="delay", params={"until": "2020-01-01"}))).run()

    assert last.node_states["wait"].completed_at == EPOCH


class Waiting(Run):
    """Nodes that begin, and never end by themselves."""

    def __init__(self, flow: FlowSpec) -> None:
        super().__init__(flow)
        self.ended: list[str] = []

    async def run_node(self, node: NodeSpec, call: NodeCall) -> NodeReply:
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.append(node.id)
        return NodeReply()


async def test_a_cancelled_run_ends_what_is_running_and_says_so() -> None:
    run = Waiting(flow(node("a"), node("b"), node("after", "a")))
    run.ledger = Ledger(CheckpointRecord(flow_id="flow", run_id="run", pending_node_ids=["a", "b", "after"]))
    driving = asyncio.create_task(FlowDriver(run.flow, run.ledger, run, "run").run())
    while len(run.ledger.state.node_states) < 2:
        await asyncio.sleep(0)

    driving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await driving

    assert run.ended == ["a", "b"]
    assert run.ledger.state.status == CheckpointStatus.FAILED
    assert run.ledger.state.metadata["error"]["type"] == "cancelled"
    assert statuses(run.ledger.state) == {"a": "running", "b": "running"}


@pytest.mark.parametrize("names", [["a"], ["a", "b"]])
def test_a_fault_of_the_engine_itself_ends_the_run_instead_of_hanging_it(names: list[str]) -> None:
    class Faulty(Run):
        async def run_node(self, node: NodeSpec, call: NodeCall) -> NodeReply:
            raise ZeroDivisionError(node.id)

    with pytest.raises(ZeroDivisionError, match="a"):
        Faulty(flow(*map(node, names))).run()
