"""The map: a node for every item, in a window, with every result kept once."""

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.checkpoints.editing import apply_edits
from holdfast.checkpoints.ledger import InputReceived, InputRequested, NodeAdvanced
from holdfast.checkpoints.models import CheckpointStatus, NodeRecord
from holdfast.contracts.calls import FlowResult, FlowStart, NodeCall, NodeReply, PureBatch, PureReply
from holdfast.engine.ports import NodeError
from holdfast.engine.simulator import EPOCH, Scripted
from holdfast.flows.composites import MapParams
from holdfast.flows.spec import FlowSpec, NodeSpec
from tests.going_on import Watched, calls, carried, essence, flow, goes_on_from_everywhere

TASK = {"id": "work", "type": "Task"}
UPPER = {"id": "upper", "type": "transform", "template": "{{ input | upper }}"}
WORKER = {"id": "worker", "type": "agent", "llm": {"model": "m"}, "tools": [{"id": "look", "type": "Task"}]}
TALK = {
    "each": Scripted(replies=[calls(("look", {"input": "x"})), {"content": "found", "when": "seen"}], seconds=1),
    "each/look": Scripted(output="seen", seconds=1),
}
BATCHED = {"inline_limit": 2, "batch_size": 3}


def each(node: dict[str, Any], **params: Any) -> FlowSpec:
    common = {name: params.pop(name) for name in ("approval", "error_handling", "input_transformer") if name in params}
    return flow({"id": "each", "type": "map", "params": {"node": node, **params}, **common})


class Mapped(Watched):
    """Does something with each item, fails where it is told to, and counts what happens at the same time."""

    def __init__(self, flow: FlowSpec, script: Mapping[str, Scripted] | None = None, **options: Any) -> None:
        self.failing: set[Any] = set(options.pop("failing", ()))
        super().__init__(flow, script or {"each": Scripted(seconds=10)}, **options)
        self.running = 0
        self.most = 0
        self.batches: list[int] = []

    async def _perform(self, call: NodeCall) -> NodeReply:
        self.running += 1
        self.most = max(self.most, self.running)
        reply = await super()._perform(call)
        self.running -= 1
        if call.type != "Task" or not isinstance(call.input_data, int):
            return reply
        if call.input_data in self.failing:
            raise NodeError({"type": "Bad", "message": f"{call.input_data} is bad"})
        return NodeReply(output=call.input_data * 10, usage={"llm_calls": 1})

    async def run_pure(self, batch: PureBatch) -> PureReply:
        self.batches.append(len(batch.nodes))
        return await super().run_pure(batch)

    def like(self, flow: FlowSpec, script: Mapping[str, Scripted], run_id: str) -> "Mapped":
        return Mapped(flow, script, run_id=run_id, failing=self.failing)

    @property
    def state(self) -> NodeRecord:
        return self.ledger.state.node_states["each"]

    def completions(self) -> list[tuple[int, float]]:
        """Which item was done, and when."""
        return [
            (entry.detail["index"], (entry.at - EPOCH).total_seconds())
            for entry in self.ledger.since(0)
            if isinstance(entry, NodeAdvanced) and entry.event == "iteration_completed"
        ]


# What it does


@pytest.mark.req("OR-3")
def test_every_item_is_given_to_the_node_and_the_results_are_in_their_order() -> None:
    run = Mapped(each(TASK))

    run.run({"input": [3, 1, 2]})

    assert run.state.output_data == {"output": [30, 10, 20], "failed_iterations": []}
    assert run.executed == ["each[0]", "each[1]", "each[2]"]
    call = run.given["each[1]"]
    assert (call.node_id, call.input_data, call.idempotency_key) == ("each/work", 1, "run/each[1]")


@pytest.mark.req("OR-3")
def test_never_more_than_max_workers_are_at_work_and_the_next_begins_when_one_ends() -> None:
    run = Mapped(each(TASK, max_workers=2))

    run.run({"input": [1, 2, 3, 4, 5]})

    assert run.most == 2
    assert run.completions() == [(0, 10), (1, 10), (2, 20), (3, 20), (4, 30)]


