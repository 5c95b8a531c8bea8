"""The codec of every payload: compressed, encrypted, and where it is large, stored apart as a short list of chunks.

What it did not write it passes on: histories from before it was switched on stay readable, and so do those of others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    ActivitySerializationContext,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from holdfast.codecs.blobs import BlobStore, prefix_of
from holdfast.codecs.keys import Keys
from holdfast.codecs.packing import Packer
from holdfast.codecs.sealing import DamagedError, Sealer

ENCODING = b"binary/holdfast"
_INLINE, _PACKED = b"inline", b"packed"
_WORTH_TRYING = 8
"""A payload of so many times the limit may become small enough by compression alone: many nodes that are alike."""
STAYS_HERE = "holdfast-here"
"""Marks a payload that never leaves the process."""


@dataclass(frozen=True)
class Limits:
    """In bytes. Above `offload_above` a payload is stored apart; above `largest` it is refused; up to `plain_up_to` it
    stays as it is where nothing is encrypted; and `inline` is the most that Temporal itself takes."""

    offload_above: int = 16 * 2**10
    largest: int = 512 * 2**20
    plain_up_to: int = 256
    inline: int = 1_900_000


class TooLargeError(ValueError):
    def __init__(self, size: int, limits: Limits, *, apart: bool) -> None:
        remedy = (
            "keep it in a file store and pass its name on, or raise HOLDFAST_LARGEST_PAYLOAD"
            if apart
            else "set HOLDFAST_BLOBS, so that large values are stored apart"
        )
        most = limits.largest if apart else limits.inline
        super().__init__(f"[codec/too-large] a value has {size} bytes, and at most {most} are taken; {remedy}")


class NoStoreError(LookupError):
    def __init__(self, prefix: str) -> None:
        super().__init__(
            f"[codec/no-store] a payload is stored apart, under {prefix}, and this process has no blob store: "
            "set HOLDFAST_BLOBS as the workers have it"
        )


class HoldfastCodec(PayloadCodec, WithSerializationContext):
    """Without a packer large payloads stay where they are, compressed."""

    def __init__(
        self,
        keys: Keys,
        packer: Packer | None = None,
        limits: Limits | None = None,
        *,
        namespace: str = "default",
        run_id: str | None = None,
    ) -> None:
        self._keys = keys
        self._packer = packer
        self.limits = limits or Limits()
        self._namespace = namespace
        self._run_id = run_id

    def with_context(self, context: SerializationContext) -> "HoldfastCodec":
        """Knows the run from then on, and stores under its prefix."""
        match context:
            case WorkflowSerializationContext() | ActivitySerializationContext():
                return self.of(context.namespace, context.workflow_id)
            case _:
                return self

    def of(self, namespace: str, run_id: str | None = None) -> "HoldfastCodec":
        """The codec of a run; without one it reads everything and stores nothing apart."""
        return HoldfastCodec(self._keys, self._packer, self.limits, namespace=namespace, run_id=run_id)

    def reading(self, faults: list[Exception]) -> "HoldfastCodec":
        """One that reads everything and writes nothing: for a replay of somebody else's run.

        What it cannot read it notes in `faults`: a replay says only that it failed.
        """
        return _Reading(self, faults)

    def is_small(self, payload: Payload) -> bool:
        """Whether it stays in the history whatever there is."""
        return payload.ByteSize() <= self.limits.offload_above

    @property
    def blobs(self) -> BlobStore | None:
        """Where large payloads are."""
        return self._packer.blobs if self._packer is not None else None

    def learn(self) -> None:
        """For a worker, which passes on what it reads: from now on it stores none of that again."""
        if self._packer is not None:
            self._packer.learns = True

    async def encrypts(self) -> bool:
        return (await self._keys.ring(self._namespace)).current is not None

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [await self._encoded(payload) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return [await self._decoded(payload) for payload in payloads]

    async def _encoded(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") == ENCODING or STAYS_HERE in payload.metadata:
            return payload
        sealer = Sealer(await self._keys.ring(self._namespace))
        data = payload.SerializeToString()
        size = len(data)
        if not sealer.key_id and size <= self.limits.plain_up_to:
            return payload
        if size > self.limits.largest:
            raise TooLargeError(size, self.limits, apart=True)
        if self._packer is None or self._run_id is None:
            encoded = _sealed(_INLINE, data, sealer)
            if len(encoded.data) > self.limits.inline:
                raise TooLargeError(size, self.limits, apart=False)
            return encoded
        if size <= _WORTH_TRYING * self.limits.offload_above:
            encoded = _sealed(_INLINE, data, sealer)
            if size <= self.limits.offload_above or len(encoded.data) <= self.limits.offload_above // 4:
                return encoded
        prefix = prefix_of(self._namespace, self._run_id)
        listed = await self._packer.store(data, sealer, prefix)
        return _sealed(_PACKED, prefix.encode() + b"\n" + listed, sealer)

    async def _decoded(self, payload: Payload) -> Payload:
        if payload.metadata.get("encoding") != ENCODING:
            return payload
        kind, data, sealer, key_id = await self._opened(payload)
        if kind == _PACKED:
            prefix, listed = _reference(data)
            data = await self._apart(prefix).load(listed, sealer, key_id, prefix)
        return Payload.FromString(data)

    async def packs_of(self, payload: Payload) -> set[str]:
        """The blobs that a payload needs."""
        if payload.metadata.get("encoding") != ENCODING or payload.metadata.get("kind") != _PACKED:
            return set()
        _, data, sealer, key_id = await self._opened(payload)
        prefix, listed = _reference(data)
        return await self._apart(prefix).packs_of(listed, sealer, key_id, prefix)

    async def _opened(self, payload: Payload) -> tuple[bytes, bytes, Sealer, str]:
        kind, key_id = payload.metadata.get("kind", b""), payload.metadata.get("key-id", b"").decode(errors="replace")
        what = f"a payload of {self._run_id or 'a run'!r} in namespace {self._namespace!r}"
        if kind not in (_INLINE, _PACKED):
            raise DamagedError(what)
        sealer = Sealer(await self._keys.ring(self._namespace, wanted=key_id or None))
        return kind, sealer.open(payload.data, key_id, kind, what), sealer, key_id

    def _apart(self, prefix: str) -> Packer:
        if self._packer is None:
            raise NoStoreError(prefix)
        return self._packer


class _Reading(HoldfastCodec):
    def __init__(self, codec: HoldfastCodec, faults: list[Exception]) -> None:
        self._codec = codec
        self._faults = faults

    def of(self, namespace: str, run_id: str | None = None) -> "_Reading":
        return _Reading(self._codec.of(namespace, run_id), self._faults)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        try:
            return await self._codec.decode(payloads)
        except Exception as error:
            self._faults.append(error)
            raise


def _sealed(kind: bytes, data: bytes, sealer: Sealer) -> Payload:
    metadata = {"encoding": ENCODING, "kind": kind}
    if sealer.key_id:
        metadata["key-id"] = sealer.key_id.encode()
    return Payload(metadata=metadata, data=sealer.seal(data, kind))


def _reference(data: bytes) -> tuple[str, bytes]:
    prefix, _, listed = data.partition(b"\n")
    return prefix.decode(), listed
