"""What a run asks for its agents' files, over whatever store: answered by workers, and by the simulator."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from pydantic import ValidationError

from holdfast.checkpoints import values
from holdfast.contracts.calls import NodeCall
from holdfast.contracts.file_tools import Files, Kept, files_in
from holdfast.contracts.files import INPUT, Content, Entry, FileRefusedError, FileStore, LostFileError, clean_path
from holdfast.contracts.prompts import inline_files
from holdfast.flows.files import FileStoreParams
from holdfast.flows.shapes import is_object

_AT_ONCE = 4

OpenStore = Callable[[FileStoreParams, NodeCall, bool], Awaitable[FileStore]]
"""A store for one call. With True it may read what other runs have written: to take it over, and for nothing else."""


class FilesLostError(Exception):
    """Files that a checkpoint refers to are not there any more, or are not what was written."""

    def __init__(self, where: str, lost: list[str]) -> None:
        super().__init__(
            f"[files/lost] {len(lost)} of the checkpoint's files cannot be taken over from the {where} store: "
            f"{' '.join(lost)} Put them back, or go on from a checkpoint before they were written."
        )


class BadFilesError(ValueError):
    """Files in an agent's input that cannot be kept."""

    def __init__(self, why: str) -> None:
        super().__init__(f"[files/bad-input] the agent's input files cannot be kept: {why}")


class _Given(NamedTuple):
    store: FileStoreParams
    files: dict[str, Entry]


class FileCalls:
    """One for a worker."""

    def __init__(self, open_store: OpenStore) -> None:
        self._open = open_store

    async def use(self, call: NodeCall, arguments: Any) -> Kept:
        """A call of one of the model's own tools."""
        given = _given(call.params)
        files = Files(await self._open(given.store, call, False), given.store, given.files)
        return await files.use(call.params["tool"], arguments)

    async def keep(self, call: NodeCall, output: Any) -> Kept:
        """Puts the `files` of a tool's output into the store of the agent that has called it."""
        if not files_in(output):
            return Kept(output, {})
        given = _given(call.files or call.params)

        async def fetch(path: str, reference: Mapping[str, Any]) -> Content:
            try:
                store = await self._open(FileStoreParams.model_validate(reference["store"]), call, False)
                return Content(await store.get(path, reference), reference["media_type"])
            except (ValidationError, KeyError) as error:
                raise FileRefusedError(f"What is said of {path!r} is no reference to a file.") from error

        files = Files(await self._open(given.store, call, False), given.store, given.files)
        if call.files is None:
            return await files.keep(output, call.params["by"], fetch)
        # What somebody else's tool says of a store is not believed: it could name what is not its own.
        return await files.keep(output, call.node_id.rpartition("/")[2], None)

    async def take_input(self, call: NodeCall, input_data: Any) -> dict[str, Entry]:
        """Puts the files that came with an agent's input into its store; BadFilesError when they do not fit."""
        params = FileStoreParams.model_validate(call.params["file_store"])
        files = Files(await self._open(params, call, False), params, {})
        taken: dict[str, Entry] = {}
        try:
            for name, content in inline_files(input_data):
                path = clean_path(name)
                if path in taken:
                    raise FileRefusedError(f"Two files are called {path!r}: give each its own name.")
                taken[path] = await files.save(path, content, INPUT)
        except FileRefusedError as error:
            raise BadFilesError(str(error)) from error
        return taken

    async def adopt(self, call: NodeCall) -> dict[str, Entry]:
        """Makes the files of a checkpoint this run's own, each verified on the way; FilesLostError names the others."""
        given, source = _given(call.params), FileStoreParams.model_validate(call.params["from"])
        old, new = await self._open(source, call, True), await self._open(given.store, call, False)
        slots = asyncio.Semaphore(_AT_ONCE)
        lost: list[str] = []

        async def copy(path: str, entry: Entry) -> Entry:
            async with slots:
                try:
                    data = await old.get(path, entry)
                except LostFileError as error:
                    lost.append(str(error))
                    return {}
                kept = {name: entry[name] for name in entry if name not in ("key", "data", "packed")}
                others = sum(known["size"] for name, known in given.files.items() if name != path)
                return {**kept, **await new.put(path, data, entry["sha256"], others)}

        copied = await asyncio.gather(*(copy(path, entry) for path, entry in given.files.items()))
        if lost:
            raise FilesLostError(source.type, sorted(lost))
        return dict(zip(given.files, copied, strict=True))


def _given(data: Mapping[str, Any]) -> _Given:
    files: Any = values.decode(data.get("files") or {})
    return _Given(FileStoreParams.model_validate(data["store"]), dict(files) if is_object(files) else {})
