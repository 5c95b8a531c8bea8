"""Answers that are written in the flow itself: for demonstrations and tests. No network, no key, no cost."""

import asyncio
import json
import os
from typing import Any

from holdfast.activities.connections import Connections
from holdfast.activities.heartbeat import show
from holdfast.activities.models.adapter import Request
from holdfast.contracts.messages import ModelReply, Usage
from holdfast.contracts.scripted import NoReplyError, scripted_reply
from holdfast.flows.nodes import NonRetryableError
from holdfast.flows.shapes import is_object

JOURNAL_VARIABLE = "HOLDFAST_SCRIPTED_JOURNAL"


class ScriptedModel:
    """Usage is estimated, four characters a token, so that budgets can be shown."""

    def __init__(self, connections: Connections) -> None:
        """It needs none."""

    async def ask(self, request: Request) -> ModelReply:
        _note(request)
        replies = request.params.replies or []
        try:
            message = scripted_reply(replies, request.call.messages)
        except NoReplyError as error:
            raise NonRetryableError(f"{error}; add one to 'replies' of model {request.params.model!r}") from error
        await asyncio.sleep(seconds_before(replies, request.call.messages))
        if request.call.stream:
            show(message.text)
        prompt = sum(len(entry.text) for entry in request.messages) // 4
        written = len(json.dumps(message.as_data())) // 4
        return ModelReply(
            message=message.as_data(),
            usage=Usage(prompt_tokens=prompt, completion_tokens=written, total_tokens=prompt + written),
            model=request.params.model,
            finish_reason="tool_calls" if message.tool_calls else "stop",
        )

    async def close(self) -> None:
        pass


def seconds_before(replies: list[Any], messages: list[dict[str, Any]]) -> float:
    """How long the reply to this conversation takes. The script of numbers says which reply that is."""
    numbers = [
        {"content": str(number), "when": reply.get("when")} if is_object(reply) else str(number)
        for number, reply in enumerate(replies)
    ]
    reply = replies[int(scripted_reply(numbers, messages).text)]
    return float(reply.get("seconds") or 0) if is_object(reply) else 0.0


def _note(request: Request) -> None:
    """One line for each call, in a single write, so that those of several workers do not mix."""
    path = os.environ.get(JOURNAL_VARIABLE)
    if not path:
        return
    call = request.call
    line = json.dumps({"path": call.path, "key": call.idempotency_key, "messages": len(call.messages)}) + "\n"
    journal = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(journal, line.encode())
    finally:
        os.close(journal)
