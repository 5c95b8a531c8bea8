"""A checkpoint of Dynamiq's becomes one of ours, and a run really goes on from it.

The files in `data/dynamiq` are genuine: flows that were run with Dynamiq 0.69.0 and its file system backend, their
models answered by a script. Only ids, times and texts were replaced, the latter by our own words.
"""

import copy
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.checkpoints.dynamiq import KINDS, Carried, from_dynamiq, is_dynamiq
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus
from holdfast.checkpoints.serial import seal, unseal_record
from holdfast.checkpoints.validation import InvalidCheckpointError, validate_checkpoint
from holdfast.contracts.people import HumanAnswer, HumanRequest
from holdfast.engine.simulator import Scripted
from holdfast.flows import kinds
from holdfast.flows.spec import ErrorHandling, FlowSpec
from tests.going_on import Watched, carried, flow

pytestmark = pytest.mark.req("DM-10")

DATA = Path(__file__).parent / "data" / "dynamiq"
MODEL = {"model": "m"}
CODE = "def run(input_data):\n    return input_data"
SYSTEM_KEPT = "node 'research': it goes on with the system message that Dynamiq wrote, not with its own"


def written(name: str) -> dict[str, Any]:
    return json.loads((DATA / f"{name}.json").read_text())


def selects(**paths: str) -> dict[str, Any]:
    return {"selector": paths}


def after(*names: str, **edge: str) -> list[dict[str, Any]]:
    return [{"node": name, **edge} for name in names]


class Asking(Watched):
    """Notes the questions too."""

    def __init__(self, flow: FlowSpec, script: Mapping[str, Scripted]) -> None:
        super().__init__(flow, script)
        self.questions: list[HumanRequest] = []

    async def wait_answer(self, request: HumanRequest, until: datetime | None) -> HumanAnswer | None:
        self.questions.append(request)
        return await super().wait_answer(request, until)


def go_on(found: Carried, in_flow: FlowSpec, **script: dict[str, Any]) -> tuple[CheckpointRecord, Asking]:
    """The run that is resumed from the import, by way of a store."""
    assert validate_checkpoint(found.checkpoint) == []
    base = carried(unseal_record(seal(found.checkpoint)))
    run = Asking(in_flow, {name.replace("__", "/"): Scripted(**said) for name, said in script.items()})
    return run.run(base=base), run


LETTERS = flow(
    {"id": "score", "type": "python", "params": {"code": CODE}, "input_transformer": selects(order="$.order")},
    {
        "id": "gate",
        "type": "choice",
        "depends": after("score"),
        "input_transformer": selects(points="$.score.output"),
        "params": {
            "options": [
                {"id": "big", "condition": {"variable": "$.points", "operator": "numeric-greater-than", "value": 3}},
                {"id": "small"},
            ]
        },
    },
    {
        "id": "letter",
        "type": "llm",
        "depends": after("gate", option="big"),
        "params": {**MODEL, "prompt": "Write to {{ who }}"},
    },
    {"id": "note", "type": "python", "depends": after("gate", option="small"), "params": {"code": CODE}},
    {
        "id": "check",
        "type": "validate-regex",
        "depends": after("letter"),
        "input_transformer": selects(content="$.letter.output.content"),
        "params": {"regex": "Dear.*"},
    },
    {
        "id": "end",
        "type": "pass",
        "depends": after("check"),
        "input_transformer": selects(text="$.letter.output.content", ok="$.check.output.valid"),
    },
)


ORDERS = flow(
    {"id": "fetch", "type": "python", "params": {"code": CODE}},
    {
        "id": "charge",
        "type": "python",
        "depends": after("fetch"),
        "params": {"code": CODE},
        "input_transformer": selects(total="$.fetch.output.content.total"),
    },
    {"id": "ship", "type": "python", "depends": after("charge"), "params": {"code": CODE}},
)


def study(mode: str, **params: Any) -> FlowSpec:
    schema = {"type": "object", "properties": {"query": {"type": "string"}}}
    tool = {"id": "search", "type": "python", "params": {"code": CODE}, "input_schema": schema}
    return flow(
        {"id": "plan", "type": "python", "params": {"code": CODE}},
        {
            "id": "research",
            "type": "agent",
            "depends": after("plan"),
            "input_transformer": selects(input="$.plan.output"),
            "params": {"llm": MODEL, "mode": mode, "tools": [tool], "max_loops": 6, **params},
        },
        {
            "id": "report",
            "type": "pass",
            "depends": after("research"),
            "input_transformer": selects(text="$.research.output.content"),
        },
    )


DESK = flow(
    {
        "id": "clerk",
        "type": "agent",
        "params": {
            "llm": MODEL,
            "mode": "xml",
            "tools": [{"id": "ask", "type": "human"}, {"id": "search", "type": "python", "code": CODE}],
        },
    }
)

