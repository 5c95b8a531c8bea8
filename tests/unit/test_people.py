"""Questions and approvals, in simulated time."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest

from holdfast.checkpoints.ledger import InputReceived, InputRequested, Ledger, RunContinued, RunPaused
from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus
from holdfast.checkpoints.resuming import plan_resume
from holdfast.checkpoints.validation import validate_checkpoint
from holdfast.contracts.people import HumanAnswer, HumanRequest, complete, faults, message_from
from holdfast.engine.simulator import EPOCH, NotScriptedError, Scripted, Simulation
from holdfast.flows.faults import FlowDefinitionError
from holdfast.flows.reading import read_flow
from holdfast.flows.spec import FlowSpec, NodeSpec

ASK = "id: f\nnodes:\n  ask: {type: human, prompt: 'What of {{ topic }}?'}\n"
THEN = "{after: 3d, effect: default, answer: {feedback: ok}}"


def request(kind: str, **fields: Any) -> HumanRequest:
    return HumanRequest.model_validate(
        {"id": "r", "path": "p", "kind": kind, "prompt": "?", "created_at": EPOCH, **fields}
    )


def agent(*replies: Any, **params: Any) -> FlowSpec:
    tools = params.pop("tools")
    llm = {"model": "m", "provider": "scripted", "replies": list(replies)}
    node = NodeSpec(id="a", type="agent", params={"llm": llm, "tools": tools, **params})
    return FlowSpec(id="f", nodes=[node])


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments}]}


@pytest.mark.req("EX-2", "DM-4")
def test_a_question_is_asked_in_its_words_and_waits_in_the_checkpoint() -> None:
    simulation = Simulation(read_flow(ASK), {"ask": Scripted(answer={"feedback": "it holds"}, seconds=3600)})
    state = simulation.run({"topic": "kelp"})
    asked = next(entry for entry in simulation.ledger.since(0) if isinstance(entry, InputRequested))
    waiting = simulation.ledger.at(asked.seq)

    assert asked.request["prompt"] == "What of kelp?"
    assert waiting.status == CheckpointStatus.PENDING_INPUT
    assert waiting.pending_input_context is not None
    assert waiting.pending_input_context.prompt == "What of kelp?"
    assert state.node_states["ask"].output_data == {"content": "it holds", "feedback": "it holds", "by": "script"}
    assert state.answered_inputs["request-1"]["by"] == "script"
    assert state.updated_at - EPOCH == timedelta(hours=1)
    for seq in range(1, simulation.ledger.seq + 1):
        assert validate_checkpoint(simulation.ledger.at(seq)) == []


@pytest.mark.req("EX-2")
def test_a_resumed_run_asks_again_and_says_so() -> None:
    flow = read_flow(ASK)
    script = {"ask": Scripted(answer={"feedback": "x"}, seconds=60)}
    first = Simulation(flow, script)
    first.run({"topic": "a"})
    waiting = next(entry.seq for entry in first.ledger.since(0) if isinstance(entry, InputRequested))
    second = Simulation(flow, script, run_id="second")
    second.run(base=first.ledger.at(waiting))
    asked = next(entry for entry in second.ledger.since(0) if isinstance(entry, InputRequested))

    assert asked.request["is_resumed"] is True


def test_a_run_that_is_carried_over_keeps_its_question() -> None:
    script = {"ask": Scripted(answer={"feedback": "x"}, seconds=60), "slow": Scripted(seconds=10)}
    flow = read_flow(ASK + "  slow: {type: Work}\n  end: {type: Work, depends: slow}\n")
    for place in range(2, 9):
        simulation = Simulation(flow, {**script, "end": Scripted()}, park_after=place)
        state = simulation.run({"topic": "a"})

        assert state.status == CheckpointStatus.COMPLETED
        assert list(state.answered_inputs) == ["request-1"]


@pytest.mark.req("RT-4")
def test_an_approval_lets_a_node_run_with_what_was_edited() -> None:
    flow = read_flow("""
