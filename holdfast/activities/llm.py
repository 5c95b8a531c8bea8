"""One chat completion at an OpenAI-compatible endpoint. The SDK's own retries are off: Temporal retries."""

from typing import Any

from holdfast.activities.connections import Connection, resolve
from holdfast.activities.execution import Execution
from holdfast.activities.failures import ExternalError
from holdfast.activities.http import IDEMPOTENCY_HEADER, retry_after
from holdfast.contracts.calls import NodeCall
from holdfast.flows.kinds import LlmParams
from holdfast.flows.templates import render


class LlmNode:
    """One client per endpoint and key."""

    def __init__(self) -> None:
        self._clients: dict[tuple[str | None, str], Any] = {}

    async def run(self, call: NodeCall, input_data: Any) -> Execution:
        # Imported here: it takes half a second, and most workers never call a model.
        import openai

        params = LlmParams.model_validate(call.params)
        request = _request(params, input_data)
        try:
            reply = await self._client(resolve(params.connection)).chat.completions.create(
                **request, extra_headers={IDEMPOTENCY_HEADER: call.idempotency_key}
            )
        except openai.RateLimitError as error:
            raise ExternalError(
                f"model {params.model!r} is rate limited: {error.message}",
                kind="RateLimited",
                retryable=True,
                retry_after=retry_after(error.response.headers),
            ) from error
        except openai.APIStatusError as error:
            raise ExternalError(
                f"model {params.model!r}: {error.message}",
                kind=type(error).__name__,
                retryable=error.status_code >= 500 or error.status_code in (408, 409),
                details={"status_code": error.status_code},
            ) from error
        except openai.APIConnectionError as error:
            raise ExternalError(f"model {params.model!r}: {error}", kind="LlmUnreachable", retryable=True) from error
        return Execution(_output(reply, params.model))

    def _client(self, connection: Connection) -> Any:
        import openai

        key = connection.api_key.get_secret_value() if connection.api_key else "none"
        found = self._clients.get((connection.base_url, key))
        if found is None:
            found = openai.AsyncOpenAI(base_url=connection.base_url, api_key=key, max_retries=0, timeout=None)
            self._clients[connection.base_url, key] = found
        return found

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()


def _request(params: LlmParams, input_data: Any) -> dict[str, Any]:
    messages: list[Any] = list(render(params.messages, input_data) or [])
    if params.prompt is not None:
        messages.append({"role": "user", "content": render(params.prompt, input_data)})
    if params.system is not None:
        messages.insert(0, {"role": "system", "content": render(params.system, input_data)})
    optional = {name: getattr(params, name) for name in ("temperature", "max_tokens", "response_format")}
    chosen = {name: value for name, value in optional.items() if value is not None}
    return {"model": params.model, "messages": messages, **chosen, **params.extra}


def _output(reply: Any, model: str) -> dict[str, Any]:
    if not reply.choices:
        raise ExternalError(f"model {model!r} answered without a choice", kind="LlmEmpty", retryable=True)
    choice = reply.choices[0]
    usage = reply.usage
    return {
        "content": choice.message.content,
        "finish_reason": choice.finish_reason,
        "model": reply.model,
        "usage": {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
        }
        if usage
        else None,
    }