BATCH = flow(
    {"id": "list", "type": "python", "params": {"code": CODE}},
    {
        "id": "each",
        "type": "map",
        "depends": after("list"),
        "input_transformer": selects(input="$.items"),
        "params": {"node": {"id": "item", "type": "python", "code": CODE}},
    },
    {
        "id": "end",
        "type": "pass",
        "depends": after("each"),
        "input_transformer": selects(all="$.each.output.output"),
    },
)

PRESS = flow(
    {
        "id": "article",
        "type": "graph-orchestrator",
        "params": {
            "states": [
                {
                    "id": "sketch",
                    "tasks": [{"id": "sketching", "type": "python", "code": CODE}],
                    "next": [{"to": "write"}],
                },
                {"id": "write", "tasks": [{"id": "writing", "type": "python", "code": CODE}]},
            ]
        },
    }
)

REVIEW = flow(
    {"id": "draft", "type": "python", "params": {"code": CODE}},
    {
        "id": "ask",
        "type": "human",
        "depends": after("draft"),
        "input_transformer": selects(input="$.draft.output.content"),
        "params": {"prompt": "Is {{ input }} good?"},
    },
    {"id": "send", "type": "pass", "depends": after("ask")},
)

SLOW = flow(
    {"id": "night", "type": "delay", "params": {"seconds": 7200}},
    {"id": "after", "type": "pass", "depends": after("night")},
)

FLOWS: dict[str, FlowSpec] = {
    "completed": LETTERS,
    "failed": ORDERS,
    "agent_xml": study("xml"),
    "agent_failed": study("function_calling"),
    "agent_react": study("react"),
    "agent_structured": study("structured_output"),
    "agent_asks": DESK,
    "map": BATCH,
    "map_half_done": BATCH,
    "graph": PRESS,
    "graph_failed": PRESS,
    "pending_input": REVIEW,
    "delay": SLOW,
}


def test_every_file_has_a_flow() -> None:
    assert sorted(FLOWS) == sorted(path.stem for path in DATA.glob("*.json"))


@pytest.mark.parametrize("name", FLOWS)
def test_what_dynamiq_wrote_is_told_from_what_we_write(name: str) -> None:
    data = written(name)

    found = from_dynamiq(data, FLOWS[name])

    assert is_dynamiq(data)
    assert not is_dynamiq(seal(found.checkpoint))
    assert found.checkpoint.version == "1.0"
    assert found.checkpoint.metadata["imported_from"] == "dynamiq (version not recorded)"
    assert found.checkpoint.metadata["dynamiq"]["id"] == data["id"]
    assert validate_checkpoint(found.checkpoint) == []


def test_the_version_is_kept_where_dynamiq_has_written_one() -> None:
    found = from_dynamiq({**written("completed"), "dynamiq_version": "0.69.0"}, LETTERS)

    assert found.checkpoint.metadata["imported_from"] == "dynamiq 0.69.0"


def test_a_completed_flow_is_carried_whole() -> None:
    found = from_dynamiq(written("completed"), LETTERS)

    last, run = go_on(found, LETTERS, score={}, letter={}, note={})

    assert found.notes == []
    assert run.executed == []
    assert last.status == CheckpointStatus.COMPLETED
    outputs = {name: known.output_data for name, known in last.node_states.items()}
    assert outputs == {
        "score": 6,
        "gate": {"option": "big", "chosen": ["big"]},
        "letter": {"content": "Dear Ada, thank you.", "finish_reason": None, "model": None, "usage": None},
        "note": None,
        "check": {"valid": True, "content": "Dear Ada, thank you."},
        "end": {"text": "Dear Ada, thank you.", "ok": True},
    }
    assert last.node_states["note"].error == {"type": "skipped", "message": "the other option was taken"}


def test_a_failed_flow_goes_on_where_it_failed() -> None:
    found = from_dynamiq(written("failed"), ORDERS)
    charge = found.checkpoint.node_states["charge"]

    last, run = go_on(found, ORDERS, fetch={}, charge={"output": "paid"}, ship={"output": "sent"})

    assert found.checkpoint.status == CheckpointStatus.FAILED
    assert found.checkpoint.metadata["error"]["node_id"] == "charge"
    assert charge.error is not None
    assert charge.error["message"] == "the card was refused"
    assert run.executed == ["charge", "ship"]
    assert run.given["charge"].input_data == {"total": 12}
    assert last.status == CheckpointStatus.COMPLETED


def test_of_an_error_the_type_and_the_message_are_kept() -> None:
    data = written("failed")
    data["node_states"]["charge"]["error"] = {"type": "CardError", "message": "refused", "failed_nodes": ["card"]}

    found = from_dynamiq(data, ORDERS)

    assert found.checkpoint.node_states["charge"].error == {"type": "CardError", "message": "refused"}
    assert "node 'charge': the field 'failed_nodes' of its error was not carried" in found.notes


def test_a_failure_that_the_flow_handles_is_kept() -> None:
    handled = ORDERS.model_copy(deep=True)
    handled.nodes[1].error_handling = ErrorHandling(behavior="return")

    found = from_dynamiq(written("failed"), handled)

    assert found.checkpoint.completed_node_ids == ["fetch", "charge", "ship"]


