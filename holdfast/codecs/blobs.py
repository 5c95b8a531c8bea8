"""Where large things lie: under a prefix for each run, so that deleting a run deletes them.

A store keeps bytes under names and knows nothing of what they mean. Whether they are what was written is the codec's to
say.
"""

import asyncio
import errno
import hashlib
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote, unquote, urlsplit

_LONGEST_PART = 200
"""Below the 255 bytes of a file's name; two parts and a blob's name stay below the 1,024 of an S3 key."""
_CUT = "!"
"""Never in a quoted text: it tells a shortened part from a whole one."""
_AT_ONCE = 1000
_REFUSED = {
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENOTDIR,
    errno.EEXIST,
    errno.EISDIR,
    errno.EINVAL,
    errno.ELOOP,
}
"""Everything else passes by itself, or when somebody makes room: a full disk, a quota, a network drive that is away."""


class Blob(NamedTuple):
    """One in a list."""

    name: str
    size: int
    written_at: datetime


class MissingBlobError(LookupError):
    """A blob that is referred to and not there."""

    def __init__(self, name: str, where: str) -> None:
        super().__init__(f"[blob/missing] {name} is not in {where}: it was deleted, or this is another store")


class StoreUnavailableError(ConnectionError):
    """The store is not there at the moment, and nothing is wrong with what was asked: try again."""

    def __init__(self, where: str, reason: object) -> None:
        super().__init__(f"[blob/unavailable] {where} is not available at the moment ({reason}); it is tried again")


class StoreRefusedError(RuntimeError):
    """The store is there and refuses. Trying again changes nothing: somebody has to."""

    def __init__(self, where: str, reason: object, remedy: str) -> None:
        super().__init__(f"[blob/refused] {where} refuses ({reason}): {remedy}")


class BadStoreError(ValueError):
    """Something that names no store. The text given is never shown: it may have a password in it."""

    def __init__(self, message: str) -> None:
        super().__init__(f"[blob/bad-url] {message}; stores are s3://bucket/prefix, file:///folder or a path")