@pytest.mark.parametrize(
    ("fields", "input_data", "count"),
    [
        ({}, {"input": [1, 2]}, 2),
        ({}, [1, 2, 3], 3),
        ({"items": "$.rows"}, {"rows": [1]}, 1),
        ({"items": "$.rows[*].n"}, {"rows": [{"n": 1}, {"n": 2}]}, 2),
        ({}, {"input": []}, 0),
        ({"input_transformer": {"path": "$.rows"}}, {"rows": [1, 2]}, 2),
    ],
)
def test_the_list_is_found_where_the_author_says(fields: dict[str, Any], input_data: Any, count: int) -> None:
    run = Mapped(each(TASK, **fields))

    run.run(input_data)

    assert len(run.state.output_data["output"]) == count
    assert run.state.internal_state["total_iterations"] == count


@pytest.mark.parametrize(
    ("fields", "input_data", "said"),
    [
        ({}, {"input": "text"}, "a map needs a list, and the field 'input' is 'text'; name the list with 'items'"),
        ({"items": "$.rows"}, {}, "a map needs a list, and $.rows is None; name the list with 'items'"),
        ({}, None, "a map needs a list, and the field 'input' is None; name the list with 'items'"),
    ],
)
def test_what_is_no_list_is_said(fields: dict[str, Any], input_data: Any, said: str) -> None:
    run = Mapped(each(TASK, **fields))

    run.run(input_data)

    assert run.state.error == {"type": "NotAList", "message": said}


def test_the_nodes_own_transformers_work_on_the_item() -> None:
    node = {**TASK, "input_transformer": {"path": "$.n"}, "output_transformer": {"selector": {"was": "$"}}}
    run = Mapped(each(node))

    run.run({"input": [{"n": 1}, {"n": 2}]})

    assert run.state.output_data["output"] == [{"was": 10}, {"was": 20}]


# Failures


@pytest.mark.req("OR-3")
def test_a_failing_item_stops_the_map_but_not_what_is_in_flight() -> None:
    run = Mapped(each(TASK, max_workers=2), failing=[2])

    run.run({"input": [1, 2, 3, 4]})

    assert run.state.error == {
        "type": "MapFailed",
        "message": "1 of 4 items failed; item 1: 2 is bad",
        "failed_iterations": [1],
    }
    # The third began when the first ended, in the moment before the second failed.
    assert run.executed == ["each[0]", "each[1]", "each[2]"]
    assert run.state.internal_state["completed_iterations"] == {"0": 10, "2": 30}


@pytest.mark.req("OR-3")
def test_failures_may_be_returned_and_are_named_by_their_index() -> None:
    run = Mapped(each(TASK, behavior="return"), failing=[2, 4])

    run.run({"input": [1, 2, 3, 4]})

    assert run.state.output_data == {"output": [10, None, 30, None], "failed_iterations": [1, 3]}
    assert run.state.internal_state["failed_iterations"] == {
        "1": {"type": "Bad", "message": "2 is bad"},
        "3": {"type": "Bad", "message": "4 is bad"},
    }
    assert run.ledger.state.status == CheckpointStatus.COMPLETED


@pytest.mark.req("OR-3")
@pytest.mark.parametrize("limits", [{}, BATCHED], ids=["inline", "batches"])
def test_a_resume_runs_the_failed_items_and_those_that_were_left_and_no_others(limits: dict[str, Any]) -> None:
    mapped = each(TASK, max_workers=1, **limits)
    failed = Mapped(mapped, failing=[3, 5])
    failed.run({"input": [1, 2, 3, 4, 5, 6, 7]})

    resumed = Mapped(mapped)
    last = resumed.run(base=carried(failed.ledger.state))

    done = failed.state.internal_state["completed_iterations"].keys()
    assert resumed.state.output_data == {"output": [10, 20, 30, 40, 50, 60, 70], "failed_iterations": []}
    assert sorted(resumed.executed) == [f"each[{index}]" for index in range(7) if str(index) not in done]
    assert last.status == CheckpointStatus.COMPLETED


@pytest.mark.req("OR-3", "FL-3")
@pytest.mark.parametrize(
    ("edited", "executed"), [({}, ["each[1]", "each[2]"]), ({"input": [4, 5]}, ["each[0]", "each[1]"])]
)
def test_a_failed_map_that_is_approved_again_runs_what_is_left_of_what_was_approved(
    edited: dict[str, Any], executed: list[str]
) -> None:
    flow = each(TASK, max_workers=1, approval={"enabled": True, "editable": ["input"]})
    script = {"each": Scripted(answer={"is_approved": True, "data": edited})}
    failed = Mapped(flow, {"each": Scripted(answer={"is_approved": True})}, failing=[2]).run({"input": [1, 2, 3]})
    resumed = Mapped(flow, script)

    resumed.run(base=carried(failed))

    assert resumed.executed == executed
    assert resumed.state.output_data["output"] == [item * 10 for item in edited.get("input", [1, 2, 3])]


