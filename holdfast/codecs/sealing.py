"""Bytes that are small, secret and whole: zstd, then AES-256-GCM."""

import hashlib
import hmac
import secrets
from functools import lru_cache

import zstandard
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from holdfast.codecs.keys import KeyRing

_SALT_BYTES, _NONCE_BYTES = 12, 12
_PLAIN, _ZSTD = b"\x00", b"\x01"
_LEVEL = 3
_LARGEST = 2**31
DIGEST_BYTES = 16


class DamagedError(ValueError):
    """Something is not what was written: cut off, changed, or put in another's place."""

    def __init__(self, what: str) -> None:
        super().__init__(f"[codec/damaged] {what} is not as it was written: damaged, cut off or changed")


class Sealer:
    """For one namespace's keys. Without keys nothing is encrypted, and damage is found by digests alone."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    @property
    def key_id(self) -> str:
        """The key to write with; an empty text when nothing is encrypted."""
        return self._keys.current or ""

    def seal(self, data: bytes, label: bytes) -> bytes:
        """`label` is not in the result, and has to be the same when it is opened."""
        packed = _compressed(data)
        if not self.key_id:
            return _digest(label + packed) + packed
        nonce = secrets.token_bytes(_SALT_BYTES + _NONCE_BYTES)
        return nonce + self._cipher(self.key_id, nonce).encrypt(nonce[_SALT_BYTES:], packed, label)

    def open(self, sealed: bytes, key_id: str, label: bytes, what: str) -> bytes:
        """What was sealed; DamagedError, or UnknownKeyError."""
        if not key_id:
            digest, packed = sealed[:DIGEST_BYTES], sealed[DIGEST_BYTES:]
            if digest != _digest(label + packed):
                raise DamagedError(what)
            return _plain(packed, what)
        nonce, encrypted = sealed[: _SALT_BYTES + _NONCE_BYTES], sealed[_SALT_BYTES + _NONCE_BYTES :]
        cipher = self._cipher(key_id, nonce)
        try:
            packed = cipher.decrypt(nonce[_SALT_BYTES:], encrypted, label)
        except (InvalidTag, ValueError):
            raise DamagedError(what) from None
        return _plain(packed, what)

    def digest(self, chunk: bytes | memoryview, prefix: str) -> bytes:
        """The name of a content in one run, as long as the key is the same."""
        if not self.key_id:
            return _digest(chunk)
        key = _derived(self._keys.get(self.key_id), b"run " + prefix.encode())
        return hmac.digest(key, chunk, "sha256")[:DIGEST_BYTES]

    def _cipher(self, key_id: str, nonce: bytes) -> AESGCM:
        # A key of its own for each salt: random nonces under one key would be used up after 2^32 payloads.
        return AESGCM(hmac.digest(_derived(self._keys.get(key_id), b"payload"), nonce[:_SALT_BYTES], "sha256"))


def _digest(data: bytes | memoryview) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def _compressed(data: bytes) -> bytes:
    small = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
    return _ZSTD + small if len(small) < len(data) else _PLAIN + data


def _plain(packed: bytes, what: str) -> bytes:
    mark, data = packed[:1], packed[1:]
    if mark == _PLAIN:
        return data
    try:
        if mark != _ZSTD:
            raise DamagedError(what)
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=_LARGEST)
    except zstandard.ZstdError:
        raise DamagedError(what) from None


@lru_cache(maxsize=1000)
def _derived(key: bytes, purpose: bytes) -> bytes:
    """A key for one purpose. Who has it has neither the others nor the one they come from."""
    return hmac.digest(key, b"holdfast/1 " + purpose, "sha256")
