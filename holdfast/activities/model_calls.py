"""One model call of an agent as an activity. A node of kind `llm` has its own, with templates and the cache."""

from temporalio import activity

from holdfast.activities.execution import failed
from holdfast.activities.heartbeat import saved
from holdfast.activities.models import Models
from holdfast.contracts.messages import ModelCall, ModelReply


class ModelCalls:
    def __init__(self, models: Models) -> None:
        self._models = models

    async def __call__(self, call: ModelCall) -> ModelReply:
        attempt = activity.info().attempt
        try:
            reply = await self._models.call(call)
        except Exception as error:
            raise failed(f"the model call of {call.path!r}", error, saved().state, attempt) from error
        reply.attempt = attempt
        return reply
