"""Agents' file stores as a process finds them: directories under one root, and buckets by connection or by name.

For workers, and for whoever deletes a run's files. The store whose contents are in the checkpoint needs none of this.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlsplit, urlunsplit

from pydantic import ValidationError

from holdfast.codecs.blobs import (
    BadStoreError,
    BlobStore,
    LocalBlobs,
    MissingBlobError,
    StoreRefusedError,
    delete_prefix,
    open_store,
    prefix_of,
    run_of,
)
from holdfast.contracts.files import Entry, LostFileError, digest, object_name
from holdfast.flows.files import FileStoreParams
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import FlowSpec

FILES_VARIABLE = "HOLDFAST_FILES"
"""The directory under which the paths of local stores are. All workers have to see the same."""

_FOLDER = "files"
"""In a bucket, so that a sweep of the payloads' blobs, if they are under the same prefix, never meets a file."""

Address = Callable[[str], Awaitable[str | None]]
"""The `base_url` of a connection: `s3://bucket/prefix?endpoint=…`."""


class FileStores:
    """Opens each store once. S3's credentials are found by boto3, on the machine that this runs on."""

    def __init__(self, root: Path, address: Address) -> None:
        self._root = root
        self._address = address
        self._opened: dict[str, BlobStore] = {}

    async def open(self, params: FileStoreParams) -> BlobStore:
        """BadStoreError, StoreRefusedError or ImportError when there is none."""
        if params.type == "local":
            return self._local(params.path or "")
        url = await self._url(params)
        if url not in self._opened:
            self._opened[url] = open_store(url)
        return self._opened[url]

    def _local(self, path: str) -> BlobStore:
        root, folder = self._root.resolve(), (self._root / path).resolve()
        if not folder.is_relative_to(root):
            raise StoreRefusedError(str(self._root / path), "a link leads out of it", f"mend the link in {root}")
        return ContainedBlobs(folder)

    async def _url(self, params: FileStoreParams) -> str:
        address = f"s3://{params.bucket}" if params.connection is None else await self._address(params.connection)
        parts = urlsplit(address or "")
        if parts.scheme != "s3":
            raise BadStoreError(f"the base_url of connection {params.connection!r} is no bucket")
        inside = [part for part in (parts.path.strip("/"), quote(params.prefix or ""), _FOLDER) if part]
        return urlunsplit(parts._replace(path="/".join(["", *inside])))

    async def delete_run(self, flow: FlowSpec, namespace: str, run_id: str) -> int:
        """Deletes all that the agents of a run have stored; how many objects. Runs inside it are asked for apart."""
        count = 0
        for params in stores_of(flow):
            count += await delete_prefix(await self.open(params), prefix_of(namespace, run_id))
        return count

    async def leave_to(
        self, family: str, flow: FlowSpec, namespace: str, run_id: str, execution: str, others: Mapping[str, str]
    ) -> bool:
        """Notes in its stores that a run goes and its files stay, because others of its family may refer to them.

        False when all of these others have left such a note as well: of two who go at once, one is the last. Runs are
        noted with the execution that they are found by: who has taken the id of one that is gone has left no note.
        """
        notes = _left_to(namespace, family)
        stay = False
        for params in stores_of(flow):
            blobs = await self.open(params)
            await blobs.put(f"{notes}/{_own(namespace, run_id)}/{execution}", b"")
            gone = {blob.name async for blob in blobs.find(f"{notes}/")}
            stay = stay or any(f"{notes}/{_own(namespace, other)}/{last}" not in gone for other, last in others.items())
        return stay

    async def delete_left_to(self, family: str, flow: FlowSpec, namespace: str) -> int:
        """Deletes what was left to a family of which the last one goes; how many objects."""
        count, notes = 0, _left_to(namespace, family)
        for params in stores_of(flow):
            blobs = await self.open(params)
            for note in [blob.name async for blob in blobs.find(f"{notes}/")]:
                space, _, own, *_ = note.split("/")
                count += await delete_prefix(blobs, f"{space}/{own}")
                await blobs.delete([note])  # Last: interrupted before it, the rest is found again.
        return count


