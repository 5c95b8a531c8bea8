"""Agents' files in an export: what a checkpoint refers to in a store, put into it, since the store stays behind.

Where the export is imported, the content is what an agent with its files in the checkpoint would have: the agents copy
it into their own stores, and `read_file` reads it.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from holdfast.checkpoints import values
from holdfast.checkpoints.models import CheckpointRecord, NodeRecord, RunnableStatus
from holdfast.codecs.faults import BAD_SETTINGS, WORTH_WAITING
from holdfast.contracts.files import Entry, LostFileError, is_reference
from holdfast.contracts.memory_files import MemoryFiles
from holdfast.file_stores import FileStores, load
from holdfast.flows.files import FileStoreParams
from holdfast.flows.shapes import is_array, is_object
from holdfast.starter.bundle_files import InvalidExportError

LARGEST = 256 * 2**20
"""All files of an export together. It is made in memory."""
_INSIDE = {"type": "memory"}
_OUTSIDE = ("local", "s3")


class CarriedFiles:
    """For one export. A file is read once, however often it is referred to."""

    def __init__(self, stores: FileStores, largest: int = LARGEST) -> None:
        self._stores = stores
        self._largest = largest
        self._read: dict[str, Entry] = {}
        self._size = 0

    async def put_into(self, record: CheckpointRecord) -> CheckpointRecord:
        """The checkpoint with the content of the files it needs; InvalidExportError when one cannot be had."""
        states = {path: await self._state(state) for path, state in record.node_states.items()}
        return record.fork(node_states=states, original_input=await self._value(record.original_input))

    async def _state(self, state: NodeRecord) -> NodeRecord:
        changes: dict[str, Any] = {"output_data": await self._value(state.output_data)}
        if state.status != RunnableStatus.SUCCESS:
            # It goes on: what it is made from has to be the same as what it gets there.
            changes["input_data"] = await self._value(state.input_data)
            changes["internal_state"] = await self._inside(state.internal_state)
        return state.model_copy(update=changes)

    async def _inside(self, state: dict[str, Any]) -> dict[str, Any]:
        inside = await self._value(state)
        place = inside.get("files_of")
        if not place or place["store"]["type"] not in _OUTSIDE:
            return inside
        registry = {
            path: await self._content(path, entry, place["store"]) for path, entry in state["file_store"].items()
        }
        return {**inside, "file_store": registry, "files_of": {**place, "store": _INSIDE}}

    async def _value(self, value: Any, name: str = "") -> Any:
        if is_reference(value) and value["store"].get("type") in _OUTSIDE and "key" in value:
            return {**await self._content(name, value, value["store"]), "store": _INSIDE}
        if is_object(value):
            return {key: await self._value(item, key) for key, item in value.items()}
        if is_array(value):
            return [await self._value(item) for item in value]
        return value

    async def _content(self, path: str, entry: Mapping[str, Any], store: Mapping[str, Any]) -> Entry:
        """An entry with its content in it."""
        known = f"{sorted(store.items())} {entry.get('key')}"
        if known not in self._read:
            self._size += entry["size"]
            if self._size > self._largest:
                raise _refused(f"all files together have more than {self._largest} bytes")
            data = await self._load(path, entry, store)
            inside = await MemoryFiles().put(path, data, entry["sha256"], 0)
            self._read[known] = values.encode(inside, f"the file {path!r}")
        return {**{name: entry[name] for name in entry if name != "key"}, **self._read[known]}

    async def _load(self, path: str, entry: Mapping[str, Any], store: Mapping[str, Any]) -> bytes:
        try:
            return await load(await self._stores.open(FileStoreParams.model_validate(store)), path, entry)
        except (LostFileError, ValidationError, ImportError, *BAD_SETTINGS, *WORTH_WAITING) as error:
            raise _refused(f"the file {path!r} cannot be read in its store ({store['type']}): {error}") from error


def _refused(why: str) -> InvalidExportError:
    remedy = (
        "export where the store can be reached, or without files ('--no-files', 'files=false') and bring them yourself"
    )
    return InvalidExportError("export/files", why, remedy)
