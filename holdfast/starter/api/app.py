"""The application: settings in, a FastAPI app out."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse

from holdfast.checkpoints.ledger import Transition
from holdfast.checkpoints.models import LIBRARY_VERSION, RunStatus
from holdfast.contracts.people import AnswerReceipt, HumanAnswer
from holdfast.flows.faults import FlowDefinitionError
from holdfast.flows.ids import split_checkpoint_id
from holdfast.flows.spec import FlowSpec
from holdfast.starter.api import console, problems, travel
from holdfast.starter.api.access import RateLimit, Tenant, Tokens
from holdfast.starter.api.bodies import LARGEST_IMPORT, BodyLimit, Limit, import_limit
from holdfast.starter.api.callers import AGAIN, PROBLEMS, Caller, Client, admitted
from holdfast.starter.api.problems import ProblemError
from holdfast.starter.api.schemas import (
    Catalogue,
    CheckpointList,
    FlowEntry,
    Health,
    Inbox,
    InputMessage,
    NewRun,
    RunPage,
    StartedRun,
)
from holdfast.starter.api.tenants import Clients, Connect, FlowFiles
from holdfast.starter.client import HoldfastClient
from holdfast.starter.errors import RunExistsError, RunNotFoundError
from holdfast.starter.events import StreamEvent
from holdfast.starter.runs import RunDetail
from holdfast.starter.showing import redact, redact_checkpoint

_KEEP_ALIVE_SECONDS = 15.0
_KEYS = uuid.UUID("6d0a3c52-6a43-5a0c-9c41-3f2f6f0f5b11")


@dataclass
class Settings:
    """What a server is made with. `ui_url`: the Temporal Web UI, for links."""

    connect: Connect
    tokens: Tokens
    flows: Path | None = None
    per_minute: int = 600
    largest_body: int = 2 * 2**20
    largest_import: int = LARGEST_IMPORT
    ui_url: str | None = None


def create_app(settings: Settings) -> FastAPI:
    app = FastAPI(
        title="Holdfast",
        version=LIBRARY_VERSION,
        summary="AI flows that survive everything: start them, watch them, answer their questions.",
        docs_url=None,
        redoc_url=None,
    )
    app.state.settings = settings
    app.state.clients = Clients(settings.connect)
    app.state.flows = FlowFiles(settings.flows)
    app.state.limit = RateLimit(settings.per_minute)
    problems.install(app)
    others = {travel.IMPORTS: import_limit(settings.largest_import)}
    app.add_middleware(BodyLimit, limit=Limit(settings.largest_body), others=others)
    app.include_router(_open)
    # The routes of one run come before the run itself, whose id may contain anything.
    app.include_router(travel.routes)
    app.include_router(_routes)
    app.include_router(console.router(settings.ui_url))
    return app


_open = APIRouter(tags=["server"])
_routes = APIRouter(responses=PROBLEMS)


@_open.get("/health")
async def health() -> Health:
    """The server is up."""
    return Health(status="ok")


@_open.get("/ready", responses={503: PROBLEMS[503]})
async def ready(request: Request) -> Health:
    """Temporal answers."""
    client: HoldfastClient = await request.app.state.clients.of(request.app.state.settings.tokens.any_namespace())
    await client.temporal.service_client.check_health()
    return Health(status="ready")


@_routes.get("/flows", tags=["flows"])
async def flows(request: Request, _: Caller) -> Catalogue:
    """The flows that can be started by name."""
    found: dict[str, FlowSpec | FlowDefinitionError] = request.app.state.flows.all()
    return Catalogue(flows=[_entry(name, flow) for name, flow in found.items()])


def _entry(name: str, flow: FlowSpec | FlowDefinitionError) -> FlowEntry:
    if isinstance(flow, FlowDefinitionError):
        return FlowEntry(name=name, id=name, nodes=0, fault=str(flow))
    return FlowEntry(name=name, id=flow.id, title=flow.name, description=flow.description, nodes=len(flow.nodes))


@_routes.get("/flows/{name}", tags=["flows"])
async def flow(request: Request, name: str, _: Caller) -> dict[str, Any]:
    """A flow's definition."""
    return request.app.state.flows.read(name).model_dump(mode="json")


