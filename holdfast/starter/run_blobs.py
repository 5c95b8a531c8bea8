"""What runs have in the blob store: deleted with them, and swept where a crash left it behind.

A blob is written before anything refers to it. So a worker that dies in between leaves one that nobody needs; a
clean-up that dies leaves those of a run that is gone. Neither is missed, and both are found here. What an open run has
is never touched: only it knows what it will still refer to.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from google.protobuf.message import Message
from temporalio.api.common.v1 import Payload
from temporalio.client import Client

from holdfast.codecs.blobs import Blob, prefix_of, run_of
from holdfast.codecs.codec import HoldfastCodec
from holdfast.codecs.epochs import MARKER, end_epochs
from holdfast.codecs.faults import DAMAGED, WORTH_WAITING
from holdfast.starter.errors import RunNotFoundError
from holdfast.starter.rebuild import executions

_DELETED_AT_ONCE = 1000


class RunBlobs:
    """The blobs of one namespace. Without a store there are none, and everything here does nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        codec = client.data_converter.payload_codec
        self._codec = codec if isinstance(codec, HoldfastCodec) else None
        self._store = self._codec.blobs if self._codec is not None else None

    async def release(self, run_ids: Collection[str]) -> list[str]:
        """Before the runs are deleted: from then on nobody refers to what they have, which is given by name.

        When they are gone their ids can be taken again, and then there are others' blobs beside it.
        """
        if self._store is None:
            return []
        prefixes = [prefix_of(self._client.namespace, run_id) for run_id in run_ids]
        await end_epochs(self._store, prefixes)
        return [blob.name for prefix in prefixes async for blob in self._store.find(f"{prefix}/")]

    async def delete(self, names: Sequence[str]) -> None:
        """After the runs are deleted."""
        if self._store is None:
            return
        for start in range(0, len(names), _DELETED_AT_ONCE):
            await self._store.delete(names[start : start + _DELETED_AT_ONCE])

    async def unneeded(
        self, before: datetime, ended_at: Callable[[str], Awaitable[datetime | None]], *, deep: bool
    ) -> list[Blob]:
        """Blobs from before that time that nothing refers to: of runs that are gone and, where `deep`, of runs that
        ended before it. `ended_at` raises LookupError where there is no run, and gives None where it is open."""
        found: list[Blob] = []
        async for run_id, blobs in self._by_run():
            if max(blob.written_at for blob in blobs) >= before:
                continue  # Somebody writes there, and may be about to start the run.
            try:
                ended = await ended_at(run_id)
            except LookupError:
                found += blobs
                continue
            if deep and ended is not None and ended < before:
                try:
                    needed = await self._referred_to(run_id)
                except (RunNotFoundError, *DAMAGED, *WORTH_WAITING):
                    continue  # Nobody knows what it needs.
                found += [blob for blob in blobs if blob.name not in needed and not blob.name.endswith(f"/{MARKER}")]
        return found

    async def sweep(self, blobs: Collection[Blob], grace: timedelta) -> None:
        """Deletes what `unneeded` found, and what killed processes left half written."""
        if self._store is None:
            return
        await self._store.tidy(grace)
        await end_epochs(self._store, {blob.name.rpartition("/")[0] for blob in blobs})
        await self.delete([blob.name for blob in blobs])

    async def _by_run(self) -> AsyncIterator[tuple[str, list[Blob]]]:
        if self._store is None:
            return
        current, blobs = "", list[Blob]()
        async for blob in self._store.find(f"{prefix_of(self._client.namespace, 'x').partition('/')[0]}/"):
            prefix = blob.name.rpartition("/")[0]
            if prefix.count("/") != 1:
                continue  # Not ours: in a namespace called `files` it may be what agents have in the same bucket.
            if prefix != current and blobs:
                for run in self._named(current):
                    yield run, blobs
                blobs = []
            current = prefix
            blobs.append(blob)
        if blobs:
            for run in self._named(current):
                yield run, blobs

    @staticmethod
    def _named(prefix: str) -> Iterator[str]:
        """Its run; none where the id was too long to be kept in the name. Those blobs go with their run only."""
        run = run_of(prefix)
        if run is not None:
            yield run[1]

    async def _referred_to(self, run_id: str) -> set[str]:
        assert self._codec is not None
        codec = self._codec.of(self._client.namespace, run_id)
        found: set[str] = set()
        async for history in executions(self._client, run_id):
            for event in history.events:
                for payload in payloads_in(event):
                    found |= await codec.packs_of(payload)
        return found


def payloads_in(message: Message) -> Iterator[Payload]:
    """All payloads in a message, however deep."""
    if isinstance(message, Payload):
        yield message
        return
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            items: Any = value.values() if field.message_type.fields_by_name["value"].message_type else ()
        else:
            items = value if field.is_repeated else [value]
        for item in items:
            yield from payloads_in(item)
