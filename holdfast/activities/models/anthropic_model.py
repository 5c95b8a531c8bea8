"""Messages of Anthropic's API. Needs the extra `anthropic`.

An answer with thinking keeps its blocks as they came (`provider_data`): they are signed, and the next request is
refused without them.
"""

import json
from typing import Any

import anthropic

from holdfast.activities.connections import Connections
from holdfast.activities.http import IDEMPOTENCY_HEADER
from holdfast.activities.models.adapter import Clients, Request, put_together, tool_call
from holdfast.activities.models.anthropic_messages import INVALID, OWN, conversation
from holdfast.activities.models.failures import empty, stream_cut, told_apart
from holdfast.activities.models.partial import Partial
from holdfast.contracts.messages import Message, ModelReply, ToolCall, ToolSchema, Usage
from holdfast.flows.shapes import is_object

_MAX_TOKENS = 4096
_TOOL_CHOICES = {"none": {"type": "none"}, "required": {"type": "any"}}
_FINISH_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
_FIELDS = {
    "thinking": ("type", "thinking", "signature"),
    "redacted_thinking": ("type", "data"),
    "text": ("type", "text"),
    "tool_use": ("type", "id", "name", "input"),
}
_JSON_ONLY = "Answer with one JSON object and nothing else."


class AnthropicModel:
    def __init__(self, connections: Connections) -> None:
        self._clients = Clients(anthropic.AsyncAnthropic, connections)

    async def ask(self, request: Request) -> ModelReply:
        create = (await self._clients.of(request.params)).messages.create
        model, body = request.params.model, request_body(request)
        with told_apart(anthropic, model):
            answer = await create(
                **{name: body[name] for name in ("model", "max_tokens", "stream")},
                messages=[],
                # Past the SDK's arguments: it has none for the temperature any more, and older models still take it;
                # and to walk through every message of a long conversation takes it most of the worker's time.
                extra_body=body,
                extra_headers={IDEMPOTENCY_HEADER: request.call.idempotency_key},
            )
        if request.call.stream:
            return await put_together(answer, Pieces(), anthropic, model)
        return reply_of(answer, model)

    async def close(self) -> None:
        await self._clients.close()


def request_body(request: Request) -> dict[str, Any]:
    """What is sent. The author's `extra` wins."""
    params, call = request.params, request.call
    system, messages = conversation(request.messages)
    wanted = request.response_format or {}
    if wanted.get("type") == "json_object":
        # The API knows schemas only.
        system = f"{system}\n\n{_JSON_ONLY}".strip()
    optional = {
        "system": system or None,
        "temperature": params.temperature,
        "tools": [_tool(tool) for tool in call.tools] or None,
        "tool_choice": _TOOL_CHOICES.get(call.tool_choice) if call.tools else None,
    }
    body: dict[str, Any] = {
        "model": params.model,
        "max_tokens": params.max_tokens or _MAX_TOKENS,
        "messages": messages,
        "stream": call.stream,
        **{name: value for name, value in optional.items() if value is not None},
        **params.extra,
    }
    if wanted.get("type") == "json_schema":
        schema = {"type": "json_schema", "schema": wanted.get("json_schema", {}).get("schema", {})}
        body["output_config"] = {"format": schema, **params.extra.get("output_config", {})}
    return body


def _tool(tool: ToolSchema) -> dict[str, Any]:
    schema = tool.parameters or {"type": "object", "properties": {}}
    return {"name": tool.name, "description": tool.description, "input_schema": schema}


def reply_of(answer: Any, model: str) -> ModelReply:
    """A whole message."""
    if not hasattr(answer, "content"):
        # A proxy's page comes as a text.
        raise empty(model)
    blocks: list[Any] = answer.content or []
    # Without warnings: a call may have arguments of a type that the SDK does not expect.
    read = [block.model_dump(mode="json", exclude_none=True, warnings=False) for block in blocks]
    calls = [_given(block) for block in read if block["type"] == "tool_use"]
    return _reply(read, calls, usage_of(answer.usage), answer.model or model, answer.stop_reason)


