"""Every provider's protocol against a server that speaks it: answers, tools, streams, and how each failure ends."""

import asyncio
import json
import threading
import uuid
from collections.abc import AsyncGenerator, Generator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from holdfast import NonRetryableError
from holdfast.activities.failures import ExternalError
from holdfast.activities.heartbeat import HeartbeatInterceptor
from holdfast.activities.model_calls import ModelCalls
from holdfast.activities.models import Models
from holdfast.contracts.messages import ModelCall, ModelReply, ToolSchema
from holdfast.contracts.names import CALL_MODEL, NODE_FAILED
from holdfast.starter.embedded import free_port
from tests.servers.llm import LlmServer

FIXTURES = Path(__file__).parents[1] / "servers" / "models.json"
OPENAI = {"model": "gpt-4o", "connection": "local"}
ANTHROPIC = {"model": "claude-sonnet-4-6", "provider": "anthropic"}
PYDANTIC_AI = {"model": "openai-chat:gpt-4o", "provider": "pydantic-ai", "connection": "local"}
EVERY = pytest.mark.parametrize("model", [OPENAI, ANTHROPIC, PYDANTIC_AI], ids=["openai", "anthropic", "pydantic-ai"])
OWN = pytest.mark.parametrize("model", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
BOTH_WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
ADD = ToolSchema(name="add", parameters={"type": "object", "properties": {"a": {"type": "number"}}})


@pytest.fixture(scope="module")
def server() -> Generator[LlmServer]:
    with LlmServer(FIXTURES) as running:
        yield running


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch, server: LlmServer) -> None:
    monkeypatch.setenv("HOLDFAST_CONNECTION_LOCAL_BASE_URL", server.url)
    monkeypatch.setenv("HOLDFAST_CONNECTION_LOCAL_API_KEY", "sk-1")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-2")


@pytest.fixture
async def models() -> AsyncGenerator[Models]:
    made = Models()
    yield made
    await made.close()


def call(model: dict[str, Any], prompt: str, *later: dict[str, Any], **more: Any) -> ModelCall:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}, *later]
    return ModelCall(path="ask", run_id="run", idempotency_key="run/ask", model=model, messages=messages, **more)


async def failure(models: Models, asked: ModelCall) -> ExternalError:
    with pytest.raises(ExternalError) as caught:
        await models.call(asked)
    return caught.value


@EVERY
@BOTH_WAYS
async def test_a_tool_is_called_and_its_result_is_understood(
    models: Models, model: dict[str, Any], stream: bool
) -> None:
    first = await models.call(call(model, "add one and two", tools=[ADD], stream=stream))
    [asked] = first.message["tool_calls"]
    result = {"role": "tool", "tool_call_id": asked["id"], "name": "add", "content": "3"}
    second = await models.call(call(model, "add one and two", first.message, result, tools=[ADD], stream=stream))

    assert asked == {"id": "call_1", "name": "add", "arguments": {"a": 1, "b": 2}}
    assert (first.finish_reason, second.finish_reason) == ("tool_calls", "stop")
    assert second.message == {"role": "assistant", "content": "It is 3."}
    assert (first.usage.llm_calls, first.usage.prompt_tokens, first.usage.completion_tokens) == (1, 20, 10)
    assert second.usage.total_tokens == 45


@EVERY
async def test_a_streamed_answer_is_the_whole_one(models: Models, model: dict[str, Any]) -> None:
    whole = await models.call(call(model, "tell a story"))
    streamed = await models.call(call(model, "tell a story", stream=True))

    assert whole.message["content"] == "Once upon a time there was a worker that never forgot."
    assert streamed == whole


@EVERY
async def test_an_answer_that_ran_out_of_tokens_says_so_alike(models: Models, model: dict[str, Any]) -> None:
    assert (await models.call(call(model, "run out of room"))).finish_reason == "length"


@BOTH_WAYS
async def test_signed_thinking_goes_back_with_the_next_request(models: Models, stream: bool) -> None:
    thinking = {**ANTHROPIC, "extra": {"thinking": {"type": "enabled", "budget_tokens": 1024}}}
    first = await models.call(call(thinking, "think, then add", tools=[ADD], stream=stream))
    result = {"role": "tool", "tool_call_id": "call_2", "content": "2"}
    second = await models.call(call(thinking, "think, then add", first.message, result, tools=[ADD], stream=stream))
    forgetful = {name: value for name, value in first.message.items() if name != "provider_data"}
    refused = await failure(models, call(thinking, "think, then add", forgetful, result, tools=[ADD]))

    assert first.message["reasoning"] == "two numbers, one sum"
    assert "signed-by-the-provider" in json.dumps(first.message["provider_data"])
    assert "c2VjcmV0" in json.dumps(first.message["provider_data"])
    assert second.message["content"] == "Added."
    assert refused.kind == "BadRequestError"


