"""Time travel over HTTP: new runs from checkpoints, what is different between them, and their moving and going."""

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from holdfast.checkpoints import values
from holdfast.checkpoints.diff import CheckpointDiff
from holdfast.checkpoints.node_history import NodeMoment
from holdfast.checkpoints.redaction import HIDDEN
from holdfast.checkpoints.resuming import ResumePlan
from holdfast.flows.ids import split_checkpoint_id
from holdfast.flows.reading import flow_from_data
from holdfast.flows.shapes import is_object
from holdfast.starter.api.callers import AGAIN, PROBLEMS, Client
from holdfast.starter.api.problems import ProblemError
from holdfast.starter.api.schemas import BareCheckpoint, Collect, Fork, Resume, StartedRun
from holdfast.starter.bundles import ExportKey, InvalidExportError, bundle_text
from holdfast.starter.families import Member
from holdfast.starter.moving import export, import_checkpoint, import_text
from holdfast.starter.showing import redact_changes
from holdfast.starter.store import CheckpointStore, Collected, Retention
from holdfast.starter.travel import Changes, NewRun

routes = APIRouter(responses=PROBLEMS)
IMPORTS = "/imports"
Key = Annotated[str | None, Header(min_length=1, max_length=200)]
Passphrase = Annotated[
    str | None, Header(description="What the file is encrypted with: a passphrase, or `base64:` and 32 bytes.")
]


def _checkpoint(run_id: str, wanted: Resume) -> str:
    if wanted.checkpoint_id is not None and split_checkpoint_id(wanted.checkpoint_id)[0] != run_id:
        raise ProblemError(404, "checkpoint/none", f"{wanted.checkpoint_id!r} is no checkpoint of run {run_id!r}")
    return wanted.checkpoint_id or run_id


def _changes(wanted: Resume) -> Changes:
    for address, value in wanted.edits.items():
        _check_whole(value, repr(address), "edit the other fields one by one")
    _check_whole(wanted.input_data, "the input", "write what is hidden, too")
    forking = wanted if isinstance(wanted, Fork) else Fork()
    return Changes(
        flow=flow_from_data(wanted.definition) if wanted.definition is not None else None,
        # As the checkpoint shows it, marks of dates and bytes included. Edits one by one: an address is never a mark.
        input_data=values.decode(wanted.input_data),
        edits={address: values.decode(value) for address, value in wanted.edits.items()},
        rerun=forking.rerun,
        only_failed=forking.only_failed,
        keep=wanted.keep,
    )


def _check_whole(value: Any, name: str, remedy: str) -> None:
    """What is hidden where it is shown comes back as a mark, which would be taken for the value."""
    if HIDDEN in json.dumps(value):
        why = f"{name} has the mark of a hidden field, {HIDDEN!r}, in it: {remedy}"
        raise ProblemError(422, "edit/hidden", why)


def _started(new: NewRun, response: Response, notes: Sequence[str] = ()) -> StartedRun:
    if not new.created:
        response.status_code = 200
    return StartedRun(run_id=new.run_id, created=new.created, plan=new.plan, notes=list(notes))


@routes.post("/runs/{run_id:path}/resume", status_code=201, tags=["time travel"], responses=AGAIN)
async def resume_run(
    run_id: str, client: Client, response: Response, body: Resume | None = None, idempotency_key: Key = None
) -> StartedRun:
    """Goes on with a run that has ended; only what was not done is. One resume wins; a 409 names its run."""
    wanted = body or Resume()
    new = await client.travel.resume(_checkpoint(run_id, wanted), _changes(wanted), idempotency_key)
    return _started(new, response)


@routes.post("/runs/{run_id:path}/fork", status_code=201, tags=["time travel"], responses=AGAIN)
async def fork_run(
    run_id: str, client: Client, response: Response, body: Fork | None = None, idempotency_key: Key = None
) -> StartedRun:
    """A new run from a checkpoint, beside the old one, which may go on; with `rerun`, nodes are done again."""
    wanted = body or Fork()
    checkpoint = _checkpoint(run_id, wanted)
    new = await client.travel.fork(checkpoint, _changes(wanted), run_id=wanted.run_id, key=idempotency_key)
    return _started(new, response)


@routes.post("/runs/{run_id:path}/plan", tags=["time travel"])
async def plan(run_id: str, client: Client, body: Fork | None = None) -> ResumePlan:
    """What would become of each node in such a run, without starting it."""
    wanted = body or Fork()
    return await client.travel.plan(_checkpoint(run_id, wanted), _changes(wanted))


@routes.get("/runs/{run_id:path}/tree", tags=["time travel"])
async def tree(run_id: str, client: Client) -> list[Member]:
    """The run's family: what was resumed, forked, done again and imported from what."""
    return await client.tree(run_id)


@routes.get("/runs/{run_id:path}/history", tags=["time travel"])
async def history(run_id: str, client: Client, node: str, field: str | None = None) -> list[NodeMoment]:
    """How a node, or a field of it (`output`, `messages`, `context.topic` …), changed through the run."""
    found = await client.node_history(run_id, node, field)
    return [moment.model_copy(update={"changes": redact_changes(moment.changes)}) for moment in found]


