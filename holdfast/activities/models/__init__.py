"""The one place that knows providers. Everyone else has neutral messages in and out."""

import asyncio
from importlib import import_module
from typing import Any

from pydantic import ValidationError

from holdfast.activities.connections import Connections
from holdfast.activities.models.adapter import Adapter, Request
from holdfast.activities.models.prices import cost
from holdfast.contracts.messages import Message, ModelCall, ModelReply
from holdfast.flows.nodes import NonRetryableError
from holdfast.flows.params import ModelParams

_ADAPTERS = {
    "openai": ("openai_model", "OpenAiModel"),
    "anthropic": ("anthropic_model", "AnthropicModel"),
    "pydantic-ai": ("pydantic_ai_model", "PydanticAiModel"),
    "scripted": ("scripted_model", "ScriptedModel"),
}
_EXTRAS = {"anthropic": "anthropic", "pydantic-ai": "pydantic_ai"}


class Models:
    """Asks any model. Adapters are imported when they are first needed: an SDK takes seconds to import."""

    def __init__(self, connections: Connections | None = None) -> None:
        self._connections = connections or Connections()
        self._adapters: dict[str, Adapter] = {}

    async def call(self, call: ModelCall) -> ModelReply:
        params = ModelParams.model_validate(call.model)
        request = Request(call, params, read_messages(call.messages))
        adapter = await self._adapter(params.provider)
        reply = await adapter.ask(request)
        reply.usage.llm_calls = 1
        reply.usage.cost = await asyncio.to_thread(cost, params, reply.model, reply.usage)
        return reply

    async def _adapter(self, provider: str) -> Adapter:
        if provider not in self._adapters:
            module, name = _ADAPTERS[provider]
            # In a thread: other activities of this worker go on beating their hearts meanwhile.
            loaded = await asyncio.to_thread(_load, provider, module)
            # Another call may have been first while this one waited.
            self._adapters.setdefault(provider, getattr(loaded, name)(self._connections))
        return self._adapters[provider]

    async def close(self) -> None:
        for adapter in self._adapters.values():
            await adapter.close()


def _load(provider: str, module: str) -> Any:
    try:
        return import_module(f"{__name__}.{module}")
    except ModuleNotFoundError as error:
        if error.name != _EXTRAS.get(provider):
            raise
        raise NonRetryableError(
            f"[llm/missing-extra] this worker cannot ask provider {provider!r}: "
            f"run `pip install 'holdfast[{provider}]'` where it runs"
        ) from error


def read_messages(messages: list[dict[str, Any]]) -> list[Message]:
    """The messages as models; NonRetryableError names the first that is none."""
    read: list[Message] = []
    for number, message in enumerate(messages, 1):
        try:
            read.append(Message.model_validate(message))
        except ValidationError as error:
            fault = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(str(step) for step in fault["loc"])
            raise NonRetryableError(
                f"[llm/bad-message] message {number} is none, at {where!r}: {fault['msg']}; write role "
                "(system, user, assistant, tool) and content (a text, or a list of text, image_url and file parts)"
            ) from None
    return read
