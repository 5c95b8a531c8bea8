"""Checkpoints that move: out of one namespace, cluster or machine, and into another."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import yaml

from holdfast.checkpoints.dynamiq import from_dynamiq, is_dynamiq
from holdfast.checkpoints.models import CheckpointRecord
from holdfast.checkpoints.redaction import HIDDEN
from holdfast.checkpoints.serial import checksum, plain_yaml, seal, unseal_record
from holdfast.checkpoints.validation import InvalidCheckpointError
from holdfast.flows.shapes import is_array, is_object
from holdfast.flows.spec import FlowSpec
from holdfast.starter.bundle_files import InvalidExportError
from holdfast.starter.bundles import FORMAT, Bundle, ExportKey, Source, bundle_from_text, read_bundle
from holdfast.starter.carried_files import CarriedFiles
from holdfast.starter.client import HoldfastClient
from holdfast.starter.errors import NoDefinitionError, RunEndedError
from holdfast.starter.run_files import file_stores
from holdfast.starter.showing import is_sensitive
from holdfast.starter.travel import Changes, NewRun, ensure_belongs
from holdfast.starter.travel import Source as TravelSource


async def export(client: HoldfastClient, checkpoint: str, made_for: str | None = None, *, files: bool = True) -> Bundle:
    """A checkpoint with all that is needed to go on from it elsewhere; a run's id means its latest.

    `made_for` is the namespace that may import it: this one, unless said otherwise. Without `files`, what agents have
    in stores outside stays there, and is only referred to.
    """
    found = await client.travel.source(checkpoint)
    assert found.flow is not None
    namespace = client.temporal.namespace
    record, children = found.record, dict(found.children)
    if files:
        carried = CarriedFiles(file_stores())
        record = await carried.put_into(record)
        children = {
            path: child.model_copy(update={"checkpoint": await carried.put_into(child.checkpoint)})
            for path, child in children.items()
        }
    return Bundle(
        source=Source(
            namespace=namespace, run_id=found.record.run_id, checkpoint_id=found.record.id, family=found.family
        ),
        made_for=made_for or namespace,
        flow=found.flow,
        config=found.config,
        checkpoint=record,
        children=children,
    )


async def import_bundle(
    client: HoldfastClient,
    bundle: Bundle,
    *,
    flow: FlowSpec | None = None,
    paused: bool = True,
    run_id: str | None = None,
) -> NewRun:
    """A run that stands where the checkpoint is, paused until somebody lets it go on. The same again: the same run."""
    source = TravelSource(bundle.checkpoint, bundle.flow, bundle.config, bundle.children, bundle.source.family)
    return await _begin(client, source, bundle.checksum or checksum(seal(bundle.checkpoint)), flow, paused, run_id)


async def import_file(
    client: HoldfastClient,
    path: Path,
    *,
    flow: FlowSpec | None = None,
    key: ExportKey | None = None,
    paused: bool = True,
    run_id: str | None = None,
) -> tuple[NewRun, list[str]]:
    """An export, a bare checkpoint (with the definition in `flow`), or one that Dynamiq wrote. And what is not carried.

    InvalidExportError or InvalidCheckpointError names the fault of a file that is not whole; nothing is started then.
    """
    bare = _bare(path)
    if bare is None:
        bundle = read_bundle(path, key=key, namespace=client.temporal.namespace)
        return await import_bundle(client, bundle, flow=flow, paused=paused, run_id=run_id), []
    return await import_checkpoint(client, bare, flow=flow, key=key, paused=paused, run_id=run_id)


async def import_text(
    client: HoldfastClient, text: bytes, *, key: ExportKey | None = None, paused: bool = True
) -> NewRun:
    """An export that came over the wire."""
    # Megabytes of it take seconds, in which a server has others to answer.
    bundle = await asyncio.to_thread(bundle_from_text, text, key=key, namespace=client.temporal.namespace)
    return await import_bundle(client, bundle, paused=paused)


async def import_checkpoint(
    client: HoldfastClient,
    data: Any,
    *,
    flow: FlowSpec | None,
    key: ExportKey | None = None,
    paused: bool = True,
    run_id: str | None = None,
) -> tuple[NewRun, list[str]]:
    """A checkpoint without the flow it belongs to, ours or Dynamiq's, and what of it is not carried."""
    if key is not None:
        # As with an export in clear: who gives a key believes only what was encrypted with it.
        why = "a bare checkpoint is not encrypted, and a key was given"
        raise InvalidExportError("export/not-locked", why, "to believe it all the same, give none")
    if flow is None:
        raise NoDefinitionError(str(data.get("run_id", "?")))
    try:
        hidden = _has_hidden(data)
    except RecursionError:
        raise InvalidCheckpointError(["it is nested beyond measure, or contains itself"]) from None
    if hidden:
        # It was taken as it is shown: its run would go on with the mark for a password.
        raise InvalidCheckpointError([f"it has hidden fields, {HIDDEN!r}: take it with --show-secrets, or export it"])
    record, notes = await asyncio.to_thread(_record, data, flow)
    # Of Dynamiq's, what is not in the flow was not carried.
    ensure_belongs(flow, record.run_id, data["node_states"])
    new = await _begin(client, TravelSource(record), checksum(seal(record)), flow, paused, run_id)
    return new, notes


def _has_hidden(value: Any) -> bool:
    if is_object(value):
        return any((item == HIDDEN and is_sensitive(key)) or _has_hidden(item) for key, item in value.items())
    return is_array(value) and any(_has_hidden(item) for item in value)


def _record(data: Any, flow: FlowSpec) -> tuple[CheckpointRecord, list[str]]:
    if is_dynamiq(data):
        carried = from_dynamiq(data, flow)
        return carried.checkpoint, carried.notes
    return unseal_record(data), []


async def _begin(
    client: HoldfastClient, source: TravelSource, digest: str, flow: FlowSpec | None, paused: bool, run_id: str | None
) -> NewRun:
    # Named after what is in the file, and the flow: begun again after a crash, it is the same import.
    if flow is not None:
        digest = checksum({"of": digest, "flow": flow.model_dump(mode="json")})
    name = run_id or f"{source.record.run_id}~i{digest[:10]}"
    new = await client.travel.start_from(source, name, key=digest, paused=paused, changes=Changes(flow=flow))
    if not new.created and not paused:
        # It may have been left paused the first time, and who wants it to go on would wait for ever.
        with contextlib.suppress(RunEndedError):
            await client.continue_run(new.run_id, "import")
    return new


def _bare(path: Path) -> Any | None:
    """The data of a file that is a checkpoint and no export; None when it is an export, or cannot be read at all."""
    try:
        text = path.read_text()
        data: Any = plain_yaml(text) if path.suffix.lower() in (".yaml", ".yml") else json.loads(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return None  # Whoever reads an export says what is wrong with it.
    if not is_object(data) or data.get("format") == FORMAT:
        return None
    if "node_states" not in data:
        raise InvalidCheckpointError([f"{path.name} is neither an export of Holdfast nor a checkpoint"])
    return data