@_routes.post("/runs", status_code=201, tags=["runs"], responses=AGAIN)
async def start_run(
    request: Request,
    response: Response,
    body: NewRun,
    client: Client,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> StartedRun:
    """Starts a run. With an `Idempotency-Key`, the same key again gives the same run."""
    if body.run_id is not None and idempotency_key is not None:
        raise ProblemError(422, "request/invalid", "give either 'run_id' or an Idempotency-Key")
    definition: FlowSpec = request.app.state.flows.chosen(body.flow, body.definition)
    run_id = body.run_id
    if idempotency_key is not None:
        run_id = f"{definition.id}-{uuid.uuid5(_KEYS, idempotency_key)}"
    try:
        return StartedRun(run_id=await client.start(definition, body.input, run_id=run_id))
    except RunExistsError:
        if idempotency_key is None or run_id is None:
            raise
        response.status_code = 200
        return StartedRun(run_id=run_id, created=False)


@_routes.get("/runs", tags=["runs"])
async def list_runs(
    client: Client,
    flow: str | None = None,
    status: RunStatus | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=4000)] = None,
) -> RunPage:
    """Runs, newest first."""
    try:
        found, following = await client.page_of_runs(flow, status, limit, cursor)
    except ValueError as error:
        raise ProblemError(422, "request/invalid", str(error)) from error
    return RunPage(runs=found, cursor=following)


@_routes.get("/runs/{run_id:path}/checkpoints/{checkpoint_id:path}", tags=["checkpoints"])
async def checkpoint(run_id: str, checkpoint_id: str, client: Client) -> dict[str, Any]:
    """One checkpoint, whole; `latest` is the newest. Fields with names like `api_key` are hidden."""
    wanted = run_id if checkpoint_id == "latest" else checkpoint_id
    if split_checkpoint_id(wanted)[0] != run_id:
        raise ProblemError(404, "checkpoint/none", f"{checkpoint_id!r} is no checkpoint of run {run_id!r}")
    return redact_checkpoint(await client.get_checkpoint(wanted)).model_dump(mode="json")


@_routes.get("/runs/{run_id:path}/checkpoints", tags=["checkpoints"])
async def checkpoints(run_id: str, client: Client, limit: Annotated[int, Query(ge=1, le=1000)] = 10) -> CheckpointList:
    """A run's checkpoints, newest first."""
    await client.get_run(run_id)
    return CheckpointList(checkpoints=await client.list_checkpoints(run_id, limit))


@_routes.get("/runs/{run_id:path}/transitions", tags=["checkpoints"])
async def transitions(run_id: str, client: Client, after: Annotated[int, Query(ge=0)] = 0) -> list[dict[str, Any]]:
    """What has happened in a run, oldest first."""
    await client.get_run(run_id)
    found: list[Transition] = await client.transitions(run_id, after)
    return [redact(entry.model_dump(mode="json")) for entry in found]


@_routes.get("/runs/{run_id:path}/definition", tags=["runs"])
async def definition(run_id: str, client: Client) -> dict[str, Any]:
    """The flow as the run was started with."""
    return redact((await client.definition(run_id)).model_dump(mode="json"))


@_routes.get("/runs/{run_id:path}/stream", tags=["stream"], response_class=StreamingResponse)
async def stream(
    run_id: str,
    client: Client,
    after: Annotated[int, Query(ge=0)] = 0,
    tokens: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> StreamingResponse:
    """The run's events as Server-Sent Events, from `after` or `Last-Event-ID` on, until it ends."""
    await client.get_run(run_id)
    begin = int(last_event_id) if last_event_id and last_event_id.isdigit() else after
    events = client.stream(run_id, begin, tokens=tokens)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_server_sent(events), media_type="text/event-stream", headers=headers)


async def _server_sent(events: AsyncGenerator[StreamEvent]) -> AsyncGenerator[str]:
    """Events as text, with a comment now and then so that nobody in between hangs up."""
    async with contextlib.aclosing(events):
        coming = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                await asyncio.wait({coming}, timeout=_KEEP_ALIVE_SECONDS)
                if not coming.done():
                    yield ": still here\n\n"
                    continue
                event = coming.result()
                if event is None:
                    yield "event: end\ndata: {}\n\n"
                    return
                coming = asyncio.ensure_future(anext(events, None))
                number = f"id: {event.id}\n" if event.id is not None else ""
                yield f"{number}event: {event.event}\ndata: {event.model_dump_json()}\n\n"
        finally:
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await coming


