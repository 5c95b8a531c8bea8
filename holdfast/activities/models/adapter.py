"""What the adapters share: what they are asked, clients by connection, and the arguments of tool calls."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import uuid4

from pydantic_core import from_json

from holdfast.activities.connections import Connection, Connections
from holdfast.activities.models.failures import cut_short
from holdfast.contracts.messages import Message, ModelCall, ModelReply, ToolCall
from holdfast.flows.params import ModelParams
from holdfast.flows.shapes import is_object


@dataclass
class Request:
    """A model call, with its parameters and messages read."""

    call: ModelCall
    params: ModelParams
    messages: list[Message]

    @property
    def response_format(self) -> dict[str, Any] | None:
        return self.call.response_format or self.params.response_format


class Adapter(Protocol):
    """One provider's protocol. The only code that knows it."""

    async def ask(self, request: Request) -> ModelReply: ...

    async def close(self) -> None: ...


@dataclass
class Clients:
    """One client per endpoint, key and headers. The SDK's own retries are off: Temporal retries."""

    make: Callable[..., Any]
    connections: Connections
    _made: dict[Any, Any] = field(default_factory=dict[Any, Any])

    async def of(self, params: ModelParams) -> Any:
        connection = await self.connections.resolve(params.connection or params.provider)
        options = _options(connection)
        identity = (connection.base_url, options["api_key"], tuple(sorted(options["default_headers"].items())))
        if identity not in self._made:
            # The activity has its own timeout, which is the node's; a second one here would only compete with it.
            self._made[identity] = self.make(**options, max_retries=0, timeout=None)
        return self._made[identity]

    async def close(self) -> None:
        for client in self._made.values():
            await client.close()


def _options(connection: Connection) -> dict[str, Any]:
    return {
        "base_url": connection.base_url,
        # Local servers want no key, the SDKs do.
        "api_key": connection.api_key.get_secret_value() if connection.api_key else "none",
        "default_headers": {name: value.get_secret_value() for name, value in connection.headers.items()},
    }


class Pieces(Protocol):
    """A streamed reply, put together."""

    def add(self, piece: Any, /) -> None: ...

    def reply(self, model: str) -> ModelReply: ...


async def put_together(stream: Any, pieces: Pieces, sdk: Any, model: str) -> ModelReply:
    """All of a stream; ExternalError when it breaks off."""
    with cut_short(sdk, model):
        async with stream:
            async for piece in stream:
                pieces.add(piece)
    return pieces.reply(model)


def tool_call(call_id: str | None, name: str | None, text: str) -> ToolCall:
    """A call with its arguments read. What is no JSON object is kept as it is: the model is told, and tries again."""
    # Some compatible servers give none, and the result needs one to belong to.
    call_id, name = call_id or f"call-{uuid4().hex}", name or ""
    if not text.strip():
        # How some endpoints say "no arguments".
        return ToolCall(id=call_id, name=name, arguments={})
    try:
        arguments = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        return ToolCall(id=call_id, name=name, arguments=text, fault=f"it is not JSON: {error}")
    if not is_object(arguments):
        fault = f"it is JSON but not an object: {type(arguments).__name__}"
        return ToolCall(id=call_id, name=name, arguments=text, fault=fault)
    return ToolCall(id=call_id, name=name, arguments=arguments)
