"""What a model's reply means, in every mode, however it was written."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.contracts.messages import Message, ToolCall, ToolSchema
from holdfast.engine.replies import FORMATS, Decision, NotUnderstoodError, find_json, instructions, read_reply

MODES = ["function_calling", "structured_output", "xml", "react"]


def read(mode: str, text: str | None, **fields: Any) -> Decision:
    return read_reply(mode, Message(role="assistant", content=text, **fields), 3)


def call(name: str, arguments: Any, number: int = 0, fault: str | None = None) -> ToolCall:
    return ToolCall(id=f"call-3-{number}", name=name, arguments=arguments, fault=fault)


def refusal(mode: str, text: str | None) -> str:
    with pytest.raises(NotUnderstoodError) as refused:
        read(mode, text)
    return str(refused.value)


@pytest.mark.req("AG-5")
def test_native_calls_are_taken_as_they_are() -> None:
    wanted = [ToolCall(id="x", name="search", arguments={"q": 1}), ToolCall(id="y", name="read", arguments="{")]

    assert read("function_calling", "I look.", tool_calls=wanted) == Decision("I look.", wanted)
    assert read("function_calling", None, tool_calls=wanted, reasoning="Hm.") == Decision("Hm.", wanted)
    assert read("function_calling", "Ada.", reasoning="Hm.") == Decision("Hm.", answer="Ada.")


@pytest.mark.parametrize("text", [None, "", "  \n"])
def test_an_empty_reply_is_not_understood_in_any_mode(text: str | None) -> None:
    assert refusal("function_calling", text) == "Your reply was empty. Call a tool, or write your final answer."
    for mode in MODES[1:]:
        assert refusal(mode, text) == f"Your reply was empty. {FORMATS[mode]}"


@pytest.mark.req("AG-5")
@pytest.mark.parametrize(
    ("text", "decision"),
    [
        (
            '{"thought": "t", "action": "search", "action_input": {"q": 1}}',
            Decision("t", [call("search", {"q": 1})]),
        ),
        (
            '```json\n{"thought": "t", "action": "search", "action_input": {"q": 1}}\n```',
            Decision("t", [call("search", {"q": 1})]),
        ),
        (
            'Of course! {"action": "search", "action_input": "{\\"q\\": 1}"} I hope it helps.',
            Decision("", [call("search", {"q": 1})]),
        ),
        ('{"action": "now"}', Decision("", [call("now", {})])),
        ('{"action": "now", "action_input": null}', Decision("", [call("now", {})])),
        ('{"action": "now", "action_input": ""}', Decision("", [call("now", {})])),
        (
            '{"action": "search", "action_input": "Ada"}',
            Decision("", [call("search", "Ada", fault="it is not a JSON object")]),
        ),
        (
            '{"action": "search", "action_input": [1]}',
            Decision("", [call("search", [1], fault="it is not a JSON object")]),
        ),
        ('{"thought": null, "action": "finish", "action_input": "Ada."}', Decision("", answer="Ada.")),
        ('{"thought": "t", "action": "final_answer", "action_input": {"n": 1}}', Decision("t", answer={"n": 1})),
        ('{"thought": "t", "action": "answer", "action_input": 0}', Decision("t", answer=0)),
    ],
)
def test_a_structured_reply_is_one_step(text: str, decision: Decision) -> None:
    assert read("structured_output", text) == decision


@pytest.mark.req("AG-5")
@pytest.mark.parametrize(
    ("text", "decision"),
    [
        (
            '<output><thought>t</thought><action>search</action><action_input>{"q": 1}</action_input></output>',
            Decision("t", [call("search", {"q": 1})]),
        ),
        (
            'Sure.\n<action> search </action>\n<action_input>```json\n{"q": 1}\n```</action_input>',
            Decision("", [call("search", {"q": 1})]),
        ),
        ('<action>search<action_input>{"q": 1}', Decision("", [call("search", {"q": 1})])),
        ("<action>now</action>", Decision("", [call("now", {})])),
        (
            '<action>a</action><action_input>{"q": 1}</action_input>'
            '<action>b</action><action_input>{"q": 2}</action_input><action>c</action>',
            Decision("", [call("a", {"q": 1}), call("b", {"q": 2}, 1), call("c", {}, 2)]),
        ),
        (
            "<action>search</action><action_input>Ada</action_input>",
            Decision("", [call("search", "Ada", fault="it is not a JSON object")]),
        ),
        ("<output><thought>t</thought><answer>Ada.</answer></output>", Decision("t", answer="Ada.")),
        ("<output><answer>Ada,\nof course.</output>", Decision("", answer="Ada,\nof course.")),
        ("<answer>Ada.", Decision("", answer="Ada.")),
    ],
)
def test_an_xml_reply_is_read_also_where_tags_are_missing(text: str, decision: Decision) -> None:
    assert read("xml", text) == decision


@pytest.mark.req("AG-5")
@pytest.mark.parametrize(
    ("text", "decision"),
    [
        ('Thought: t\nAction: search\nAction Input: {"q": 1}', Decision("t", [call("search", {"q": 1})])),
        (
            'I think so.\nAction: `search`\nAction Input: ```json\n{"q": 1}\n```',
            Decision("I think so.", [call("search", {"q": 1})]),
        ),
        (
            'Thought: t\nAction: search\nAction Input: {"q": 1}\nObservation: Ada\nThought: u\nAnswer: invented',
            Decision("t", [call("search", {"q": 1})]),
        ),
        (
            'Action: a\nAction Input: {"q": 1}\nAction: b\nAction Input: {"q": 2}',
            Decision("", [call("a", {"q": 1}), call("b", {"q": 2}, 1)]),
        ),
        ("thought: t\nACTION: now", Decision("t", [call("now", {})])),
        (
            'Action: a\nAction Input: {"q":\n 1}\nAnswer: not yet',
            Decision("", [call("a", {"q": 1})]),
        ),
        ("Thought: t\nAnswer: Ada,\nof course.", Decision("t", answer="Ada,\nof course.")),
        ("Thought: t\nFinal Answer: Ada.", Decision("t", answer="Ada.")),
        ("Thought: a\nThought: b\nAnswer: one\nAnswer: two", Decision("a b", answer="two")),
    ],
)
def test_a_react_reply_is_read_line_by_line(text: str, decision: Decision) -> None:
    assert read("react", text) == decision


@pytest.mark.parametrize(
    ("mode", "text", "said"),
    [
        ("structured_output", "Ada.", f"Your reply is not a JSON object. {FORMATS['structured_output']}"),
        ("structured_output", "[1]", f"Your reply is not a JSON object. {FORMATS['structured_output']}"),
        ("structured_output", '{"thought": "t"}', f"Your reply has no 'action'. {FORMATS['structured_output']}"),
        ("structured_output", '{"action": 1}', f"Your reply has no 'action'. {FORMATS['structured_output']}"),
        ("structured_output", '{"action": "finish"}', "Your final answer is empty: put it into 'action_input'."),
        (
            "structured_output",
            '{"action": "finish", "action_input": ""}',
            "Your final answer is empty: put it into 'action_input'.",
        ),
        ("xml", "Ada.", f"Your reply has neither <action> nor <answer>. {FORMATS['xml']}"),
        ("xml", "<answer> </answer>", "Your <answer> is empty."),
        ("react", "Ada.", f"Your reply has neither an 'Action:' nor an 'Answer:'. {FORMATS['react']}"),
        (
            "react",
            "Observation: x\nAnswer: y",
            f"Your reply has neither an 'Action:' nor an 'Answer:'. {FORMATS['react']}",
        ),
        ("react", "Answer:", "Your answer is empty."),
    ],
)
def test_what_is_not_understood_is_said_in_words_the_model_can_act_on(mode: str, text: str, said: str) -> None:
    assert refusal(mode, text) == said


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": 1}', {"a": 1}),
        ("7", 7),
        ('"text"', "text"),
        ("null", None),
        ("```\n[1, 2]\n```", [1, 2]),
        ("```json\n{}\n```", {}),
        ("See {this} and then [1] and {}", [1]),
        ('It is {"a": {"b": [1]}}, I think {', {"a": {"b": [1]}}),
        ("nothing", None),
        ("", None),
        ('{"n": NaN}', None),
        ('{"n": 1e999}', None),
        ('{"half": "\\ud83d"}', None),
        ("[" * 150 + "]" * 150, None),
        ("{" * 100_000, None),
        ("[" * 100_000, None),
    ],
)
def test_json_is_found_wherever_it_is(text: str, found: Any) -> None:
    assert find_json(text) == found


PIECES = st.sampled_from(
    [
        *("<thought>", "</thought>", "<action>", "</action>", "<action_input>", "</action_input>", "<answer>"),
        *("</answer>", "</output>", "\nThought:", "\nAction:", "\nAction Input:", "\nObservation:", "\nAnswer:"),
        *("```json\n", "```", '{"action": ', '"action_input": ', '"finish"', "{", "}", "[", "]", '"', ", ", "null"),
    ]
)
TEXTS = st.one_of(st.text(), st.lists(st.one_of(PIECES, PIECES, st.text(max_size=5)), max_size=12).map("".join))


@given(st.sampled_from(MODES), TEXTS)
@example("structured_output", '{"action": "a", "action_input": 1' + "0" * 5000 + "}")
@example("structured_output", '{"action": "a", "action_input": ' + "[" * 900 + "]" * 900 + "}")
@example("structured_output", '{"action": "a", "action_input": {"half": "\\ud83d"}}')
@example("structured_output", '{"action": "finish", "action_input": NaN}')
@example("xml", "<action></action>")
def test_no_text_whatever_is_more_than_not_understood(mode: str, text: str) -> None:
    try:
        decision = read(mode, text)
    except NotUnderstoodError:
        return
    assert decision.calls or decision.answer is not None
    # What was decided comes back from a checkpoint as it was.
    for entry in decision.calls:
        assert ToolCall.model_validate_json(entry.model_dump_json()) == entry
    assert json.loads(json.dumps(decision.answer)) == decision.answer


def test_only_a_model_that_is_given_no_tools_by_its_provider_is_told_how_to_use_them() -> None:
    tools = [ToolSchema(name="search", parameters={"type": "object"})]

    assert instructions("function_calling", tools) == ""
    assert instructions("xml", []) == f"You have no tools.\n\n{FORMATS['xml']}"
    assert instructions("react", tools) == (
        f'You have these tools:\n- search: no description Input: {{"type": "object"}}\n\n{FORMATS["react"]}'
    )