def test_an_agent_goes_on_in_the_loop_it_was_in() -> None:
    in_flow = study("xml")
    found = from_dynamiq(written("agent_xml"), in_flow)
    answer = "<output><thought>done</thought><answer>The Rhine is longer.</answer></output>"

    last, run = go_on(found, in_flow, plan={}, research={"replies": ["", "", answer]})

    assert found.notes == [SYSTEM_KEPT]
    assert run.executed == ["research/loop[3]/llm"]
    assert [message["role"] for message in run.asked[0].messages] == ["system", "user", *["assistant", "user"] * 2]
    expected = {"content": "The Rhine is longer.", "finished": True, "loops": 3}
    assert last.node_states["research"].output_data == expected
    assert last.node_states["report"].output_data == {"text": "The Rhine is longer."}


@pytest.mark.parametrize(
    "transformer",
    [
        None,
        {"path": "$.plan"},
        selects(input="$.topic"),
        selects(all="$.*"),
        {"path": "$.plan", "selector": {"x": "$.output"}},
    ],
)
def test_an_agent_goes_on_whatever_its_input_is_made_of(transformer: Any) -> None:
    """A state is given back only with the input it is about, which Dynamiq did not record."""
    spec = study("xml").model_dump()
    spec["nodes"][1]["input_transformer"] = transformer
    in_flow = FlowSpec.model_validate(spec)
    answer = "<output><answer>The Rhine is longer.</answer></output>"

    _, run = go_on(
        from_dynamiq(written("agent_xml"), in_flow), in_flow, plan={}, research={"replies": ["", "", answer]}
    )

    assert run.executed == ["research/loop[3]/llm"]


def test_an_agent_that_failed_goes_on_after_its_last_loop() -> None:
    in_flow = study("function_calling")
    found = from_dynamiq(written("agent_failed"), in_flow)

    last, run = go_on(found, in_flow, plan={}, research={"replies": ["", "", "The Rhine."]})

    assert run.executed == ["research/loop[3]/llm"]
    called = run.asked[0].messages[2]
    call = {"id": "call-a", "name": "search", "arguments": {"query": "Rhine"}}
    assert called == {"role": "assistant", "content": "look up the Rhine", "tool_calls": [call]}
    result = {"role": "tool", "content": "found Rhine", "tool_call_id": "call-a", "name": "search"}
    assert run.asked[0].messages[3] == result
    assert last.status == CheckpointStatus.COMPLETED


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("agent_react", "Thought: done\nAnswer: The Rhine."),
        ("agent_structured", '{"thought": "done", "action": "finish", "action_input": "The Rhine."}'),
    ],
)
def test_an_agent_goes_on_in_every_mode(name: str, answer: str) -> None:
    found = from_dynamiq(written(name), FLOWS[name])

    last, run = go_on(found, FLOWS[name], plan={}, research={"replies": ["", answer]})

    assert run.executed == ["research/loop[2]/llm"]
    assert last.node_states["research"].output_data["content"] == "The Rhine."


def loops_of(data: dict[str, Any], node_id: str = "research") -> dict[str, Any]:
    return data["node_states"][node_id]["internal_state"]["iteration"]["iteration_data"]


def test_a_call_that_was_not_answered_is_run() -> None:
    data, in_flow = written("agent_failed"), study("function_calling")
    loops = loops_of(data)
    loops["prompt_messages"] = loops["prompt_messages"][:3]
    loops |= {"pending_action": "search", "pending_action_input": {"query": "Rhine"}}
    data["node_states"]["research"]["internal_state"]["iteration"]["completed_iterations"] = 0

    script = {"research": {"replies": ["", "The Rhine."]}, "research__search": {"output": "found Rhine"}}
    last, run = go_on(from_dynamiq(data, in_flow), in_flow, plan={}, **script)

    assert run.executed == ["research/loop[1]/search[0]", "research/loop[2]/llm"]
    assert run.given["research/loop[1]/search[0]"].input_data == {"query": "Rhine"}
    assert [message["tool_call_id"] for message in run.asked[0].messages if message["role"] == "tool"] == ["call-a"]
    assert last.status == CheckpointStatus.COMPLETED


def test_several_calls_at_once_are_left_to_the_model_and_it_is_said() -> None:
    data, in_flow = written("agent_failed"), study("function_calling")
    loops = loops_of(data)
    loops["prompt_messages"][2]["tool_calls"] += loops["prompt_messages"][4]["tool_calls"]
    loops["prompt_messages"] = loops["prompt_messages"][:4]
    loops |= {"pending_action": "run-parallel", "pending_action_input": {"tools": []}}
    data["node_states"]["research"]["internal_state"]["iteration"]["completed_iterations"] = 0
    found = from_dynamiq(data, in_flow)

    _, run = go_on(found, in_flow, plan={}, research={"replies": ["The Rhine."]})

    said = "the call 'run-parallel' that it was in was not carried; its model is asked again"
    assert f"node 'research': {said}" in found.notes
    assert run.executed == ["research/loop[1]/llm"]
    assert [message["role"] for message in run.asked[0].messages] == ["system", "user"]