@BOTH_WAYS
async def test_the_thinking_of_a_compatible_server_is_kept_apart_from_its_answer(models: Models, stream: bool) -> None:
    reply = await models.call(call({**OPENAI, "model": "deepseek-r1"}, "think aloud", stream=stream))

    assert reply.message == {"role": "assistant", "content": "42", "reasoning": "six times seven"}


@pytest.mark.parametrize("model", [OPENAI, PYDANTIC_AI], ids=["openai", "pydantic-ai"])
@BOTH_WAYS
async def test_arguments_that_are_no_object_are_a_fault_of_the_call_and_not_of_the_run(
    models: Models, model: dict[str, Any], stream: bool
) -> None:
    reply = await models.call(call(model, "call it badly", tools=[ADD], stream=stream))
    broken, array, none = reply.message["tool_calls"]

    assert broken["arguments"] == '{"a": 1,'
    assert "not JSON" in broken["fault"]
    assert array["arguments"] == "[1, 2]"
    assert "not an object" in array["fault"]
    assert none == {"id": "call_5", "name": "now", "arguments": {}}


@EVERY
@pytest.mark.parametrize(
    ("status", "kind", "again"),
    [
        (400, "BadRequestError", False),
        (401, "AuthenticationError", False),
        (403, "PermissionDeniedError", False),
        (404, "NotFoundError", False),
        (408, "APIStatusError", True),
        (409, "ConflictError", True),
        (422, "UnprocessableEntityError", False),
        (500, "InternalServerError", True),
        (503, "InternalServerError", True),
        (529, "InternalServerError", True),
    ],
)
async def test_a_refusal_is_retried_only_where_that_can_help(
    models: Models, server: LlmServer, model: dict[str, Any], status: int, kind: str, again: bool
) -> None:
    before = len(server.journal())
    error = await failure(models, call(model, f"answer {status}"))

    assert (error.kind, error.retryable, error.details) == (kind, again, {"status_code": status})
    assert "no good" in str(error)
    # The SDK has not tried again by itself.
    assert len(server.journal()) == before + 1


@EVERY
@BOTH_WAYS
async def test_a_rate_limit_says_when_to_come_back(models: Models, model: dict[str, Any], stream: bool) -> None:
    error = await failure(models, call(model, "be limited", stream=stream))

    assert (error.kind, error.retryable, error.retry_after) == ("RateLimited", True, 7.0)


@EVERY
async def test_a_broken_connection_is_told_from_a_broken_stream_and_from_nonsense(
    models: Models, model: dict[str, Any]
) -> None:
    hung_up = await failure(models, call(model, "hang up"))
    cut = await failure(models, call(model, "stop in the middle", stream=True))
    garbled = await failure(models, call(model, "garble it"))

    assert (hung_up.kind, hung_up.retryable) == ("LlmUnreachable", True)
    assert (cut.kind, cut.retryable) == ("LlmStreamCut", True)
    assert (garbled.kind, garbled.retryable) == ("LlmEmpty", True)


