"""Agents inside agents, and what an agent keeps of all it does."""

from datetime import timedelta
from typing import Any

import pytest

from holdfast.checkpoints.ledger import NodeAdvanced, NodeStarted
from holdfast.checkpoints.validation import validate_checkpoint
from holdfast.contracts.messages import Message
from holdfast.engine.simulator import Scripted
from tests.agents import ASKED, SAVED, agent, observations, record, run, said, task
from tests.going_on import Watched, calls, carried, flow, goes_on_from_everywhere

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