@pytest.mark.parametrize("given", [{"action_input": "Rhine"}, "Rhine"])
def test_a_call_without_named_arguments_is_left_to_the_model(given: Any) -> None:
    data = written("agent_asks")
    loops_of(data, "clerk").update(pending_action="search", pending_action_input=given)

    found = from_dynamiq(data, DESK)

    assert "node 'clerk': the call 'search' that it was in was not carried; its model is asked again" in found.notes
    assert found.checkpoint.node_states["clerk"].internal_state["pending_calls"] == []


def test_a_reply_that_led_to_nothing_is_asked_for_again() -> None:
    data, in_flow = written("agent_failed"), study("function_calling")
    del loops_of(data)["prompt_messages"][5]

    _, run = go_on(from_dynamiq(data, in_flow), in_flow, plan={}, research={"replies": ["", "The Rhine."]})

    assert [message["role"] for message in run.asked[0].messages] == ["system", "user", "assistant", "tool"]


def test_an_agent_whose_conversation_is_not_all_text_begins_anew_and_it_is_said() -> None:
    data, in_flow = written("agent_xml"), study("xml")
    loops_of(data)["prompt_messages"][1]["content"] = [{"type": "image_url", "image_url": {"url": "data:image/png,"}}]

    found = from_dynamiq(data, in_flow)

    assert found.checkpoint.node_states["research"].internal_state == {}
    (note,) = found.notes
    assert note.startswith("node 'research': its state has a form that is not known here (iteration.iteration_data")
    assert note.endswith("; it begins anew")


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([{"role": "assistant", "content": "<answer>yes</answer>"}], "its conversation has no question"),
        (
            [{"role": "user", "content": "?"}, {"role": "assistant", "content": "yes"}],
            "its conversation is in a form that is not known here, and its mode is 'xml'",
        ),
    ],
)
def test_an_agent_whose_conversation_does_not_say_enough_begins_anew(messages: list[Any], said: str) -> None:
    data = written("agent_xml")
    loops_of(data)["prompt_messages"] = messages

    assert from_dynamiq(data, study("xml")).notes == [f"node 'research': {said}; it begins anew"]


def test_an_agent_that_had_not_begun_begins() -> None:
    data = written("agent_xml")
    loops_of(data)["prompt_messages"] = None

    found = from_dynamiq(data, study("xml"))

    assert found.notes == []
    assert found.checkpoint.node_states["research"].internal_state == {}


def test_an_agent_of_another_mode_begins_anew_and_it_is_said() -> None:
    in_flow = study("function_calling")
    found = from_dynamiq(written("agent_xml"), in_flow)

    _, run = go_on(found, in_flow, plan={}, research={"replies": ["The Rhine."]})

    said = "its conversation is of the mode 'xml', and its mode is 'function_calling'; it begins anew"
    assert found.notes == [f"node 'research': {said}"]
    assert run.executed == ["research/loop[1]/llm"]


def test_an_agent_behind_something_that_runs_again_begins_anew() -> None:
    data, in_flow = written("agent_xml"), study("xml")
    data["node_states"]["plan"]["node_type"] = "dynamiq.nodes.tools.TavilyTool"

    found = from_dynamiq(data, in_flow)

    assert found.notes == [
        "node 'plan': a dynamiq.nodes.tools.TavilyTool has no counterpart here; it runs again",
        "node 'research': its state is not carried, because something that it depends on runs again; it begins anew",
    ]
    assert found.checkpoint.completed_node_ids == []


def test_a_question_inside_an_agent_is_asked_anew_without_asking_the_model() -> None:
    found = from_dynamiq(written("agent_asks"), DESK)
    answer = "<output><thought>done</thought><answer>The Elbe it is.</answer></output>"
    waiting = found.checkpoint.pending_input_context

    last, run = go_on(found, DESK, clerk={"replies": ["", "", answer]}, clerk__ask={"answer": {"feedback": "the Elbe"}})

    assert found.checkpoint.status == CheckpointStatus.PENDING_INPUT
    assert waiting is not None
    assert waiting.node_id == "clerk/loop[2]/ask[0]"
    assert run.executed == ["clerk/loop[3]/llm"]
    assert run.asked[0].messages[-1] == {"role": "user", "content": "Observation: the Elbe"}
    assert [(request.prompt, request.is_resumed) for request in run.questions] == [("Which river?", True)]
    assert last.status == CheckpointStatus.COMPLETED


def test_a_tool_that_waited_for_an_approval_is_asked_about_only_where_the_flow_does() -> None:
    data = written("agent_asks")
    loops_of(data, "clerk").update(pending_action="search", pending_action_input={"input": "Elbe"})
    asks = DESK.model_copy(deep=True)
    asks.nodes[0].params["tools"][1]["approval"] = {"enabled": True}

    free, asked = from_dynamiq(data, DESK), from_dynamiq(data, asks)

    said = "what it was waiting for was not carried; it runs as the flow says"
    assert f"node 'clerk/loop[2]/search[0]': {said}" in free.notes
    assert free.checkpoint.status == CheckpointStatus.ACTIVE
    waiting = asked.checkpoint.pending_input_context
    assert waiting is not None
    assert (waiting.node_id, waiting.metadata["request"]["kind"]) == ("clerk/loop[2]/search[0]", "approval")