class BlobStore(Protocol):
    """Names are `namespace/run/name`; a blob is written once and never changed.

    Every method raises StoreUnavailableError when the store cannot be reached now, after a few seconds of its own
    tries, and StoreRefusedError when it never will.
    """

    async def check(self) -> None:
        """Whether it can be reached, written and read: for the start of a process."""
        ...

    async def put(self, name: str, data: bytes, *, fresh: bool = False) -> None:
        """Whole and on the disk when this returns. A name that is there already stays as it is, and is no error.

        Where it is `fresh`, a random one, nobody has to look.
        """
        ...

    async def get(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        """The bytes, or a part of them: less, or none, where the blob ends before. MissingBlobError."""
        ...

    def find(self, prefix: str) -> AsyncIterator[Blob]:
        """All whose names begin so. Those of one run come together, by name; the runs in no order to rely on."""
        ...

    async def delete(self, names: Sequence[str]) -> None:
        """Those that are not there are no error."""
        ...

    async def tidy(self, older_than: timedelta) -> int:
        """Removes what killed processes left half written; how many. `older_than` spares those still writing."""
        ...


def prefix_of(namespace: str, run_id: str) -> str:
    """Where a run's blobs are. A flow inside a run has a prefix of its own beside it."""
    return f"{_part(namespace)}/{_part(run_id)}"


def run_of(prefix: str) -> tuple[str, str] | None:
    """The namespace and the run that a prefix, or a blob's name, belongs to.

    None when an id was too long to be kept. To find the run then, compare the prefix with `prefix_of` of those there
    are; it must not be taken for a run that is gone.
    """
    namespace, run_id, *_ = prefix.split("/")
    if _CUT in namespace or _CUT in run_id:
        return None
    return unquote(namespace), unquote(run_id)


def _part(text: str) -> str:
    # A leading dot would lead elsewhere, or hide: '..' is a valid id of a workflow.
    quoted = quote(text, safe="")
    if quoted.startswith("."):
        quoted = f"%2E{quoted[1:]}"
    if len(quoted) <= _LONGEST_PART:
        return quoted
    digest = hashlib.blake2b(text.encode(), digest_size=20).hexdigest()
    return f"{quoted[: _LONGEST_PART - len(digest) - len(_CUT)]}{_CUT}{digest}"


def is_name(name: str) -> bool:
    """Whether it is a file's name below a folder, and leads nowhere else."""
    return all(
        part and not part.startswith(".") and "\\" not in part and part.isprintable() and len(part.encode()) <= 255
        for part in name.split("/")
    )


def check_name(name: str) -> None:
    if not is_name(name):
        raise ValueError(f"[blob/bad-name] {name!r} is no name of a blob")


def check_prefix(prefix: str) -> None:
    """The folders in it are names; after them any beginning of a name may follow."""
    folder, slash, _ = prefix.rpartition("/")
    if slash:
        check_name(folder)


async def delete_prefix(store: BlobStore, prefix: str) -> int:
    """Deletes all blobs of a run; how many there were."""
    count, names = 0, list[str]()
    async for blob in store.find(f"{prefix}/"):
        names.append(blob.name)
        if len(names) == _AT_ONCE:
            await store.delete(names)
            count, names = count + len(names), []
    await store.delete(names)
    return count + len(names)


def open_store(url: str, *, patience: float = 5.0) -> BlobStore:
    """The store that `s3://bucket/prefix?endpoint=…&region=…`, `file:///folder` or a path names; BadStoreError."""
    if not url.strip():
        raise BadStoreError("the name of the store is empty")
    if "://" not in url:
        return LocalBlobs(Path(url).expanduser())
    try:
        parts = urlsplit(url)
    except ValueError:
        raise BadStoreError("the URL of the store cannot be read") from None
    if parts.scheme == "s3":
        from holdfast.codecs.s3 import S3Blobs, S3Settings

        return S3Blobs(S3Settings.from_url(url), patience=patience)
    if parts.scheme != "file":
        raise BadStoreError(f"there are no stores of the kind {parts.scheme!r}")
    if parts.netloc not in ("", "localhost") or not parts.path.strip("/") or parts.query or parts.fragment:
        raise BadStoreError("a file URL has three slashes, an absolute path and nothing else")
    return LocalBlobs(Path(unquote(parts.path)))


class LocalBlobs:
    """A directory. For one machine: the embedded default.

    A blob is written in `.writing` and moved when it is on the disk, so that every blob under its name is whole, and
    what killed processes left is in one place.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._writing = root / ".writing"

    def _path(self, name: str) -> Path:
        check_name(name)
        return self._root / name

    async def check(self) -> None:
        def write() -> None:
            _make(self._writing)
            with tempfile.TemporaryFile(dir=self._writing) as file:
                file.write(b"holdfast")

        with self._told():
            await asyncio.to_thread(write)

    async def put(self, name: str, data: bytes, *, fresh: bool = False) -> None:
        path = self._path(name)
        with self._told():
            await asyncio.to_thread(self._write, path, data)

    def _write(self, path: Path, data: bytes) -> None:
        if not path.exists():
            _make(self._writing)
            descriptor, temporary = tempfile.mkstemp(dir=self._writing)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(file.fileno())
                _move(Path(temporary), path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        # Also when it was there: whoever moved it may not have come this far.
        for folder in path.parents:
            _sync(folder)
            if folder == self._root:
                break

    async def get(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        path = self._path(name)

        def read() -> bytes:
            with path.open("rb") as file:
                file.seek(start)
                return file.read() if size is None else file.read(size)

        with self._told():
            try:
                return await asyncio.to_thread(read)
            except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
                raise MissingBlobError(name, str(self._root)) from None

    async def find(self, prefix: str) -> AsyncGenerator[Blob]:
        check_prefix(prefix)
        folder, slash, beginning = prefix.rpartition("/")
        to_do = [(f"{folder}{slash}", beginning)]
        while to_do:
            folder, beginning = to_do.pop()
            with self._told():
                blobs, folders = await asyncio.to_thread(self._list, folder, beginning)
            for blob in blobs:
                yield blob
            to_do += [(name, "") for name in reversed(folders)]

    def _list(self, folder: str, beginning: str) -> tuple[list[Blob], list[str]]:
        blobs: list[Blob] = []
        folders: list[str] = []
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(self._root / folder) as entries:
            for entry in entries:
                if entry.name.startswith(".") or not entry.name.startswith(beginning):
                    continue
                if entry.is_dir():
                    folders.append(f"{folder}{entry.name}/")
                    continue
                with suppress(FileNotFoundError):
                    known = entry.stat()
                    written_at = datetime.fromtimestamp(known.st_mtime, UTC)
                    blobs.append(Blob(f"{folder}{entry.name}", known.st_size, written_at))
        return sorted(blobs), sorted(folders)

    async def delete(self, names: Sequence[str]) -> None:
        paths = [self._path(name) for name in names]

        def remove() -> None:
            for path in paths:
                with suppress(FileNotFoundError, IsADirectoryError, NotADirectoryError):
                    path.unlink()
            # The deepest first.
            folders = {folder for path in paths for folder in path.relative_to(self._root).parents}
            for folder in sorted(folders - {Path()}, key=lambda folder: -len(folder.parts)):
                with suppress(OSError):  # It has others in it, or is gone.
                    (self._root / folder).rmdir()

        with self._told():
            await asyncio.to_thread(remove)

    async def tidy(self, older_than: timedelta) -> int:
        before = (datetime.now(UTC) - older_than).timestamp()

        def remove() -> int:
            count = 0
            with suppress(FileNotFoundError):
                for path in list(self._writing.iterdir()):
                    with suppress(FileNotFoundError):  # It was moved meanwhile: its writer lives.
                        if path.stat().st_mtime < before:
                            path.unlink()
                            count += 1
            return count

        with self._told():
            return await asyncio.to_thread(remove)

    @contextmanager
    def _told(self) -> Generator[None]:
        """What the file system says, as every store says it."""
        try:
            yield
        except OSError as error:
            if error.errno in _REFUSED:
                remedy = "check that it is a folder which this process may write"
                raise StoreRefusedError(str(self._root), error.strerror, remedy) from error
            raise StoreUnavailableError(str(self._root), error.strerror) from error


def _make(folder: Path) -> None:
    """With all above it, and on the disk: a blob in a folder that a power cut takes is lost too."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(exist_ok=True)
    _sync(folder.parent)


def _move(temporary: Path, path: Path) -> None:
    for left in reversed(range(100)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.replace(temporary, path)
            return
        except (FileNotFoundError, FileExistsError):
            # Somebody who deletes the last blob of a folder takes the folder away too, at any moment.
            if not left:
                raise


def _sync(folder: Path) -> None:
    with suppress(FileNotFoundError):  # Deleted since, with all that was in it.
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
