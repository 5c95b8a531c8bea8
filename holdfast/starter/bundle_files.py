"""What an export is made of on the disk: one way of writing each value, encryption, and large values apart."""

import base64
import hashlib
import hmac
import json
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from holdfast.flows.shapes import is_array, is_object

_LARGE = 64 * 1024
_BLOB = "__blob__"
_BYTES = frozenset({"__bytes__", "__bytearray__", "__bytesio__"})
NONCE_BYTES = 12
_ANOTHER_COPY = "take another copy, or export again"


class InvalidExportError(ValueError):
    """A file that cannot be imported. `code` says why, `faults` has each reason where there are several."""

    def __init__(self, code: str, message: str, remedy: str, faults: Sequence[str] = ()) -> None:
        super().__init__(f"[{code}] {message}; {remedy}")
        self.code = code
        self.faults = tuple(faults)


def damaged(message: str) -> InvalidExportError:
    return InvalidExportError("export/damaged", message, _ANOTHER_COPY)


@dataclass(frozen=True)
class ExportKey:
    """What an export is encrypted with: a passphrase, or a key of 32 bytes."""

    kdf: Literal["scrypt", "none"]
    secret: bytes = field(repr=False)

    @classmethod
    def from_text(cls, text: str) -> "ExportKey":
        """`base64:` and 32 bytes, or any passphrase. The line break at the end of a key file is not part of it."""
        text = text.rstrip("\r\n")
        if not text:
            # Mostly a variable that is not set. Encrypted with nothing, a file only looks safe.
            raise InvalidExportError("export/bad-key", "the key is empty", "give a passphrase or 'base64:…'")
        if not text.startswith("base64:"):
            return cls("scrypt", text.encode())
        try:
            secret = base64.b64decode(text.removeprefix("base64:"), validate=True)
        except ValueError:
            secret = b""
        if len(secret) != 32:
            raise InvalidExportError(
                "export/bad-key",
                "a key that begins with 'base64:' goes on with the base64 of 32 bytes, and this one does not",
                "make one with 'openssl rand -base64 32'",
            )
        return cls("none", secret)

    def derive(self, salt: bytes) -> bytes:
        """The 32 bytes that encrypt."""
        if self.kdf == "none":
            return self.secret
        from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

        return Scrypt(salt=salt, length=32, n=2**15, r=8, p=1).derive(self.secret)


def base64_of(content: bytes) -> str:
    return base64.b64encode(content).decode()


class Cipher:
    """AES-256-GCM. What is sealed opens only with the same key and the same label."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._aes = AESGCM(key)
        self._naming = hmac.digest(key, b"holdfast-export blob names", "sha256")

    def seal(self, content: bytes, label: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE_BYTES)
        return nonce + self._aes.encrypt(nonce, content, label)

    def open(self, sealed: bytes, label: bytes) -> bytes | None:
        """None when key, label or content are not those that it was sealed with."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._aes.decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], label)
        except (InvalidTag, ValueError):
            return None

    def name(self, content: bytes) -> str:
        """Who guesses a content cannot compute its name, so names give nothing away."""
        return hmac.digest(self._naming, content, "sha256").hex()


class Blobs:
    """Large values as files, named by what is in them: one that occurs twice is one file."""

    def __init__(self, folder: Path, cipher: Cipher | None) -> None:
        self._folder = folder
        self._cipher = cipher
        self.stored: set[str] = set()

    def store(self, content: bytes) -> dict[str, Any]:
        name = self._cipher.name(content) if self._cipher else hashlib.sha256(content).hexdigest()
        if name not in self.stored:
            self._folder.mkdir(parents=True, exist_ok=True)
            # Also over a file that is there: it may be what a full disk has left of it.
            write_whole(self._folder / name, self._cipher.seal(content, name.encode()) if self._cipher else content)
            self.stored.add(name)
        return {_BLOB: name, "size": len(content)}

    def load(self, reference: Mapping[str, Any]) -> bytes:
        name = str(reference[_BLOB])
        if not re.fullmatch("[0-9a-f]{64}", name):
            raise damaged(f"{name!r:.80} cannot be the name of a blob")
        try:
            content = (self._folder / name).read_bytes()
        except OSError as error:
            raise InvalidExportError(
                "export/blob-missing",
                f"the value in {str(self._folder / name)!r} cannot be read: {error.strerror}",
                "bring the folder along with the file, or export without blobs",
            ) from error
        whole = self._cipher.open(content, name.encode()) if self._cipher else _if_named(name, content)
        if whole is None or len(whole) != reference.get("size"):
            raise InvalidExportError(
                "export/blob-damaged", f"{str(self._folder / name)!r} is not what was exported", _ANOTHER_COPY
            )
        return whole


def _if_named(name: str, content: bytes) -> bytes | None:
    return content if hashlib.sha256(content).hexdigest() == name else None


def with_blobs(data: dict[str, Any], blobs: Blobs, folder: str) -> dict[str, Any]:
    moved = _take_out(data, blobs.store)
    return {**moved, "blobs": Path(folder).as_posix()} if blobs.stored else data