def test_a_call_of_a_tool_that_is_not_there_is_left_to_the_model() -> None:
    without = DESK.model_copy(deep=True)
    del without.nodes[0].params["tools"][0]
    found = from_dynamiq(written("agent_asks"), without)

    _, run = go_on(found, without, clerk={"replies": ["", "<output><answer>No.</answer></output>"]})

    assert "node 'clerk': the call 'ask' that it was in was not carried; its model is asked again" in found.notes
    assert "node 'clerk': what it was waiting for was not carried; it runs as the flow says" in found.notes
    assert run.executed == ["clerk/loop[2]/llm"]


def test_a_map_that_is_done_is_kept() -> None:
    found = from_dynamiq(written("map"), BATCH)

    last, run = go_on(found, BATCH, list={}, each={})

    items = [{"content": f"{letter}!"} for letter in "abcd"]
    assert run.executed == []
    assert last.node_states["each"].output_data == {"output": items, "failed_iterations": []}
    said = "its output is kept as Dynamiq wrapped it, {'content': …}; the flow does not tell why"
    assert f"node 'each/item': {said}" in found.notes


def test_of_a_map_that_is_half_done_dynamiq_has_nothing_and_it_is_said() -> None:
    found = from_dynamiq(written("map_half_done"), BATCH)

    last, run = go_on(found, BATCH, list={}, each={"output": "!"})

    said = "Dynamiq recorded nothing of its inside; if it had begun, all of it runs again"
    assert f"node 'each': {said}" in found.notes
    assert run.executed == ["each[0]", "each[1]", "each[2]", "each[3]"]
    assert last.status == CheckpointStatus.COMPLETED


def test_a_graph_goes_on_in_its_state() -> None:
    found = from_dynamiq(written("graph_failed"), PRESS)

    last, run = go_on(found, PRESS, article__writing={"output": {"context": {}, "result": "a text"}})

    assert run.executed == ["article/step[0]/writing"]
    given = run.given["article/step[0]/writing"].input_data
    assert given["context"] == {"outline": ["one", "two"]}
    assert given["result"] == "an outline"
    assert last.node_states["article"].output_data["content"] == "a text"
    lost = "which states it went through was not recorded; 'max_steps' counts anew"
    assert found.notes == [f"node 'article': {lost}"]


def test_a_graph_that_is_done_is_kept() -> None:
    found = from_dynamiq(written("graph"), PRESS)

    last, run = go_on(found, PRESS)

    assert run.executed == []
    expected: dict[str, Any] = {"content": "a text", "context": {"outline": ["one", "two"]}, "states": []}
    assert last.node_states["article"].output_data == expected


def test_a_graph_in_a_state_that_is_not_in_the_flow_begins_anew() -> None:
    data = written("graph_failed")
    data["node_states"]["article"]["internal_state"]["iteration"]["iteration_data"]["current_state_id"] = "print"

    found = from_dynamiq(data, PRESS)

    assert found.notes == ["node 'article': the state 'print' that it was in is not in the flow; it begins anew"]


def test_a_question_is_asked_anew() -> None:
    found = from_dynamiq(written("pending_input"), REVIEW)

    last, run = go_on(found, REVIEW, draft={}, ask={"answer": {"feedback": "yes"}})

    assert found.notes == []
    assert found.checkpoint.status == CheckpointStatus.PENDING_INPUT
    assert run.executed == []
    assert [(request.prompt, request.is_resumed) for request in run.questions] == [("Is a draft good?", True)]
    assert last.node_states["send"].output_data == {"content": "yes", "feedback": "yes", "by": "script"}


def test_a_delay_keeps_its_end() -> None:
    found = from_dynamiq(written("delay"), SLOW)

    last, _ = go_on(found, SLOW)

    end = "2026-03-02T11:49:03.656332+00:00"
    assert found.checkpoint.status == CheckpointStatus.ACTIVE
    assert last.node_states["night"].output_data == {"wake_at": end}
    assert last.node_states["after"].output_data == {"wake_at": end}
    assert found.notes == []


def test_a_delay_of_centuries_begins_anew() -> None:
    data = written("delay")
    data["node_states"]["night"]["internal_state"]["resume_at"] = {"__datetime__": "9000-01-01T00:00:00"}

    found = from_dynamiq(data, SLOW)

    assert found.notes == ["node 'night': it was to wait for more than a hundred years; it begins anew"]


# One node


def one(node: dict[str, Any], output: Any, node_type: str, **fields: Any) -> Carried:
    """A run of one node, which has succeeded in Dynamiq."""
    state = {"node_id": "x", "node_type": node_type, "status": "success", "output_data": output, **fields}
    data = {**written("failed"), "status": "completed", "node_states": {"x": state}, "completed_node_ids": ["x"]}
    return from_dynamiq(data, flow({"id": "x", **node}))


