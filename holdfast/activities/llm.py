"""One chat completion as a node: templates in, the answer out. Providers are known to `models` alone."""

from typing import Any

from holdfast.activities.execution import Execution
from holdfast.activities.models import Models
from holdfast.contracts.calls import NodeCall
from holdfast.contracts.messages import Message, ModelCall, ModelReply
from holdfast.flows.params import LlmParams, ModelParams
from holdfast.flows.templates import render

_MODEL_FIELDS = set(ModelParams.model_fields) - {"fallback"}


class LlmNode:
    def __init__(self, models: Models) -> None:
        self._models = models

    async def run(self, call: NodeCall, input_data: Any) -> Execution:
        params = LlmParams.model_validate(call.params)
        reply = await self._models.call(
            ModelCall(
                path=call.path,
                run_id=call.run_id,
                idempotency_key=call.idempotency_key,
                model=params.model_dump(mode="json", include=_MODEL_FIELDS, exclude_defaults=True),
                messages=_messages(params, input_data),
                stream=call.stream,
            )
        )
        return Execution(_output(reply), usage=reply.usage.model_dump(mode="json", exclude_defaults=True))


def _messages(params: LlmParams, input_data: Any) -> list[dict[str, Any]]:
    messages: list[Any] = list(render(params.messages, input_data) or [])
    if params.prompt is not None:
        messages.append({"role": "user", "content": render(params.prompt, input_data)})
    if params.system is not None:
        messages.insert(0, {"role": "system", "content": render(params.system, input_data)})
    return messages


def _output(reply: ModelReply) -> dict[str, Any]:
    message, usage = Message.model_validate(reply.message), reply.usage
    output: dict[str, Any] = {
        "content": message.content,
        "finish_reason": reply.finish_reason,
        "model": reply.model,
        # None where the endpoint does not count.
        "usage": usage.model_dump(include={"prompt_tokens", "completion_tokens", "total_tokens"})
        if usage.total_tokens
        else None,
    }
    if message.tool_calls:
        output["tool_calls"] = [call.model_dump(mode="json", exclude_defaults=True) for call in message.tool_calls]
    if message.reasoning:
        output["reasoning"] = message.reasoning
    return output