@pytest.mark.req("OR-3")
def test_a_retry_of_the_map_tries_only_what_had_failed() -> None:
    class Mending(Mapped):
        async def sleep(self, node: NodeSpec, seconds: float) -> None:
            self.failing.clear()
            await super().sleep(node, seconds)

    run = Mending(each(TASK, error_handling={"max_retries": 1}), failing=[2])

    run.run({"input": [1, 2, 3]})

    assert run.executed == ["each[0]", "each[1]", "each[2]", "each[1]"]
    assert run.state.output_data["output"] == [10, 20, 30]
    assert run.state.attempts == 2


def test_an_agent_that_failed_in_an_item_goes_on_in_it() -> None:
    worker = {**WORKER, "tools": [{"id": "look", "type": "Task", "on_error": "fail"}]}
    mapped = each(worker)
    failed = Watched(mapped, {**TALK, "each/look": Scripted(error="it broke")})
    failed.run({"input": ["a", "b"]})
    assert failed.ledger.state.status == CheckpointStatus.FAILED

    resumed = Watched(mapped, TALK)
    resumed.run(base=carried(failed.ledger.state))

    assert sorted(resumed.executed) == [
        f"each[{index}]/{step}" for index in (0, 1) for step in ("loop[1]/look[0]", "loop[2]/llm")
    ]
    assert resumed.ledger.state.status == CheckpointStatus.COMPLETED


# Pure items


def test_pure_items_run_together_in_chunks() -> None:
    run = Mapped(each(UPPER))

    run.run({"input": ["a"] * 250})

    assert run.batches == [100, 100, 50]
    assert run.state.output_data == {"output": ["A"] * 250, "failed_iterations": []}
    assert run.executed == []


def test_a_pure_item_that_fails_is_a_failed_item() -> None:
    node = {"id": "t", "type": "transform", "template": "{{ input.name }}"}
    run = Mapped(each(node, behavior="return"))

    run.run({"input": [{"name": "Ada"}, {}]})

    assert run.state.output_data == {"output": ["Ada", None], "failed_iterations": [1]}
    assert run.state.internal_state["failed_iterations"]["1"]["type"] == "BadTemplateError"


def test_a_pure_item_with_retries_is_an_execution_of_its_own() -> None:
    run = Mapped(each({**UPPER, "error_handling": {"max_retries": 1}}))

    run.run({"input": ["a", "b"]})

    assert run.batches == []
    assert run.state.output_data["output"] == ["A", "B"]


# Batches


@pytest.mark.req("OR-3")
@pytest.mark.parametrize("node", [TASK, UPPER, WORKER], ids=["activity", "pure", "agent"])
@pytest.mark.parametrize("behavior", ["raise", "return"])
def test_batches_give_the_same_as_inline(node: dict[str, Any], behavior: str) -> None:
    items = [1, 2, 3, 4, 5, 6, 7] if node is TASK else list("abcdefg")
    script = TALK if node is WORKER else None
    inline = Mapped(each(node, behavior=behavior), script)
    batched = Mapped(each(node, behavior=behavior, **BATCHED), script)

    one, other = inline.run({"input": items}), batched.run({"input": items})

    assert inline.started == []
    assert [run_id for run_id, _ in batched.started] == ["run/each[0-2]", "run/each[3-5]", "run/each[6-6]"]
    assert other.node_states["each"].output_data == one.node_states["each"].output_data
    assert other.metadata.get("usage") == one.metadata.get("usage")
    assert sorted(batched.executed) == sorted(inline.executed)


def test_a_batch_says_where_it_belongs_and_the_map_what_became_of_it() -> None:
    run = Mapped(each(TASK, **BATCHED))

    run.run({"input": [1, 2, 3, 4]})

    run_id, start = run.started[0]
    assert start.parent_checkpoint_id == "run@4"
    assert start.key_base == "run/each"
    assert start.input_data == {"input": [1, 2, 3]}
    assert MapParams.model_validate(start.flow.node("each").params).indices == [0, 1, 2]
    assert run.state.internal_state["children"] == {
        run_id: {"status": "completed"},
        "run/each[3-3]": {"status": "completed"},
    }


