"""The tools by which an agent's model uses its files: list, read, write, search. What they store it with is given.

What a model does wrong is an observation for it (`refused`), and never an exception.
"""

import base64
import fnmatch
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from holdfast.contracts.files import (
    Content,
    Entry,
    FileRefusedError,
    FileStore,
    Registry,
    as_text,
    clean_path,
    content_of,
    described,
    digest,
    is_reference,
    media_type_of,
    over_quota,
)
from holdfast.flows.files import LIST, READ, SEARCH, WRITE, FileStoreParams
from holdfast.flows.shapes import is_object

READ_LIMIT = 20_000
SHOWN_BYTES = 2**20
"""What is shown to a model is in the conversation from then on, so an image or a PDF is shown only up to this size."""
_SEARCHED_BYTES = 10 * 2**20
_MOST_MATCHES = 50
_LONGEST_LINE = 200
_SHOWN_IMAGES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})


Fetch = Callable[[str, Mapping[str, Any]], Awaitable[Content]]
"""Reads a file of an agent inside this one, by what that one has given on of it."""


class Kept(NamedTuple):
    """A tool's output, and the files that the run is to register when it has it."""

    output: dict[str, Any]
    files: dict[str, Entry]


class Files:
    """One agent's files, for one call. The registry is the run's; what comes back is registered by the run."""

    def __init__(self, store: FileStore, params: FileStoreParams, registry: Registry) -> None:
        self._store = store
        self._params = params
        self._registry = dict(registry)

    async def use(self, tool: str, arguments: Any) -> Kept:
        """One call of one of the tools."""
        try:
            return await self._tools[tool](arguments if is_object(arguments) else {})
        except FileRefusedError as error:
            return Kept({"refused": str(error)}, {})

    @property
    def _tools(self) -> dict[str, Callable[[Mapping[str, Any]], Awaitable[Kept]]]:
        return {LIST: self._list, READ: self._read, WRITE: self._write, SEARCH: self._search}

    async def _list(self, arguments: Mapping[str, Any]) -> Kept:
        wanted = _glob(arguments)
        found = [described(path, entry) for path, entry in sorted(self._registry.items()) if _fits(path, wanted)]
        return _said("\n".join(found) or ("No file fits." if self._registry else "There are no files yet."))

    async def _read(self, arguments: Mapping[str, Any]) -> Kept:
        path, entry = self._known(arguments.get("path"))
        data = await self._store.get(path, entry)
        text = as_text(data)
        if text is not None:
            return _said(_section(text, arguments.get("offset", 0), arguments.get("limit", READ_LIMIT)))
        kind = entry["media_type"]
        shown = kind in _SHOWN_IMAGES or kind == "application/pdf"
        if not shown:
            return _said(f"{described(path, entry)} is no text and cannot be shown. sha256: {entry['sha256']}")
        if len(data) > SHOWN_BYTES:
            return _said(f"{described(path, entry)} is too large to be shown: at most {SHOWN_BYTES} bytes are.")
        url = f"data:{kind};base64,{base64.b64encode(data).decode()}"
        part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url}}
        if kind == "application/pdf":
            part = {"type": "file", "file": {"url": url, "name": path, "media_type": kind}}
        return Kept({"content": described(path, entry), "parts": [part]}, {})

    async def _write(self, arguments: Mapping[str, Any]) -> Kept:
        path, data = clean_path(arguments.get("path")), str(arguments.get("content", "")).encode()
        before = self._registry.get(path)
        if arguments.get("append") and before is not None:
            data = await self._store.get(path, before) + data
        entry = await self.save(path, Content(data), by="agent")
        return Kept({"content": f"Written: {described(path, entry)}"}, {path: entry})

    async def _search(self, arguments: Mapping[str, Any]) -> Kept:
        wanted, words = _glob(arguments), str(arguments.get("text") or "").casefold()
        found: list[str] = []
        skipped: list[str] = []
        for path, entry in sorted(self._registry.items()):
            if not _fits(path, wanted):
                continue
            if not words:
                found.append(described(path, entry))
            elif entry["size"] > _SEARCHED_BYTES:
                skipped.append(path)
            else:
                text = as_text(await self._store.get(path, entry)) or ""
                lines = enumerate(text.splitlines(), start=1)
                found += [f"{path}:{n}: {line[:_LONGEST_LINE]}" for n, line in lines if words in line.casefold()]
            if len(found) > _MOST_MATCHES:
                found = [*found[:_MOST_MATCHES], "… and more: search for something narrower"]
                break
        if skipped:
            found.append(f"Too large to be searched: {', '.join(skipped)}")
        return _said("\n".join(found) or "Nothing was found.")

    async def save(self, path: str, content: Content, by: str) -> Entry:
        """Stores a file and gives its entry; FileRefusedError when it is too much. The next one knows of it."""
        if refused := over_quota(self._params, self._registry, path, len(content.data)):
            raise FileRefusedError(refused)
        sha256 = digest(content.data)
        used = sum(entry["size"] for name, entry in self._registry.items() if name != path)
        entry: Entry = {
            "size": len(content.data),
            "media_type": content.media_type or media_type_of(path, content.data),
            "sha256": sha256,
            "by": by,
            **await self._store.put(path, content.data, sha256, used),
        }
        self._registry[path] = entry
        return entry

    async def keep(self, output: Mapping[str, Any], by: str, fetch: Fetch | None) -> Kept:
        """Stores the `files` of a tool's output. An address stays one; the model is told what was not kept."""
        kept = Kept({}, {})
        others: dict[str, Any] = {}
        told: list[str] = []
        for name, value in files_in(output).items():
            try:
                path = clean_path(name)
                content = await fetch(path, value) if fetch and is_reference(value) else content_of(value)
                if content is None:
                    others[name] = value
                else:
                    kept.files[path] = await self.save(path, content, by)
            except FileRefusedError as error:
                told.append(f"The file {name!r} was not kept. {error}")
        shown = {path: {"size": entry["size"], "media_type": entry["media_type"]} for path, entry in kept.files.items()}
        kept.output.update({**output, "files": {**shown, **others}})
        kept.output.update(with_words(kept.output, told))
        return kept

    def _known(self, given: Any) -> tuple[str, Mapping[str, Any]]:
        path = clean_path(given)
        if path not in self._registry:
            names = ", ".join(sorted(self._registry)[:20]) or "none"
            raise FileRefusedError(f"There is no file {path!r}. There are: {names}.")
        return path, self._registry[path]


def with_words(output: Any, words: list[str]) -> Any:
    """A tool's output with what the model has to be told besides."""
    if not words or not is_object(output):
        return output
    content = output.get("content", "")
    return {
        **output,
        "content": "\n".join([content, *words]).strip() if isinstance(content, str) else [content, *words],
    }


def files_in(output: Any) -> Mapping[str, Any]:
    """What a tool's output has under `files`."""
    files = output.get("files") if is_object(output) else None
    return files if is_object(files) else {}


def _said(words: str) -> Kept:
    return Kept({"content": words}, {})


def _section(text: str, offset: int, limit: int) -> str:
    part = text[offset : offset + limit]
    end = offset + len(part)
    if offset == 0 and end == len(text):
        return part
    more = f"; read on with offset {end}" if end < len(text) else ""
    return f"{part}\n[characters {offset} to {end} of {len(text)}{more}]"


def _glob(arguments: Mapping[str, Any]) -> str:
    return str(arguments.get("glob") or "*")[:_LONGEST_LINE]


def _fits(path: str, glob: str) -> bool:
    return fnmatch.fnmatchcase(path, glob)
