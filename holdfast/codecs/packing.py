"""Large data as chunks, each stored once in a run.

Data is cut where its content says so, so that a conversation that has grown shares all chunks but the last with the one
before: around long JSON strings, since texts keep together when what is around them changes, and inside by FastCDC.
What is new of it becomes one blob, a pack: one write, whatever the number of chunks, and compressed as a whole.
A list of extents says where the data is; where the list is long it is cut and stored in the same way, so that it does
not grow with the conversation either. Everything that a list refers to is stored before the list exists.
"""

import asyncio
import re
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from pyfastcdc import FastCDC

from holdfast.codecs.blobs import BlobStore
from holdfast.codecs.epochs import Epochs
from holdfast.codecs.recent import Recent
from holdfast.codecs.sealing import DamagedError, Sealer

_NAME_BYTES = 12
_EXTENT = struct.Struct(f">{_NAME_BYTES}sII")
_HEAD = struct.Struct(">BQH")
_LONGEST_LIST = 16
_DEEPEST = 8
_CARRIED = 1024
"""A pack up to this size is not worth a blob: the list carries it along."""
# Messages are cut small, and what is larger coarsely: nobody would find the same again in it.
_CUTTERS = ((64 * 2**10, FastCDC(512)), (64 * 2**20, FastCDC(16_384)), (2**62, FastCDC(262_144)))
_LIST_CUTTER = FastCDC(256)
_LONG_STRING = re.compile(rb'"[^"]{200}')
_LARGEST_PACK = 8 * 2**20
_IN_A_THREAD = 2 * 2**20
_AT_ONCE = 16


class Extent(NamedTuple):
    """Where a part of the data is: in which pack, from where, how long."""

    pack: bytes
    start: int
    size: int


