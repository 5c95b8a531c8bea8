"""The file in which a checkpoint travels: written whole or not at all, believed only when it is as it was written.

JSON or YAML by its name; encrypted with a key; with large values in a folder of their own if asked. It only reads and
writes: whoever imports a bundle starts a run from its checkpoint.
"""

import base64
import json
import os
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, Field, ValidationError

from holdfast.checkpoints.migrations import MIGRATIONS
from holdfast.checkpoints.models import LIBRARY_VERSION, SCHEMA_VERSION, CheckpointRecord
from holdfast.checkpoints.serial import checksum, seal, unseal_record
from holdfast.checkpoints.validation import InvalidCheckpointError
from holdfast.contracts.calls import InnerRun, RunConfig
from holdfast.flows.check import ensure
from holdfast.flows.faults import FlowDefinitionError
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import FlowSpec
from holdfast.starter.bundle_files import (
    NONCE_BYTES,
    Blobs,
    Cipher,
    ExportKey,
    InvalidExportError,
    Loader,
    base64_of,
    damaged,
    is_plain,
    to_json,
    to_yaml,
    with_blobs,
    without_blobs,
    write_whole,
)

FORMAT = "holdfast-export"
VERSION = 1
ANYONE = "*"


class Source(BaseModel):
    """Where an export comes from."""

    namespace: str
    run_id: str
    checkpoint_id: str
    family: str | None = None
    """The first of the runs that it comes from, whose relatives keep the files that it refers to."""


class Bundle(BaseModel):
    """An export. `children` are the runs inside it that had not ended, by their path below the run."""

    format: Literal["holdfast-export"] = FORMAT
    version: int = VERSION
    exported_at: datetime = Field(default_factory=lambda: datetime.now(UTC))
    library_version: str = LIBRARY_VERSION
    source: Source
    made_for: str
    """The namespace that may import it; `*` is any."""
    flow: FlowSpec
    config: RunConfig = Field(default_factory=RunConfig)
    checkpoint: CheckpointRecord
    children: dict[str, InnerRun] = Field(default_factory=dict[str, InnerRun])
    checksum: str | None = None
    """Of the file it was read from."""


def write_bundle(bundle: Bundle, path: Path, *, key: ExportKey | None = None, blobs: Path | None = None) -> None:
    """Writes the file at `path`, replacing what is there only when the new one is whole and on the disk.

    With `blobs`, every text and bytes value above 64 KiB becomes a file in that folder. They are written first: a file
    that is there has all it names.
    """
    folder = os.path.relpath(blobs, path.parent) if blobs is not None else ""
    write_whole(path, _written(bundle, path.suffix.lower() in (".yaml", ".yml"), key, blobs, folder))


def bundle_text(bundle: Bundle, form: Literal["json", "yaml"] = "json", *, key: ExportKey | None = None) -> bytes:
    """The same as bytes, with everything inside."""
    return _written(bundle, form == "yaml", key)


def _written(
    bundle: Bundle, as_yaml: bool, key: ExportKey | None, blobs: Path | None = None, folder: str = ""
) -> bytes:
    salt = secrets.token_bytes(16)
    cipher = Cipher(key.derive(salt)) if key else None
    data = _content(bundle)
    if blobs is not None:
        data = with_blobs(data, Blobs(blobs, cipher), folder)
    data["checksum"] = checksum(data)
    if key and cipher:
        data = _locked(data, key, cipher, salt)
    return (to_yaml(data) if as_yaml else to_json(data, indent=2)).encode()


def read_bundle(path: Path, *, key: ExportKey | None = None, namespace: str | None = None) -> Bundle:
    """The export in a file, with every value in it; InvalidExportError says what is wrong, and nothing else is raised.

    With `namespace`, an export for another one is refused by name even where the key to it is missing.
    """
    try:
        text = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InvalidExportError(
            "export/cannot-read", f"{str(path)!r} cannot be read: {error}", "mend the path"
        ) from error
    return _read(text, key, namespace, path.parent)


