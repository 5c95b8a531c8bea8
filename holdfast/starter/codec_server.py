"""Temporal's remote codec protocol: how the Web UI and the `temporal` command show what payloads hold.

Whoever may ask reads everything of a namespace, so a token, or the loopback, decides. Payloads are answered and
forgotten: none is kept, none is logged. What is encoded here stays in the payload, because no run is known whose blobs
it could be.

A payload that cannot be decoded is answered with the reason in its place. An HTTP error would hide the others of the
request, and the reason with them: the Web UI only shows that something failed, and `temporal` gives up after ten
seconds without a word of it.
"""

import asyncio
import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from google.protobuf.json_format import MessageToJson, ParseDict, ParseError
from google.protobuf.message import DecodeError
from starlette.middleware.cors import CORSMiddleware
from temporalio.api.common.v1 import Payload, Payloads

from holdfast.codecs.blobs import MissingBlobError, StoreRefusedError, StoreUnavailableError
from holdfast.codecs.codec import HoldfastCodec, NoStoreError, TooLargeError
from holdfast.codecs.keys import BadKeyError, KeysUnavailableError, UnknownKeyError
from holdfast.codecs.sealing import DamagedError
from holdfast.flows.shapes import is_object
from holdfast.starter.api import problems
from holdfast.starter.api.access import Tokens
from holdfast.starter.api.bodies import BodyLimit, Limit
from holdfast.starter.api.problems import ProblemError

FAULT = b"json/holdfast-error"
"""The encoding of a reason: the Web UI shows it like any JSON, and no program takes it for what was encoded."""
# The Web UI sends the first two when it is told to pass the person's own token on.
_HEADERS = ["authorization", "authorization-extras", "content-type", "x-namespace"]
_AWAY = (StoreUnavailableError, KeysUnavailableError)
_FAULTS = (*_AWAY, UnknownKeyError, BadKeyError, DamagedError, NoStoreError, MissingBlobError, StoreRefusedError)
_CODE = re.compile(r"\[([\w-]+/[\w-]+)\]\s*")
_PAGE = "The codec server of Holdfast. You may read {whose}: Temporal's Web UI shows it decoded from now on.\n"


@dataclass
class Settings:
    """`tokens`: None lets everybody read every namespace, which is for the loopback alone.

    `origins`: the pages that may ask, such as the Web UI's `http://127.0.0.1:8233`.
    `largest_shown`: a browser cannot show more; of a larger payload only its size is said.
    """

    codec: HoldfastCodec
    tokens: Tokens | None = None
    origins: Sequence[str] = field(default_factory=tuple[str, ...])
    largest_body: int = 8 * 2**20
    largest_shown: int = 32 * 2**20


def create_app(settings: Settings) -> FastAPI:
    app = FastAPI(title="Holdfast codec server", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.settings = settings
    problems.install(app)
    app.include_router(_routes)
    app.add_middleware(BodyLimit, limit=Limit(settings.largest_body, "send fewer payloads at a time"))
    # Outermost, so that a page can read refusals too.
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(settings.origins),
        allow_methods=["POST"],
        allow_headers=_HEADERS,
        allow_credentials=True,
    )
    return app


_routes = APIRouter()


@_routes.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@_routes.get("/")
async def page(request: Request) -> Response:
    """Where a browser asks for a token. It then sends it with the Web UI's requests too, which could not ask."""
    tokens = request.app.state.settings.tokens
    try:
        whose = f"namespace {tokens.tenant(_bearer(request)).namespace!r}" if tokens is not None else "every namespace"
    except ProblemError as refusal:
        refusal.headers = {"WWW-Authenticate": 'Basic realm="a token as the password", charset="UTF-8"'}
        raise
    return PlainTextResponse(_PAGE.format(whose=whose), headers={"Cache-Control": "no-store"})


@_routes.post("/decode")
@_routes.post("/{namespace}/decode")
async def decode(request: Request, namespace: str | None = None) -> Response:
    codec = _codec(request, namespace)
    payloads = await _payloads(request)
    largest: int = request.app.state.settings.largest_shown
    return _answer(await asyncio.gather(*(_shown(codec, payload, largest) for payload in payloads)))


@_routes.post("/encode")
@_routes.post("/{namespace}/encode")
async def encode(request: Request, namespace: str | None = None) -> Response:
    codec = _codec(request, namespace)
    try:
        return _answer(await codec.encode(await _payloads(request)))
    except TooLargeError as error:
        said = (
            f"a value has more than the {codec.limits.inline} bytes that Temporal takes; start the run with 'holdfast'"
        )
        raise ProblemError(413, "codec/too-large", said) from error
    except _FAULTS as error:
        found = _CODE.match(str(error))
        code = found.group(1) if found else "codec/damaged"
        raise ProblemError(503 if isinstance(error, _AWAY) else 422, code, _CODE.sub("", str(error))) from error


async def _shown(codec: HoldfastCodec, payload: Payload, largest: int) -> Payload:
    """Decoded, or the reason why not."""
    try:
        [decoded] = await codec.decode([payload])
    except _FAULTS as error:
        return _fault(payload, str(error))
    except DecodeError:
        # It is as it was written, and still no payload: by something else than us, with our key.
        return _fault(payload, str(DamagedError("a payload")))
    if (size := decoded.ByteSize()) > largest:
        return _fault(payload, f"[codec/too-large] it has {size} bytes, and at most {largest} are shown")
    return decoded


def _fault(payload: Payload, reason: str) -> Payload:
    return Payload(metadata={**payload.metadata, "encoding": FAULT}, data=json.dumps(reason).encode())


def _codec(request: Request, namespace: str | None) -> HoldfastCodec:
    """Of the namespace that is asked for, if the caller may."""
    settings: Settings = request.app.state.settings
    origin = request.headers.get("origin")
    if origin is not None and origin not in settings.origins:
        # A page that may not read the answer is not given one: on the loopback nothing else tells it from us.
        raise ProblemError(
            403, "auth/origin", f"{origin} is not among the origins of this server; add it with --origin"
        )
    wanted = namespace or request.headers.get("x-namespace")
    if settings.tokens is None:
        return settings.codec.of(wanted or "default")
    tenant = settings.tokens.tenant(_bearer(request))
    if wanted and wanted != tenant.namespace:
        raise ProblemError(403, "auth/namespace", f"this token is not for namespace {wanted!r}")
    return settings.codec.of(tenant.namespace)


def _bearer(request: Request) -> str | None:
    """A browser that was asked for a password sends the token in its own form."""
    header = request.headers.get("authorization")
    scheme, _, given = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return header
    try:
        return f"Bearer {base64.b64decode(given, validate=True).decode().partition(':')[2]}"
    except ValueError:
        return None


async def _payloads(request: Request) -> Sequence[Payload]:
    try:
        data = json.loads(await request.body())
        if not is_object(data):
            raise ValueError
        return ParseDict(dict(data), Payloads(), ignore_unknown_fields=True).payloads
    except (ParseError, ValueError, RecursionError) as error:
        # Without the parser's words: they quote what they could not read.
        said = 'the body is not {"payloads": […]}, Temporal\'s payloads as JSON'
        raise ProblemError(422, "request/invalid", said) from error


def _answer(payloads: Sequence[Payload]) -> Response:
    text = MessageToJson(Payloads(payloads=payloads), indent=None)
    return Response(text, media_type="application/json", headers={"Cache-Control": "no-store"})