def output_of(found: Carried) -> Any:
    assert found.checkpoint.completed_node_ids == ["x"]
    return found.checkpoint.node_states["x"].output_data


def test_every_kind_in_the_table_is_one_of_ours() -> None:
    assert set(KINDS.values()) <= set(kinds.KINDS)


AGENT = {"type": "agent", "params": {"llm": MODEL}}
PYTHON = {"type": "python", "params": {"code": CODE}}


def test_the_output_of_an_agent_has_our_shape() -> None:
    files = [{"__bytesio__": "UERG", "name": "a.pdf"}]
    output = {"content": "done", "blocked": False, "artifacts": [{"id": 1}], "files": files}
    inside = {"iteration": {"completed_iterations": 1, "iteration_data": {"agent_state": {"current_loop": 2}}}}

    found = one(AGENT, output, "dynamiq.nodes.agents.Agent", internal_state=inside)

    assert output_of(found) == {"content": "done", "finished": True, "loops": 2}
    assert found.notes == [
        "node 'x': the field 'name' of a value was not carried",
        "node 'x': the field 'artifacts' of its output was not carried",
        "node 'x': the field 'files' of its output was not carried",
    ]


def test_the_output_of_a_request_has_our_shape() -> None:
    node = {"type": "http", "params": {"url": "http://x"}}

    found = one(node, {"content": {"a": 1}, "status_code": 200}, "dynamiq.nodes.tools.HttpApiCall")

    assert output_of(found) == {"status_code": 200, "headers": {}, "body": {"a": 1}}
    assert found.notes == ["node 'x': the headers of the response were not recorded"]


def test_the_output_of_a_model_has_our_shape() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {"thought": 1}}}]
    node = {"type": "llm", "params": {**MODEL, "prompt": "x"}}

    found = one(node, {"content": None, "tool_calls": calls}, "dynamiq.nodes.llms.Anthropic")

    assert output_of(found)["tool_calls"] == [{"id": "c", "name": "f", "arguments": {"thought": 1}}]
    assert found.notes == []


@pytest.mark.parametrize("output", [{"content": 1, "b": 2}, {"content": {"content": 1}}, [1]])
def test_the_result_of_code_that_was_not_wrapped_is_itself(output: Any) -> None:
    assert output_of(one(PYTHON, output, "dynamiq.nodes.tools.Python")) == output


def test_a_wrapped_result_that_nobody_reads_is_kept_and_named() -> None:
    found = one(PYTHON, {"content": 1}, "dynamiq.nodes.tools.Python")

    assert output_of(found) == {"content": 1}
    assert len(found.notes) == 1


def test_a_function_of_the_authors_own_is_known_by_its_name() -> None:
    node = {"type": "tool", "params": {"function": "shop.prices:total"}}

    assert output_of(one(node, {"content": 12}, "shop.total")) == 12
    assert one(node, {"content": 12}, "shop.sum").checkpoint.completed_node_ids == []


def test_a_class_of_the_authors_own_is_known_by_its_name() -> None:
    assert output_of(one({"type": "Ledger"}, {"rows": 3}, "shop.nodes.Ledger")) == {"rows": 3}


def test_a_nested_flow_runs_again() -> None:
    inner = {"id": "inner", "nodes": [{"id": "a", "type": "python", "params": {"code": CODE}}]}

    found = one({"type": "flow", "params": {"flow": inner}}, {"a": 1}, "dynamiq.nodes.operators.SubWorkflow")

    assert found.notes == [
        "node 'x': how each of the nodes inside it ended was not recorded; it runs again",
        "the run had completed, and goes on here with: x",
    ]
    assert found.checkpoint.status == CheckpointStatus.ACTIVE


@pytest.mark.parametrize(
    ("params", "said", "expected"),
    [
        ({}, "yes", {"content": "yes", "feedback": "yes"}),
        ({"kind": "choice", "choices": ["red", "blue"]}, "red", {"content": "red", "choice": "red"}),
        ({"kind": "choice", "choices": ["red", "blue"]}, "green", None),
        ({"kind": "approval"}, "yes", None),
    ],
)
def test_an_answer_is_kept_where_it_says_what_the_question_wants(params: Any, said: str, expected: Any) -> None:
    found = one({"type": "human", "params": params}, {"content": said}, "dynamiq.nodes.tools.HumanFeedbackTool")

    assert (output_of(found) if expected else found.checkpoint.completed_node_ids) == (expected or [])


def test_a_message_to_a_person_is_no_answer() -> None:
    sent = {"content": "sent"}, "dynamiq.nodes.tools.HumanFeedbackTool"

    found = one({"type": "human"}, *sent, input_data={"action": "info", "input": "It is done."})

    assert "node 'x': it was a message to a person, and is a question here; it runs again" in found.notes


