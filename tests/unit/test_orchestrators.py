"""Orchestrators: states of a graph with a context they share, and tasks that a manager plans."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.checkpoints.ledger import NodeAdvanced
from holdfast.checkpoints.models import CheckpointStatus, NodeRecord
from holdfast.engine.simulator import Scripted
from holdfast.flows.composites import GraphParams
from holdfast.flows.spec import FlowSpec
from tests.going_on import Watched, calls, carried, flow, goes_on_from_everywhere

ASKED = {"input": "Write."}
WRITER = {"id": "writer", "type": "agent", "llm": {"model": "m"}, "tools": [{"id": "look", "type": "Task"}]}
WRITES = {
    "o/writer": Scripted(replies=[calls(("look", {"input": "x"})), "a text"], seconds=1),
    "o/writer/look": Scripted(output="seen", seconds=1),
}
MANAGER = {"model": "boss"}


def task(task_id: str, **fields: Any) -> dict[str, Any]:
    return {"id": task_id, "type": "Task", **fields}


def state(state_id: str, *tasks: dict[str, Any], to: list[Any] | None = None, **fields: Any) -> dict[str, Any]:
    edges = [{"to": edge} if isinstance(edge, str) else edge for edge in to or []]
    return {"id": state_id, "tasks": tasks, "next": edges, **fields}


def when(to: str, path: str, value: Any) -> dict[str, Any]:
    return {"to": to, "condition": {"variable": path, "operator": "numeric-equals", "value": value}}


def graph(*states: dict[str, Any], **params: Any) -> FlowSpec:
    return flow({"id": "o", "type": "graph-orchestrator", "params": {"states": states, **params}})


def linear(*agents: dict[str, Any], **params: Any) -> FlowSpec:
    return flow({"id": "o", "type": "linear-orchestrator", "params": {"manager": MANAGER, "agents": agents, **params}})


def ran(flow: FlowSpec, script: dict[str, Scripted]) -> Watched:
    watched = Watched(flow, script)
    watched.run(ASKED)
    return watched


def node(watched: Watched) -> NodeRecord:
    return watched.ledger.state.node_states["o"]


# Graphs


@pytest.mark.req("OR-1")
def test_states_follow_their_edges_and_share_a_context() -> None:
    watched = ran(
        graph(state("draft", task("write"), to=["review"]), state("review", task("judge")), context={"tone": "dry"}),
        {"o/write": Scripted(output="a text"), "o/judge": Scripted(output={"context": {"ok": True}, "result": "good"})},
    )

    assert node(watched).output_data == {
        "content": "good",
        "context": {"tone": "dry", "write": "a text", "ok": True},
        "states": ["draft", "review"],
    }
    assert watched.given["o/step[1]/judge"].input_data == {
        "input": "Write.",
        "context": {"tone": "dry", "write": "a text"},
        "result": "a text",
        "history": [
            {"role": "user", "content": "Write."},
            {"role": "assistant", "name": "draft", "content": "a text"},
        ],
    }


@pytest.mark.req("OR-1")
def test_all_that_is_to_be_saved_is_in_the_checkpoint_at_every_state() -> None:
    watched = ran(
        graph(state("draft", task("write"), to=["review"]), state("review", task("judge"))),
        {"o/write": Scripted(output="a text"), "o/judge": Scripted(output="good")},
    )

    after = [
        watched.ledger.at(entry.seq).node_states["o"].internal_state
        for entry in watched.ledger.since(0)
        if isinstance(entry, NodeAdvanced) and entry.event == "state_completed"
    ]
    assert [(kept["current_state_id"], kept["completed_states"]) for kept in after] == [
        ("review", ["draft"]),
        ("end", ["draft", "review"]),
    ]
    assert after[0]["context"] == {"write": "a text"}
    assert [entry["content"] for entry in after[1]["chat_history"]] == ["Write.", "a text", "good"]
    assert after[1]["run_depends"] == [{"node": {"id": "o/judge", "path": "o/step[1]/judge"}}]


@pytest.mark.req("OR-1")
def test_a_condition_looks_at_the_context_and_the_result_and_a_state_may_come_again() -> None:
    again = graph(
        state("count", task("add"), to=[when("count", "$.result", 1), when("count", "$.context.n", 2), "done"]),
        state("done", task("finish")),
        state("never", task("add")),
    )
    watched = Watched(
        again,
        {
            "o/add": Scripted(outputs=[{"context": {"n": n}, "result": n} for n in (1, 2, 3)]),
            "o/finish": Scripted(output="over"),
        },
    )
    watched.run(ASKED)

    assert node(watched).output_data["states"] == ["count", "count", "count", "done"]
    assert watched.executed == ["o/step[0]/add", "o/step[1]/add", "o/step[2]/add", "o/step[3]/finish"]


def test_a_graph_begins_where_it_is_told_and_a_state_without_tasks_hands_the_result_on() -> None:
    watched = ran(
        graph(state("a", task("x")), state("b", task("y"), to=["c"]), state("c", to=["end"]), start="b"),
        {"o/y": Scripted(output="Y")},
    )

    assert node(watched).output_data == {"content": "Y", "context": {"y": "Y"}, "states": ["b", "c"]}


def test_tasks_of_one_state_run_side_by_side_and_give_one_result_each() -> None:
    watched = ran(
        graph(state("s", task("a"), task("b"))),
        {"o/a": Scripted(output="A", seconds=5), "o/b": Scripted(output={"content": "B"}, seconds=4)},
    )

    assert node(watched).output_data["content"] == {"a": "A", "b": "B"}
    record = watched.ledger.state
    assert (record.updated_at - watched.started_at).total_seconds() == 5


def test_tasks_that_disagree_on_the_context_fail_and_tasks_that_agree_do_not() -> None:
    same, other = Scripted(output={"context": {"n": 1}}), Scripted(output={"context": {"n": 2}})
    both = graph(state("s", task("a"), task("b")))

    assert node(ran(both, {"o/a": same, "o/b": same})).output_data["context"] == {"n": 1}
    assert node(ran(both, {"o/a": same, "o/b": other})).error == {
        "type": "ContextConflict",
        "message": "tasks 'a' and 'b' of state 's' disagree on 'n'",
    }


@pytest.mark.req("OR-1")
def test_the_manager_chooses_between_edges_without_a_condition() -> None:
    watched = ran(
        graph(
            state("draft", task("write"), to=["review", "end"]),
            state("review", task("judge"), description="Judge the text."),
            manager=MANAGER,
        ),
        {
            "o": Scripted(replies=['I say ```json\n{"state": "review"}\n```']),
            "o/write": Scripted(output="a text"),
            "o/judge": Scripted(output="good"),
        },
    )

    assert node(watched).output_data["states"] == ["draft", "review"]
    (asked,) = watched.asked
    assert (asked.path, asked.model["model"]) == ("o/step[0]/manager", "boss")
    assert asked.messages[-1]["content"] == (
        "State 'draft' is done. The context is now:\n"
        '{"write": "a text"}\n'
        "Which state is next?\n"
        "- review: Judge the text.\n"
        "- end: the work is done\n"
        'Reply with JSON: {"state": "<its id>"}.'
    )
    history = node(watched).internal_state["chat_history"]
    assert [entry.get("name", entry["role"]) for entry in history] == [
        "user",
        "draft",
        "user",
        "assistant",
        "review",
    ]
    assert node(watched).internal_state["exchange"] == []


@pytest.mark.req("OR-1")
def test_a_manager_that_names_no_state_is_told_so_and_a_bare_name_will_do() -> None:
    choice = graph(state("draft", to=["review", "end"]), state("review"), manager=MANAGER)

    watched = ran(choice, {"o": Scripted(replies=["reveiw", "'review'."])})

    assert node(watched).output_data["states"] == ["draft", "review"]
    assert watched.asked[1].path == "o/step[0]/manager/repair[1]"
    assert watched.asked[1].messages[-1]["content"] == "'reveiw' is none of the states review, end."


def test_a_manager_that_never_names_a_state_fails_the_graph() -> None:
    choice = graph(state("draft", to=["review", "end"]), state("review"), manager=MANAGER)

    watched = ran(choice, {"o": Scripted(replies=["x", "y", '["z"]', "too late"])})

    assert node(watched).error == {
        "type": "ManagerNotUnderstood",
        "message": "the manager's reply could not be used 3 times in a row: "
        "'[\"z\"]' is none of the states review, end.",
    }
    assert len(watched.asked) == 3


def test_a_function_may_choose_the_state() -> None:
    routed = graph(state("a", route="m:f"), state("b", task("x")), state("c"))

    watched = ran(routed, {"o/route": Scripted(output="b"), "o/x": Scripted(output=1)})
    assert node(watched).output_data["states"] == ["a", "b"]
    call = watched.given["o/step[0]/route"]
    assert (call.type, call.params) == ("python", {"function": "m:f"})
    assert call.input_data == {"context": {}, "result": None}

    lost = ran(routed, {"o/route": Scripted(output="d")})
    assert node(lost).error == {
        "type": "UnknownState",
        "message": "m:f returned 'd', which is no state; there are: a, b, c, end",
    }


def test_a_graph_that_goes_in_circles_or_has_no_way_on_fails() -> None:
    circle = ran(graph(state("a", to=["b"]), state("b", to=["a"]), max_steps=5), {})
    assert node(circle).error == {
        "type": "GraphMaxSteps",
        "message": "not at its end after 5 states; raise max_steps, or mend the edges",
    }

    stuck = ran(graph(state("a", to=[when("a", "$.result", 1)])), {})
    assert node(stuck).error == {
        "type": "NoWayOn",
        "message": "no edge of state 'a' can be taken; add one without a condition",
    }


@pytest.mark.req("OR-1")
def test_a_failed_graph_is_resumed_at_its_state_and_repeats_no_task() -> None:
    two = graph(state("draft", task("write"), to=["review"]), state("review", task("judge"), task("check")))
    script = {
        "o/write": Scripted(output="a text"),
        "o/judge": Scripted(error="asleep", seconds=2),
        "o/check": Scripted(output="fine", seconds=1),
    }
    failed = ran(two, script)
    assert node(failed).internal_state["current_state_id"] == "review"

    resumed = Watched(two, {**script, "o/judge": Scripted(output="good")})
    last = resumed.run(base=carried(failed.ledger.state))

    assert resumed.executed == ["o/step[1]/judge"]
    assert last.status == CheckpointStatus.COMPLETED
    assert node(resumed).output_data["content"] == {"judge": "good", "check": "fine"}


@pytest.mark.req("OR-1", "AG-2")
def test_a_graph_goes_on_from_everywhere() -> None:
    whole = graph(
        state("draft", WRITER, task("fetch"), to=["review", "end"]),
        state("review", task("judge"), to=[when("draft", "$.context.ok", 0), "end"]),
        manager=MANAGER,
        context={"ok": 0},
    )
    script = {
        **WRITES,
        "o": Scripted(replies=["what?", '{"state": "review"}'], seconds=1),
        "o/fetch": Scripted(output={"content": "fetched"}, seconds=3),
        "o/judge": Scripted(output={"context": {"ok": 1}, "result": "good"}),
    }

    watched = goes_on_from_everywhere(whole, script, ASKED)

    assert node(watched).output_data["content"] == "good"
    assert len(watched.executed) == 7
    assert watched.ledger.state.node_states.keys() == {"o"}
    assert watched.ledger.state.metadata["usage"]["llm_calls"] == 4


@pytest.mark.parametrize(
    ("states", "more", "said"),
    [
        ([state("a"), state("a")], {}, "the state 'a' is there twice, or has the name of the end"),
        ([state("end")], {}, "the state 'end' is there twice, or has the name of the end"),
        ([state("a", to=["b"])], {}, "there is no state 'b'; there are: a, end"),
        ([state("a")], {"start": "b"}, "there is no state 'b'; there are: a, end"),
        (
            [state("a", to=["a", "end"])],
            {},
            "state 'a' leaves a choice to a manager, and there is none: add 'manager'",
        ),
        ([], {}, "List should have at least 1 item"),
    ],
)
def test_a_graph_that_cannot_work_is_refused(states: list[Any], more: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        GraphParams.model_validate({"states": states, **more})


# Tasks in a row

PLAN = [
    {"name": "first", "description": "Look it up.", "agent": "writer"},
    {"name": "second", "description": "Store it.", "agent": "store"},
]


@pytest.mark.req("OR-2")
def test_tasks_are_planned_done_in_order_and_put_together() -> None:
    watched = ran(
        linear({**WRITER, "description": "Writes texts."}, task("store")),
        {
            **WRITES,
            "o": Scripted(replies=[f"My plan:\n```json\n{json.dumps(PLAN)}\n```", "All is stored."]),
            "o/store": Scripted(output={"rows": 1}),
        },
    )

    tasks = [{"id": 0, **PLAN[0]}, {"id": 1, **PLAN[1]}]
    assert node(watched).output_data == {
        "content": "All is stored.",
        "tasks": tasks,
        "results": ["a text", {"rows": 1}],
    }
    plan = watched.asked[0].messages[0]["content"]
    assert plan.startswith("Write.\n\nPlan the work")
    assert "- writer: Writes texts.\n- store: \n" in plan
    assert watched.given["o/task[1]/store"].input_data == {
        "input": "Store it.\n\nResult of first: a text",
        "task": tasks[1],
        "objective": "Write.",
    }
    last = watched.asked[-1]
    assert last.path == "o/answer"
    assert [entry.get("name", entry["role"]) for entry in last.messages] == [
        "user",
        "assistant",
        "writer",
        "store",
        "user",
    ]


@pytest.mark.req("OR-2")
def test_all_that_is_to_be_saved_is_in_the_checkpoint_at_every_task() -> None:
    watched = ran(
        linear(WRITER, task("store")),
        {**WRITES, "o": Scripted(replies=[json.dumps(PLAN), "Done."]), "o/store": Scripted(output="ok")},
    )

    kept = [
        watched.ledger.at(entry.seq).node_states["o"].internal_state
        for entry in watched.ledger.since(0)
        if isinstance(entry, NodeAdvanced) and entry.event in ("tasks_planned", "task_completed")
    ]
    assert [state["current_task_index"] for state in kept] == [0, 1, 2]
    assert [state["results"] for state in kept] == [{}, {"0": "a text"}, {"0": "a text", "1": "ok"}]
    assert [len(state["chat_history"]) for state in kept] == [2, 3, 4]
    assert all(len(state["tasks"]) == 2 for state in kept)


@pytest.mark.req("OR-2")
@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ("I would rather not.", "That is not a JSON list of tasks."),
        ("[]", "That is not a JSON list of tasks."),
        ('["Look it up."]', "That is not a JSON list of tasks."),
        (json.dumps(PLAN * 2), "These are 4 tasks; plan at most 3."),
        (
            '[{"description": "x", "agent": "nobody"}]',
            "A task needs a 'description' and an 'agent', one of: writer, store.",
        ),
        ('[{"agent": "store"}]', "A task needs a 'description' and an 'agent', one of: writer, store."),
    ],
)
def test_a_plan_that_cannot_be_used_is_asked_for_again(reply: str, said: str) -> None:
    watched = ran(
        linear(WRITER, task("store"), max_tasks=3),
        {
            "o": Scripted(replies=[reply, '{"tasks": [{"description": "Store it.", "agent": "store"}]}', "Done."]),
            "o/store": Scripted(output="ok"),
        },
    )

    assert watched.asked[1].path == "o/plan/repair[1]"
    assert watched.asked[1].messages[-1] == {"role": "user", "content": said}
    assert node(watched).output_data["content"] == "Done."


def test_a_manager_that_cannot_plan_fails_the_orchestrator() -> None:
    watched = ran(linear(WRITER), {"o": Scripted(replies=["no", "no", "no", "no"])})

    assert node(watched).error == {
        "type": "ManagerNotUnderstood",
        "message": "the manager's reply could not be used 3 times in a row: That is not a JSON list of tasks.",
    }


@pytest.mark.req("OR-2")
def test_a_manager_that_could_not_plan_is_asked_anew_when_the_run_is_resumed() -> None:
    whole = linear(task("store"))
    failed = ran(whole, {"o": Scripted(replies=["no", "no", "no"])})

    resumed = Watched(whole, {"o": Scripted(replies=[json.dumps(PLAN[1:]), "Done."]), "o/store": Scripted(output="ok")})
    last = resumed.run(base=carried(failed.ledger.state))

    assert last.status == CheckpointStatus.COMPLETED
    assert resumed.executed == ["o/plan", "o/task[0]/store", "o/answer"]


@pytest.mark.req("OR-2")
def test_a_failed_task_is_resumed_and_nothing_is_planned_or_done_again() -> None:
    whole = linear(WRITER, task("store"))
    script = {
        **WRITES,
        "o": Scripted(replies=[json.dumps(PLAN), "Done."]),
        "o/store": Scripted(error="the disk is full"),
    }
    failed = ran(whole, script)
    assert node(failed).error == {"type": "Scripted", "message": "the disk is full"}

    resumed = Watched(whole, {**script, "o/store": Scripted(output="ok")})
    last = resumed.run(base=carried(failed.ledger.state))

    assert resumed.executed == ["o/task[1]/store", "o/answer"]
    assert last.status == CheckpointStatus.COMPLETED
    assert node(resumed).output_data["results"] == ["a text", "ok"]


@pytest.mark.req("OR-2", "AG-2")
def test_planned_tasks_go_on_from_everywhere() -> None:
    script = {
        **WRITES,
        "o": Scripted(replies=["no", json.dumps(PLAN), " ", "Done."], seconds=1),
        "o/store": Scripted(output="ok", seconds=1),
    }

    watched = goes_on_from_everywhere(linear(WRITER, task("store")), script, ASKED)

    assert watched.executed == [
        "o/plan",
        "o/plan/repair[1]",
        "o/task[0]/writer/loop[1]/llm",
        "o/task[0]/writer/loop[1]/look[0]",
        "o/task[0]/writer/loop[2]/llm",
        "o/task[1]/store",
        "o/answer",
        "o/answer/repair[1]",
    ]
    assert watched.ledger.state.node_states.keys() == {"o"}
    assert watched.ledger.state.metadata["usage"]["llm_calls"] == 6


@pytest.mark.req("EX-5")
def test_a_manager_has_a_fallback_too() -> None:
    second = {"model": "second", "provider": "scripted", "replies": [json.dumps(PLAN[1:]), "Done."]}
    first: dict[str, Any] = {"model": "first", "provider": "scripted", "replies": [], "fallback": second}

    watched = goes_on_from_everywhere(
        linear(task("store"), manager=first), {"o": Scripted(replies=[]), "o/store": Scripted(output="ok")}, ASKED
    )

    assert node(watched).internal_state["is_fallback_run"] is True
    assert watched.executed == ["o/plan", "o/plan/fallback", "o/task[0]/store", "o/answer/fallback"]
