"""Checkpoints as text and bytes, with a checksum that is verified before anything is believed."""

import hashlib
import json
import re
from typing import Any, cast

import yaml
from pydantic import ValidationError
from pydantic_core import from_json, to_json

from holdfast.checkpoints.migrations import migrate
from holdfast.checkpoints.models import CheckpointRecord, FlowCheckpoint
from holdfast.checkpoints.validation import InvalidCheckpointError, ensure_valid
from holdfast.flows.shapes import is_array, is_object

_MUCH, _LONG = 500_000, 10_000
_MARK = re.compile('"\ue000long ([0-9]+)"')


def checksum(data: dict[str, Any]) -> str:
    """SHA-256 over the canonical JSON of everything but the checksum itself."""
    body = {key: value for key, value in data.items() if key != "checksum"}
    found = hashlib.sha256()
    for piece in _canonical(body):
        found.update(piece)
    return found.hexdigest()


def _canonical(body: dict[str, Any]) -> list[bytes]:
    """As `json.dumps` writes it, in pieces. It takes its time over every character; long texts are written by pydantic,
    which gives the same in a fifth of it."""
    long: list[str] = []
    short = _shortened(body, long) if len(to_json(body)) > _MUCH else body
    pieces = _MARK.split(json.dumps(short, sort_keys=True, separators=(",", ":"), ensure_ascii=False))
    if len(pieces) != 2 * len(long) + 1:
        # Somebody's own text looks like a mark.
        return [json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()]
    return [to_json(long[int(piece)]) if number % 2 else piece.encode() for number, piece in enumerate(pieces)]


def _shortened(value: Any, long: list[str]) -> Any:
    """With a mark in the place of each long text, which is put into `long`."""
    if is_object(value):
        return {key: _shortened(item, long) for key, item in value.items()}
    if is_array(value):
        return [_shortened(item, long) for item in value]
    if isinstance(value, str) and len(value) > _LONG:
        long.append(value)
        return f"\ue000long {len(long) - 1}"
    return value


def seal(record: CheckpointRecord) -> dict[str, Any]:
    """The checkpoint as JSON data with its checksum: the form that leaves a run."""
    data = record.model_dump(mode="json")
    data["checksum"] = checksum(data)
    return data


def unseal(data: Any) -> FlowCheckpoint:
    """Verifies, migrates and validates; InvalidCheckpointError says what is wrong. Values come back as they were."""
    try:
        return FlowCheckpoint.model_validate_json(unseal_record(data).model_dump_json())
    except ValidationError as error:
        raise _misshapen(error) from error


def unseal_record(data: Any) -> CheckpointRecord:
    """Like `unseal`, with values left in their marked form, as a workflow wants them."""
    if not isinstance(data, dict):
        raise InvalidCheckpointError(["it is not a JSON object"])
    body = cast(dict[str, Any], data)
    stated = body.get("checksum")
    if stated is not None and stated != (actual := checksum(body)):
        name = body.get("id", "without an id")
        raise InvalidCheckpointError([f"checkpoint {name}: its checksum says {stated}, its content {actual}"])
    try:
        record = CheckpointRecord.model_validate(migrate(body))
    except ValidationError as error:
        raise _misshapen(error) from error
    ensure_valid(record)
    return record


def _misshapen(error: ValidationError) -> InvalidCheckpointError:
    return InvalidCheckpointError([f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors()])


def serialize_checkpoint(checkpoint: CheckpointRecord) -> str:
    """JSON for people: readable text."""
    return json.dumps(seal(checkpoint), ensure_ascii=False, indent=2)


def deserialize_checkpoint(text: str | bytes) -> FlowCheckpoint:
    """Reads what `serialize_checkpoint` or `fast_serialize` wrote."""
    try:
        data = from_json(text)
    except ValueError as error:
        raise InvalidCheckpointError([f"it is not whole JSON: {error}"]) from error
    return unseal(data)


def fast_serialize(checkpoint: CheckpointRecord) -> bytes:
    """The same content as compact bytes, for machines."""
    return to_json(seal(checkpoint))


def fast_deserialize(data: bytes) -> FlowCheckpoint:
    return deserialize_checkpoint(data)


def to_yaml(checkpoint: CheckpointRecord) -> str:
    return yaml.dump(seal(checkpoint), Dumper=_PlainDumper, sort_keys=False, allow_unicode=True)


def plain_yaml(text: str | bytes) -> Any:
    """YAML as JSON has it: dates stay text, so that a checksum still fits."""
    return yaml.load(text, _PlainLoader)  # noqa: S506 (a SafeLoader)


def from_yaml(text: str) -> FlowCheckpoint:
    try:
        data = plain_yaml(text)
    except (yaml.YAMLError, ValueError) as error:
        raise InvalidCheckpointError([f"it is not whole YAML: {error}"]) from error
    return unseal(data)


_STR = "tag:yaml.org,2002:str"


class _PlainDumper(yaml.SafeDumper):
    """Quotes a text with U+0085, which would be written as a line break and read back as a space."""

    def represent_str(self, data: str) -> yaml.ScalarNode:
        style = '"' if "\x85" in data else None
        return self.represent_scalar(_STR, data, style)  # pyright: ignore[reportUnknownMemberType] (untyped stub)


_PlainDumper.add_representer(str, _PlainDumper.represent_str)


class _PlainLoader(yaml.SafeLoader):
    """Leaves dates as the text they are in JSON: turned into objects they would no longer match the checksum."""


_PlainLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