@routes.get("/diff", tags=["time travel"])
async def diff(client: Client, left: str, right: str) -> CheckpointDiff:
    """What is different between two checkpoints; a run's id means its latest. Fields like `api_key` are hidden."""
    found = await client.diff(left, right)
    return found.model_copy(update={"changes": redact_changes(found.changes)})


@routes.get("/runs/{run_id:path}/export", tags=["time travel"], response_class=Response)
async def export_run(
    run_id: str,
    client: Client,
    checkpoint_id: str | None = None,
    made_for: Annotated[str | None, Query(alias="for")] = None,
    format: Literal["json", "yaml"] = "json",  # noqa: A002
    files: bool = True,
    holdfast_export_key: Passphrase = None,
) -> Response:
    """A checkpoint as a file for `POST /imports`, here or elsewhere, with the files of its agents unless they are not
    wanted.

    Without a key it has everything in clear: keep it safe.
    """
    key = _key(holdfast_export_key)
    checkpoint = _checkpoint(run_id, Resume(checkpoint_id=checkpoint_id))
    bundle = await export(client, checkpoint, made_for, files=files)
    headers = {"Content-Disposition": _attachment(f"{bundle.checkpoint.id.replace('/', '_')}.{format}")}
    text = await asyncio.to_thread(bundle_text, bundle, format, key=key)
    return Response(text, media_type=f"application/{format}", headers=headers)


def _key(text: str | None) -> ExportKey | None:
    if text is None:
        return None
    try:
        # A header comes as Latin-1, whatever it is. A key is UTF-8, as in a key file.
        return ExportKey.from_text(text.encode("latin-1").decode())
    except UnicodeError:
        said = "the key in Holdfast-Export-Key is not UTF-8"
        raise InvalidExportError("export/bad-key", said, "send the bytes that a key file has") from None


def _attachment(name: str) -> str:
    """A header is ASCII, and a run's id may be anything: the second name is for those who know RFC 6266."""
    plain = "".join(
        letter if letter.isascii() and letter.isprintable() and letter not in '"\\' else "_" for letter in name
    )
    return f'attachment; filename="{plain}"' + ("" if plain == name else f"; filename*=UTF-8''{quote(name, safe='')}")


_FILE = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": {"anyOf": [{"type": "object"}, BareCheckpoint.model_json_schema()]}},
            "application/yaml": {},
        },
    }
}


@routes.post(IMPORTS, status_code=201, tags=["time travel"], responses=AGAIN, openapi_extra=_FILE)
async def import_run(
    request: Request,
    client: Client,
    response: Response,
    run: Annotated[bool, Query()] = False,
    holdfast_export_key: Passphrase = None,
) -> StartedRun:
    """A run that stands where a checkpoint is: paused, or going on at once.

    The body is an exported file; or a bare checkpoint, ours or Dynamiq's, with the flow that it belongs to.
    """
    key = _key(holdfast_export_key)
    # Read here and not as a parameter: so nobody without a token has it read.
    body = await request.body()
    bare = await asyncio.to_thread(_bare, body)
    if bare is None:
        return _started(await import_text(client, body, key=key, paused=not run), response)
    flow = request.app.state.flows.chosen(bare.flow, bare.definition)
    new, notes = await import_checkpoint(client, bare.checkpoint, flow=flow, key=key, paused=not run)
    return _started(new, response, notes)


def _bare(body: bytes) -> BareCheckpoint | None:
    """A checkpoint with its flow; None when it is an export, or nothing that is known."""
    try:
        data: Any = json.loads(body)
    except (ValueError, RecursionError):
        return None  # Whoever reads an export says what is wrong with it.
    if not is_object(data) or "format" in data:
        return None
    if "node_states" in data:
        said = "a checkpoint does not have its flow in it: send {checkpoint, flow} or {checkpoint, definition}"
        raise ProblemError(422, "run/no-definition", said)
    if "checkpoint" not in data:
        return None
    try:
        return BareCheckpoint.model_validate(data)
    except ValidationError as error:
        raise RequestValidationError([{**fault, "loc": ("body", *fault["loc"])} for fault in error.errors()]) from None


@routes.delete("/runs/{run_id:path}", status_code=204, tags=["runs"])
async def delete_run(run_id: str, client: Client) -> None:
    """Deletes a run that has ended, with all inside it."""
    if not await CheckpointStore(client).delete(run_id):
        raise ProblemError(404, "run/not-found", f"there is no run {run_id!r}")


@routes.post("/gc", tags=["server"])
async def collect(client: Client, body: Collect | None = None) -> Collected:
    """Deletes ended runs by their retention, or as said; open ones stay. Unless told otherwise it only looks."""
    wanted = body or Collect()
    days: Any = wanted.older_than_days
    older_than = timedelta(days=days) if days is not None else None
    return await CheckpointStore(client).collect(
        Retention(wanted.flow, wanted.keep, older_than, deep=wanted.deep), dry_run=wanted.dry_run
    )
