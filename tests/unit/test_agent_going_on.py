"""Long conversations, troubles, and going on from every place."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints.ledger import NodeAdvanced
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus
from holdfast.contracts.calls import NodeCall, NodeReply
from holdfast.contracts.messages import Message
from holdfast.engine.simulator import EPOCH, Scripted, Simulation
from tests.agents import ASKED, agent, observations, record, roles, run, said, task
from tests.going_on import Watched, calls, flow, goes_on_from_everywhere

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