@pytest.mark.req("OR-3")
def test_failures_in_a_batch_are_for_the_map_to_judge() -> None:
    run = Mapped(each(TASK, behavior="return", **BATCHED), failing=[2, 5])
    run.run({"input": [1, 2, 3, 4, 5]})
    assert run.state.output_data == {"output": [10, None, 30, 40, None], "failed_iterations": [1, 4]}

    raising = Mapped(each(TASK, max_workers=1, **BATCHED), failing=[2])
    raising.run({"input": [1, 2, 3, 4, 5]})
    assert raising.state.error is not None
    assert raising.state.error["message"] == "1 of 5 items failed; item 1: 2 is bad"
    # The second batch was not begun.
    assert raising.state.internal_state["completed_iterations"] == {"0": 10, "2": 30}


@pytest.mark.req("OR-3")
@pytest.mark.parametrize("max_workers", [1, 2, 3, 5, 7, 10])
def test_batches_together_keep_the_window(max_workers: int) -> None:
    windows: list[int] = []

    class Windowed(Mapped):
        open = 0

        async def run_child(self, node: NodeSpec, start: FlowStart, run_id: str) -> FlowResult:
            self.open += MapParams.model_validate(start.flow.node("each").params).max_workers
            windows.append(self.open)
            result = await super().run_child(node, start, run_id)
            self.open -= MapParams.model_validate(start.flow.node("each").params).max_workers
            return result

    run = Windowed(each(TASK, max_workers=max_workers, **BATCHED))
    run.run({"input": list(range(30))})

    assert max(windows) <= max_workers
    assert len(run.started) == 10


def test_a_batch_without_a_result_fails_the_map() -> None:
    class Lost(Mapped):
        async def run_child(self, node: NodeSpec, start: FlowStart, run_id: str) -> FlowResult:
            return FlowResult(status="failed", run_id=run_id)

    run = Lost(each(TASK, **BATCHED))
    run.run({"input": [1, 2, 3]})

    assert run.state.error == {
        "type": "BatchFailed",
        "message": "the run run/each[0-2] has no result",
        "child_run_id": "run/each[0-2]",
    }


# What is used, and going on


@pytest.mark.parametrize("limits", [{}, BATCHED], ids=["inline", "batches"])
def test_what_the_items_use_is_counted_once(limits: dict[str, Any]) -> None:
    run = Watched(each(WORKER, **limits), TALK)

    run.run({"input": ["a", "b", "c", "d"]})

    assert run.ledger.state.metadata["usage"]["llm_calls"] == 8


@pytest.mark.req("OR-3")
@pytest.mark.parametrize("behavior", ["raise", "return"])
def test_a_map_goes_on_from_everywhere(behavior: str) -> None:
    mapped = each(TASK, max_workers=2, behavior=behavior)

    run = goes_on_from_everywhere(mapped, {"each": Scripted(output="done", seconds=1)}, {"input": list("abcde")})

    assert run.events[:3] == ["node_started each", "map_opened each", "iteration_completed each"]


@pytest.mark.req("OR-3")
def test_failures_that_are_returned_are_settled_and_not_tried_again() -> None:
    mapped = each(TASK, max_workers=2, behavior="return")

    run = goes_on_from_everywhere(mapped, {"each": Scripted(error="no", seconds=1)}, {"input": list("abc")})

    assert run.ledger.state.node_states["each"].output_data["failed_iterations"] == [0, 1, 2]


@pytest.mark.req("OR-3")
def test_a_map_with_batches_goes_on_from_everywhere() -> None:
    run = goes_on_from_everywhere(each(WORKER, **BATCHED), TALK, {"input": list("abcde")})

    assert len(run.executed) == 15