def bundle_from_text(text: str | bytes, *, key: ExportKey | None = None, namespace: str | None = None) -> Bundle:
    """The same for an export that came without a folder, as over HTTP: all its values have to be inside."""
    return _read(text, key, namespace, None)


def check_tenant(bundle: Bundle, namespace: str) -> None:
    """An export is for one tenant: imported elsewhere by mistake, it would show one tenant's data to another."""
    _check_made_for(bundle.made_for, namespace)


def _check_made_for(made_for: str, namespace: str) -> None:
    if made_for not in (namespace, ANYONE):
        raise InvalidExportError(
            "export/wrong-tenant",
            f"it was made for namespace {made_for!r}, and this is {namespace!r}",
            f"export again with '--for {namespace}'",
        )


def _content(bundle: Bundle) -> dict[str, Any]:
    apart = {"checkpoint", "children", "checksum"}
    data: dict[str, Any] = json.loads(bundle.model_dump_json(exclude=apart))
    # Sealed one by one: a checkpoint with real values writes its own form, which the bundle's model does not know.
    data["checkpoint"] = seal(bundle.checkpoint)
    data["children"] = {
        path: {"flow": child.flow.model_dump(mode="json"), "checkpoint": seal(child.checkpoint)}
        for path, child in bundle.children.items()
    }
    return data


def _read(text: str | bytes, key: ExportKey | None, namespace: str | None, folder: Path | None) -> Bundle:
    try:
        data, cipher = _opened(_verified(text), key, namespace)
        if "blobs" in data:
            data = without_blobs(data, folder, cipher)
        return _bundle(data)
    except InvalidExportError:
        raise
    except Exception as error:
        # Mostly its checksum fits, and it is a forger's work: that may hold anything, and its reader gets one error.
        raise damaged(f"its content is not an export's: {error!r:.300}") from error


def _verified(text: str | bytes) -> dict[str, Any]:
    """The data in a file that is as it was written."""
    data, as_written = _parsed(text)
    if not is_object(data) or data.get("format") != FORMAT:
        raise InvalidExportError(
            "export/not-one", "this is not an export of Holdfast", "give a file from 'holdfast export'"
        )
    version = data.get("version")
    if type(version) is int and version > VERSION:
        raise _newer(f"its format has version {version}, and this library knows {VERSION}")
    stated = data.get("checksum")
    if not isinstance(stated, str) or stated != checksum(dict(data)):
        raise damaged("its content does not fit its checksum: it is incomplete, damaged or was edited")
    if not as_written or type(version) is not int or version < VERSION:
        raise damaged("it is not written as Holdfast writes it: it is damaged or was edited")
    return dict(data)


def _newer(message: str) -> InvalidExportError:
    return InvalidExportError("export/newer", message, "upgrade holdfast")


def _parsed(text: str | bytes) -> tuple[Any, bool]:
    """The data in JSON or YAML, and whether each value is written in the one way in which we write it."""
    try:
        text = (text if isinstance(text, str) else text.decode()).removeprefix("\ufeff")
        if text.lstrip().startswith("{"):
            return json.loads(text), is_plain(text)
        data = yaml.load(text, Loader)  # noqa: S506 (a SafeLoader)
        return data, is_object(data) and to_yaml(data) == text.replace("\r\n", "\n").rstrip("\n")
    except (ValueError, TypeError, RecursionError, yaml.YAMLError) as error:
        raise damaged(f"it is not whole JSON or YAML ({str(error)[:300]})") from error


