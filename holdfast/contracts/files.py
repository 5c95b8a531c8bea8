"""An agent's files as the run knows them: their names, and a registry of what is stored.

A registry maps a path to an entry: `{size, media_type, sha256, by, written_at}`, with the object's `key` in a store
outside, or the content itself as `data` in the memory store. It is run state; the objects are not.
"""

import base64
import binascii
import hashlib
import json
import mimetypes
import unicodedata
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import unquote_to_bytes

from holdfast.flows.files import FileStoreParams
from holdfast.flows.shapes import is_object

Entry = dict[str, Any]
Registry = Mapping[str, Mapping[str, Any]]

_LONGEST_PATH = 512
_LONGEST_NAME = 200
CONTENT = ("data", "packed")
"""The fields of an entry that hold the content itself."""


class FileRefusedError(ValueError):
    """Something that is not done, in words for the model."""


class LostFileError(FileRefusedError):
    """A registered file whose content is gone, or is not what was written."""


class FileStore(Protocol):
    """Where the contents are, for one call: a worker's, or the simulator's."""

    async def put(self, path: str, data: bytes, sha256: str, used: int) -> Entry:
        """Whole and safe when this returns: the fields by which the registry finds it. `used`: bytes of all others."""
        ...

    async def get(self, path: str, entry: Mapping[str, Any]) -> bytes:
        """The content as it was written; LostFileError."""
        ...


def clean_path(given: Any) -> str:
    """The path as it is registered; FileRefusedError when it is none. What reads the same is the same (NFC)."""
    if not isinstance(given, str) or not given:
        raise FileRefusedError("A path is a text such as 'notes/plan.md'.")
    # Not printable are control characters, halves of characters, marks that turn the direction, other spaces than ours.
    if not given.isprintable():
        raise FileRefusedError(f"The path {given[:80]!r} has characters in it that cannot be seen.")
    path = unicodedata.normalize("NFC", given)
    # Letters that only look like a slash or a dot are refused with them.
    plain = unicodedata.normalize("NFKC", path)
    if "\\" in plain or plain.count("/") != path.count("/"):
        raise FileRefusedError(f"The path {given[:80]!r} cannot be used: parts of a path are separated by '/' alone.")
    if path.startswith("/"):
        raise FileRefusedError(f"The path {given[:80]!r} is absolute: write it without the '/' in front.")
    parts = path.split("/")
    if any(part != part.strip() or part.strip(".") == "" for part in [*parts, *plain.split("/")]):
        raise FileRefusedError(
            f"The path {given[:80]!r} cannot be used: no part may be empty, '.' or '..', or begin or end with a space."
        )
    if path.startswith("__"):
        # A checkpoint marks values with such names (`values.py`).
        raise FileRefusedError(f"The path {given[:80]!r} begins with '__': put the file into a folder.")
    if len(path.encode()) > _LONGEST_PATH or any(len(part.encode()) > _LONGEST_NAME for part in parts):
        raise FileRefusedError(f"The path {given[:80]!r}… is longer than {_LONGEST_PATH} bytes, or a part of it is.")
    return path


def object_name(path: str, idempotency_key: str, sha256: str) -> str:
    """The same write again is the same object; anything else is another, so no checkpoint loses what it refers to."""
    text = json.dumps([path, idempotency_key, sha256])
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def media_type_of(path: str, data: bytes) -> str:
    """By its name; a text with an unknown name is a text."""
    known = mimetypes.guess_type(path)[0]
    if known is None:
        known = "text/plain" if as_text(data) is not None else "application/octet-stream"
    return known


def as_text(data: bytes) -> str | None:
    """The text that it is; None when it is none."""
    if b"\0" in data[:8192]:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


class Content(NamedTuple):
    data: bytes
    media_type: str | None = None


def content_of(value: Any) -> Content | None:
    """A file as tools and callers give it: bytes, a text, a data URL, or an object with one of these.

    None for an address, which stays what it is; FileRefusedError for anything else.
    """
    if is_object(value):
        inner = content_of(
            next((value[name] for name in ("data", "content", "url") if value.get(name) is not None), None)
        )
        media_type = value.get("media_type") or value.get("content_type")
        return inner and Content(inner.data, str(media_type) if media_type else inner.media_type)
    if hasattr(value, "getvalue"):
        value = value.getvalue()
    if isinstance(value, bytes | bytearray):
        return Content(bytes(value))
    if not isinstance(value, str):
        raise FileRefusedError(f"a file is bytes or a text, not {type(value).__name__}")
    if value.startswith(("http://", "https://")) and not value.split(maxsplit=1)[1:]:
        return None
    return _data_url(value) if value.startswith("data:") and "," in value else Content(value.encode())


def _data_url(url: str) -> Content:
    head, _, body = url.removeprefix("data:").partition(",")
    fields = head.split(";")
    try:
        data = unquote_to_bytes(body)
        data = base64.b64decode(data, validate=True) if fields[-1].strip().lower() == "base64" else data
    except (ValueError, binascii.Error) as error:
        raise FileRefusedError(f"{url[:40]!r}… is no data URL: {error}") from error
    return Content(data, fields[0].strip().lower() or "text/plain")


def over_quota(store: FileStoreParams, registry: Registry, path: str, size: int) -> str | None:
    """Why a file of this size may not be written to `path`, in words for the model; None when it may."""
    if size > store.max_file_bytes:
        return f"{path!r} would have {size} bytes, and a file may have {store.max_file_bytes}."
    others = [entry["size"] for name, entry in registry.items() if name != path]
    if len(others) + 1 > store.max_files:
        return f"There are {len(others)} files already, and no more than {store.max_files} are allowed."
    if sum(others) + size > store.limit:
        return f"With {path!r} all files would have {sum(others) + size} bytes, and {store.limit} are allowed."
    return None


def without_content(registry: Registry, keep: str | None = None) -> dict[str, Entry]:
    """The registry as it is passed around, with the content of one file at most."""
    return {
        path: dict(entry) if path == keep else {name: value for name, value in entry.items() if name not in CONTENT}
        for path, entry in registry.items()
    }


def references(store: FileStoreParams, registry: Registry) -> dict[str, Entry]:
    """What an agent gives on of the files it wrote: entries that can be read without the agent's state."""
    where = store.model_dump(mode="json", include={"type", "path", "connection", "bucket", "prefix"}, exclude_none=True)
    return {path: {**entry, "store": where} for path, entry in registry.items() if entry.get("by") != INPUT}


INPUT = "input"
"""Who has written a file that came with the agent's input."""


def is_reference(value: Any) -> bool:
    return is_object(value) and is_object(value.get("store")) and "sha256" in value


def described(path: str, entry: Mapping[str, Any]) -> str:
    """One file in one line."""
    return f"{path} ({entry['media_type']}, {entry['size']} bytes)"