@pytest.mark.req("OR-3", "AG-2")
@pytest.mark.parametrize("limits", [{}, BATCHED], ids=["inline", "batches"])
def test_a_failed_item_goes_on_where_it_failed(limits: dict[str, Any]) -> None:
    mapped = each(WORKER, max_workers=1, **limits)
    begun = {**TALK, "each": Scripted(replies=[calls(("look", {"input": "x"}))])}
    failed = Watched(mapped, begun)
    last = failed.run({"input": list("abcd")})
    resumed = Watched(mapped, TALK)
    again = resumed.run(base=carried(last))
    whole = Watched(mapped, TALK)
    undisturbed = whole.run({"input": list("abcd")})

    assert last.status == CheckpointStatus.FAILED
    assert essence(again) == {**essence(undisturbed), "usage": again.metadata["usage"]}
    # The second call of the model is what had failed, and is all that is made again.
    twice = [path for path in failed.executed if path in resumed.executed]
    assert twice == [path for path in failed.executed if path.endswith("loop[2]/llm")]
    assert {*failed.executed, *resumed.executed} == set(whole.executed)


@pytest.mark.req("OR-3", "AG-2")
def test_nothing_of_an_item_is_left_over_wherever_the_next_run_is_ended() -> None:
    mapped = each(WORKER, max_workers=1, **BATCHED)
    failed = Watched(mapped, {**TALK, "each": Scripted(replies=[calls(("look", {"input": "x"}))])})
    second = Watched(mapped, TALK)
    second.run(base=carried(failed.run({"input": list("abcd")})))
    settled = [entry for entry in second.ledger.since(0) if getattr(entry, "event", "") == "item_settled"]

    assert settled
    for entry in settled:
        third = Watched(mapped, TALK).run(base=carried(second.ledger.at(entry.seq - 1)))
        assert third.node_states.keys() == {"each"}


@pytest.mark.req("OR-3", "AG-2")
def test_an_item_whose_result_is_given_by_hand_leaves_nothing_over() -> None:
    mapped = each(WORKER)
    first = Watched(mapped, TALK)
    first.run({"input": ["a", "b"]})
    begun = next(entry.seq for entry in first.ledger.since(0) if getattr(entry, "event", "") == "model_replied")
    given = apply_edits(mapped, carried(first.ledger.at(begun)), {"each:iterations[0]": "given"})
    second = Watched(mapped, TALK)

    last = second.run(base=given)

    assert last.node_states.keys() == {"each"}
    assert last.node_states["each"].output_data["output"][0] == "given"
    assert not any(path.startswith("each[0]") for path in second.executed)


@pytest.mark.req("OR-3", "OR-5")
def test_an_item_that_was_approved_is_not_asked_about_again_in_a_batch() -> None:
    guarded = {**TASK, "approval": {"enabled": True}}
    script = {"each": Scripted(output="done", seconds=1, answer={"is_approved": True})}
    first = Watched(each(guarded), script)
    first.run({"input": list("abcd")})
    answered = next(entry.seq for entry in first.ledger.since(0) if isinstance(entry, InputReceived))
    second = Watched(each(guarded, **BATCHED), script)

    last = second.run(base=carried(first.ledger.at(answered)))

    entries = [entry for child in second.children.values() for entry in child.ledger.since(0)]
    asked = [entry for entry in entries if isinstance(entry, InputRequested)]
    assert sorted(entry.path for entry in asked) == ["each[1]", "each[2]", "each[3]"]
    assert all(entry.request["is_resumed"] for entry in asked)
    assert last.metadata["approvals"] == {}


@pytest.mark.req("OR-3")
def test_a_map_in_a_map_goes_on_from_everywhere() -> None:
    inner = {"id": "inner", "type": "map", "items": "$", "node": {"id": "work", "type": "Task"}}

    run = goes_on_from_everywhere(each(inner), {"each": Scripted(output="done", seconds=1)}, {"input": [[1, 2], [3]]})

    output = run.ledger.state.node_states["each"].output_data["output"]
    assert [item["output"] for item in output] == [["done", "done"], ["done"]]


def test_pure_items_go_on_from_everywhere_and_stay_together() -> None:
    mapped = each(UPPER)
    whole = Mapped(mapped)
    last = whole.run({"input": ["a"] * 5})

    for seq in range(1, whole.ledger.seq + 1):
        resumed = Mapped(mapped)
        assert essence(resumed.run(base=carried(whole.ledger.at(seq)))) == essence(last)


def test_a_map_keeps_its_results_once() -> None:
    run = Mapped(each(TASK))

    run.run({"input": [1, 2]})

    assert run.state.internal_state == {"total_iterations": 2, "failed_iterations": {}}
    assert run.ledger.state.node_states.keys() == {"each"}