def without_blobs(data: dict[str, Any], folder: Path | None, cipher: Cipher | None) -> dict[str, Any]:
    if folder is None:
        raise InvalidExportError(
            "export/blob-missing", "its large values are in a folder that did not come along", "export without blobs"
        )
    return _put_back(data, Blobs(folder / str(data["blobs"]), cipher).load)


def _take_out(value: Any, store: Callable[[bytes], dict[str, Any]]) -> Any:
    """`value` with references in place of what is large.

    An object that looks like a reference is put into one that does not. Encoded values have none, but a flow's
    parameters are not encoded, and neither is the input of a run that somebody else's client has started.
    """
    if isinstance(value, str):
        return store(value.encode()) if _is_large(value) else value
    if is_array(value):
        return [_take_out(item, store) for item in value]
    if not is_object(value):
        return value
    if len(value) == 1 and (mark := next(iter(value))) in _BYTES and _is_large(value[mark]):
        content = _bytes_in(value[mark])
        # A text that only looks like bytes stays where it is: as bytes it would come back as another text.
        return value if content is None else {mark: store(content)}
    moved = {key: _take_out(item, store) for key, item in value.items()}
    return {_BLOB: moved} if _BLOB in value else moved


def _put_back(value: Any, load: Callable[[Mapping[str, Any]], bytes]) -> Any:
    """What `_take_out` was given."""
    if is_array(value):
        return [_put_back(item, load) for item in value]
    if not is_object(value):
        return value
    if _is_reference(value):
        return load(value).decode()
    if len(value) == 1 and (mark := next(iter(value))) in _BYTES and _is_reference(value[mark]):
        return {mark: base64_of(load(value[mark]))}
    return {key: _put_back(item, load) for key, item in value.get(_BLOB, value).items()}


def _is_reference(value: Any) -> bool:
    return is_object(value) and isinstance(value.get(_BLOB), str)


def _is_large(value: Any) -> bool:
    return isinstance(value, str) and len(value) * 6 > _LARGE and len(to_json(value).encode()) > _LARGE


def _bytes_in(text: str) -> bytes | None:
    try:
        content = base64.b64decode(text, validate=True)
    except ValueError:
        return None
    return content if base64_of(content) == text else None


_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?\d[\d.eE+-]*+')


def is_plain(text: str) -> bool:
    """Some values can be written in two ways (`5e-324` and `4e-324`, `\\u001f` and `\\u001F`), one flipped bit apart.

    The checksum is over values and lets both pass; here one does. White space and the order of keys are free.
    """
    for found in _TOKENS.finditer(text):
        token = found[0]
        if token[0] == '"' and "\\" not in token:
            continue
        value = json.loads(token)
        if token not in (to_json(value), json.dumps(value)):
            return False
    return True


def to_json(data: Any, indent: int | None = None) -> str:
    # No line break at the end: one byte less would still be a whole file.
    return json.dumps(data, ensure_ascii=False, indent=indent, allow_nan=False)


_PLAIN_KEY = re.compile(r"(?!(?:true|false|null|yes|no|on|off)$)[a-z]{2,}(?:_[a-z]+)*")
_NOT_IN_YAML = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ufffe\uffff]")


def to_yaml(data: Mapping[str, Any]) -> str:
    """YAML whose values are those of JSON, texts in quotes: nothing depends on what a reader takes a word for."""
    return _block(data, "").removeprefix("\n")


def _block(value: Any, indent: str) -> str:
    if is_object(value) and value:
        lines = [f"\n{indent}{_key(key, indent)}:{_block(item, indent + '  ')}" for key, item in value.items()]
        return "".join(lines)
    if is_array(value) and value:
        return "".join(f"\n{indent}-{_block(item, indent + '  ')}" for item in value)
    return " " + _scalar(value)


def _key(key: str, indent: str) -> str:
    if len(key) > 100:
        return f"? {_scalar(key)}\n{indent}"  # Before a colon, YAML looks back over 1024 characters at most.
    return key if _PLAIN_KEY.fullmatch(key) else _scalar(key)


def _scalar(value: Any) -> str:
    return _NOT_IN_YAML.sub(lambda found: f"\\u{ord(found[0]):04x}", to_json(value))


class Loader(yaml.SafeLoader):
    """Takes no aliases: a few lines of them stand for more than any memory holds."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has aliases")
        return super().compose_node(parent, index)


# JSON's `1e+22`, which to YAML 1.1 is a text.
_FLOAT = re.compile(r"-?\d+(?:\.\d+)?e[-+]\d+")
Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, [*"-0123456789"])  # pyright: ignore[reportUnknownMemberType] (untyped stub)


def write_whole(path: Path, content: bytes) -> None:
    """After a crash the file is the old one or the new one. What a kill leaves behind is a `.holdfast-…` beside it."""
    descriptor, temporary = tempfile.mkstemp(prefix=".holdfast-", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # Only now the new name is on the disk too.
    finally:
        os.close(folder)
