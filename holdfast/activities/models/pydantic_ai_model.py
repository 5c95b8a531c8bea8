"""Providers that the other adapters do not have, through Pydantic AI. Needs the extra `pydantic-ai`.

The model is written `provider:model`. Without a `connection` the provider finds its key in its own variables.
"""

import json
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from pydantic_ai import exceptions, messages, models
from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.providers import infer_provider, infer_provider_class
from pydantic_ai.tools import ToolDefinition

from holdfast.activities.connections import Connections
from holdfast.activities.http import IDEMPOTENCY_HEADER
from holdfast.activities.models.adapter import Request, tool_call
from holdfast.activities.models.failures import empty, refused, stream_cut, unreachable
from holdfast.activities.models.partial import Partial
from holdfast.activities.models.pydantic_ai_messages import OWN, conversation
from holdfast.contracts.messages import Message, ModelReply, Usage
from holdfast.flows.nodes import NonRetryableError
from holdfast.flows.params import ModelParams

_FINISH_REASONS = {"tool_call": "tool_calls"}


class PydanticAiModel:
    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._models: dict[Any, models.Model[Any]] = {}

    async def ask(self, request: Request) -> ModelReply:
        name = request.params.model
        model = await self._model(request.params)
        asked: dict[str, Any] = {
            "messages": conversation(request.messages),
            "model_settings": settings_of(request),
            "model_request_parameters": parameters_of(request),
        }
        with _told_apart(name):
            if request.call.stream:
                async with model_request_stream(model, **asked) as stream:
                    return reply_of(await _streamed(stream, name), name)
            return reply_of(await model_request(model, **asked), name)

    async def _model(self, params: ModelParams) -> models.Model[Any]:
        options: dict[str, Any] = {}
        if params.connection:
            connection = await self._connections.resolve(params.connection)
            options = {"base_url": connection.base_url, "api_key": connection.api_key}
            options = {name: value for name, value in options.items() if value is not None}
            if "api_key" in options:
                options["api_key"] = options["api_key"].get_secret_value()
        identity = (params.model, tuple(options.items()))
        if identity not in self._models:
            self._models[identity] = _made(params.model, options)
        return self._models[identity]

    async def close(self) -> None:
        for model in self._models.values():
            # Leaving is what closes the provider's connections, and nobody may leave who has not entered.
            async with model:
                pass


async def _streamed(stream: models.StreamedResponse, model: str) -> messages.ModelResponse:
    text = Partial()
    try:
        async for event in stream:
            if piece := _piece(event):
                text.add(piece)
    except (exceptions.ModelAPIError, exceptions.UnexpectedModelBehavior) as error:
        raise stream_cut(model, error.message) from error
    answer = stream.get()
    # Some providers' streams may end without a reason, and then Pydantic AI supplies one.
    if answer.finish_reason is None or answer.state == "incomplete":
        raise stream_cut(model, "it ended without a finish reason")
    return answer


def _made(name: str, options: dict[str, Any]) -> models.Model[Any]:
    def provider(kind: str) -> Any:
        return infer_provider_class(kind)(**options) if options else infer_provider(kind)

    try:
        return models.infer_model(name, provider)
    except (exceptions.UserError, ValueError, TypeError, ImportError) as error:
        raise NonRetryableError(
            f"[llm/bad-provider] pydantic-ai has no model {name!r} here: {error}; write 'provider:model', install "
            "what the provider needs, and give its key or a 'connection'"
        ) from error


def settings_of(request: Request) -> Any:
    """The author's `extra` has the names of Pydantic AI's settings."""
    params, call = request.params, request.call
    settings: dict[str, Any] = {
        # Temporal retries.
        "max_retries": 0,
        "extra_headers": {IDEMPOTENCY_HEADER: call.idempotency_key},
    }
    optional = {"temperature": params.temperature, "max_tokens": params.max_tokens}
    settings |= {name: value for name, value in optional.items() if value is not None}
    if call.tools and call.tool_choice != "auto":
        settings["tool_choice"] = call.tool_choice
    return {**settings, **params.extra}


def parameters_of(request: Request) -> models.ModelRequestParameters:
    tools = [
        ToolDefinition(
            name=tool.name,
            description=tool.description,
            parameters_json_schema=tool.parameters or {"type": "object", "properties": {}},
        )
        for tool in request.call.tools
    ]
    wanted = request.response_format or {}
    if wanted.get("type") != "json_schema":
        return models.ModelRequestParameters(function_tools=tools)
    schema = wanted.get("json_schema", {})
    answer = OutputObjectDefinition(json_schema=schema.get("schema", {}), name=schema.get("name"))
    return models.ModelRequestParameters(function_tools=tools, output_mode="native", output_object=answer)


@contextmanager
def _told_apart(model: str) -> Generator[None]:
    try:
        yield
    except exceptions.ModelAPIError as error:
        raise _api_failure(model, error) from error
    except exceptions.UnexpectedModelBehavior as error:
        raise empty(model, f"answered something that is no completion: {error}") from error
    except exceptions.UserError as error:
        raise NonRetryableError(f"[llm/bad-provider] model {model!r}: {error}") from error


def _api_failure(model: str, error: exceptions.ModelAPIError) -> Exception:
    if isinstance(error, exceptions.ModelHTTPError):
        return refused(model, error.status_code, error.message, error.retry_after)
    if isinstance(error, exceptions.ModelConnectionError | exceptions.ModelRequestTimeout):
        return unreachable(model, error)
    return empty(model, f"answered something that is no completion: {error}")


def _piece(event: Any) -> str:
    """The text in an event: a part's first words come with its start."""
    part = getattr(event, "part", None) if event.event_kind == "part_start" else None
    if isinstance(part, messages.TextPart):
        return part.content
    delta = getattr(event, "delta", None)
    return delta.content_delta if isinstance(delta, messages.TextPartDelta) else ""


def reply_of(answer: messages.ModelResponse, model: str) -> ModelReply:
    if not answer.parts:
        raise empty(model)
    calls = [
        tool_call(part.tool_call_id, part.tool_name, _arguments(part))
        for part in answer.parts
        if isinstance(part, messages.ToolCallPart)
    ]
    message = Message(
        role="assistant",
        content=answer.text,
        tool_calls=calls,
        reasoning=answer.thinking or None,
        provider_data=_own(answer),
    )
    usage = answer.usage
    return ModelReply(
        message=message.as_data(),
        usage=Usage(
            prompt_tokens=usage.input_tokens,
            completion_tokens=usage.output_tokens,
            total_tokens=usage.input_tokens + usage.output_tokens,
            cached_tokens=usage.cache_read_tokens,
            reasoning_tokens=usage.details.get("reasoning_tokens", 0),
        ),
        model=answer.model_name or model,
        finish_reason=_FINISH_REASONS.get(answer.finish_reason or "", answer.finish_reason),
    )


def _arguments(part: messages.ToolCallPart[Any]) -> str:
    # Their own way to a text hides what is no JSON in an object.
    return part.args if isinstance(part.args, str) else json.dumps(part.args or {})


def _own(answer: messages.ModelResponse) -> dict[str, Any]:
    """Signatures are in the parts of any kind, so an answer that has one is kept whole."""
    signed = any(isinstance(part, messages.ThinkingPart) or part.provider_details for part in answer.parts)
    return {OWN: messages.ModelMessagesTypeAdapter.dump_python([answer], mode="json")} if signed else {}
