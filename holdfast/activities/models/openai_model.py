"""Chat completions of OpenAI and of every endpoint that speaks its protocol."""

import json
import re
from typing import Any

import openai

from holdfast.activities.connections import Connections
from holdfast.activities.http import IDEMPOTENCY_HEADER
from holdfast.activities.models.adapter import Clients, Request, put_together, tool_call
from holdfast.activities.models.failures import empty, stream_cut, told_apart
from holdfast.activities.models.partial import Partial
from holdfast.contracts.messages import ImagePart, Message, ModelReply, Part, TextPart, ToolCall, ToolSchema, Usage


class OpenAiModel:
    def __init__(self, connections: Connections) -> None:
        self._clients = Clients(openai.AsyncOpenAI, connections)

    async def ask(self, request: Request) -> ModelReply:
        create = (await self._clients.of(request.params)).chat.completions.create
        model, body = request.params.model, request_body(request)
        with told_apart(openai, model):
            answer = await create(
                model=model,
                messages=[],
                stream=request.call.stream,
                # Past the SDK's arguments: compatible servers have fields that it does not know, and to walk through
                # every message of a long conversation takes it most of the worker's time.
                extra_body=body,
                extra_headers={IDEMPOTENCY_HEADER: request.call.idempotency_key},
            )
        if request.call.stream:
            return await put_together(answer, Pieces(), openai, model)
        return reply_of(answer, model)

    async def close(self) -> None:
        await self._clients.close()


def request_body(request: Request) -> dict[str, Any]:
    """What is sent. The author's `extra` wins."""
    params, call = request.params, request.call
    body: dict[str, Any] = {"model": params.model, "messages": messages_of(request.messages)}
    optional = {
        "temperature": params.temperature,
        "max_tokens": params.max_tokens,
        "response_format": request.response_format,
    }
    body |= {name: value for name, value in optional.items() if value is not None}
    if call.tools:
        body["tools"] = [_tool(tool) for tool in call.tools]
        if call.tool_choice != "auto":
            body["tool_choice"] = call.tool_choice
    if call.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return {**body, **params.extra}


def _tool(tool: ToolSchema) -> dict[str, Any]:
    parameters = tool.parameters or {"type": "object", "properties": {}}
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    return {"type": "function", "function": function}


def messages_of(messages: list[Message]) -> list[dict[str, Any]]:
    """In OpenAI's form. A tool's result can be only text there: its images follow as the user's."""
    sent: list[dict[str, Any]] = []
    shown: list[dict[str, Any]] = []
    for message in messages:
        if message.role != "tool" and shown:
            sent.append({"role": "user", "content": shown})
            shown = []
        if message.role == "tool":
            sent.append({"role": "tool", "tool_call_id": message.tool_call_id, "content": message.text})
            if isinstance(message.content, list):
                shown += [_part(part) for part in message.content if not isinstance(part, TextPart)]
        else:
            sent.append(_message(message))
    return [*sent, {"role": "user", "content": shown}] if shown else sent


def _message(message: Message) -> dict[str, Any]:
    content = message.content
    sent: dict[str, Any] = {
        "role": message.role,
        "content": [_part(part) for part in content] if isinstance(content, list) else content,
    }
    if message.name:
        # Other characters are refused.
        sent["name"] = re.sub(r"[^\w-]", "_", message.name, flags=re.ASCII)[:64]
    if message.tool_calls:
        sent["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.tool_calls
        ]
    elif content is None:
        sent["content"] = ""
    return sent


def _arguments(call: ToolCall) -> str:
    return call.arguments if call.fault and isinstance(call.arguments, str) else json.dumps(call.arguments or {})


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        image = part.image_url
        # "auto" is what the protocol assumes, and not every compatible server knows the field.
        detail = {} if image.detail == "auto" else {"detail": image.detail}
        return {"type": "image_url", "image_url": {"url": image.url, **detail}}
    return {"type": "file", "file": {"filename": part.file.name or "file", "file_data": part.file.url}}


def reply_of(answer: Any, model: str) -> ModelReply:
    """A whole completion."""
    choices: Any = getattr(answer, "choices", None)
    if not choices:
        # Some servers send an error as a success.
        error = getattr(answer, "error", None)
        raise empty(model, f"answered with an error: {error}") if error else empty(model)
    said = choices[0].message
    asked: list[Any] = said.tool_calls or []
    calls = [
        tool_call(call.id, call.function.name, call.function.arguments or "")
        for call in asked
        if getattr(call, "function", None)
    ]
    text = said.content if said.content is not None else getattr(said, "refusal", None)
    message = Message(role="assistant", content=text, tool_calls=calls, reasoning=_reasoning(said) or None)
    return ModelReply(
        message=message.as_data(),
        usage=usage_of(answer.usage),
        model=answer.model or model,
        finish_reason=choices[0].finish_reason,
    )


def _reasoning(said: Any) -> str:
    """No field of OpenAI's own: compatible servers have one or the other."""
    for field in ("reasoning_content", "reasoning"):
        text = getattr(said, field, None)
        if isinstance(text, str) and text:
            return text
    return ""


def usage_of(usage: Any) -> Usage:
    if usage is None:
        return Usage()
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=usage.total_tokens or prompt + completion,
        cached_tokens=getattr(usage.prompt_tokens_details, "cached_tokens", None) or 0,
        reasoning_tokens=getattr(usage.completion_tokens_details, "reasoning_tokens", None) or 0,
    )


class Pieces:
    """A streamed completion, put together."""

    def __init__(self) -> None:
        self._text = Partial()
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, str]] = {}
        self._finish_reason: str | None = None
        self._model = ""
        self._usage: Any = None

    def add(self, chunk: Any) -> None:
        self._model = chunk.model or self._model
        self._usage = chunk.usage or self._usage
        # The last chunk has the usage and no choice.
        if not chunk.choices:
            return
        choice = chunk.choices[0]
        self._finish_reason = choice.finish_reason or self._finish_reason
        delta = choice.delta
        if delta is None:
            return
        if delta.content or getattr(delta, "refusal", None):
            self._text.add(delta.content or delta.refusal)
        self._reasoning.append(_reasoning(delta))
        calls: list[Any] = delta.tool_calls or []
        for piece in calls:
            self._add_call(piece)

    def _add_call(self, piece: Any) -> None:
        # Some compatible servers send whole calls without an index.
        index = len(self._calls) if piece.index is None else piece.index
        call = self._calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        call["id"] = call["id"] or piece.id or ""
        if piece.function is not None:
            call["name"] = call["name"] or piece.function.name or ""
            call["arguments"] += piece.function.arguments or ""

    def reply(self, model: str) -> ModelReply:
        if self._finish_reason is None:
            raise stream_cut(model, "it ended without a finish reason")
        calls = [tool_call(call["id"], call["name"], call["arguments"]) for _, call in sorted(self._calls.items())]
        message = Message(
            role="assistant",
            content=self._text.text or None,
            tool_calls=calls,
            reasoning="".join(self._reasoning) or None,
        )
        return ModelReply(
            message=message.as_data(),
            usage=usage_of(self._usage),
            model=self._model or model,
            finish_reason=self._finish_reason,
        )
