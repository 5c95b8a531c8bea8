"""The agent: a model in a loop with tools, whose every step is in the checkpoint."""

from typing import Any

import pytest

from holdfast.checkpoints.models import CheckpointStatus
from holdfast.engine.simulator import EPOCH, Scripted
from tests.agents import ASKED, QUERY, agent, observations, record, run, said, task
from tests.going_on import Watched, calls, carried, flow

# What it does


def test_an_agent_without_tools_answers_what_it_is_asked() -> None:
    last = record(run(flow(agent()), "Ada."))

    assert last.output_data == {"content": "Ada.", "finished": True, "loops": 1}
    assert last.internal_state["prompt_messages"] == [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": "Ada."},
    ]


@pytest.mark.req("AG-5")
def test_a_model_works_with_tools_over_several_loops() -> None:
    watched = run(
        flow(agent(task("search", description="Finds people."), task("read"), system="Be brief.")),
        calls(("search", {"q": "Ada"}), content="I look."),
        calls(("read", {"q": "page"})),
        "A mathematician.",
        search=Scripted(output={"hits": 2}),
        read=Scripted(output="long text"),
    )

    assert record(watched).output_data == {"content": "A mathematician.", "finished": True, "loops": 3}
    assert watched.executed == [
        "agent/loop[1]/llm",
        "agent/loop[1]/search[0]",
        "agent/loop[2]/llm",
        "agent/loop[2]/read[0]",
        "agent/loop[3]/llm",
    ]
    assert watched.asked[2].messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Who?"},
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [{"id": "call-0-0", "name": "search", "arguments": {"q": "Ada"}}],
        },
        {"role": "tool", "tool_call_id": "call-0-0", "name": "search", "content": '{"hits": 2}'},
        {"role": "assistant", "tool_calls": [{"id": "call-1-0", "name": "read", "arguments": {"q": "page"}}]},
        {"role": "tool", "tool_call_id": "call-1-0", "name": "read", "content": "long text"},
    ]


def test_a_model_is_told_of_the_tools_and_a_tool_is_given_its_arguments() -> None:
    watched = run(flow(agent(task("search", description="Finds."))), calls(("search", {"q": "Ada"})), "ok")

    (schema,) = watched.asked[0].tools
    assert (schema.name, schema.description, schema.parameters) == ("search", "Finds.", QUERY)
    assert watched.asked[0].idempotency_key == "run/agent/loop[1]/llm"
    call = watched.given["agent/loop[1]/search[0]"]
    assert (call.node_id, call.type, call.input_data) == ("agent/search", "Task", {"q": "Ada"})
    assert call.idempotency_key == "run/agent/loop[1]/search[0]"


@pytest.mark.req("AG-1")
def test_every_loop_is_kept_as_a_step_with_what_the_model_saw_and_chose() -> None:
    watched = run(
        flow(agent(task("search"))),
        calls(("search", {"q": "a"}), content="First."),
        calls(("search", {"q": "b"}), ("search", {"q": "c"})),
        "Done.",
        search=Scripted(output="found"),
    )

    assert record(watched).internal_state["intermediate_steps"] == {
        "1": {
            "input_data": ASKED,
            "model_observation": {
                "initial": "First.",
                "tool_using": "search",
                "tool_input": {"q": "a"},
                "tool_output": "found",
                "updated": None,
            },
            "final_answer": None,
        },
        "2": {
            "input_data": None,
            "model_observation": {
                "initial": "",
                "tool_using": ["search", "search"],
                "tool_input": [{"q": "b"}, {"q": "c"}],
                "tool_output": ["found", "found"],
                "updated": None,
            },
            "final_answer": None,
        },
        "3": {
            "input_data": None,
            "model_observation": {
                "initial": "Done.",
                "tool_using": None,
                "tool_input": None,
                "tool_output": None,
                "updated": None,
            },
            "final_answer": "Done.",
        },
    }


@pytest.mark.req("AG-5")
@pytest.mark.parametrize(("parallel", "seconds"), [(True, 5), (False, 9)])
def test_tools_of_one_loop_run_side_by_side_unless_the_author_says_otherwise(parallel: bool, seconds: int) -> None:
    watched = run(
        flow(agent(task("a"), task("b"), parallel_tool_calls=parallel)),
        calls(("b", {"q": ""}), ("a", {"q": ""})),
        "ok",
        a=Scripted(output="A", seconds=5),
        b=Scripted(output="B", seconds=4),
    )

    assert observations(watched) == ["B", "A"]
    assert (watched.ledger.state.updated_at - EPOCH).total_seconds() == seconds