@_routes.post("/runs/{run_id:path}/input", tags=["people"])
async def send_input(
    run_id: str,
    body: InputMessage,
    client: Client,
    caller: Caller,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> AnswerReceipt:
    """Answers a question of the run."""
    return await client.send_input(
        run_id,
        body.data.model_copy(update={"by": None}),
        request_id=body.request_id,
        entity_id=body.entity_id,
        by=_signed(body.data.by, caller),
        key=idempotency_key,
    )


@_routes.post("/runs/{run_id:path}/cancel", status_code=202, tags=["runs"])
async def cancel_run(run_id: str, client: Client) -> RunDetail:
    """Ends a run; what it has done is kept."""
    await client.cancel(run_id)
    return await client.get_run(run_id)


@_routes.post("/runs/{run_id:path}/pause", status_code=202, tags=["runs"])
async def pause_run(run_id: str, client: Client, caller: Caller) -> RunDetail:
    """Lets nothing new begin."""
    await client.pause(run_id, caller.name)
    return await client.get_run(run_id)


@_routes.post("/runs/{run_id:path}/continue", status_code=202, tags=["runs"])
async def continue_run(run_id: str, client: Client, caller: Caller) -> RunDetail:
    """Lets a paused run go on."""
    await client.continue_run(run_id, caller.name)
    return await client.get_run(run_id)


@_routes.get("/runs/{run_id:path}", tags=["runs"])
async def get_run(run_id: str, client: Client) -> RunDetail:
    """Where a run is."""
    return await client.get_run(run_id)


@_routes.get("/inbox", tags=["people"])
async def inbox(
    client: Client,
    run: str | None = None,
    to: str | None = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    cursor: Annotated[str | None, Query(max_length=4000)] = None,
) -> Inbox:
    """The questions that wait for an answer, of all runs, newest first, or of one and what is inside it."""
    try:
        found, following = await client.people.page(run, to, limit, cursor)
    except ValueError as error:
        raise ProblemError(422, "request/invalid", str(error)) from error
    shown = [request.model_copy(update={"data": redact(request.data)}) for request in found]
    return Inbox(requests=shown, cursor=following)


@_routes.post("/inbox/{request_id}", tags=["people"])
async def answer(request_id: str, body: HumanAnswer, client: Client, caller: Caller) -> AnswerReceipt:
    """Answers a question by its id, at whatever depth it is asked."""
    return await client.people.answer_request(
        request_id, body.model_copy(update={"by": None}), by=_signed(body.by, caller)
    )


def _signed(by: str | None, caller: Tenant) -> str:
    """Who answers. A name that the caller gives is theirs to vouch for, so it says through whom it came."""
    return f"{by} (via {caller.name})" if by else caller.name


@_routes.websocket("/runs/{run_id:path}/ws")
async def socket(websocket: WebSocket, run_id: str, after: int = 0, tokens: bool = False) -> None:
    """The stream, and answers the other way: a message is `{entity_id | request_id, data, event: "approval"}`."""
    state = websocket.app.state
    offered = [part.strip() for part in websocket.headers.get("sec-websocket-protocol", "").split(",")]
    token = next((part.removeprefix("bearer.") for part in offered if part.startswith("bearer.")), None)
    header = websocket.headers.get("authorization") or (f"Bearer {token}" if token else None)
    try:
        tenant = admitted(state, header, websocket.client.host if websocket.client else "unknown")
        client: HoldfastClient = await state.clients.of(tenant.namespace)
        await client.get_run(run_id)
    except (ProblemError, RunNotFoundError) as error:
        # A socket is refused before it is accepted: there is no place for a problem document.
        await websocket.close(4401 if isinstance(error, ProblemError) else 4404, str(error)[:120])
        return
    await websocket.accept("holdfast" if "holdfast" in offered else None)
    sending = asyncio.create_task(_send_events(websocket, client.stream(run_id, after, tokens=tokens)))
    try:
        while not sending.done():
            received = asyncio.ensure_future(websocket.receive_json())
            await asyncio.wait({received, sending}, return_when=asyncio.FIRST_COMPLETED)
            if not received.done():
                received.cancel()
                break
            await websocket.send_json(await _taken(client, run_id, received.result(), tenant))
        with contextlib.suppress(RuntimeError):
            await websocket.close()
    except WebSocketDisconnect:
        pass
    finally:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError, WebSocketDisconnect, RuntimeError):
            await sending


async def _send_events(websocket: WebSocket, events: AsyncGenerator[StreamEvent]) -> None:
    async with contextlib.aclosing(events):
        async for event in events:
            await websocket.send_text(event.model_dump_json())
    await websocket.send_text('{"event": "end"}')


async def _taken(client: HoldfastClient, run_id: str, data: Any, tenant: Tenant) -> dict[str, Any]:
    try:
        body = InputMessage.model_validate(data)
        receipt = await client.send_input(
            run_id,
            body.data.model_copy(update={"by": None}),
            request_id=body.request_id,
            entity_id=body.entity_id,
            by=_signed(body.data.by, tenant),
        )
        return {"event": "input_result", "data": receipt.model_dump(mode="json")}
    except (ValueError, RuntimeError) as error:
        return {"event": "input_refused", "data": {"detail": str(error)}}