@EVERY
async def test_a_server_that_is_not_there_may_come_back(
    models: Models, model: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    monkeypatch.setenv("HOLDFAST_CONNECTION_LOCAL_BASE_URL", nowhere)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", nowhere)
    error = await failure(models, call(model, "hello"))

    assert (error.kind, error.retryable) == ("LlmUnreachable", True)


async def test_a_provider_that_nobody_knows_is_final(models: Models) -> None:
    model = {"model": "nobody:model", "provider": "pydantic-ai"}
    with pytest.raises(NonRetryableError, match=r"llm/bad-provider.*nobody:model"):
        await models.call(call(model, "hello"))


async def test_a_call_costs_what_the_list_or_the_author_says(models: Models) -> None:
    listed = await models.call(call(OPENAI, "hello"))
    dearer = await models.call(call({**OPENAI, "prices": {"prompt": 1000, "completion": 5000}}, "hello"))
    unknown = await models.call(call({**OPENAI, "model": "home-made"}, "hello"))

    assert listed.usage.cost == pytest.approx(1000 * 2.5e-6 + 200 * 10e-6)
    assert dearer.usage.cost == pytest.approx(2.0)
    assert unknown.usage.cost is None


class Wire(ThreadingHTTPServer):
    """Keeps what it was sent, and answers with what it was given: data, or bytes as they are."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}"
        self.seen: list[dict[str, Any]] = []
        self.headers: dict[str, str] = {}
        self.answer: Any = {}

    def events(self, *events: dict[str, Any]) -> None:
        """Answer with a stream of these, which then ends."""
        lines = [f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n" for event in events]
        self.answer = "".join(lines).encode()


class _Handler(BaseHTTPRequestHandler):
    server: Wire  # pyright: ignore[reportIncompatibleVariableOverride] (it is the one that made this)

    def do_POST(self) -> None:
        self.server.seen.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.server.headers = {name.lower(): value for name, value in self.headers.items()}
        body, kind = self.server.answer, "text/html"
        if not isinstance(body, bytes):
            body, kind = json.dumps(body).encode(), "application/json"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream" if body.startswith(b"event:") else kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def wire(monkeypatch: pytest.MonkeyPatch) -> Generator[Wire]:
    running = Wire()
    monkeypatch.setenv("HOLDFAST_CONNECTION_LOCAL_BASE_URL", running.url)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", running.url)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


COMPLETION = {
    "id": "1",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "ok"}}],
}
MESSAGE = {
    "id": "1",
    "type": "message",
    "role": "assistant",
    "model": "m",
    "content": [{"type": "text", "text": "ok"}],
    "stop_reason": "end_turn",
    "usage": {"input_tokens": 3, "output_tokens": 1, "cache_read_input_tokens": 5, "cache_creation_input_tokens": 2},
}
PICTURE = [
    {"type": "text", "text": "what is it?"},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw==", "detail": "high"}},
]


@pytest.mark.req("AG-4")
async def test_an_image_its_detail_and_every_option_arrive_at_an_openai_endpoint(models: Models, wire: Wire) -> None:
    wire.answer = COMPLETION
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    model = {**OPENAI, "temperature": 0.5, "max_tokens": 9, "extra": {"top_k": 3}}
    await models.call(call(model, "", {"role": "user", "content": PICTURE}, response_format=wanted))
    [sent] = wire.seen

    assert sent["messages"][-1]["content"] == PICTURE
    assert (sent["temperature"], sent["max_tokens"], sent["top_k"]) == (0.5, 9, 3)
    assert sent["response_format"] == wanted
    assert wire.headers["idempotency-key"] == "run/ask"
    assert wire.headers["authorization"] == "Bearer sk-1"


@pytest.mark.req("AG-4")
async def test_an_image_and_every_option_arrive_at_anthropic(models: Models, wire: Wire) -> None:
    wire.answer = MESSAGE
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    model = {**ANTHROPIC, "temperature": 0.5, "extra": {"top_k": 3, "output_config": {"effort": "low"}}}
    reply = await models.call(
        call(model, "look", {"role": "user", "content": PICTURE}, response_format=wanted, tools=[ADD])
    )
    [sent] = wire.seen

    picture = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
    assert sent["messages"][0]["content"][-1] == {"type": "image", "source": picture}
    assert (sent["temperature"], sent["max_tokens"], sent["top_k"]) == (0.5, 4096, 3)
    assert sent["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": schema}}
    assert sent["system"] == "Be brief."
    assert sent["tools"][0]["input_schema"] == ADD.parameters
    assert wire.headers["idempotency-key"] == "run/ask"
    assert (reply.usage.prompt_tokens, reply.usage.cached_tokens, reply.usage.total_tokens) == (10, 5, 11)


async def test_headers_of_a_connection_are_sent(
    models: Models, wire: Wire, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wire.answer = COMPLETION
    file = tmp_path / "connections.yaml"
    file.write_text("local: {headers: {X-Team: blue}}")
    monkeypatch.setenv("HOLDFAST_CONNECTIONS", str(file))
    await models.call(call(OPENAI, "hello"))

    assert wire.headers["x-team"] == "blue"


@OWN
async def test_an_answer_without_content_may_be_another_next_time(
    models: Models, wire: Wire, model: dict[str, Any]
) -> None:
    wire.answer = {**COMPLETION, "choices": []} if model is OPENAI else {**MESSAGE, "content": []}
    empty = await failure(models, call(model, "hello"))
    wire.answer = b"<html>Sign in to the proxy</html>"
    page = await failure(models, call(model, "hello"))

    assert (empty.kind, empty.retryable) == ("LlmEmpty", True)
    assert (page.kind, page.retryable) == ("LlmEmpty", True)


async def test_an_error_that_is_sent_as_a_success_is_told(models: Models, wire: Wire) -> None:
    wire.answer = {"error": {"code": 502, "message": "upstream is down"}}
    error = await failure(models, call(OPENAI, "hello"))

    assert error.kind == "LlmEmpty"
    assert "upstream is down" in str(error)


def _openai_chunk(**delta: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": None}
    return {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


START = {"type": "message_start", "message": {**MESSAGE, "content": [], "stop_reason": None}}


@OWN
async def test_a_stream_that_ends_politely_but_too_early_is_cut(
    models: Models, wire: Wire, model: dict[str, Any]
) -> None:
    if model is ANTHROPIC:
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        delta = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Once"}}
        wire.events(START, block, delta)
    else:
        wire.events(_openai_chunk(role="assistant", content="Once"), _openai_chunk(content=" upon"))
    error = await failure(models, call(model, "hello", stream=True))

    assert (error.kind, error.retryable) == ("LlmStreamCut", True)


@OWN
async def test_an_error_inside_a_stream_is_told_and_tried_again(
    models: Models, wire: Wire, model: dict[str, Any]
) -> None:
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    wire.events(START if model is ANTHROPIC else _openai_chunk(content="Once"), overloaded)
    error = await failure(models, call(model, "hello", stream=True))

    assert (error.kind, error.retryable) == ("LlmStreamCut", True)
    assert "Overloaded" in str(error)


async def test_broken_arguments_in_anthropics_stream_are_a_fault_of_the_call(models: Models, wire: Wire) -> None:
    block: dict[str, Any] = {"type": "tool_use", "id": "t", "name": "add", "input": {}}
    delta = {"type": "input_json_delta", "partial_json": '{"a": '}
    wire.events(
        START,
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 8}},
        {"type": "message_stop"},
    )
    reply = await models.call(call(ANTHROPIC, "hello", stream=True))
    [asked] = reply.message["tool_calls"]

    assert asked["arguments"] == '{"a": '
    assert "not JSON" in asked["fault"]
    assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (10, 8)


@workflow.defn
class _Asking:
    @workflow.run
    async def run(self, asked: ModelCall) -> ModelReply:
        return await workflow.execute_activity(
            CALL_MODEL,
            asked,
            result_type=ModelReply,
            start_to_close_timeout=timedelta(seconds=30),
            heartbeat_timeout=timedelta(seconds=5),
            retry_policy=RetryPolicy(initial_interval=timedelta(milliseconds=10), maximum_attempts=2),
        )


class Asker:
    """Runs one model call as the activity that agents use, on the real server."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.task_queue = f"test-{uuid.uuid4().hex}"

    async def start(self, asked: ModelCall) -> WorkflowHandle[Any, ModelReply]:
        return await self.client.start_workflow(_Asking.run, asked, id=uuid.uuid4().hex, task_queue=self.task_queue)


@pytest.fixture
async def asker(client: Client, models: Models) -> AsyncGenerator[Asker]:
    body = ModelCalls(models)

    @activity.defn(name=CALL_MODEL)
    async def call_model(asked: ModelCall) -> ModelReply:
        return await body(asked)

    asker = Asker(client)
    async with Worker(
        client,
        task_queue=asker.task_queue,
        workflows=[_Asking],
        activities=[call_model],
        interceptors=[HeartbeatInterceptor(client.data_converter)],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_heartbeat_throttle_interval=timedelta(milliseconds=100),
        default_heartbeat_throttle_interval=timedelta(milliseconds=100),
    ):
        yield asker


@OWN
async def test_the_text_so_far_can_be_seen_while_the_model_writes(asker: Asker, model: dict[str, Any]) -> None:
    handle = await asker.start(call(model, "tell it slowly", stream=True))
    seen: set[str] = set()
    result = asyncio.create_task(handle.result())
    while not result.done():
        for pending in (await handle.describe()).raw_description.pending_activities:
            if len(pending.heartbeat_details.payloads) == 2:
                state, shown = await asker.client.data_converter.decode(pending.heartbeat_details.payloads)
                assert state == {}
                seen.add(shown["partial"])
        await asyncio.sleep(0.05)
    text = (await result).message["content"]

    assert len(seen) >= 2
    assert all(text.startswith(part) and part for part in seen)


async def test_a_failed_model_call_says_what_a_failed_node_would(asker: Asker) -> None:
    handle = await asker.start(call(OPENAI, "answer 401"))
    with pytest.raises(WorkflowFailureError) as caught:
        await handle.result()
    error = caught.value.cause.__cause__

    assert isinstance(error, ApplicationError)
    assert (error.type, error.non_retryable) == (NODE_FAILED, True)
    assert error.details[0]["error"]["type"] == "AuthenticationError"
    assert error.details[0]["attempt"] == 1


async def test_a_model_call_is_tried_again_and_the_attempt_is_told(asker: Asker, wire: Wire) -> None:
    wire.answer = {**COMPLETION, "choices": []}
    handle = await asker.start(call(OPENAI, "hello"))
    while not wire.seen:
        await asyncio.sleep(0.005)
    wire.answer = COMPLETION
    reply = await handle.result()

    assert reply.attempt == 2
    assert reply.message["content"] == "ok"