def _opened(data: dict[str, Any], key: ExportKey | None, namespace: str | None) -> tuple[dict[str, Any], Cipher | None]:
    """The content of a file, decrypted if it has to be."""
    made_for, source = str(data["made_for"]), Source.model_validate(data["source"])
    if namespace is not None:
        _check_made_for(made_for, namespace)
    locked = data.get("encrypted")
    name = f"the export of run {source.run_id!r} for namespace {made_for!r}"
    if locked is None:
        if key:
            # Otherwise a forger would only have to leave the encryption out.
            raise InvalidExportError(
                "export/not-locked",
                f"{name} is not encrypted, and a key was given",
                "to believe it all the same, give none",
            )
        return data, None
    if key is None:
        raise InvalidExportError("export/locked", f"{name} is encrypted", "give the key it was written with")
    return _unlocked(data, key, name)


def _locked(data: Mapping[str, Any], key: ExportKey, cipher: Cipher, salt: bytes) -> dict[str, Any]:
    clear = {name: data[name] for name in ("format", "version", "source", "made_for")}
    lock = {"kdf": key.kdf, "salt": base64_of(salt)}
    sealed = cipher.seal(to_json(data).encode(), _label(clear, lock))
    parts = {"nonce": base64_of(sealed[:NONCE_BYTES]), "data": base64_of(sealed[NONCE_BYTES:])}
    file: dict[str, Any] = {**clear, "encrypted": {**lock, **parts}}
    return {**file, "checksum": checksum(file)}


def _unlocked(data: Mapping[str, Any], key: ExportKey, name: str) -> tuple[dict[str, Any], Cipher]:
    lock = dict(data["encrypted"])
    nonce, content = base64.b64decode(lock.pop("nonce")), base64.b64decode(lock.pop("data"))
    clear = {part: value for part, value in data.items() if part not in ("encrypted", "checksum")}
    cipher = Cipher(key.derive(base64.b64decode(lock["salt"])))
    opened = cipher.open(nonce + content, _label(clear, lock)) if key.kdf == lock["kdf"] else None
    if opened is None:
        wanted = "a passphrase" if lock["kdf"] == "scrypt" else "a key 'base64:…'"
        raise InvalidExportError(
            "export/wrong-key", f"this key does not open {name}", f"give the one it was written with, {wanted}"
        )
    return _verified(opened), cipher


def _label(clear: Mapping[str, Any], lock: Mapping[str, Any]) -> bytes:
    # What is readable without the key is bound to what is not: changed, the file does not open.
    return json.dumps([clear, lock], sort_keys=True).encode()


def _bundle(data: dict[str, Any]) -> Bundle:
    """The parts of a verified export, each read by its own rules."""
    children = data.get("children", {})
    parts: dict[str, Any] = {
        "flow": _flow(data.get("flow")),
        "checkpoint": _checkpoint(data.get("checkpoint"), "its checkpoint"),
        "children": {path: _child(path, child) for path, child in children.items()},
    }
    return Bundle.model_validate({**data, **parts})


def _child(path: str, data: Mapping[str, Any]) -> dict[str, Any]:
    checkpoint = _checkpoint(data.get("checkpoint"), f"the checkpoint of {path!r}")
    return {"flow": _flow(data.get("flow")), "checkpoint": checkpoint}


def _flow(data: Any) -> FlowSpec:
    try:
        return ensure(FlowSpec.model_validate(data))
    except FlowDefinitionError as error:
        faults = [f"[{fault.code}] {fault.message}" for fault in error.faults]
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()]
    raise InvalidExportError(
        "export/bad-flow", "its flow cannot be run: " + "; ".join(faults), "mend the flow and export again", faults
    )


def _checkpoint(data: Any, name: str) -> CheckpointRecord:
    if is_object(data) and (version := str(data.get("version", "0"))) not in (SCHEMA_VERSION, *MIGRATIONS):
        raise _newer(f"{name} has the schema version {version!r}, and this library knows {SCHEMA_VERSION!r}")
    try:
        return unseal_record(data)
    except InvalidCheckpointError as error:
        raise InvalidExportError(
            "export/bad-checkpoint",
            f"{name} cannot be used: " + "; ".join(error.faults),
            "export an earlier checkpoint",
            error.faults,
        ) from error
