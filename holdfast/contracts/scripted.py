"""Replies that are written down beforehand: for demonstrations, tests and simulations, where no model is asked."""

from typing import Any

from holdfast.contracts.messages import Message, ToolCall
from holdfast.flows.shapes import is_object


class NoReplyError(LookupError):
    """The script has no reply for this call."""


def scripted_reply(replies: list[Any], messages: list[dict[str, Any]]) -> Message:
    """The reply to this conversation, chosen by the conversation alone, so that asking again gives the same.

    A reply is a text, or `{content, tool_calls: [{name, arguments}], when}`. One with `when` is taken if the last
    message contains that text; the others are taken in their order, one for each reply the conversation has.
    """
    last = Message.model_validate(messages[-1]).text if messages else ""
    for reply in replies:
        if is_object(reply) and reply.get("when") and reply["when"] in last:
            return _message(reply, "when")
    # A named entry is somebody's result, put into the conversation by an orchestrator.
    number = sum(entry["role"] == "assistant" and not entry.get("name") for entry in messages)
    plain = [reply for reply in replies if not (is_object(reply) and reply.get("when"))]
    if number >= len(plain):
        raise NoReplyError(f"[llm/script-ended] the script has {len(plain)} replies, and this is call {number + 1}")
    return _message(plain[number], str(number))


def _message(reply: Any, mark: str) -> Message:
    if not is_object(reply):
        return Message(role="assistant", content=str(reply))
    calls = [
        ToolCall(id=call.get("id") or f"call-{mark}-{index}", name=call["name"], arguments=call.get("arguments", {}))
        for index, call in enumerate(reply.get("tool_calls") or [])
    ]
    return Message(role="assistant", content=reply.get("content"), tool_calls=calls, reasoning=reply.get("reasoning"))