def _given(block: dict[str, Any]) -> ToolCall:
    if is_object(block["input"]):
        return ToolCall(id=block["id"], name=block["name"], arguments=block["input"])
    return tool_call(block["id"], block["name"], json.dumps(block["input"]))


def _reply(blocks: list[Any], calls: list[ToolCall], usage: Usage, model: str, stop_reason: str | None) -> ModelReply:
    if not blocks and stop_reason != "refusal":
        raise empty(model)
    thinking = [block for block in blocks if block["type"] in ("thinking", "redacted_thinking")]
    message = Message(
        role="assistant",
        content="".join(block["text"] for block in blocks if block["type"] == "text") or None,
        tool_calls=calls,
        reasoning="\n".join(block["thinking"] for block in thinking if block.get("thinking")) or None,
        provider_data={OWN: [_sendable(block) for block in blocks]} if thinking else {},
    )
    reason = _FINISH_REASONS.get(stop_reason or "", stop_reason)
    return ModelReply(message=message.as_data(), usage=usage, model=model, finish_reason=reason)


def _sendable(block: dict[str, Any]) -> dict[str, Any]:
    """Without what only answers have."""
    fields = _FIELDS.get(block["type"])
    return {name: block[name] for name in fields if name in block} if fields else block


def usage_of(usage: Any) -> Usage:
    """All that was read counts as prompt, as with other providers, cached or not."""
    if usage is None:
        return Usage()
    cached = usage.cache_read_input_tokens or 0
    prompt = (usage.input_tokens or 0) + cached + (usage.cache_creation_input_tokens or 0)
    written = usage.output_tokens or 0
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=written,
        total_tokens=prompt + written,
        cached_tokens=cached,
        reasoning_tokens=getattr(usage.output_tokens_details, "thinking_tokens", None) or 0,
    )


class Pieces:
    """A streamed message, put together."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[str, Any]] = {}
        self._arguments: dict[int, str] = {}
        self._text = Partial()
        self._usage: Any = None
        self._model = ""
        self._stop_reason: str | None = None

    def add(self, event: Any) -> None:
        if event.type == "message_start":
            self._usage, self._model = event.message.usage, event.message.model
        elif event.type == "content_block_start":
            self._blocks[event.index] = event.content_block.model_dump(mode="json", exclude_none=True)
            self._arguments[event.index] = ""
        elif event.type == "content_block_delta":
            self._add_delta(event.index, event.delta)
        elif event.type == "message_delta":
            self._stop_reason = event.delta.stop_reason or self._stop_reason
            self._count(event.usage)

    def _add_delta(self, index: int, delta: Any) -> None:
        if delta.type == "text_delta":
            self._text.add(delta.text)
            self._blocks[index]["text"] += delta.text
        elif delta.type == "input_json_delta":
            self._arguments[index] += delta.partial_json
        elif delta.type == "thinking_delta":
            self._blocks[index]["thinking"] += delta.thinking
        elif delta.type == "signature_delta":
            self._blocks[index]["signature"] = delta.signature

    def _count(self, usage: Any) -> None:
        """The last counts are totals; those it leaves out are as they were at the start."""
        if self._usage is None or usage is None:
            return
        for name in ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"):
            if getattr(usage, name, None) is not None:
                setattr(self._usage, name, getattr(usage, name))
        self._usage.output_tokens_details = usage.output_tokens_details or self._usage.output_tokens_details

    def reply(self, model: str) -> ModelReply:
        if self._stop_reason is None:
            raise stream_cut(model, "it ended without a stop reason")
        ordered = sorted(self._blocks.items())
        calls = [self._call(index, block) for index, block in ordered if block["type"] == "tool_use"]
        blocks = [block for _, block in ordered]
        return _reply(blocks, calls, usage_of(self._usage), self._model or model, self._stop_reason)

    def _call(self, index: int, block: dict[str, Any]) -> ToolCall:
        call = tool_call(block["id"], block["name"], self._arguments[index])
        block["input"] = {INVALID: call.arguments} if call.fault else call.arguments
        return call
