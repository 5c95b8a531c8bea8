"""`holdfast export`, `import`, `delete`, `gc`: checkpoints that move, and runs that go."""

import argparse
import json
import os
import shlex
from datetime import timedelta
from pathlib import Path

from holdfast.starter.bundles import ExportKey, write_bundle
from holdfast.starter.cli.outcomes import FINISHED, NOT_FOUND, UsageError, print_json
from holdfast.starter.cli.reading import flow_from, read_text
from holdfast.starter.cli.running import follow, with_worker
from holdfast.starter.cli.session import Session, with_session
from holdfast.starter.errors import RunNotFoundError
from holdfast.starter.moving import export, import_file
from holdfast.starter.store import CheckpointStore, Retention

KEY_VARIABLE = "HOLDFAST_EXPORT_KEY"


def _key(options: argparse.Namespace) -> ExportKey | None:
    text = read_text(options.key_file) if options.key_file else os.environ.get(KEY_VARIABLE)
    return ExportKey.from_text(text) if text is not None else None


def export_command(options: argparse.Namespace) -> int:
    key = _key(options) if options.encrypt or options.key_file else None
    if options.encrypt and key is None:
        raise UsageError(f"[cli/no-key] --encrypt needs a key: give --key-file FILE, or set {KEY_VARIABLE}")

    async def work(session: Session) -> int:
        bundle = await export(session.client, options.checkpoint, options.made_for, files=not options.no_files)
        path = Path(options.file or f"{bundle.checkpoint.id.replace('/', '_')}.json")
        try:
            write_bundle(bundle, path, key=key, blobs=Path(options.blobs) if options.blobs else None)
        except OSError as error:
            raise UsageError(f"[cli/cannot-write] {path}: {error.strerror}") from error
        if options.json:
            print_json({"file": str(path), "checkpoint_id": bundle.checkpoint.id, "made_for": bundle.made_for})
        else:
            print(f"{bundle.checkpoint.id} is in {path}, for namespace {bundle.made_for}\n{_importing(path, options)}")
        return FINISHED

    return with_session(options, work)


def _importing(path: Path, options: argparse.Namespace) -> str:
    """The command that goes on from the file."""
    words = ["holdfast", "import", str(path)]
    if options.key_file:
        words += ["--key-file", options.key_file]
    if namespace := options.made_for or options.namespace:
        words += ["--namespace", namespace]
    return shlex.join(words)


def import_command(options: argparse.Namespace) -> int:
    flow = flow_from(options.flow, options.load) if options.flow else None
    options.detach = options.detach or not options.run

    async def work(session: Session) -> int:
        new, notes = await import_file(
            session.client, Path(options.file), flow=flow, key=_key(options), paused=not options.run, run_id=options.id
        )
        if options.json and not options.run:
            print_json({"run_id": new.run_id, "created": new.created, "notes": [*notes, *new.plan.warnings]})
            return FINISHED
        if not options.json:
            # Who follows the run is told the warnings by the run itself.
            for note in notes if options.run else [*notes, *new.plan.warnings]:
                print(f"! {note}")
        if options.run:
            return await follow(session, new.run_id, options)
        known = "" if new.created else " (it was imported before)"
        print(f"run {new.run_id} is there{known}; what is left of it waits until\nholdfast continue {new.run_id}")
        return FINISHED

    return with_worker(options, work) if options.run else with_session(options, work)


def delete_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        gone = await CheckpointStore(session.client).delete(options.run)
        if options.json:
            print_json({"run_id": options.run, "deleted": gone})
        elif gone:
            print(f"run {options.run} is deleted")
        else:
            raise RunNotFoundError(options.run)
        return FINISHED if gone else NOT_FOUND

    return with_session(options, work)


def gc_command(options: argparse.Namespace) -> int:
    older_than = timedelta(days=options.older_than) if options.older_than is not None else None

    async def work(session: Session) -> int:
        retention = Retention(options.flow, options.keep, older_than, deep=options.deep)
        found = await CheckpointStore(session.client).collect(retention, dry_run=options.dry_run)
        if options.json:
            print(json.dumps(found.model_dump(mode="json")))
            return FINISHED
        for run_id in [*found.runs, *found.orphans]:
            print(f"  {run_id}")
        verb = "would be deleted" if options.dry_run else "deleted"
        print(
            f"{len(found.runs)} runs and {len(found.orphans)} orphans ({found.executions} executions) {verb}; "
            f"{found.kept_open} have not ended and stay"
        )
        if found.blobs:
            print(f"{found.blobs} blobs ({found.blob_bytes / 1e6:.1f} MB) that nothing refers to {verb}")
        return FINISHED

    return with_session(options, work)