def test_a_choice_that_took_an_option_we_do_not_have_is_made_again() -> None:
    node = {"type": "choice", "params": {"options": [{"id": "a"}]}}

    found = one(node, {"b": {"status": "success"}}, "dynamiq.nodes.operators.Choice")

    assert "node 'x': the option 'b' that it took is not one of its options; it runs again" in found.notes


def test_a_node_of_another_kind_runs_again() -> None:
    found = one(PYTHON, {"content": 1}, "dynamiq.nodes.llms.OpenAI")

    said = "a dynamiq.nodes.llms.OpenAI is a node of type 'llm', and it is 'python' here; it runs again"
    assert f"node 'x': {said}" in found.notes


def test_a_delay_that_is_over_is_kept() -> None:
    node = {"type": "delay", "params": {"seconds": 1}}
    output = {"x": 1, "waited_until": "2026-03-02T11:00:00+00:00", "waited_seconds": 1.0}

    assert output_of(one(node, output, "dynamiq.nodes.operators.Delay")) == {"wake_at": "2026-03-02T11:00:00+00:00"}
    assert one(node, {}, "dynamiq.nodes.operators.Delay").checkpoint.completed_node_ids == []


def test_the_items_of_a_map_have_the_shape_of_what_is_inside() -> None:
    node = {"type": "map", "params": {"node": {"id": "ask", "type": "llm", **MODEL, "prompt": "x"}}}

    found = one(node, {"output": [{"content": "a"}]}, "dynamiq.nodes.operators.Map")
    not_all = one(node, {"output": [{"content": "a"}, None]}, "dynamiq.nodes.operators.Map")

    said = {"content": "a", "finish_reason": None, "model": None, "usage": None}
    assert output_of(found) == {"output": [said], "failed_iterations": []}
    assert found.notes == []
    assert "node 'x': the results of its items were not all recorded; it runs again" in not_all.notes


def test_an_output_behind_a_transformer_is_kept_as_it_was_recorded() -> None:
    found = one({**AGENT, "output_transformer": selects(a="$.content")}, {"a": 1}, "dynamiq.nodes.agents.Agent")

    assert output_of(found) == {"a": 1}
    assert found.notes == ["node 'x': its output is kept as it was recorded, after Dynamiq's own output transformer"]


@pytest.mark.parametrize("output", [None, "text", {}, {"text": 1}])
def test_an_output_that_says_nothing_is_not_kept(output: Any) -> None:
    found = one(AGENT, output, "dynamiq.nodes.agents.Agent")

    assert found.checkpoint.completed_node_ids == []
    assert found.notes[0].startswith("node 'x': its output has a form that is not known here (")
    assert found.notes[0].endswith("; it runs again")


def test_a_node_that_was_cancelled_runs_again_and_so_does_the_run() -> None:
    data = written("failed")
    data["status"] = "canceled"
    data["node_states"]["charge"] |= {"status": "canceled", "error": None}

    found = from_dynamiq(data, ORDERS)

    assert found.checkpoint.status == CheckpointStatus.FAILED
    assert found.checkpoint.metadata["error"]["type"] == "cancelled"
    assert found.notes == [
        "node 'charge': Dynamiq says 'canceled' of it and nothing more; it runs again",
    ]


def test_a_pass_without_a_transformer_runs_again() -> None:
    data = written("failed")
    envelope = {"fetch": {"status": "success", "output": {"content": {"total": 12}}}}
    ends = {"node_type": "dynamiq.nodes.operators.Pass", "status": "success", "output_data": envelope}
    data["node_states"]["ship"] |= {**ends, "error": None}
    in_flow = flow(
        {"id": "fetch", "type": "python", "params": {"code": CODE}},
        {"id": "charge", "type": "python", "depends": after("fetch"), "params": {"code": CODE}},
        {"id": "ship", "type": "pass", "depends": after("fetch")},
    )
    found = from_dynamiq(data, in_flow)

    last, _ = go_on(found, in_flow, fetch={}, charge={"output": "paid"})

    said = "it was given results in envelopes, and hands on the results themselves here; it runs again"
    assert f"node 'ship': {said}" in found.notes
    assert last.get_node_output("ship") == {"content": {"total": 12}}


def test_values_get_our_marks() -> None:
    value = {
        "pairs": {"__dict_items__": [[1, {"__tuple__": [1, {"__bytes__": "UERG"}]}]]},
        "huge": {"__int__": "123456789012345678901234567890"},
        "file": {"__bytesio__": "UERG", "name": "scan.pdf"},
        "endless": {"__float__": "inf"},
        "odd": {"__name": 1},
    }

    found = one({"type": "Any"}, value, "mine.Any")

    assert output_of(found) == {
        "pairs": {"__dict__": [[1, {"__tuple__": [1, {"__bytes__": "UERG"}]}]]},
        "huge": 123456789012345678901234567890,
        "file": {"__bytesio__": "UERG"},
        "endless": {"__float__": "inf"},
        "odd": {"__dict__": [["__name", 1]]},
    }
    assert found.notes == ["node 'x': the field 'name' of a value was not carried"]