id: f
nodes:
  pay: {type: Work, approval: {enabled: true, prompt: "Pay {{ amount }}?", editable: [amount]}}
""")
    simulation = Simulation(flow, {"pay": Scripted(output="paid", answer={"is_approved": True, "data": {"amount": 7}})})
    state = simulation.run({"amount": 10})

    assert state.node_states["pay"].input_data == {"amount": 7}
    assert state.node_states["pay"].output_data == "paid"
    assert state.metadata["approvals"] == {}


@pytest.mark.req("RT-4")
def test_what_was_approved_is_not_asked_again_by_a_resume() -> None:
    flow = read_flow("id: f\nnodes:\n  pay: {type: Work, approval: {enabled: true}}\n")
    first = Simulation(flow, {"pay": Scripted(answer={"is_approved": True}, error="no money")})
    failed = first.run({})
    answered = next(entry.seq for entry in first.ledger.since(0) if isinstance(entry, InputReceived))
    resumed = Simulation(flow, {"pay": Scripted(output="paid", answer={"is_approved": True})}, run_id="second")
    state = resumed.run(base=first.ledger.at(answered))
    again = Simulation(flow, {"pay": Scripted(output="paid", answer={"is_approved": True})}, run_id="third")
    again.run(base=failed)

    assert state.node_states["pay"].output_data == "paid"
    assert not [entry for entry in resumed.ledger.since(0) if isinstance(entry, InputRequested)]
    # It had run and failed: another execution is another thing to approve.
    assert [entry for entry in again.ledger.since(0) if isinstance(entry, InputRequested)]


@pytest.mark.req("RT-4", "DM-9")
@pytest.mark.parametrize(("change", "asked"), [("to: eve", ["pay"]), ("to: ada, name: Pay", [])])
def test_what_was_approved_is_asked_again_when_its_definition_has_changed(change: str, asked: list[str]) -> None:
    text = "id: f\nnodes:\n  pay: {{type: Work, {}, approval: {{enabled: true}}}}\n"
    before, after = read_flow(text.format("to: ada")), read_flow(text.format(change))
    yes = Scripted(output="paid", answer={"is_approved": True})
    first = Simulation(before, {"pay": yes})
    first.run({})
    base = first.ledger.at(next(entry.seq for entry in first.ledger.since(0) if isinstance(entry, InputReceived)))
    resumed = Simulation(after, {"pay": yes}, run_id="second")
    state = resumed.run(base=base, plan=plan_resume(after, base, before=before))

    assert [entry.path for entry in resumed.ledger.since(0) if isinstance(entry, InputRequested)] == asked
    assert state.node_states["pay"].output_data == "paid"


@pytest.mark.req("RT-4")
def test_a_rejection_skips_a_node_fails_an_item_and_is_told_to_a_model() -> None:
    no = {"is_approved": False, "feedback": "never"}
    node = Simulation(
        read_flow("id: f\nnodes:\n  pay: {type: Work, approval: {enabled: true}}\n"), {"pay": Scripted(answer=no)}
    ).run({})
    guarded = {"id": "w", "type": "Work", "approval": {"enabled": True}}
    item = Simulation(
        FlowSpec(id="f", nodes=[NodeSpec(id="all", type="map", params={"behavior": "return", "node": guarded})]),
        {"all": Scripted(answer=no)},
    ).run({"input": [1, 2]})
    tool = {"id": "send", "type": "Work", "side_effects": "write"}
    told = Simulation(agent(call("send", input="x"), "ok", tools=[tool]), {"a/send": Scripted(answer=no)}).run(
        {"input": "go"}
    )
    messages = told.node_states["a"].internal_state["prompt_messages"]

    assert node.node_states["pay"].status == "skip"
    assert node.node_states["pay"].error == {"type": "skipped", "message": "rejected by script: never"}
    assert item.node_states["all"].output_data["failed_iterations"] == [0, 1]
    assert messages[2]["content"] == "Error: rejected by script: never"


@pytest.mark.parametrize(
    ("policy", "asks"),
    [
        ("write", ["send"]),
        ("never", []),
        ("always", ["look", "send"]),
        ([{"tools": ["look"]}], ["look"]),
        ([{"side_effects": "read"}], ["look"]),
        ([{"when": {"variable": "$.input", "operator": "string-contains", "value": "danger"}}], ["send"]),
        ([{"tools": ["look"], "side_effects": "write"}], []),
    ],
)
def test_a_policy_decides_which_calls_are_asked_about(policy: Any, asks: list[str]) -> None:
    tools = [
        {"id": "look", "type": "Work", "side_effects": "read"},
        {"id": "send", "type": "Work", "side_effects": "write"},
    ]
    flow = agent(call("look", input="safe"), call("send", input="danger"), "ok", tools=tools, ask_before=policy)
    yes = {"is_approved": True}
    simulation = Simulation(flow, {"a/look": Scripted(output=1, answer=yes), "a/send": Scripted(output=2, answer=yes)})
    simulation.run({"input": "go"})
    asked = [entry.path for entry in simulation.ledger.since(0) if isinstance(entry, InputRequested)]

    assert [path.rpartition("/")[2].partition("[")[0] for path in asked] == asks


@pytest.mark.req("OR-5")
def test_an_agent_in_a_map_in_a_nested_flow_asks_through_its_tool() -> None:
    llm = {"model": "m", "provider": "scripted", "replies": [call("boss", question="may I?"), "thanks"]}
    each = {"type": "agent", "llm": llm, "tools": [{"id": "boss", "type": "human"}]}
    inner = FlowSpec(id="in", nodes=[NodeSpec(id="all", type="map", params={"node": each})])
    flow = FlowSpec(id="f", nodes=[NodeSpec(id="sub", type="flow", params={"flow": inner.model_dump()})])
    state = Simulation(flow, {"all/boss": Scripted(answer={"feedback": "you may"}, seconds=60)}).run(
        {"input": ["x", "y"]}
    )
    outputs = state.node_states["sub"].output_data["all"]["output"]["output"]

    assert [entry["content"] for entry in outputs] == ["thanks", "thanks"]


@pytest.mark.parametrize(
    ("deadline", "outcome", "days"),
    [
        ("{after: 2d, effect: default, answer: {feedback: fine}}", "fine", 2),
        (
            "{after: 2d, effect: escalate, to: boss, then: {after: 3d, effect: default, answer: {feedback: ok}}}",
            "ok",
            5,
        ),
        ("{after: 2d, effect: wait}", "late", 9),
    ],
)
@pytest.mark.req("RT-5")
def test_deadlines_have_the_effect_the_author_chose(deadline: str, outcome: str, days: int) -> None:
    flow = read_flow(f"id: f\nnodes:\n  ask: {{type: human, prompt: q, deadline: {deadline}}}\n")
    late = 9 * 24 * 3600
    state = Simulation(flow, {"ask": Scripted(answer={"feedback": "late"}, seconds=late)}).run({})

    assert state.node_states["ask"].output_data["content"] == outcome
    assert (state.updated_at - EPOCH).days == days


def test_an_unscripted_question_says_what_to_script() -> None:
    with pytest.raises(NotScriptedError, match=r"ask: \{answer: \{…\}\}"):
        Simulation(read_flow(ASK), {}).run({"topic": "a"})


@pytest.mark.parametrize(
    ("asked", "answer", "complaint"),
    [
        (request("text"), {"feedback": " "}, "say something"),
        (request("choice", choices=["a"]), {"choice": "b"}, "choose one of 'a'"),
        (request("form", form={"type": "object", "required": ["x"]}), {"data": {}}, "'x' is a required property"),
        (request("approval"), {"feedback": "hm"}, "is_approved"),
        (request("approval", editable=["a"]), {"is_approved": True, "data": {"b": 1}}, "'b' may not be edited"),
    ],
)
def test_an_answer_that_does_not_fit_is_told_why(asked: HumanRequest, answer: dict[str, Any], complaint: str) -> None:
    assert complaint in "; ".join(faults(asked, HumanAnswer.model_validate(answer)))


def test_words_are_a_yes_if_they_fit_the_pattern() -> None:
    asked = request("approval", accept_pattern="(?i)^yes")

    assert complete(asked, HumanAnswer(feedback="Yes, do")).is_approved is True
    assert complete(asked, HumanAnswer(feedback="no")).is_approved is False
    assert complete(asked, HumanAnswer(is_approved=False, feedback="yes")).is_approved is False


def test_a_message_in_its_shortest_form_is_understood() -> None:
    assert message_from({"is_approved": True}).data.is_approved is True
    assert message_from({"entity_id": "n", "feedback": "x"}).entity_id == "n"
    with pytest.raises(TypeError, match="an answer is an object"):
        message_from("yes")


@pytest.mark.req("FL-6")
def test_pausing_is_a_status_and_its_end_brings_back_the_one_before() -> None:
    flow = read_flow(ASK)
    simulation = Simulation(flow, {"ask": Scripted(answer={"feedback": "x"})})
    simulation.run({"topic": "a"})
    asked = next(entry.seq for entry in simulation.ledger.since(0) if isinstance(entry, InputRequested))
    state: CheckpointRecord = simulation.ledger.at(asked)
    ledger = Ledger(state)
    ledger.record(RunPaused(at=EPOCH, by="ada"))
    paused = ledger.at()
    ledger.record(RunContinued(at=EPOCH, by="bob"))

    assert (paused.status, paused.metadata["paused"]["by"]) == (CheckpointStatus.PAUSED, "ada")
    assert ledger.state.status == CheckpointStatus.PENDING_INPUT
    assert validate_checkpoint(paused) == []
    assert validate_checkpoint(ledger.at()) == []


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ("deadline: {after: soon}", "'soon' is not a duration"),
        ("deadline: {after: 1d, effect: default}", "'answer' belongs to the effect 'default'"),
        ("deadline: {after: 1d, effect: escalate}", "'to' belongs to the effect 'escalate'"),
        ("reminders: [never]", "'never' is not a duration"),
        ("kind: choice", "'choices' belongs to the kind 'choice'"),
        ("kind: form, form: {type: nothing}", "the JSON schema is none"),
        ("prompt: '{{'", "template"),
    ],
)
def test_what_is_wrong_with_a_question_is_found_before_it_is_asked(fields: str, complaint: str) -> None:
    with pytest.raises(FlowDefinitionError, match=re.escape(complaint)):
        read_flow(f"id: f\nnodes:\n  ask: {{type: human, {fields}}}\n")


def test_what_is_wrong_with_an_approval_is_found_before_it_is_asked() -> None:
    approval = "{enabled: true, accept_pattern: '(', deadline: {after: soon}, promt: x}"
    with pytest.raises(FlowDefinitionError) as found:
        read_flow(f"id: f\nnodes:\n  pay: {{type: Work, approval: {approval}}}\n")

    assert {fault.code for fault in found.value.faults} == {"flow/unknown-field", "node/bad-field"}
    assert len(found.value.faults) == 3


@pytest.mark.req("RT-4")
def test_a_yes_is_for_what_it_was_said_about() -> None:
    flow = read_flow("id: f\nnodes:\n  pay: {type: Work, approval: {enabled: true}}\n")
    script = {"pay": Scripted(output="paid", answer={"is_approved": True})}
    first = Simulation(flow, script)
    first.run({"amount": 10})
    answered = next(entry.seq for entry in first.ledger.since(0) if isinstance(entry, InputReceived))
    base = first.ledger.at(answered)
    base.original_input = {"amount": 1_000_000}
    second = Simulation(flow, script, run_id="second")
    second.run(base=base)

    assert [entry for entry in second.ledger.since(0) if isinstance(entry, InputRequested)]


def test_the_time_of_a_node_begins_when_it_was_approved() -> None:
    llm = {"model": "m", "provider": "scripted", "replies": ["ok"]}
    node = NodeSpec.model_validate(
        {
            "id": "a",
            "type": "agent",
            "params": {"llm": llm},
            "approval": {"enabled": True},
            "error_handling": {"timeout_seconds": 10},
        }
    )
    state = Simulation(FlowSpec(id="f", nodes=[node]), {"a": Scripted(answer={"is_approved": True}, seconds=5)}).run({})

    assert state.node_states["a"].status == "success"


def test_a_question_whose_node_ran_out_of_time_is_closed() -> None:
    flow = read_flow(
        "id: f\nnodes:\n  ask: {type: human, prompt: q, error_handling: {timeout_seconds: 5, behavior: return}}\n"
    )
    state = Simulation(flow, {"ask": Scripted(answer={"feedback": "late"}, seconds=60)}).run({})

    assert state.node_states["ask"].error == {
        "type": "Timeout",
        "message": "it took longer than 5 s (error_handling.timeout_seconds)",
    }
    assert state.pending_inputs == {}
    assert validate_checkpoint(state) == []


def test_arguments_that_a_person_has_edited_have_to_fit_too_and_are_not_reused_for_others() -> None:
    schema = {"type": "object", "properties": {"to": {"type": "string"}}}
    tool = {"id": "send", "type": "Work", "side_effects": "write", "input_schema": schema}
    replies = [call("send", to="ada"), call("send", to="ada"), "ok"]
    wrong = {"a/send": Scripted(output="sent", answer={"is_approved": True, "data": {"to": 3}})}
    right = {"a/send": Scripted(output="sent", answer={"is_approved": True, "data": {"to": "eve"}})}
    refused = Simulation(agent(*replies, tools=[tool]), wrong)
    messages = refused.run({"input": "go"}).node_states["a"].internal_state["prompt_messages"]
    edited = Simulation(agent(*replies, tools=[tool]), right)
    edited.run({"input": "go"})

    assert "the arguments as they were edited do not fit: to: 3 is not of type 'string'" in messages[2]["content"]
    assert [path for path in edited.executed if "send" in path] == ["a/loop[1]/send[0]", "a/loop[2]/send[0]"]


def test_a_deadline_has_to_answer_what_was_asked() -> None:
    deadline = "{after: 1d, effect: default, answer: {choice: c}}"
    flow = read_flow(
        f"id: f\nnodes:\n  ask: {{type: human, prompt: q, kind: choice, choices: [a], deadline: {deadline}}}\n"
    )
    state = Simulation(flow, {}).run({})

    assert state.node_states["ask"].error is not None
    assert state.node_states["ask"].error["type"] == "BadAnswer"


def test_the_arguments_of_a_call_are_shown_exactly() -> None:
    tool = {"id": "send", "type": "Work", "side_effects": "write"}
    words = '{% raw %} {{ x }} \\ " é 😀'
    simulation = Simulation(
        agent(call("send", input=words), "ok", tools=[tool]), {"a/send": Scripted(answer={"is_approved": True})}
    )
    simulation.run({"input": "go"})
    asked = next(entry for entry in simulation.ledger.since(0) if isinstance(entry, InputRequested))

    assert json.dumps({"input": words}, ensure_ascii=False) in asked.request["prompt"]


def test_a_form_is_filled_in_with_its_data_alone() -> None:
    assert message_from({"data": {"age": 3}}).data.data == {"age": 3}
    assert message_from({"data": {"data": {"age": 3}}}).data.data == {"age": 3}