class Packer:
    """Stores and loads data under a prefix. What it has seen of a run it remembers, as far as there is room."""

    def __init__(self, store: BlobStore, *, chunks: int = 100_000, cache: int = 32 * 2**20) -> None:
        self.blobs = store
        self._epochs = Epochs(store)
        self._chunks: Recent[bytes, Extent] = Recent(chunks)
        self._packs: Recent[tuple[str, bytes], bytes] = Recent(cache)
        self._lists: Recent[bytes, bool] = Recent(chunks // 10)
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self.learns = False
        """Whether it remembers where the chunks of what it reads are. Who only reads need not."""

    async def store(self, data: bytes, sealer: Sealer, prefix: str) -> bytes:
        """A short list of extents, from which `load` makes the data again. All of it is stored when this returns."""
        epoch = await self._epochs.current(prefix)
        packing = _Packing(sealer, prefix, epoch, self._chunks)
        if len(data) > _IN_A_THREAD:
            listed = await asyncio.to_thread(packing.add_all, data)
        else:
            listed = packing.add_all(data)
        await asyncio.gather(*(self._put(f"{prefix}/{name.hex()}", sealed) for name, _, sealed in packing.packs))
        for name, pack, _ in packing.packs:
            self._packs.put((prefix, name), pack, len(pack))
        if packing.packs:
            for digest, extent in packing.new.items():
                self._chunks.put(epoch + digest, extent)
        self._lists.put(listed, True)
        return listed

    async def _put(self, name: str, blob: bytes) -> None:
        async with self._slots:
            await self.blobs.put(name, blob, fresh=True)

    async def load(self, listed: bytes, sealer: Sealer, key_id: str, prefix: str) -> bytes:
        """What `store` was given; DamagedError or MissingBlobError names what is not as it was."""
        depth, size, carried, data = _read_head(listed, prefix)
        for level in range(depth + 1):
            extents = _extents(data, prefix)
            data = await self._joined(extents, carried, sealer, key_id, prefix)
            if self.learns and key_id == sealer.key_id and self._lists.get(listed) is None:
                chunks = _cut(data) if level == depth else _cut_list(data)
                await self._learn(chunks, extents, carried.keys(), sealer, prefix)
        if len(data) != size:
            raise DamagedError(_list_of(prefix))
        self._lists.put(listed, True)
        return data

    async def _joined(
        self, extents: Sequence[Extent], carried: Mapping[bytes, bytes], sealer: Sealer, key_id: str, prefix: str
    ) -> bytes:
        names = list(dict.fromkeys(extent.pack for extent in extents if extent.pack not in carried))
        found = await asyncio.gather(*(self._pack(name, sealer, key_id, prefix) for name in names))
        packs = {**carried, **dict(zip(names, found, strict=True))}
        if any(extent.start + extent.size > len(packs[extent.pack]) for extent in extents):
            raise DamagedError(_list_of(prefix))
        return b"".join(packs[name][start : start + size] for name, start, size in extents)

    async def _pack(self, name: bytes, sealer: Sealer, key_id: str, prefix: str) -> bytes:
        found = self._packs.get((prefix, name))
        if found is not None:
            return found
        full_name = f"{prefix}/{name.hex()}"
        async with self._slots:
            sealed = await self.blobs.get(full_name)
        what = f"blob {full_name}"
        if len(sealed) > _IN_A_THREAD:
            pack = await asyncio.to_thread(sealer.open, sealed, key_id, name, what)
        else:
            pack = sealer.open(sealed, key_id, name, what)
        self._packs.put((prefix, name), pack, len(pack))
        return pack

    async def _learn(
        self, chunks: Iterable[memoryview], extents: Sequence[Extent], carried: Set[bytes], sealer: Sealer, prefix: str
    ) -> None:
        """Another process stored it. Remembers where its chunks are, so that they are not stored again."""
        epoch = await self._epochs.known(prefix)
        if epoch is None:
            return
        left = list(reversed(extents))
        for chunk in chunks:
            pack, start, size = left.pop()
            if len(chunk) > size:
                return  # Cut otherwise than we would: by another version.
            if pack not in carried:
                self._chunks.put(epoch + sealer.digest(chunk, prefix), Extent(pack, start, len(chunk)))
            if len(chunk) < size:
                left.append(Extent(pack, start + len(chunk), size - len(chunk)))

    async def packs_of(self, listed: bytes, sealer: Sealer, key_id: str, prefix: str) -> set[str]:
        """The names of all packs that a list refers to, itself or through others."""
        depth, _, carried, data = _read_head(listed, prefix)
        names: set[bytes] = set()
        for level in range(depth + 1):
            extents = _extents(data, prefix)
            names |= {extent.pack for extent in extents} - carried.keys()
            if level < depth:
                data = await self._joined(extents, carried, sealer, key_id, prefix)
        return {f"{prefix}/{name.hex()}" for name in names}


class _Packing:
    """What is new of one payload, in packs of a bounded size."""

    def __init__(self, sealer: Sealer, prefix: str, epoch: bytes, known: Recent[bytes, Extent]) -> None:
        self._sealer = sealer
        self._prefix = prefix
        self._epoch = epoch
        self._known = known
        self._name, self._pack = secrets.token_bytes(_NAME_BYTES), bytearray()
        self.packs: list[tuple[bytes, bytes, bytes]] = []
        self.new: dict[bytes, Extent] = {}

    def add_all(self, data: bytes) -> bytes:
        """The list, as it goes into the payload."""
        extents, depth = self._add(_cut(data)), 0
        while len(extents) > _LONGEST_LIST and depth < _DEEPEST:
            extents, depth = self._add(_cut_list(_listed(extents))), depth + 1
        carried = self._name + self._pack if self._pack and not self.packs and len(self._pack) <= _CARRIED else b""
        if not carried:
            self._close()
        return _HEAD.pack(depth, len(data), len(carried)) + carried + _listed(extents)

    def _add(self, chunks: Iterable[memoryview]) -> list[Extent]:
        extents: list[Extent] = []
        for chunk in chunks:
            extent = self._place(chunk)
            last = extents[-1] if extents else None
            if last is not None and last.pack == extent.pack and last.start + last.size == extent.start:
                extents[-1] = Extent(last.pack, last.start, last.size + extent.size)
            else:
                extents.append(extent)
        return extents

    def _place(self, chunk: memoryview) -> Extent:
        digest = self._sealer.digest(chunk, self._prefix)
        found = self.new.get(digest) or self._known.get(self._epoch + digest)
        if found is not None:
            return found
        if len(self._pack) + len(chunk) > _LARGEST_PACK:
            self._close()
        self.new[digest] = Extent(self._name, len(self._pack), len(chunk))
        self._pack += chunk
        return self.new[digest]

    def _close(self) -> None:
        if self._pack:
            pack = bytes(self._pack)
            self.packs.append((self._name, pack, self._sealer.seal(pack, self._name)))
        self._name, self._pack = secrets.token_bytes(_NAME_BYTES), bytearray()


def _cut(data: bytes) -> Iterator[memoryview]:
    view, at = memoryview(data), 0
    # A payload begins with its encoding. In other bytes a quotation mark is nothing special.
    for start, end in _long_strings(data) if b"json/" in data[:100] else ():
        yield from _cut_piece(view[at:start])
        yield from _cut_piece(view[start:end])
        at = end
    yield from _cut_piece(view[at:])


def _long_strings(data: bytes) -> Iterator[tuple[int, int]]:
    end = 0
    while (found := _LONG_STRING.search(data, end)) is not None:
        end = data.find(b'"', found.end())
        while end >= 0 and _is_escaped(data, end):
            end = data.find(b'"', end + 1)
        if end < 0:
            return
        end += 1
        yield found.start(), end


def _is_escaped(data: bytes, at: int) -> bool:
    before = at
    while data[before - 1 : before] == b"\\":
        before -= 1
    return (at - before) % 2 == 1


def _cut_piece(piece: memoryview) -> Iterator[memoryview]:
    return _chunks(piece, next(cutter for limit, cutter in _CUTTERS if len(piece) <= limit))


def _cut_list(listed: bytes) -> Iterator[memoryview]:
    return _chunks(memoryview(listed), _LIST_CUTTER)


def _chunks(piece: memoryview, cutter: FastCDC) -> Iterator[memoryview]:
    if len(piece) <= cutter.avg_size:
        return iter((piece,) if piece else ())
    return (piece[chunk.offset : chunk.offset + chunk.length] for chunk in cutter.cut_buf(piece))


def _listed(extents: Sequence[Extent]) -> bytes:
    return b"".join(_EXTENT.pack(*extent) for extent in extents)


def _extents(data: bytes, prefix: str) -> list[Extent]:
    if len(data) % _EXTENT.size:
        raise DamagedError(_list_of(prefix))
    return [Extent(*fields) for fields in _EXTENT.iter_unpack(data)]


def _read_head(listed: bytes, prefix: str) -> tuple[int, int, dict[bytes, bytes], bytes]:
    """How deep the list is, how long the data, the pack that is carried along by its name, and the extents."""
    if len(listed) < _HEAD.size:
        raise DamagedError(_list_of(prefix))
    depth, size, length = _HEAD.unpack_from(listed)
    carried, rest = listed[_HEAD.size : _HEAD.size + length], listed[_HEAD.size + length :]
    if depth > _DEEPEST or len(carried) != length:
        raise DamagedError(_list_of(prefix))
    return depth, size, {carried[:_NAME_BYTES]: carried[_NAME_BYTES:]} if carried else {}, rest


def _list_of(prefix: str) -> str:
    return f"the list of chunks of a payload in {prefix}"