# Which node is which


def test_a_node_is_not_found_by_its_name() -> None:
    data = written("failed")
    uuid = "5a0b7d0e-0000-4000-8000-00000000000a"
    data["node_states"][uuid] = {**data["node_states"].pop("fetch"), "node_id": uuid}
    named = ORDERS.model_copy(deep=True)
    named.nodes[0].name = uuid

    found = from_dynamiq(data, named)

    assert f"node {uuid!r}: it is not in the flow; its state was not carried" in found.notes
    assert "node 'fetch': it is said to be completed, and has no state; it runs again" in found.notes


def test_what_has_no_counterpart_is_named() -> None:
    data, in_flow = written("agent_xml"), study("xml")
    inside = data["node_states"]["research"]["internal_state"]
    inside["sandbox_state"] = {"sandbox_id": "s"}
    inside["iteration"]["iteration_data"]["agent_state"]["todos"] = [{"id": "1"}]
    inside["iteration"]["iteration_data"]["artifacts"] = {"a": {"id": "a"}}
    inside["llm_state"]["is_fallback_run"] = True
    data["original_config"]["dry_run"] = {"enabled": True}
    data["completed_node_ids"] += ["report", "gone"]

    assert from_dynamiq(data, in_flow).notes == [
        "node 'gone': it is not in the flow; its state was not carried",
        SYSTEM_KEPT,
        "node 'research': the field 'llm_state' of its internal state was not carried",
        "node 'research': the field 'sandbox_state' of its internal state was not carried",
        "node 'research': the field 'artifacts' of its internal state was not carried",
        "node 'research': the field 'todos' of its internal state was not carried",
        "node 'report': it is said to be completed, and has no state; it runs again",
        "the setting 'dry_run' of the run was not carried",
    ]


def test_a_question_of_a_node_that_is_not_carried_is_not_either() -> None:
    data = written("pending_input")
    data["node_states"]["ask"]["node_type"] = "dynamiq.nodes.tools.TavilyTool"

    found = from_dynamiq(data, REVIEW)

    assert "node 'ask': what it was waiting for was not carried, as the node itself was not" in found.notes
    assert found.checkpoint.status == CheckpointStatus.ACTIVE


# Faults


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"node_states": []}, "not a checkpoint of Dynamiq's"),
        ({"status": "lost"}, "status: "),
        ({"version": "2.0"}, "version: "),
        ({"created_at": "noon"}, "created_at: "),
        ({"node_states": {"a": {"node_id": "b", "node_type": "t", "status": "skip"}}}, "describes node 'b'"),
        ({"original_input": {"__int__": "many"}}, "original_input: invalid literal"),
        ({"original_input": "\ud800"}, "not valid Unicode"),
        ({"run_id": "\ud800"}, "not valid Unicode"),
        ({"original_input": object()}, "original_input: value is of type builtins.object"),
    ],
)
def test_a_fault_is_named(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(InvalidCheckpointError) as raised:
        from_dynamiq({**written("failed"), **change}, ORDERS)

    assert fault in str(raised.value)


def test_data_that_is_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]

    with pytest.raises(InvalidCheckpointError, match="nested"):
        from_dynamiq({**written("failed"), "original_input": deep}, ORDERS)


def test_a_list_is_no_checkpoint() -> None:
    with pytest.raises(InvalidCheckpointError, match="not a checkpoint of Dynamiq's"):
        from_dynamiq([], ORDERS)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(["active", "success", "2026"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.text() | st.sampled_from(["content", "role", "__set__", "__dict_items__", "__bytes__"]), inner
        )
    ),
    max_leaves=8,
)


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The way to every value."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(data, dict):
        inner = list(data.items())  # pyright: ignore[reportUnknownArgumentType] (any JSON)
    elif isinstance(data, list):
        inner = list(enumerate(data))  # pyright: ignore[reportUnknownArgumentType] (any JSON)
    return [*([path] if path else []), *(place for key, value in inner for place in places(value, (*path, key)))]


def changed(data: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> None:
    for key in path[:-1]:
        data = data[key]
    change(data, path[-1])


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_whatever_is_wrong_with_it_is_named_and_what_is_not_can_be_resumed_from(draw: st.DataObject) -> None:
    name = draw.draw(st.sampled_from(sorted(FLOWS)))
    data = copy.deepcopy(written(name))
    for _ in range(draw.draw(st.integers(1, 3))):
        path = draw.draw(st.sampled_from(places(data)))
        if draw.draw(st.booleans()):
            value = draw.draw(JSON)
            changed(data, path, lambda inside, key, value=value: inside.__setitem__(key, value))
        else:
            changed(data, path, lambda inside, key: inside.__delitem__(key))

    try:
        found = from_dynamiq(data, FLOWS[name])
    except InvalidCheckpointError:
        return

    assert validate_checkpoint(found.checkpoint) == []
    assert unseal_record(json.loads(json.dumps(seal(found.checkpoint)))).run_id == found.checkpoint.run_id
