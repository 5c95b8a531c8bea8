"""A conversation in Anthropic's form: blocks, turns that alternate, and the system's words apart from both."""

from typing import Any

from holdfast.activities.models.data_urls import inline
from holdfast.contracts.messages import FileData, ImagePart, Message, Part, TextPart, ToolCall
from holdfast.flows.nodes import NonRetryableError

OWN = "anthropic"
# The API takes only objects as arguments of a call. This is how the model sees what else it wrote.
INVALID = "invalid_arguments"


def conversation(messages: list[Message]) -> tuple[str, list[dict[str, Any]]]:
    """The system's words, and the turns. The results of tools that were called together are one turn."""
    system = "\n\n".join(message.text for message in messages if message.role == "system")
    turns: list[dict[str, Any]] = []
    for message in messages:
        if message.role == "system":
            continue
        role, blocks = _turn(message)
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": role, "content": blocks})
    return system, turns


def _turn(message: Message) -> tuple[str, list[dict[str, Any]]]:
    if message.role == "tool":
        result = {"type": "tool_result", "tool_use_id": message.tool_call_id, "content": _blocks(message)}
        return "user", [result]
    if message.role == "assistant" and message.name:
        # Somebody else's words. As the model's own they would also be the beginning of its answer.
        return "user", [{"type": "text", "text": f"{message.name}: {message.text}"}]
    if message.role == "assistant":
        return "assistant", message.provider_data.get(OWN) or [*_blocks(message), *map(_tool_use, message.tool_calls)]
    return "user", _blocks(message)


def _tool_use(call: ToolCall) -> dict[str, Any]:
    arguments = {INVALID: call.arguments} if call.fault else call.arguments or {}
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}


def _blocks(message: Message) -> list[dict[str, Any]]:
    """Empty texts are refused, so they are left out."""
    content = message.content
    parts: list[Part] = content if isinstance(content, list) else [TextPart(type="text", text=content or "")]
    return [_block(part) for part in parts if not isinstance(part, TextPart) or part.text.strip()]


def _block(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    if isinstance(part, ImagePart):
        return _image(part.image_url.url)
    return _file(part.file)


def _image(url: str) -> dict[str, Any]:
    held = inline(url)
    if held is None:
        return {"type": "image", "source": {"type": "url", "url": url}}
    return {"type": "image", "source": {"type": "base64", "media_type": held.media_type, "data": held.base64}}


def _file(file: FileData) -> dict[str, Any]:
    held = inline(file.url)
    media_type = file.media_type or (held.media_type if held else "application/pdf")
    if media_type.startswith("image/"):
        return _image(file.url)
    if held is None and media_type == "application/pdf":
        source = {"type": "url", "url": file.url}
    elif held is not None and media_type == "application/pdf":
        source = {"type": "base64", "media_type": media_type, "data": held.base64}
    elif held is not None and media_type.startswith("text/"):
        source = {"type": "text", "media_type": "text/plain", "data": held.content.decode(errors="replace")}
    else:
        raise NonRetryableError(
            f"[llm/unsupported-file] Anthropic takes no {media_type} ({file.name or file.url[:40]!r}): "
            "give a PDF, an image, or a text as a data URL"
        )
    return {"type": "document", "source": source, **({"title": file.name} if file.name else {})}
