"""The first messages of an agent: its prompts rendered over its input, with the images and files that came with it."""

import base64
import json
import mimetypes
from collections.abc import Iterator
from typing import Any

from holdfast.contracts.files import Content, Registry, content_of, described
from holdfast.contracts.messages import FileData, FilePart, ImagePart, ImageUrl, Message, Part, TextPart
from holdfast.flows.shapes import is_array, is_object
from holdfast.flows.templates import render

_CONTEXT = ("user_id", "session_id", "metadata")
_OWN = frozenset({"images", "files", *_CONTEXT})


def open_agent(
    params: dict[str, Any], input_data: Any, history: list[dict[str, Any]], stored: Registry | None = None
) -> dict[str, Any]:
    """What the agent starts with. `history` is what its memory has of the same user and session.

    `stored`: files of the input that are in its file store. The model is told their names, and reads them if it wants.
    """
    fields: dict[str, Any] = dict(input_data) if is_object(input_data) else {"input": input_data}
    system = "\n\n".join(filter(None, [render(params.get("system"), input_data), params.get("instructions")]))
    words = render(params["prompt"], input_data) if params.get("prompt") is not None else _asked(fields)
    images = [_image(item) for item in _listed(fields.get("images"))]
    given = enumerate(_listed(fields.get("files")), start=1)
    files = [_file(item, number) for number, item in given if stored is None or _is_address(item)]
    known = [_described(part.file.url) | {"name": part.file.name} for part in files]
    if stored:
        kept = [
            {"media_type": entry["media_type"], "size": entry["size"], "name": path} for path, entry in stored.items()
        ]
        known, words = [*kept, *known], "\n".join([words, "", *_told(stored)])
    content: str | list[Part] = words
    if images or files:
        content = [TextPart(type="text", text=words), *images, *files]
    messages = [{"role": "system", "content": system}] if system else []
    messages += history
    asked = Message(role="user", content=content).as_data()
    return {
        "messages": [*messages, asked],
        "history_offset": len(messages),
        "prompt_variables": {name: value for name, value in fields.items() if name not in _OWN},
        "call_context": {name: fields[name] for name in _CONTEXT if fields.get(name) is not None},
        "input_images": [_described(part.image_url.url) | {"detail": part.image_url.detail} for part in images],
        "input_files": known,
    }


def _told(stored: Registry) -> list[str]:
    return ["Files that you can read:", *(f"- {described(path, entry)}" for path, entry in stored.items())]


def inline_files(input_data: Any) -> Iterator[tuple[str, Content]]:
    """The files of an input that came with their content, by name. Those that are addresses stay what they are."""
    given = input_data.get("files") if is_object(input_data) else None
    for number, item in enumerate(_listed(given), start=1):
        content = None if _is_address(item) else content_of(item)
        if content is not None:
            name, kind = _named(_fields(item), number)
            yield name, Content(content.data, kind or content.media_type)


def _is_address(item: Any) -> bool:
    fields = _fields(item)
    source = fields.get("url") or fields.get("data")
    return isinstance(source, str) and not source.startswith("data:")


def _asked(fields: dict[str, Any]) -> str:
    given = fields.get("input", {name: value for name, value in fields.items() if name not in _OWN})
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if is_array(value) else [value]


def _image(item: Any) -> ImagePart:
    """An address, the bytes, or `{url, detail}` as vision messages have it."""
    detail, source = ("auto", item) if not is_object(item) else (item.get("detail", "auto"), item.get("url") or item)
    if is_object(source):
        source = source.get("data")
    return ImagePart(type="image_url", image_url=ImageUrl(url=_address(source, "image/png"), detail=detail))


def _file(item: Any, number: int) -> FilePart:
    """An address, the bytes, or `{name, data, media_type}`."""
    fields = _fields(item)
    name, known = _named(fields, number)
    kind = known or "application/octet-stream"
    source = fields.get("url") or fields.get("data")
    return FilePart(type="file", file=FileData(url=_address(source, kind), name=name, media_type=kind))


def _fields(item: Any) -> dict[str, Any]:
    return dict(item) if is_object(item) else {"data": item}


def _named(fields: dict[str, Any], number: int) -> tuple[str, str | None]:
    name = fields.get("name") or f"file-{number}"
    return name, fields.get("media_type") or mimetypes.guess_type(name)[0]


def _address(source: Any, kind: str) -> str:
    if isinstance(source, str):
        return source
    data = source.getvalue() if hasattr(source, "getvalue") else source
    if not isinstance(data, bytes | bytearray):
        raise ValueError(f"an image or a file is an address or bytes, not {type(source).__name__}")
    kind = _SIGNATURES.get(bytes(data[:3]), kind) if kind.startswith("image/") else kind
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


_SIGNATURES = {b"\xff\xd8\xff": "image/jpeg", b"GIF": "image/gif", b"\x89PN": "image/png", b"RIF": "image/webp"}


def _described(url: str) -> dict[str, Any]:
    """What is known of it without its bytes."""
    if not url.startswith("data:"):
        return {"url": url}
    head, _, body = url.partition(",")
    return {"media_type": head[5:].partition(";")[0], "size": len(body) * 3 // 4 - body[-2:].count("=")}
