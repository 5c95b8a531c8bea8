"""Neutral messages in each provider's form and back, prices, scripts, and what is said when something is missing."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from openai.types.chat import ChatCompletion

from holdfast import NonRetryableError
from holdfast.activities.connections import FILE_VARIABLE, resolve
from holdfast.activities.execution import execute
from holdfast.activities.llm import LlmNode
from holdfast.activities.models import Models, anthropic_model, openai_model, prices, read_messages
from holdfast.activities.models.adapter import Request, tool_call
from holdfast.activities.models.anthropic_messages import conversation
from holdfast.activities.models.data_urls import inline
from holdfast.activities.models.pydantic_ai_messages import conversation as pydantic_ai_conversation
from holdfast.activities.models.scripted_model import JOURNAL_VARIABLE, seconds_before
from holdfast.contracts.calls import NodeCall
from holdfast.contracts.messages import Message, ModelCall, ToolCall, ToolSchema, Usage
from holdfast.flows.params import ModelParams, Prices

PNG = "data:image/png;base64,iVBORw=="
PDF = "data:application/pdf;base64,JVBERg=="


def image(url: str = PNG, detail: str = "auto") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": detail}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


def file(url: str, **more: Any) -> dict[str, Any]:
    return {"type": "file", "file": {"url": url, **more}}


def user(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


def called(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": name, "name": "add", "arguments": {"a": 1}} for name in ids]}


def result(name: str, content: Any = "1") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "name": "add", "content": content}


def request(*messages: dict[str, Any], model: dict[str, Any] | None = None, **more: Any) -> Request:
    params = {"model": "m", **(model or {})}
    asked = ModelCall(path="a", run_id="r", idempotency_key="k", model=params, messages=list(messages), **more)
    return Request(asked, ModelParams.model_validate(params), read_messages(asked.messages))


def to_openai(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return openai_model.messages_of(read_messages(list(messages)))


def to_anthropic(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    return conversation(read_messages(list(messages)))[1]


@pytest.mark.req("AG-4")
@pytest.mark.parametrize("detail", ["auto", "low", "high"])
def test_text_and_images_go_to_openai_as_they_are_and_round_trip(detail: str) -> None:
    message = user(text("look"), image(detail=detail), image("https://x/y.jpg"))
    [read] = read_messages([message])
    [sent] = to_openai(message)
    shown = sent["content"][1]["image_url"]

    assert Message.model_validate(read.as_data()) == read
    assert read.role == "user"
    assert sent["content"][0] == text("look")
    assert (shown["url"], shown.get("detail", "auto")) == (PNG, detail)
    assert sent["content"][2] == {"type": "image_url", "image_url": {"url": "https://x/y.jpg"}}


def test_a_file_goes_to_openai_with_its_name() -> None:
    [sent] = to_openai(user(file(PDF, name="a.pdf")))

    assert sent["content"] == [{"type": "file", "file": {"filename": "a.pdf", "file_data": PDF}}]


def test_images_of_tools_results_follow_all_results_as_the_users() -> None:
    sent = to_openai(called("1", "2"), result("1", [text("seen"), image()]), result("2"), user(text("go on")))

    assert [message["role"] for message in sent] == ["assistant", "tool", "tool", "user", "user"]
    assert sent[1]["content"] == "seen"
    assert sent[3]["content"] == [{"type": "image_url", "image_url": {"url": PNG}}]
    assert to_openai(called("1"), result("1", [image()]))[-1]["role"] == "user"


def test_calls_go_back_to_openai_as_text_also_when_the_text_was_wrong() -> None:
    wrong = {"id": "2", "name": "add", "arguments": "{a", "fault": "no JSON"}
    [sent] = to_openai({"role": "assistant", "name": "the helper", "tool_calls": [*called("1")["tool_calls"], wrong]})
    right, back = sent["tool_calls"]

    assert json.loads(right["function"]["arguments"]) == {"a": 1}
    assert back["function"]["arguments"] == "{a"
    assert sent["name"] == "the_helper"


def test_tools_and_choice_are_sent_only_when_there_are_any() -> None:
    tool = ToolSchema(name="now")
    plain = openai_model.request_body(request(user(text("x")), tool_choice="required"))
    armed = openai_model.request_body(request(user(text("x")), tool_choice="required", tools=[tool]))
    same = anthropic_model.request_body(request(user(text("x")), tool_choice="required", tools=[tool]))

    assert "tools" not in plain
    assert "tool_choice" not in plain
    assert armed["tool_choice"] == "required"
    assert armed["tools"][0]["function"]["parameters"] == {"type": "object", "properties": {}}
    assert same["tool_choice"] == {"type": "any"}


def test_the_calls_own_format_wins_over_the_models() -> None:
    model = {"response_format": {"type": "json_object"}, "extra": {"seed": 1}}
    body = openai_model.request_body(request(model=model, response_format={"type": "text"}))

    assert body["response_format"] == {"type": "text"}
    assert body["seed"] == 1


def test_a_refusal_is_what_the_model_said() -> None:
    answer = ChatCompletion.model_validate(
        {
            "id": "1",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "finish_reason": "stop",
                    "message": {"role": "assistant", "content": None, "refusal": "I will not."},
                }
            ],
            "usage": {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "total_tokens": 14,
                "prompt_tokens_details": {"cached_tokens": 4},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
        }
    )
    reply = openai_model.reply_of(answer, "m")

    assert reply.message["content"] == "I will not."
    assert (reply.usage.cached_tokens, reply.usage.reasoning_tokens) == (4, 3)


@pytest.mark.parametrize(
    ("written", "arguments", "fault"),
    [
        ('{"a": 1}', {"a": 1}, None),
        ("", {}, None),
        ("  ", {}, None),
        ('{"a": 1', '{"a": 1', "not JSON"),
        ("[1]", "[1]", "not an object"),
        ('"a"', '"a"', "not an object"),
        ('{"a": NaN}', '{"a": NaN}', "not JSON"),
        ("[" * 100_000, "[" * 100_000, "not JSON"),
    ],
)
def test_arguments_are_an_object_or_a_fault(written: str, arguments: Any, fault: str | None) -> None:
    call = tool_call("1", "add", written)

    assert call.arguments == arguments
    assert call.fault is None if fault is None else fault in (call.fault or "")


def test_calls_without_an_id_get_one_each() -> None:
    first, second = tool_call(None, "add", "{}"), tool_call("", "add", "{}")

    assert first.id
    assert first.id != second.id


def test_anthropic_gets_the_systems_words_apart_and_results_in_one_turn() -> None:
    system = {"role": "system", "content": "Be brief."}
    late = {"role": "system", "content": "Be kind."}
    messages = read_messages([system, user(text("go")), called("1", "2"), result("1"), result("2"), late])
    words, turns = conversation(messages)

    assert words == "Be brief.\n\nBe kind."
    assert [turn["role"] for turn in turns] == ["user", "assistant", "user"]
    assert [block["type"] for block in turns[1]["content"]] == ["tool_use", "tool_use"]
    assert [block["tool_use_id"] for block in turns[2]["content"]] == ["1", "2"]


@pytest.mark.req("AG-4")
@pytest.mark.parametrize(
    ("part", "block"),
    [
        (image(), {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}),
        (image("https://x/y"), {"type": "image", "source": {"type": "url", "url": "https://x/y"}}),
        (
            file(PDF, name="a.pdf"),
            {
                "type": "document",
                "title": "a.pdf",
                "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERg=="},
            },
        ),
        (file("https://x/a.pdf"), {"type": "document", "source": {"type": "url", "url": "https://x/a.pdf"}}),
        (
            file("data:text/csv,a%2Cb"),
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a,b"}},
        ),
    ],
)
def test_images_and_files_become_anthropics_blocks(part: dict[str, Any], block: dict[str, Any]) -> None:
    assert to_anthropic(user(part))[0]["content"] == [block]
    assert to_anthropic(called("1"), result("1", [part]))[1]["content"][0]["content"] == [block]


def test_a_file_that_anthropic_does_not_take_is_named() -> None:
    with pytest.raises(NonRetryableError, match=r"llm/unsupported-file.*audio/mpeg.*'a.mp3'"):
        to_anthropic(user(file("data:audio/mpeg;base64,AAAA", name="a.mp3")))


def test_anthropic_sees_others_words_as_said_to_it_and_no_empty_text() -> None:
    other = {"role": "assistant", "name": "researcher", "content": "It rains."}
    turns = to_anthropic(user(text("weather?"), text(" ")), other)

    assert turns == [{"role": "user", "content": [text("weather?"), text("researcher: It rains.")]}]


def test_anthropic_sees_what_it_wrote_where_an_object_was_wanted() -> None:
    call = ToolCall(id="1", name="add", arguments="{a", fault="no JSON")
    [turn] = conversation([Message(role="assistant", tool_calls=[call])])[1]

    assert turn["content"][0]["input"] == {"invalid_arguments": "{a"}


def test_anthropic_is_told_of_json_in_words_where_it_has_no_schema() -> None:
    body = anthropic_model.request_body(request(user(text("x")), response_format={"type": "json_object"}))

    assert "one JSON object" in body["system"]
    assert "output_config" not in body


def test_thinking_is_kept_signed_and_in_its_order_and_goes_back_so() -> None:
    blocks = [
        {"type": "thinking", "thinking": "first", "signature": "s1"},
        {"type": "text", "text": "Let me see."},
        {"type": "redacted_thinking", "data": "xyz"},
        {"type": "tool_use", "id": "1", "name": "add", "input": {"a": 1}},
    ]
    usage = {"input_tokens": 3, "output_tokens": 9, "output_tokens_details": {"thinking_tokens": 4}}
    answer = AnthropicMessage.model_validate(
        {
            "id": "1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": blocks,
            "stop_reason": "tool_use",
            "usage": usage,
        }
    )
    reply = anthropic_model.reply_of(answer, "m")

    assert reply.message["reasoning"] == "first"
    assert reply.message["content"] == "Let me see."
    assert reply.message["tool_calls"] == called("1")["tool_calls"]
    assert to_anthropic(json.loads(json.dumps(reply.message)))[0]["content"] == blocks
    assert (reply.finish_reason, reply.usage.reasoning_tokens) == ("tool_calls", 4)


def test_pydantic_ai_gets_one_request_between_two_answers() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        user(text("look"), image(detail="low"), image("https://x/y")),
        called("1"),
        result("1"),
        user(text("and now?")),
    ]
    sent: list[Any] = list(pydantic_ai_conversation(read_messages(messages)))

    assert [[part.part_kind for part in message.parts] for message in sent] == [
        ["system-prompt", "user-prompt"],
        ["tool-call"],
        ["tool-return", "user-prompt"],
    ]
    words, held, address = sent[0].parts[1].content
    assert (words, held.media_type, address.url) == ("look", "image/png", "https://x/y")


@pytest.mark.parametrize("url", ["data:image/png;base64", "data:image/png;base64,@@@"])
def test_a_data_url_that_is_none_is_final(url: str) -> None:
    with pytest.raises(NonRetryableError, match="llm/bad-data-url"):
        inline(url)


@pytest.mark.parametrize(
    ("message", "where"),
    [
        ({"role": "boss", "content": "x"}, "role"),
        ({"role": "user", "content": [{"type": "video", "url": "x"}]}, "content"),
        ({"content": "x"}, "role"),
    ],
)
def test_a_message_that_is_none_is_named_by_its_number(message: dict[str, Any], where: str) -> None:
    with pytest.raises(NonRetryableError, match=rf"llm/bad-message\] message 2 .*{where}"):
        read_messages([{"role": "user", "content": "fine"}, message])


@pytest.mark.parametrize(
    ("provider", "package", "module"),
    [("anthropic", "anthropic", "anthropic_model"), ("pydantic-ai", "pydantic_ai", "pydantic_ai_model")],
)
async def test_a_missing_extra_is_named(
    monkeypatch: pytest.MonkeyPatch, provider: str, package: str, module: str
) -> None:
    monkeypatch.delitem(sys.modules, f"holdfast.activities.models.{module}", raising=False)
    monkeypatch.delitem(sys.modules, "holdfast.activities.models.pydantic_ai_messages", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    asked = ModelCall(
        path="a", run_id="r", idempotency_key="k", model={"model": "m", "provider": provider}, messages=[]
    )
    with pytest.raises(NonRetryableError, match=rf"pip install 'holdfast\[{provider}\]'"):
        await Models().call(asked)


USED = Usage(prompt_tokens=1_000_000, completion_tokens=2_000_000, total_tokens=3_000_000)


def test_the_authors_prices_win_over_the_list() -> None:
    own = Prices(prompt=1, completion=2)

    assert prices.cost(ModelParams(model="gpt-4o", prices=own), "gpt-4o", USED) == pytest.approx(5.0)
    assert prices.cost(ModelParams(model="gpt-4o"), "gpt-4o-2024-08-06", USED) == pytest.approx(22.5)


@pytest.mark.parametrize(
    ("model", "answered"),
    [("openai:gpt-4o", "gpt-4o"), ("openai:gpt-4o", "some-proxy-name")],
)
def test_a_model_of_pydantic_ai_is_priced_by_its_provider(model: str, answered: str) -> None:
    assert prices.cost(ModelParams(model=model, provider="pydantic-ai"), answered, USED) == pytest.approx(22.5)


def test_nobody_knows_the_price_of_an_unknown_model_or_of_nothing() -> None:
    scripted = ModelParams(model="gpt-4o", provider="scripted", replies=[])

    assert prices.cost(ModelParams(model="home-made"), "home-made", USED) is None
    assert prices.cost(ModelParams(model="gpt-4o"), "gpt-4o", Usage()) is None
    assert prices.cost(scripted, "gpt-4o", USED) is None


def test_without_the_extra_only_the_authors_prices_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "_price_list", lambda: None)

    assert prices.cost(ModelParams(model="gpt-4o"), "gpt-4o", USED) is None


def scripted(*replies: Any, prompt: str = "go", key: str = "k") -> ModelCall:
    model = {"model": "demo", "provider": "scripted", "replies": list(replies)}
    messages = [{"role": "user", "content": prompt}]
    return ModelCall(path="ask", run_id="r", idempotency_key=key, model=model, messages=messages)


async def test_a_script_answers_with_texts_and_calls_and_counts_roughly() -> None:
    models = Models()
    said = await models.call(scripted("Hello, whoever you are.", prompt="say hello"))
    asked = await models.call(scripted({"tool_calls": [{"name": "add", "arguments": {"a": 1}}]}))

    assert said.message == {"role": "assistant", "content": "Hello, whoever you are."}
    assert (said.usage.llm_calls, said.usage.prompt_tokens, said.usage.cost) == (1, 2, None)
    assert said.usage.total_tokens == said.usage.prompt_tokens + said.usage.completion_tokens > 2
    assert (said.finish_reason, asked.finish_reason) == ("stop", "tool_calls")
    assert asked.message["tool_calls"][0]["name"] == "add"


async def test_a_node_gives_the_answer_what_came_with_it_and_what_it_used() -> None:
    reply: dict[str, Any] = {
        "content": "42",
        "reasoning": "6 * 7",
        "tool_calls": [{"id": "1", "name": "add", "arguments": {}}],
    }
    params: dict[str, Any] = {
        "model": "demo",
        "provider": "scripted",
        "replies": [reply, "plain"],
        "prompt": "Say {{ n }}",
    }
    params |= {"system": "Be {{ mood }}", "prices": {"prompt": 1e6, "completion": 0}, "fallback": {"model": "other"}}
    asked = NodeCall(
        node_id="ask",
        path="ask",
        type="llm",
        params=params,
        input_data={"n": 42, "mood": "brief"},
        run_id="r",
        flow_id="f",
        idempotency_key="k",
    )
    done = await execute(asked, LlmNode(Models()).run)

    assert done.output["content"] == "42"
    assert done.output["reasoning"] == "6 * 7"
    assert done.output["tool_calls"] == [{"id": "1", "name": "add", "arguments": {}}]
    assert (done.output["model"], done.output["finish_reason"]) == ("demo", "tool_calls")
    assert set(done.output["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}
    assert done.usage is not None
    # "Be brief" and "Say 42" are 14 characters.
    assert (done.usage["llm_calls"], done.usage["prompt_tokens"], done.usage["cost"]) == (1, 3, 3.0)


async def test_a_node_says_nothing_of_calls_or_reasoning_where_there_are_none() -> None:
    params = {"model": "demo", "provider": "scripted", "replies": ["plain"], "prompt": "go"}
    asked = NodeCall(node_id="ask", path="ask", type="llm", params=params, run_id="r", flow_id="f", idempotency_key="k")
    done = await execute(asked, LlmNode(Models()).run)

    assert set(done.output) == {"content", "finish_reason", "model", "usage"}


async def test_a_script_that_has_ended_is_final() -> None:
    with pytest.raises(NonRetryableError, match=r"llm/script-ended.*'demo'"):
        await Models().call(scripted())


async def test_every_scripted_call_is_one_line_of_the_journal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    monkeypatch.setenv(JOURNAL_VARIABLE, str(journal))
    for key in ("r/1", "r/2"):
        await Models().call(scripted("x", key=key))

    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    assert lines == [{"path": "ask", "key": key, "messages": 1} for key in ("r/1", "r/2")]


def test_a_reply_takes_the_time_it_says_and_no_other_does() -> None:
    replies = ["at once", {"content": "late", "seconds": 2}, {"when": "slow", "content": "x", "seconds": 3}]
    go: list[dict[str, Any]] = [{"role": "user", "content": "go"}]

    assert seconds_before(replies, go) == 0
    assert seconds_before(replies, [*go, {"role": "assistant", "content": "at once"}, *go]) == 2
    assert seconds_before(replies, [{"role": "user", "content": "slow, please"}]) == 3


def test_anthropic_is_known_by_its_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FILE_VARIABLE, "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant")
    found = resolve("anthropic")

    assert found.base_url is None
    assert found.api_key is not None
    assert found.api_key.get_secret_value() == "sk-ant"