def _left_to(namespace: str, family: str) -> str:
    # No run's prefix has such a mark in it: there it would be quoted.
    space, first = prefix_of(namespace, family).split("/")
    return f"{space}/={first}"


def _own(namespace: str, run_id: str) -> str:
    return prefix_of(namespace, run_id).rpartition("/")[2]


def stores_of(flow: FlowSpec) -> list[FileStoreParams]:
    """Every store outside the checkpoint that an agent of the flow has, at any depth; each once."""
    found: dict[str, FileStoreParams] = {}
    for written in _written([node.params for node in flow.nodes]):
        try:
            params = FileStoreParams.model_validate(written)
        except ValidationError:
            continue  # Of a node of the author's own, which has a model as well.
        if params.type != "memory":
            place = params.model_dump_json(include={"type", "path", "connection", "bucket", "prefix"})
            found.setdefault(place, params)
    return list(found.values())


def _written(value: Any) -> Iterator[Any]:
    """What agents have as `file_store`. They are told by their model from nodes of the author's own."""
    if isinstance(value, list | tuple):
        for item in cast(Sequence[Any], value):
            yield from _written(item)
    elif is_object(value):
        if "llm" in value and is_object(value.get("file_store")):
            yield value["file_store"]
        for item in value.values():
            yield from _written(item)


class ContainedBlobs(LocalBlobs):
    """A directory that no link leads out of."""

    def _path(self, name: str) -> Path:
        path = super()._path(name)
        if not path.resolve().is_relative_to(self._root.resolve()):
            raise StoreRefusedError(str(path), "a link leads out of the store", "remove the link")
        return path


async def load(blobs: BlobStore, path: str, entry: Mapping[str, Any]) -> bytes:
    """A registered file's content as it was written; LostFileError when it is gone or is another."""
    try:
        data = await blobs.get(entry["key"])
    except MissingBlobError as error:
        raise LostFileError(f"The content of {path!r} is gone: {error}.") from None
    if len(data) != entry["size"] or digest(data) != entry["sha256"]:
        raise LostFileError(f"The content of {path!r} has been changed in the store ({entry['key']}).")
    return data


class BlobFiles:
    """Files as objects of a store, for one call in one run.

    An object is under the prefix of its run. It is read by its own run and those around it; by another of the same
    namespace only with `any_run`, to be taken over.
    """

    def __init__(self, blobs: BlobStore, namespace: str, run_id: str, key: str, *, any_run: bool = False) -> None:
        self._blobs = blobs
        self._namespace = namespace
        self._run_id = run_id
        self._key = key
        self._any_run = any_run

    async def put(self, path: str, data: bytes, sha256: str, used: int) -> Entry:
        name = f"{prefix_of(self._namespace, self._run_id)}/{object_name(path, self._key, sha256)}"
        await self._blobs.put(name, data)
        return {"key": name}

    async def get(self, path: str, entry: Mapping[str, Any]) -> bytes:
        name = entry.get("key")
        if not isinstance(name, str) or not self._is_ours(name):
            raise LostFileError(f"The content of {path!r} is not in this run's part of the store.")
        return await load(self._blobs, path, entry)

    def _is_ours(self, name: str) -> bool:
        if name.startswith(f"{prefix_of(self._namespace, self._run_id)}/"):
            return True
        if self._any_run:
            return name.startswith(f"{prefix_of(self._namespace, 'x').partition('/')[0]}/")
        owner = run_of(name)
        return owner is not None and owner[0] == self._namespace and owner[1].startswith(f"{self._run_id}/")


def files_root(home: Path, environment: Mapping[str, str]) -> Path:
    """Where local stores are: HOLDFAST_FILES, or a folder beside the rest of a worker's state."""
    return Path(environment.get(FILES_VARIABLE) or home / "files").expanduser()
