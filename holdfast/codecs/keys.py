"""Keys by id. One is written with, all are read with: that is how they are changed while runs are open."""

import asyncio
import base64
import importlib
import inspect
import logging
import os
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

KEYS_VARIABLE, FILE_VARIABLE, SERVICE_VARIABLE = "HOLDFAST_KEYS", "HOLDFAST_KEYS_FILE", "HOLDFAST_KEY_SERVICE"
KEY_BYTES = 32
_FRESH_SECONDS = 300.0
_ASK_AGAIN_SECONDS = 5.0
_log = logging.getLogger(__name__)

KeyService = Callable[[str], "Mapping[str, bytes] | Awaitable[Mapping[str, bytes]]"]
"""The keys of a namespace by id, the one to write with first. It is asked again every few minutes."""


class UnknownKeyError(LookupError):
    """Something was written with a key that is not here. It is not lost: the key is."""

    def __init__(self, key_id: str, known: list[str]) -> None:
        self.key_id = key_id
        have = f"there are: {', '.join(known)}" if known else "there are none"
        super().__init__(
            f"[codec/unknown-key] the key {key_id!r} is not among this process's keys ({have}); add it to "
            f"{KEYS_VARIABLE}, after the one to write with"
        )


class BadKeyError(ValueError):
    def __init__(self, message: str) -> None:
        super().__init__(f"[codec/bad-key] {message}")


class KeysUnavailableError(ConnectionError):
    def __init__(self, reason: object) -> None:
        super().__init__(
            f"[codec/keys-unavailable] the source of the keys does not answer: {reason}; it is asked again"
        )


class KeyRing:
    """32 bytes for each id. The first one is the one to write with."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        for key_id, key in keys.items():
            if not key_id or not key_id.isascii() or len(key_id) > 100:
                raise BadKeyError(f"{key_id!r} is no id for a key: take up to 100 ASCII characters")
            if len(key) != KEY_BYTES:
                raise BadKeyError(f"key {key_id!r} has {len(key)} bytes instead of {KEY_BYTES}")
        self._keys = dict(keys)
        self.current = next(iter(self._keys), None)
        """The id of the key to write with; None when there is none, and nothing is encrypted."""

    def has(self, key_id: str) -> bool:
        return key_id in self._keys

    def get(self, key_id: str) -> bytes:
        if key_id not in self._keys:
            raise UnknownKeyError(key_id, list(self._keys))
        return self._keys[key_id]


def keys_in(text: str, namespace: str, source: str = KEYS_VARIABLE) -> dict[str, bytes]:
    """`id:base64` of each key, with spaces, commas or line breaks in between; `namespace/id:base64` is for that
    namespace alone, which then has no others."""
    common: dict[str, bytes] = {}
    own: dict[str, bytes] = {}
    for entry in text.replace(",", " ").split():
        name, colon, encoded = entry.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except ValueError:
            colon, key = "", b""
        if not colon:
            # Not shown: it may be most of a key.
            raise BadKeyError(f"an entry of {source} is not 'id:base64'; make a key with 'openssl rand -base64 32'")
        whose, slash, key_id = name.rpartition("/")
        if not slash:
            common[key_id] = key
        elif whose == namespace:
            own[key_id] = key
    return own or common


def from_environment() -> "Keys":
    """By HOLDFAST_KEYS, HOLDFAST_KEYS_FILE or HOLDFAST_KEY_SERVICE (`module:function`); without them no keys."""
    text, path, service = (os.environ.get(name) for name in (KEYS_VARIABLE, FILE_VARIABLE, SERVICE_VARIABLE))
    if sum(map(bool, (text, path, service))) > 1:
        raise BadKeyError(f"set one of {KEYS_VARIABLE}, {FILE_VARIABLE} and {SERVICE_VARIABLE}, not several")
    if service:
        return Keys(_named(service), source=f"{SERVICE_VARIABLE}={service}")
    if path:
        return Keys(lambda namespace: _in_file(path, namespace), source=f"{FILE_VARIABLE}={path}")
    return Keys(lambda namespace: keys_in(text or "", namespace), source=KEYS_VARIABLE if text else None)


def _in_file(path: str, namespace: str) -> dict[str, bytes]:
    try:
        return keys_in(Path(path).read_text(), namespace, f"{FILE_VARIABLE}={path}")
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeyError(f"{FILE_VARIABLE}={path} cannot be read: {error}") from error


def _named(path: str) -> KeyService:
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadKeyError(f"{SERVICE_VARIABLE}={path} is not 'module:function': {error}") from error


class Keys:
    """The key rings of all namespaces, asked for when needed and again after a while, so that keys can be changed.

    Where a `source` is set, a namespace without a key is a fault: everything would be written in the clear.
    """

    def __init__(self, service: KeyService, source: str | None = None) -> None:
        self._service = service
        self._source = source
        self._rings: dict[str, tuple[KeyRing, float]] = {}
        self._lock = asyncio.Lock()

    async def ring(self, namespace: str, *, wanted: str | None = None) -> KeyRing:
        """`wanted` is an id that the caller has met: where it is unknown, the source is asked again."""
        found = self._rings.get(namespace)
        if found is not None:
            ring, asked = found
            age = time.monotonic() - asked
            unknown = wanted is not None and not ring.has(wanted)
            if age < (_ASK_AGAIN_SECONDS if unknown else _FRESH_SECONDS):
                return ring
        async with self._lock:
            try:
                given = await asyncio.to_thread(self._service, namespace)
                ring = KeyRing(await given if inspect.isawaitable(given) else given)
                if self._source is not None and ring.current is None:
                    raise BadKeyError(f"{self._source} has no key for namespace {namespace!r}")
            except BadKeyError:
                raise
            except Exception as error:
                if found is None:
                    raise KeysUnavailableError(error) from error
                # A source that is away for a while takes nobody's keys away.
                _log.warning("the keys of namespace %r cannot be read again; known ones are used: %r", namespace, error)
                ring = found[0]
            self._rings[namespace] = (ring, time.monotonic())
            return ring
