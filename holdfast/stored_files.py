"""Reads what an agent has written to its file store, by the reference in the agent's output."""

import asyncio
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from holdfast.activities.connections import Connections
from holdfast.contracts.memory_files import MemoryFiles
from holdfast.file_stores import FileStores, files_root, load
from holdfast.flows.files import FileStoreParams
from holdfast.starter.embedded import home


def read_file(reference: Mapping[str, Any]) -> bytes:
    """The content of one of the `files` in an agent's output. For code that runs where the workers' stores are.

    It blocks: from async code, call it with `asyncio.to_thread`. LostFileError when the file is gone or changed.
    """
    return asyncio.run(_read(reference))


async def _read(reference: Mapping[str, Any]) -> bytes:
    params, what = FileStoreParams.model_validate(reference["store"]), str(reference.get("path") or "a file")
    if params.type == "memory":
        return await MemoryFiles().get(what, reference)
    return await load(await _stores(files_root(home(), os.environ)).open(params), what, reference)


@lru_cache(maxsize=8)
def _stores(root: Path) -> FileStores:
    """Kept, because each has connections of its own."""
    connections = Connections()

    async def address(name: str) -> str | None:
        return (await connections.resolve(name)).base_url

    return FileStores(root, address)
