"""The agent: a model in a loop with tools, whose every step is in the checkpoint."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints.ledger import NodeAdvanced, NodeStarted
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus, NodeRecord
from holdfast.checkpoints.validation import validate_checkpoint
from holdfast.contracts.calls import NodeCall, NodeReply
from holdfast.contracts.messages import Message
from holdfast.engine.simulator import EPOCH, Scripted, Simulation
from holdfast.flows.spec import FlowSpec
from tests.going_on import Watched, calls, carried, flow, goes_on_from_everywhere

QUERY = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
ASKED = {"input": "Who?"}
SAVED = {
    "prompt_messages",
    "history_offset",
    "intermediate_steps",
    "tool_cache",
    "run_depends",
    "current_loop",
    "prompt_variables",
    "call_context",
    "file_store",
    "input_files",
    "input_images",
}


def task(tool_id: str, **fields: Any) -> dict[str, Any]:
    """A tool that is a custom node."""
    return {"id": tool_id, "type": "Task", "input_schema": QUERY, **fields}


def agent(*tools: dict[str, Any], node_id: str = "agent", **fields: Any) -> dict[str, Any]:
    """An agent as a node, or as a tool of another one; `fields` are its parameters."""
    common = {name: fields.pop(name) for name in ("error_handling", "output_transformer") if name in fields}
    return {"id": node_id, "type": "agent", "params": {"llm": {"model": "m"}, "tools": tools, **fields}, **common}


def said(*replies: Any, **fields: Any) -> Scripted:
    return Scripted(replies=list(replies), **fields)


def run(flow: FlowSpec, *replies: Any, input_data: Any = ASKED, **script: Scripted) -> Watched:
    """Runs an agent to its end. Scripts of tools are by their own name."""
    known = {f"agent/{name}": scripted for name, scripted in script.items()}
    watched = Watched(flow, {"agent": said(*replies), **known})
    watched.run(input_data)
    return watched


def record(watched: Watched) -> NodeRecord:
    return watched.ledger.state.node_states["agent"]


def observations(watched: Watched) -> list[str]:
    messages = record(watched).internal_state["prompt_messages"]
    return [entry["content"] for entry in messages if entry["role"] == "tool"]


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [entry["role"] for entry in messages]


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


# Agents as tools


@pytest.mark.req("AG-5")
def test_sub_agents_two_deep_have_a_state_of_their_own_while_they_run_and_no_longer() -> None:
    nested = flow(agent(agent(agent(task("look"), node_id="scout"), node_id="helper")))
    watched = run(
        nested,
        calls(("helper", {"input": "help"})),
        "All done.",
        **{
            "helper": said(calls(("scout", {"input": "find"})), "helped"),
            "helper/scout": said(calls(("look", {"q": "there"})), "scouted"),
            "helper/scout/look": Scripted(output="seen"),
        },
    )

    helper = "agent/loop[1]/helper[0]"
    scout = f"{helper}/loop[1]/scout[0]"
    seen = next(
        state
        for seq in range(watched.ledger.seq)
        if scout in (state := watched.ledger.at(seq)).node_states
        and state.node_states[scout].internal_state.get("current_loop") == 1
    )
    assert seen.node_states.keys() == {"agent", helper, scout}
    assert seen.node_states[scout].internal_state["prompt_messages"][0] == {"role": "user", "content": "find"}
    assert seen.node_states[helper].internal_state["prompt_messages"][0] == {"role": "user", "content": "help"}
    assert watched.ledger.state.node_states.keys() == {"agent"}
    assert observations(watched) == ["helped"]
    assert watched.ledger.state.metadata["usage"]["llm_calls"] == 6


def test_of_a_sub_agent_that_failed_deep_inside_nothing_is_left_once_its_failure_was_seen() -> None:
    scout = agent(task("look", on_error="fail"), node_id="scout")
    helper = agent({**scout, "on_error": "fail"}, node_id="helper")
    watched = run(
        flow(agent(helper)),
        calls(("helper", {"input": "help"})),
        "Never mind.",
        **{
            "helper": said(calls(("scout", {"input": "find"}))),
            "helper/scout": said(calls(("look", {"q": "there"}))),
            "helper/scout/look": Scripted(error="it is dark"),
        },
    )

    assert observations(watched) == ["Error: it is dark"]
    assert watched.ledger.state.node_states.keys() == {"agent"}


def test_a_sub_agent_that_is_resumed_after_a_long_time_has_all_of_its_own_time() -> None:
    helper = agent(task("look"), node_id="helper", error_handling={"timeout_seconds": 60})
    nodes = flow(agent(helper))
    script = {
        "agent": said(calls(("helper", {"input": "help"})), "ok"),
        "agent/helper": said(calls(("look", {"q": "there"})), "helped", seconds=20),
        "agent/helper/look": Scripted(output="seen", seconds=10),
    }
    whole = Watched(nodes, script)
    whole.run(ASKED)
    begun = whole.events.index("model_replied agent/loop[1]/helper[0]") + 2
    late = carried(whole.ledger.at(begun))
    late.updated_at += timedelta(days=1)

    resumed = Watched(nodes, script)
    resumed.run(base=late)

    assert observations(resumed) == ["helped"]


def test_a_sub_agent_talks_to_the_same_user_in_the_same_session() -> None:
    watched = run(
        flow(agent(agent(node_id="helper"))),
        calls(("helper", {"input": "help"})),
        "ok",
        helper=said("helped"),
        input_data={**ASKED, "user_id": "u", "session_id": "s", "metadata": {"x": 1}},
    )

    (begun,) = [
        entry.input_data
        for entry in watched.ledger.since(0)
        if isinstance(entry, NodeStarted) and entry.path != "agent"
    ]
    assert begun == {"input": "help", "user_id": "u", "session_id": "s", "metadata": {"x": 1}}
    assert record(watched).internal_state["call_context"] == {"user_id": "u", "session_id": "s", "metadata": {"x": 1}}


@pytest.mark.parametrize("transformer", [None, {"path": "$.content"}])
def test_the_answer_of_a_sub_agent_can_be_the_final_one(transformer: dict[str, Any] | None) -> None:
    helper = agent(node_id="helper", output_transformer=transformer)
    watched = run(
        flow(agent(helper, delegate=True)),
        calls(("helper", {"input": "help", "delegate_final": True})),
        "Not asked any more.",
        helper=said("The answer."),
    )

    assert record(watched).output_data == {"content": "The answer.", "finished": True, "loops": 1}
    assert watched.executed == ["agent/loop[1]/llm", "agent/loop[1]/helper[0]/loop[1]/llm"]
    assert "delegate_final" not in watched.asked[1].messages[0]["content"]
    assert record(watched).internal_state["intermediate_steps"]["1"]["final_answer"] == "The answer."


@pytest.mark.parametrize(
    ("wanted", "delegate", "helper"),
    [
        ([("helper", {"input": "help", "delegate_final": False})], True, said("helped")),
        ([("helper", {"input": "help"}), ("helper", {"input": "x", "delegate_final": True})], True, said("helped")),
        ([("helper", {"input": "help", "delegate_final": True})], False, said("helped")),
        ([("helper", {"input": "help", "delegate_final": True})], True, said()),
        ([("look", {"q": "", "delegate_final": True})], True, said("helped")),
    ],
    ids=["not wanted", "one of two", "not allowed", "failed", "no agent"],
)
def test_otherwise_the_agent_itself_answers(wanted: list[Any], delegate: bool, helper: Scripted) -> None:
    watched = run(
        flow(agent(agent(node_id="helper"), task("look"), delegate=delegate)), calls(*wanted), "Mine.", helper=helper
    )

    assert record(watched).output_data["content"] == "Mine."


# What it keeps


@pytest.mark.req("AG-1")
def test_all_that_is_to_be_saved_is_in_the_checkpoint_at_every_step() -> None:
    watched = run(
        flow(agent(task("search"), prompt="Find {{ name }}.", system="S")),
        calls(("search", {"q": "a"}), ("search", {"q": "b"})),
        "ok",
        search=Scripted(output="x"),
        input_data={
            "name": "Ada",
            "user_id": "u",
            "session_id": "s",
            "images": ["https://x/1.png"],
            "files": [{"name": "a.txt", "data": b"abc"}],
        },
    )

    opened = watched.events.index("agent_opened agent") + 2
    for seq in range(1, watched.ledger.seq + 1):
        state = watched.ledger.at(seq)
        assert validate_checkpoint(state) == []
        if seq >= opened:
            assert state.node_states["agent"].internal_state.keys() >= SAVED
    kept = record(watched).internal_state
    assert kept["history_offset"] == 1
    assert kept["prompt_variables"] == {"name": "Ada"}
    assert kept["call_context"] == {"user_id": "u", "session_id": "s"}
    assert kept["input_images"] == [{"url": "https://x/1.png", "detail": "auto"}]
    assert kept["input_files"] == [{"media_type": "text/plain", "size": 3, "name": "a.txt"}]
    assert kept["run_depends"] == [{"node": {"id": "agent", "path": "agent/loop[2]/llm"}}]
    assert not kept.keys() & {"llm", "tools", "memory", "config"}


@pytest.mark.req("AG-2")
def test_the_choice_of_the_model_is_recorded_before_a_tool_runs() -> None:
    watched = run(flow(agent(task("search"))), calls(("search", {"q": "a"})), "ok", search=Scripted(output="x"))

    advanced = [entry for entry in watched.ledger.since(0) if isinstance(entry, NodeAdvanced)]
    assert [entry.event for entry in advanced] == [
        "agent_opened",
        "model_replied",
        "tool_completed",
        "loop_completed",
        "answered",
    ]
    chosen = watched.ledger.at(advanced[1].seq).node_states["agent"].internal_state
    assert chosen["pending_calls"] == [{"id": "call-0-0", "name": "search", "arguments": {"q": "a"}}]
    assert "agent/loop[1]/search[0]" not in watched.ended_by[advanced[1].seq]
    assert advanced[3].detail == {"loop": 1, "max_loops": 15}
    known = watched.ledger.at(advanced[2].seq).node_states["agent"].internal_state
    assert known["run_depends"] == [{"node": {"id": "agent/search", "path": "agent/loop[1]/search[0]"}}]


@pytest.mark.req("FS-4")
def test_files_of_a_tools_output_survive_into_the_agents_own() -> None:
    output = {"content": "Two files.", "files": {"a.txt": b"\xff\x00", "b.txt": "text"}}
    watched = goes_on_from_everywhere(
        flow(agent(task("write"))),
        {
            "agent": said(calls(("write", {"q": "a"})), "Written."),
            "agent/write": Scripted(output=output),
        },
        ASKED,
    )

    assert record(watched).output_data == {
        "content": "Written.",
        "finished": True,
        "loops": 2,
        "files": {"a.txt": {"__bytes__": "/wA="}, "b.txt": "text"},
    }
    assert observations(watched) == ["Two files.\nFiles: a.txt, b.txt"]


@pytest.mark.req("FS-4", "AG-4")
def test_images_and_files_of_the_input_go_with_the_agent_wherever_it_goes() -> None:
    asked = {"input": "What is this?", "images": [b"\x89PNG"], "files": [b"abc"], "raw": b"\xff"}
    watched = goes_on_from_everywhere(flow(agent()), {"agent": said("A picture.")}, asked)

    (first,) = watched.asked
    assert first.messages[0]["content"][1]["image_url"]["url"] == "data:image/png;base64,iVBORw=="
    assert Message.model_validate(first.messages[0]).as_data() == first.messages[0]
    assert record(watched).internal_state["prompt_variables"]["raw"] == {"__bytes__": "/w=="}


def test_a_prompt_that_cannot_be_rendered_fails_the_node() -> None:
    watched = run(flow(agent(prompt="{{ nobody }}")), "ok")

    assert record(watched).error == {
        "type": "BadTemplateError",
        "message": "template '{{ nobody }}': 'nobody' is undefined",
    }
    assert watched.executed == []


@pytest.mark.req("AG-5")
def test_memory_gets_what_was_asked_and_answered_once() -> None:
    class Remembering(Watched):
        async def _perform(self, call: Any) -> Any:
            reply = await super()._perform(call)
            if call.type == "agent.open":
                reply.output["messages"].insert(0, {"role": "assistant", "content": "We spoke before."})
                reply.output["history_offset"] += 1
            return reply

    remembering = Remembering(flow(agent(memory={"limit": 3})), {"agent": said("Not asked.", "Ada.")})
    remembering.run({**ASKED, "user_id": "u"})

    call = remembering.given["agent/memory"]
    assert (call.type, call.params) == ("memory.write", {"backend": "sqlite", "limit": 3})
    assert call.idempotency_key == "run/agent/memory"
    assert call.input_data == {
        "context": {"user_id": "u"},
        "messages": [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Ada."}],
    }
    assert record(remembering).internal_state["remembered"] is True
    assert remembering.given["agent/open"].params["memory"] == {"backend": "sqlite", "limit": 3}


@pytest.mark.req("AG-2", "AG-5")
def test_what_was_remembered_is_not_written_again() -> None:
    watched = goes_on_from_everywhere(flow(agent(memory={})), {"agent": said("Ada.")}, {**ASKED, "user_id": "u"})

    assert watched.executed == ["agent/loop[1]/llm", "agent/memory"]


# Long conversations

LONG = flow(
    agent(
        task("search"),
        system="S",
        summarise={"after_tokens": 100, "keep_last": 1, "llm": {"model": "small"}},
    )
)
LONG_SCRIPT = {
    "agent": said(
        {"content": "Short.", "when": "user: Who?"},
        {**calls(("search", {"q": "a"}), ("search", {"q": "b"})), "when": "Who?"},
        {**calls(("search", {"q": "c"})), "when": "result 2"},
        {"content": "The end.", "when": "result 3"},
    ),
    "agent/search": Scripted(outputs=["result 1", "result 2", "result 3"]),
}


@pytest.mark.req("AG-5")
def test_a_long_conversation_is_summarised_and_nothing_is_lost_or_parted() -> None:
    watched = Watched(LONG, LONG_SCRIPT, tokens=[0, 101])

    watched.run(ASKED)

    (summarised,) = [
        entry for entry in watched.ledger.since(0) if isinstance(entry, NodeAdvanced) and entry.event == "summarised"
    ]
    before = watched.ledger.at(summarised.seq - 1).node_states["agent"].internal_state
    after = watched.ledger.at(summarised.seq).node_states["agent"].internal_state
    assert roles(before["prompt_messages"]) == ["system", "user", "assistant", "tool", "tool", "assistant", "tool"]
    # Only the last message was to stay, but it is the result of the call before it.
    assert roles(after["prompt_messages"]) == ["system", "user", "assistant", "tool"]
    assert after["prompt_messages"][1]["content"] == "Summary of the conversation so far:\nShort."
    assert after["prompt_messages"][2:] == before["prompt_messages"][5:]
    assert after["archive"] == before["prompt_messages"][1:5]
    asked = watched.asked[2]
    assert (asked.path, asked.model["model"]) == ("agent/loop[2]/summary", "small")
    assert "[calls search with {'q': 'a'}]" in asked.messages[1]["content"]
    assert record(watched).output_data["content"] == "The end."


def test_results_that_stay_take_their_call_with_them_and_one_message_alone_is_not_summarised() -> None:
    script = {
        "agent": said(calls(("search", {"q": "a"}), ("search", {"q": "b"})), "The end."),
        "agent/search": Scripted(output="found"),
    }
    kept = {"after_tokens": 100, "keep_last": 1}
    watched = Watched(flow(agent(task("search"), summarise=kept, system="S")), script, tokens=[101])

    watched.run(ASKED)

    assert record(watched).output_data["content"] == "The end."
    assert "summarised agent" not in watched.events


@pytest.mark.req("AG-2")
def test_with_nothing_to_keep_all_of_the_conversation_becomes_a_summary() -> None:
    script = {
        "agent": said(
            {"content": "Short.", "when": "user: Who?"},
            {**calls(("search", {"q": "a"})), "when": "Who?"},
            {"content": "The end.", "when": "Summary"},
        ),
        "agent/search": Scripted(output="found"),
    }
    everything = flow(agent(task("search"), summarise={"after_tokens": 100, "keep_last": 0}))

    watched = goes_on_from_everywhere(everything, script, ASKED, tokens=[101, 0])

    kept = record(watched).internal_state
    assert roles(kept["prompt_messages"]) == ["user", "assistant"]
    assert roles(kept["archive"]) == ["user", "assistant", "tool"]
    assert kept["asked"] == {"role": "user", "content": "Who?"}


# When the world misbehaves

FIRST: dict[str, Any] = {"model": "first", "provider": "scripted", "replies": []}
SECOND = {"model": "second", "provider": "scripted", "replies": [calls(("search", {"q": "a"})), "Second."]}


@pytest.mark.req("EX-5")
def test_the_fallback_is_taken_when_the_model_fails_and_kept_from_then_on() -> None:
    fallen = flow(agent(task("search"), llm={**FIRST, "fallback": SECOND}))

    watched = goes_on_from_everywhere(fallen, {"agent": said(), "agent/search": Scripted(output="x")}, ASKED)

    assert watched.executed == [
        "agent/loop[1]/llm",
        "agent/loop[1]/llm/fallback",
        "agent/loop[1]/search[0]",
        "agent/loop[2]/llm/fallback",
    ]
    assert record(watched).internal_state["is_fallback_run"] is True
    assert [call.model["model"] for call in watched.asked] == ["first", "second", "second"]
    assert all("fallback" not in call.model for call in watched.asked)


@pytest.mark.req("EX-5")
def test_an_agent_that_never_needed_its_fallback_says_so() -> None:
    steady = flow(agent(llm={"model": "first", "fallback": SECOND}))

    watched = run(steady, "First.")

    assert record(watched).internal_state["is_fallback_run"] is False
    assert record(watched).output_data["content"] == "First."


def test_a_model_that_fails_for_good_fails_the_agent() -> None:
    watched = run(flow(agent()))

    assert record(watched).error == {
        "type": "ScriptEnded",
        "message": "[llm/script-ended] the script has 0 replies, and this is call 1",
    }


def test_an_agent_that_takes_too_long_fails_in_time() -> None:
    slow = flow(agent(task("a"), task("b"), error_handling={"timeout_seconds": 60}))
    watched = run(
        slow,
        calls(("a", {"q": ""}), ("b", {"q": ""})),
        "ok",
        a=Scripted(output="A", seconds=50),
        b=Scripted(output="B", seconds=70),
    )

    assert record(watched).error == {
        "type": "Timeout",
        "message": "it took longer than 60 s (error_handling.timeout_seconds)",
    }
    assert (watched.ledger.state.updated_at - EPOCH).total_seconds() == 60
    # What was done in time is kept for a resume.
    assert list(record(watched).internal_state["results"]) == ["call-0-0"]


def test_a_retry_goes_on_where_the_failure_was() -> None:
    class Recovering(Watched):
        async def _perform(self, call: Any) -> Any:
            recovered = self.executed.count(call.path) == 2
            if call.path.endswith("pay[1]") and not recovered:
                self._script = {**self._script, "agent/pay": Scripted(error="no money")}
            elif recovered:
                self._script = {**self._script, "agent/pay": Scripted(output="receipt")}
            return await super()._perform(call)

    handling = {"max_retries": 2, "retry_interval_seconds": 10, "backoff_rate": 3}
    nodes = flow(agent(task("search"), task("pay", on_error="fail"), error_handling=handling))
    script = {"agent": said(calls(("search", {"q": "a"}), ("pay", {"q": "b"})), "Paid."), "agent/pay": Scripted()}
    recovering = Recovering(nodes, script)

    last = recovering.run(ASKED)

    assert recovering.executed == [
        "agent/loop[1]/llm",
        "agent/loop[1]/search[0]",
        *["agent/loop[1]/pay[1]"] * 3,
        "agent/loop[2]/llm",
    ]
    assert last.node_states["agent"].attempts == 3
    assert (last.updated_at - EPOCH).total_seconds() == 10 + 30


def test_every_attempt_has_the_timeout_for_itself() -> None:
    handling = {"timeout_seconds": 5, "max_retries": 2}
    slow = flow(agent(task("a"), task("b"), error_handling=handling))
    watched = run(slow, calls(("a", {"q": ""}), ("b", {"q": ""})), a=Scripted(seconds=10), b=Scripted(seconds=10))

    assert record(watched).status == "failure"
    assert record(watched).attempts == 3
    # Three attempts of five seconds, and two pauses of one.
    assert watched.ledger.state.updated_at - EPOCH == timedelta(seconds=17)


def test_attempts_are_counted_also_where_the_run_is_carried_over_in_between() -> None:
    failing = flow(agent(task("a", on_error="fail"), error_handling={"max_retries": 2}))
    for place in range(1, 14):
        script = {"agent": said(calls(("a", {"q": ""}))), "agent/a": Scripted(error="no")}
        simulation = Simulation(failing, script, park_after=place)
        state = simulation.run(ASKED)

        assert state.node_states["agent"].attempts == 3
        assert [path for path in simulation.executed if path.endswith("/a[0]")] == ["agent/loop[1]/a[0]"] * 3
        assert "retry" not in state.node_states["agent"].internal_state


def test_calls_that_share_an_id_each_have_their_own_result() -> None:
    twice = {"tool_calls": [{"id": "x", "name": "search", "arguments": {"q": word}} for word in ("a", "b")]}
    watched = run(flow(agent(task("search"))), twice, "Done.", search=Scripted(outputs=["one", "two"]))
    results = [entry for entry in record(watched).internal_state["prompt_messages"] if entry["role"] == "tool"]

    assert [entry["content"] for entry in results] == ["one", "two"]
    assert len({entry["tool_call_id"] for entry in results}) == 2


# Going on


def test_a_run_that_is_to_be_carried_over_begins_no_other_tool() -> None:
    class Carried(Watched):
        async def _perform(self, call: NodeCall) -> NodeReply:
            executions.append((self.ledger.base_seq, call.path))
            return await super()._perform(call)

    executions: list[tuple[int, str]] = []
    nodes = flow(agent(task("a"), task("b"), parallel_tool_calls=False))
    script = {"agent": said(calls(("a", {"q": ""}), ("b", {"q": ""})), "ok")}
    first_result = 5

    Carried(nodes, script, park_after=first_result).run(ASKED)

    assert executions[-2:] == [(0, "agent/loop[1]/a[0]"), (first_result, "agent/loop[1]/b[1]")]


HELPER = agent(task("look"), node_id="helper")
ITEMS = {"input": ["one", "two", "three"]}
EACH = {"id": "each", "type": "map", "params": {"node": agent(task("look"), node_id="worker"), "max_workers": 2}}
EACH_SCRIPT = {
    "each": said(calls(("look", {"q": "z"}), ("look", {"q": "y"})), "found", seconds=1),
    "each/look": Scripted(output="seen", seconds=1),
}


@pytest.mark.req("AG-1", "AG-2")
def test_an_agent_with_parallel_tools_goes_on_from_everywhere() -> None:
    script = {
        "agent": said(
            calls(("search", {"q": "a"}), ("slow", {"q": "b"}), ("search", {"q": "a"}), ("gone", {})),
            calls(("slow", {"q": "c"}), ("broken", {"q": "c"})),
            "ok",
            seconds=1,
        ),
        "agent/search": Scripted(output={"hits": 1}, seconds=2),
        "agent/slow": Scripted(output="slow", seconds=5),
        "agent/broken": Scripted(error="it broke", seconds=1),
    }

    watched = goes_on_from_everywhere(flow(agent(task("search"), task("slow"), task("broken"))), script, ASKED)

    assert len(watched.executed) == 7
    assert watched.ledger.state.metadata["usage"]["llm_calls"] == 3


@pytest.mark.req("AG-2")
def test_an_agent_with_a_sub_agent_goes_on_from_everywhere() -> None:
    script = {
        "agent": said(calls(("helper", {"input": "go"}), ("search", {"q": "1"})), "done"),
        "agent/helper": said(calls(("look", {"q": "z"})), "found", seconds=1),
        "agent/helper/look": Scripted(output="seen", seconds=1),
        "agent/search": Scripted(output="s", seconds=1.5),
    }

    watched = goes_on_from_everywhere(flow(agent(HELPER, task("search"))), script, ASKED)

    assert observations(watched) == ["found", "s"]


@pytest.mark.req("AG-2", "OR-3")
def test_a_map_of_agents_goes_on_from_everywhere() -> None:
    watched = goes_on_from_everywhere(flow(EACH), EACH_SCRIPT, ITEMS)

    output = watched.ledger.state.node_states["each"].output_data
    assert [item["content"] for item in output["output"]] == ["found"] * 3
    assert len(watched.executed) == 12


@pytest.mark.req("AG-2", "FL-7")
def test_an_agent_in_a_map_in_a_nested_flow_goes_on_from_everywhere() -> None:
    nested = flow({"id": "sub", "type": "flow", "params": {"flow": flow(EACH).model_dump(mode="json")}})
    script = {f"sub/{name}": scripted for name, scripted in EACH_SCRIPT.items()}

    watched = goes_on_from_everywhere(nested, script, ITEMS)

    assert len(watched.executed) == 12
    assert watched.ledger.state.metadata["usage"]["llm_calls"] == 6


@pytest.mark.req("AG-2", "FL-7")
@pytest.mark.parametrize(
    ("tool", "script"),
    [
        (
            {"id": "each", "type": "map", "params": {"node": {"id": "t", "type": "Task"}, "items": "$.list"}},
            {"agent/each": Scripted(output="item")},
        ),
        (
            {"id": "sub", "type": "flow", "params": {"flow": {"id": "f", "nodes": [agent(node_id="in")]}}},
            {"sub/in": said("inner")},
        ),
    ],
    ids=["map", "flow"],
)
def test_a_map_or_a_flow_as_a_tool_goes_on_from_everywhere(tool: dict[str, Any], script: dict[str, Scripted]) -> None:
    """Also from between its own end and the step in which the agent takes its result."""
    used = agent({**tool, "input_schema": {"type": "object"}})
    replies = {"agent": said(calls((tool["id"], {"list": [1, 2], "input": "x"})), "ok")}

    watched = goes_on_from_everywhere(flow(used), {**replies, **script}, ASKED)

    assert watched.ledger.state.status == CheckpointStatus.COMPLETED
    assert watched.ledger.state.node_states.keys() == {"agent"}


NAMES = st.sampled_from(["a", "b", "broken", "unknown", "helper"])
ARGUMENTS = st.sampled_from([{"q": "1"}, {"q": "1"}, {"q": "2"}, {"input": "x"}, {"q": 1}, "text", {}])
USED = st.lists(st.tuples(NAMES, ARGUMENTS), min_size=1, max_size=3).map(lambda wanted: calls(*wanted))
# A reply without a word in it is asked for again.
LOOPS = st.lists(st.one_of(USED, USED, st.just(" ")), max_size=4)


@pytest.mark.req("AG-1", "AG-2", "AG-3")
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(LOOPS, st.booleans(), st.sampled_from([2, 3, 9]), st.sampled_from(["raise", "return", "answer"]))
def test_any_conversation_goes_on_from_everywhere(
    loops: list[Any], parallel: bool, max_loops: int, on_max_loops: str
) -> None:
    tools = [task("a"), task("b"), task("broken"), agent(node_id="helper")]
    any_agent = agent(
        *tools, parallel_tool_calls=parallel, max_loops=max_loops, on_max_loops=on_max_loops, max_repairs=9
    )
    script = {
        "agent": said(*loops, "The end.", seconds=1),
        "agent/a": Scripted(output={"n": 1}, seconds=1),
        "agent/b": Scripted(output="B", seconds=3),
        "agent/broken": Scripted(error="it broke", seconds=2),
        "agent/helper": said("helped", seconds=2),
    }

    watched = goes_on_from_everywhere(flow(any_agent), script, ASKED)

    state = watched.ledger.state
    assert_answered_calls(state)
    cache = state.node_states["agent"].internal_state["tool_cache"]
    assert len([path for path in watched.executed if "/a[" in path or "/b[" in path]) == len(
        [key for key in cache if key.startswith(("a::", "b::"))]
    )


def assert_answered_calls(state: CheckpointRecord) -> None:
    """Every call in the conversation has its result right behind it, in the order of the calls.

    Only the last reply may have one that nobody answers: from a model that was told to answer, and called a tool.
    """
    messages = [Message.model_validate(entry) for entry in state.node_states["agent"].internal_state["prompt_messages"]]
    for place, message in enumerate(messages[:-1]):
        ids = [call.id for call in message.tool_calls]
        results = messages[place + 1 : place + 1 + len(ids)]
        assert [result.tool_call_id for result in results] == ids
