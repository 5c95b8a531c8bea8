"""Whether what a process remembers of a run's blobs is still true.

A run can be deleted with its blobs, and its id be taken by another one, while a process somewhere remembers packs of
the first. A payload that refers to those would be lost. So each prefix has a marker, a random epoch, and what is
remembered is remembered of an epoch. Whoever has not looked at the marker for a lease's time looks again before it
refers to anything; whoever deletes takes the marker away first, and waits for a lease's time before the rest.
"""

import asyncio
import secrets
import time
from collections.abc import Iterable

from holdfast.codecs.blobs import BlobStore, MissingBlobError
from holdfast.codecs.recent import Recent

LEASE_SECONDS = 2.0
MARKER = "epoch"
_EPOCH_BYTES = 8
_MOST_PREFIXES = 10_000


class Epochs:
    """The epochs of many prefixes, each looked at no more often than necessary."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._seen: Recent[str, tuple[bytes, float]] = Recent(_MOST_PREFIXES)

    async def current(self, prefix: str) -> bytes:
        """The epoch to store under; begins one where there is none."""
        # One that was never seen is most likely new: then asking for its epoch is a request in vain.
        found = await self.known(prefix) if self._seen.get(prefix) is not None else None
        if found is not None:
            return found
        looked = time.monotonic()
        await self._store.put(_name(prefix), secrets.token_bytes(_EPOCH_BYTES))
        # Somebody else may have been first, and the first one counts.
        return self._remember(prefix, await self._store.get(_name(prefix)), looked)

    async def known(self, prefix: str) -> bytes | None:
        """The epoch, or None where nothing is stored."""
        seen = self._seen.get(prefix)
        looked = time.monotonic()
        if seen is not None and looked - seen[1] < LEASE_SECONDS:
            return seen[0]
        try:
            return self._remember(prefix, await self._store.get(_name(prefix)), looked)
        except MissingBlobError:
            return None

    def _remember(self, prefix: str, epoch: bytes, looked: float) -> bytes:
        self._seen.put(prefix, (epoch, looked))
        return epoch


async def end_epochs(store: BlobStore, prefixes: Iterable[str]) -> None:
    """To be called before the blobs of these prefixes are deleted. After it nobody refers to them any more."""
    names = [_name(prefix) for prefix in prefixes]
    if names:
        await store.delete(names)
        await asyncio.sleep(LEASE_SECONDS)


def _name(prefix: str) -> str:
    return f"{prefix}/{MARKER}"