@pytest.mark.req("AG-3")
@pytest.mark.parametrize("parallel", [True, False])
def test_identical_calls_run_once_in_one_loop_and_in_later_ones(parallel: bool) -> None:
    two = {"type": "object"}
    watched = run(
        flow(agent(task("search", input_schema=two), parallel_tool_calls=parallel)),
        calls(("search", {"b": 1, "a": [2]}), ("search", {"a": [2], "b": 1}), ("search", {"a": [3]})),
        calls(("search", {"a": [2], "b": 1})),
        "ok",
        search=Scripted(outputs=["first", "second", "third"]),
    )

    assert [path for path in watched.executed if "search" in path] == [
        "agent/loop[1]/search[0]",
        "agent/loop[1]/search[2]",
    ]
    assert observations(watched) == ["first", "first", "second", "first"]
    assert record(watched).internal_state["tool_cache"] == {
        'search::{"a": [2], "b": 1}': "first",
        'search::{"a": [3]}': "second",
    }


@pytest.mark.req("AG-3")
def test_a_tool_that_is_not_to_be_reused_runs_every_time() -> None:
    watched = run(
        flow(agent(task("clock", reuse=False))),
        calls(("clock", {"q": ""}), ("clock", {"q": ""})),
        calls(("clock", {"q": ""})),
        "ok",
        clock=Scripted(outputs=["1:00", "2:00", "3:00"]),
    )

    assert observations(watched) == ["1:00", "2:00", "3:00"]
    assert record(watched).internal_state["tool_cache"] == {}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (("serach", {"q": "a"}), "Error: There is no tool 'serach'. The tools are: search."),
        (("search", "Ada"), "Error: The input of 'search' cannot be used: it is not a JSON object."),
        (
            ("search", dict[str, Any]()),
            "Error: The input of 'search' does not fit its schema: it: 'q' is a required property",
        ),
        (("search", {"q": 1}), "Error: The input of 'search' does not fit its schema: q: 1 is not of type 'string'"),
    ],
)
def test_a_call_that_cannot_be_made_is_said_to_the_model_and_nothing_runs(call: tuple[str, Any], told: str) -> None:
    watched = run(flow(agent(task("search"))), calls(call), "I see.")

    assert observations(watched) == [told]
    assert watched.executed == ["agent/loop[1]/llm", "agent/loop[2]/llm"]
    assert record(watched).output_data["content"] == "I see."


def test_a_schema_that_refers_to_nothing_is_an_observation_and_not_an_end() -> None:
    watched = run(flow(agent(task("search", input_schema={"$ref": "#/gone"}))), calls(("search", {})), "I see.")

    assert observations(watched) == [
        "Error: The input of 'search' does not fit its schema: "
        "it cannot be checked: the schema refers to '/gone', which is not in it"
    ]


def test_a_failing_tool_is_an_observation() -> None:
    watched = run(
        flow(agent(task("search"))), calls(("search", {"q": "a"})), "Never mind.", search=Scripted(error="it is down")
    )

    assert observations(watched) == ["Error: it is down"]
    assert record(watched).internal_state["tool_cache"] == {}
    assert record(watched).output_data["content"] == "Never mind."


def test_a_tool_whose_failure_counts_fails_the_agent_and_a_resume_runs_only_that_tool() -> None:
    tools = flow(agent(task("search"), task("pay", on_error="fail")))
    watched = run(
        tools,
        calls(("search", {"q": "a"}), ("pay", {"q": "b"})),
        "Paid.",
        search=Scripted(output="found"),
        pay=Scripted(error="no money"),
    )

    assert watched.ledger.state.status == CheckpointStatus.FAILED
    assert record(watched).error == {"type": "Scripted", "message": "no money"}

    again = Watched(
        tools,
        {
            "agent": said(calls(("search", {"q": "a"}), ("pay", {"q": "b"})), "Paid."),
            "agent/pay": Scripted(output="receipt"),
        },
    )
    again.run(base=carried(watched.ledger.state))

    assert again.executed == ["agent/loop[1]/pay[1]", "agent/loop[2]/llm"]
    assert observations(again) == ["found", "receipt"]


# Its limits


def test_the_limit_of_loops_fails_the_agent() -> None:
    again = calls(("search", {"q": "a"}))
    watched = run(flow(agent(task("search"), max_loops=2)), again, again, "Too late.", search=Scripted(output="x"))

    assert record(watched).error == {
        "type": "AgentMaxLoops",
        "message": "no answer after 2 loops; raise max_loops, or set on_max_loops to 'answer' or 'return'",
    }
    assert watched.executed == ["agent/loop[1]/llm", "agent/loop[1]/search[0]", "agent/loop[2]/llm"]


@pytest.mark.req("AG-5")
def test_at_the_limit_the_last_words_may_be_returned() -> None:
    again = calls(("search", {"q": "a"}), content="Still looking.")
    watched = run(
        flow(agent(task("search"), max_loops=2, on_max_loops="return")), again, again, search=Scripted(output="x")
    )

    assert record(watched).output_data == {"content": "Still looking.", "finished": False, "loops": 2}


