"""A conversation in Pydantic AI's form: requests and responses, each with parts."""

from typing import Any

from pydantic_ai import messages as theirs

from holdfast.activities.models.data_urls import inline
from holdfast.contracts.messages import ImagePart, Message, Part, TextPart

OWN = "pydantic-ai"


def conversation(messages: list[Message]) -> list[theirs.ModelMessage]:
    """What is asked between two answers is one request."""
    sent: list[theirs.ModelMessage] = []
    asked: list[Any] = []
    for message in messages:
        if message.role == "assistant" and not message.name:
            if asked:
                sent.append(theirs.ModelRequest(parts=asked))
            asked = []
            sent.append(_response(message))
        else:
            asked.append(_request_part(message))
    return [*sent, theirs.ModelRequest(parts=asked)] if asked else sent


def _response(message: Message) -> theirs.ModelMessage:
    if own := message.provider_data.get(OWN):
        return theirs.ModelMessagesTypeAdapter.validate_python(own)[0]
    parts: list[Any] = [theirs.TextPart(message.text)] if message.text else []
    # A text is taken as JSON there, as is what the model wrote that is none.
    parts += [theirs.ToolCallPart(call.name, call.arguments or {}, call.id) for call in message.tool_calls]
    return theirs.ModelResponse(parts=parts)


def _request_part(message: Message) -> Any:
    if message.role == "system":
        return theirs.SystemPromptPart(message.text)
    if message.role == "tool":
        content = message.text if isinstance(message.content, str | None) else _contents(message.content)
        return theirs.ToolReturnPart(message.name or "", content, message.tool_call_id or "")
    if message.role == "assistant":
        # Somebody else's words: as the model's own they would also be the beginning of its answer.
        return theirs.UserPromptPart(f"{message.name}: {message.text}")
    return theirs.UserPromptPart(_contents(message.content) if isinstance(message.content, list) else message.text)


def _contents(parts: list[Part]) -> list[Any]:
    return [_content(part) for part in parts]


def _content(part: Part) -> Any:
    if isinstance(part, TextPart):
        return part.text
    url = part.image_url.url if isinstance(part, ImagePart) else part.file.url
    held = inline(url)
    if held is not None:
        return theirs.BinaryContent(data=held.content, media_type=held.media_type)
    if isinstance(part, ImagePart):
        return theirs.ImageUrl(url=url, vendor_metadata={"detail": part.image_url.detail})
    return theirs.DocumentUrl(url=url, media_type=part.file.media_type)