@pytest.mark.req("AG-5")
def test_at_the_limit_the_model_may_be_asked_for_an_answer_without_tools() -> None:
    again = calls(("search", {"q": "a"}))
    watched = run(
        flow(agent(task("search"), max_loops=2, on_max_loops="answer")),
        again,
        again,
        "My best guess.",
        search=Scripted(output="x"),
    )

    assert record(watched).output_data == {"content": "My best guess.", "finished": False, "loops": 2}
    last = watched.asked[-1]
    assert (last.path, last.tool_choice, [tool.name for tool in last.tools]) == (
        "agent/loop[2]/answer",
        "none",
        ["search"],
    )
    assert last.messages[-1]["content"].startswith("You have no more steps.")


def test_an_answer_in_the_last_loop_is_in_time() -> None:
    assert record(run(flow(agent(max_loops=1)), "Ada.")).output_data["finished"] is True


def test_an_empty_reply_is_sent_back_with_what_is_wrong() -> None:
    watched = Watched(
        flow(agent()), {"agent": said({"content": "", "when": "Who?"}, {"content": "Ada.", "when": "empty"})}
    )
    watched.run(ASKED)

    assert record(watched).output_data == {"content": "Ada.", "finished": True, "loops": 2}
    assert watched.asked[1].messages[1:] == [
        {"role": "user", "content": "Your reply was empty. Call a tool, or write your final answer."}
    ]


def test_replies_that_cannot_be_used_end_the_agent_after_the_repairs_it_has() -> None:
    watched = run(flow(agent(max_repairs=2)), "")

    assert record(watched).error == {
        "type": "AgentNotUnderstood",
        "message": "the model's reply could not be used 3 times in a row: "
        "Your reply was empty. Call a tool, or write your final answer.",
    }
    assert len(watched.asked) == 3


def test_repairs_are_counted_in_a_row_and_a_loop_each() -> None:
    bad, good = "no json", '{"thought": "", "action": "search", "action_input": {"q": "a"}}'
    watched = run(
        flow(agent(task("search"), mode="structured_output", max_repairs=1)),
        bad,
        good,
        bad,
        '{"thought": "", "action": "finish", "action_input": "Ada."}',
        search=Scripted(output="x"),
    )

    assert record(watched).output_data == {"content": "Ada.", "finished": True, "loops": 4}
    assert watched.events.count("repair_asked agent") == 2


@pytest.mark.req("AG-5")
def test_an_answer_has_the_schema_the_author_wants_or_is_asked_for_again() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    watched = run(flow(agent(output_schema=schema)), "Ada", '{"name": 1}', 'Here it is:\n```json\n{"name": "Ada"}\n```')

    assert record(watched).output_data == {"content": {"name": "Ada"}, "finished": True, "loops": 3}
    messages = watched.asked[-1].messages
    assert [entry["content"] for entry in messages if entry["role"] == "user"] == [
        "Who?",
        "Your answer does not fit the schema: it: None is not of type 'object'",
        "Your answer does not fit the schema: name: 1 is not of type 'string'",
    ]
    assert watched.asked[0].response_format == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "schema": schema},
    }


def step(mode: str, action: str | None, given: str) -> str:
    """A reply in one of the text modes."""
    if mode == "structured_output":
        return f'{{"thought": "t", "action": "{action or "finish"}", "action_input": {given}}}'
    if mode == "xml":
        body = (
            f"<action>{action}</action><action_input>{given}</action_input>" if action else f"<answer>{given}</answer>"
        )
        return f"<output><thought>t</thought>{body}</output>"
    return f"Thought: t\nAction: {action}\nAction Input: {given}" if action else f"Thought: t\nAnswer: {given}"


@pytest.mark.req("AG-5")
@pytest.mark.parametrize("mode", ["structured_output", "xml", "react"])
def test_models_without_function_calling_work_in_text(mode: str) -> None:
    watched = run(
        flow(agent(task("search", description="Finds."), mode=mode, system="Be brief.")),
        step(mode, "search", '{"q": "Ada"}'),
        step(mode, None, "7"),
        search=Scripted(output="found"),
    )

    assert str(record(watched).output_data["content"]) == "7"
    first, second = watched.asked
    assert first.tools == []
    assert first.messages[0]["content"].startswith("Be brief.\n\nYou have these tools:\n- search: Finds. Input: {")
    assert second.messages[-1] == {"role": "user", "content": "Observation: found"}
    steps = record(watched).internal_state["intermediate_steps"]
    assert steps["1"]["model_observation"]["initial"] == "t"
