"""The codec server over HTTP: who may ask, what is refused, and what becomes of a payload that cannot be read."""

import base64
import hashlib
import json
import os
import socket
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from temporalio.api.common.v1 import Payload, Payloads

from holdfast.codecs.blobs import LocalBlobs, StoreUnavailableError
from holdfast.codecs.codec import ENCODING, HoldfastCodec, Limits
from holdfast.codecs.keys import Keys
from holdfast.codecs.packing import Packer
from holdfast.codecs.sealing import Sealer
from holdfast.starter.api.access import Tenant, Tokens
from holdfast.starter.cli import main
from holdfast.starter.codec_server import FAULT, Settings, create_app

UI = "http://127.0.0.1:8233"
OLD, NEW, SHOPS = (os.urandom(32) for _ in range(3))
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"the whale sings"')
LARGE = Payload(metadata={"encoding": b"json/plain"}, data=json.dumps(os.urandom(60_000).hex()).encode())
Make = Callable[..., httpx2.AsyncClient]


def keys_of(namespace: str) -> dict[str, bytes]:
    return {"shops": SHOPS} if namespace == "shop" else {"new": NEW}


def codec(store: LocalBlobs | None = None, keys: Callable[[str], dict[str, bytes]] = keys_of) -> HoldfastCodec:
    return HoldfastCodec(Keys(keys), Packer(store) if store is not None else None)


@pytest.fixture
async def server() -> AsyncGenerator[Make]:
    made: list[httpx2.AsyncClient] = []

    def make(
        found: HoldfastCodec | None = None, *, tokens: Tokens | None = None, **settings: Any
    ) -> httpx2.AsyncClient:
        app = create_app(Settings(found or codec(), tokens, [UI], **settings))
        made.append(httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://codec"))
        return made[-1]

    yield make
    for client in made:
        await client.aclose()


def tokens() -> Tokens:
    known = {"sesame": Tenant("default", "ada"), "acorn": Tenant("shop", "shop")}
    return Tokens({hashlib.sha256(token.encode()).hexdigest(): tenant for token, tenant in known.items()})


async def ask(client: httpx2.AsyncClient, path: str, *payloads: Payload, **headers: str) -> httpx2.Response:
    body = MessageToDict(Payloads(payloads=payloads))
    return await client.post(path, json=body, headers={name.replace("_", "-"): text for name, text in headers.items()})


def answered(reply: httpx2.Response) -> list[Payload]:
    assert reply.status_code == 200, reply.text
    return list(ParseDict(reply.json(), Payloads()).payloads)


def refused(reply: httpx2.Response) -> tuple[int, str]:
    assert reply.headers["content-type"] == "application/problem+json"
    return reply.status_code, reply.json()["title"]


def reason(payload: Payload) -> str:
    assert payload.metadata["encoding"] == FAULT
    return json.loads(payload.data)


@pytest.mark.req("PR-2")
async def test_what_is_encoded_here_is_encrypted_and_comes_back(server: Make) -> None:
    client = server()
    [sealed] = answered(await ask(client, "/encode", PLAIN, x_namespace="shop"))
    opened = answered(await ask(client, "/shop/decode", sealed))
    without = answered(await ask(client, "/encode", PLAIN))

    assert sealed.metadata["encoding"] == ENCODING
    assert (sealed.metadata["key-id"], without[0].metadata["key-id"]) == (b"shops", b"new")
    assert b"whale" not in sealed.data
    assert opened == [PLAIN]


async def test_a_payload_that_is_stored_apart_is_shown_and_one_is_never_stored_here(
    server: Make, tmp_path: Path
) -> None:
    found = codec(LocalBlobs(tmp_path))
    client = server(found)
    [apart] = await found.of("default", "a-run").encode([LARGE])
    written = sorted(tmp_path.rglob("*"))
    [inline] = answered(await ask(client, "/encode", LARGE))

    assert apart.metadata["kind"] == b"packed"
    assert answered(await ask(client, "/decode", apart, PLAIN)) == [LARGE, PLAIN]
    assert inline.metadata["kind"] == b"inline"
    assert sorted(tmp_path.rglob("*")) == written


@pytest.mark.req("PR-2")
async def test_one_that_cannot_be_read_says_why_in_its_place_and_hides_no_other(server: Make, tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path)
    [good] = await codec().encode([PLAIN])
    [foreign] = await codec(keys=lambda _: {"old": OLD}).encode([PLAIN])
    [apart] = await codec(store).of("default", "a-run").encode([LARGE])
    damaged = Payload(metadata=good.metadata, data=good.data[:-1] + b"x")
    sealer = Sealer(await Keys(keys_of).ring("default"))
    nonsense = Payload(metadata=good.metadata, data=sealer.seal(b"\xff no payload", b"inline"))

    shown = answered(await ask(server(), "/decode", good, foreign, damaged, apart, nonsense, PLAIN))
    elsewhere = answered(await ask(server(codec(LocalBlobs(tmp_path / "empty"))), "/decode", apart))

    assert (shown[0], shown[-1]) == (PLAIN, PLAIN)
    assert "[codec/unknown-key] the key 'old'" in reason(shown[1])
    assert shown[1].metadata["key-id"] == b"old"
    assert "[codec/damaged]" in reason(shown[2])
    assert "[codec/no-store]" in reason(shown[3])
    assert "[codec/damaged]" in reason(shown[4])
    assert "[blob/missing]" in reason(elsewhere[0])


async def test_more_than_a_browser_can_show_is_not_sent_to_it(server: Make) -> None:
    [sealed] = await codec().encode([LARGE])

    [shown] = answered(await ask(server(largest_shown=1000), "/decode", sealed))

    assert "[codec/too-large]" in reason(shown)


class AwayBlobs(LocalBlobs):
    async def get(self, name: str, start: int = 0, size: int | None = None) -> bytes:
        raise StoreUnavailableError("the store", "no route to host")


async def test_a_store_that_is_away_and_keys_that_are_away_are_named(server: Make, tmp_path: Path) -> None:
    def away(_: str) -> dict[str, bytes]:
        raise ConnectionError("no route to the key service")

    [apart] = await codec(LocalBlobs(tmp_path)).of("default", "a-run").encode([LARGE])
    [shown] = answered(await ask(server(codec(AwayBlobs(tmp_path))), "/decode", apart))
    keyless = server(codec(keys=away))
    [locked] = answered(await ask(keyless, "/decode", apart))

    assert "[blob/unavailable]" in reason(shown)
    assert "[codec/keys-unavailable]" in reason(locked)
    assert refused(await ask(keyless, "/encode", PLAIN)) == (503, "codec/keys-unavailable")


async def test_what_temporal_would_not_take_is_not_encoded(server: Make) -> None:
    small = HoldfastCodec(Keys(keys_of), None, Limits(inline=1000))

    assert refused(await ask(server(small), "/encode", LARGE)) == (413, "codec/too-large")


async def test_a_key_that_is_none_is_not_encoded_with(server: Make) -> None:
    broken = codec(keys=lambda _: {"short": b"x"})

    assert refused(await ask(server(broken), "/encode", PLAIN)) == (422, "codec/bad-key")


@pytest.mark.req("PR-3")
async def test_a_token_decodes_its_own_namespace_and_no_other(server: Make) -> None:
    client = server(tokens=tokens())
    [sealed] = await codec().of("shop").encode([PLAIN])

    assert refused(await ask(client, "/decode", sealed)) == (401, "auth/required")
    assert refused(await ask(client, "/decode", sealed, authorization="Bearer wrong")) == (401, "auth/required")
    assert refused(await ask(client, "/shop/decode", sealed, authorization="Bearer sesame")) == (403, "auth/namespace")
    other = await ask(client, "/decode", sealed, authorization="Bearer sesame", x_namespace="shop")
    assert refused(other) == (403, "auth/namespace")
    # What is in the path counts, whatever the header claims.
    both = await ask(client, "/shop/decode", sealed, authorization="Bearer sesame", x_namespace="default")
    assert refused(both) == (403, "auth/namespace")
    assert answered(await ask(client, "/shop/decode", sealed, authorization="Bearer acorn")) == [PLAIN]
    assert answered(await ask(client, "/decode", sealed, authorization="Bearer acorn")) == [PLAIN]


def basic(password: str) -> str:
    return f"Basic {base64.b64encode(f'anybody:{password}'.encode()).decode()}"


async def test_a_browser_is_asked_for_a_token_and_sends_it_as_a_password(server: Make) -> None:
    client = server(tokens=tokens())
    [sealed] = await codec().encode([PLAIN])
    asked = await client.get("/")
    let_in = await client.get("/", headers={"Authorization": basic("sesame")})

    assert asked.status_code == 401
    assert asked.headers["www-authenticate"].startswith("Basic ")
    assert "'default'" in let_in.text
    assert answered(await ask(client, "/decode", sealed, authorization=basic("sesame"))) == [PLAIN]
    for wrong in (basic("wrong"), "Basic ***", "Basic /w=="):
        assert refused(await ask(client, "/decode", sealed, authorization=wrong)) == (401, "auth/required")
    assert "every namespace" in (await server().get("/")).text


async def preflight(client: httpx2.AsyncClient, origin: str, headers: str) -> httpx2.Response:
    wish = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": headers}
    return await client.options("/decode", headers={"Origin": origin, **wish})


async def test_only_the_pages_that_were_named_may_ask(server: Make) -> None:
    client = server()
    allowed = await preflight(client, UI, "authorization,authorization-extras,content-type,x-namespace")
    reply = await ask(client, "/decode", PLAIN, origin=UI)

    assert allowed.status_code == 200
    assert allowed.headers["access-control-allow-origin"] == UI
    assert allowed.headers["access-control-allow-credentials"] == "true"
    assert reply.headers["access-control-allow-origin"] == UI
    assert (await preflight(client, UI, "x-anything")).status_code == 400
    for stranger in ("http://127.0.0.1:8234", "https://127.0.0.1:8233", "http://codec", "null", ""):
        refusal = await preflight(client, stranger, "content-type")
        assert refusal.status_code == 400
        assert "access-control-allow-origin" not in refusal.headers
        posted = await ask(client, "/decode", PLAIN, origin=stranger)
        assert refused(posted) == (403, "auth/origin")
        assert "access-control-allow-origin" not in posted.headers


async def test_a_page_can_read_why_it_was_refused(server: Make) -> None:
    reply = await ask(server(tokens=tokens()), "/decode", PLAIN, origin=UI)

    assert refused(reply) == (401, "auth/required")
    assert reply.headers["access-control-allow-origin"] == UI


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b"[1]",
        b"1",
        b'"whale"',
        b"null",
        b'{"payloads": 1}',
        b'{"payloads": [{"metadata": {"\\ud800": ""}}]}',
        b'{"payloads": [{"metadata": 7, "data": {}}]}',
        b'{"payloads": [{"data": "whale!"}]}',
        b'{"payloads": ' + b"[" * 9000,
    ],
)
async def test_what_is_not_payloads_is_refused_and_not_repeated(server: Make, body: bytes) -> None:
    reply = await server().post("/decode", content=body)

    assert refused(reply) == (422, "request/invalid")
    assert "whale" not in reply.text


async def test_a_body_that_is_too_large_is_refused_before_and_while_it_is_read(server: Make) -> None:
    client = server(largest_body=1000)

    async def endless() -> AsyncGenerator[bytes]:
        for _ in range(100):
            yield b"x" * 100

    assert refused(await ask(client, "/decode", LARGE, origin=UI)) == (413, "request/too-large")
    assert refused(await client.post("/decode", content=endless())) == (413, "request/too-large")


async def test_health_needs_no_token_and_there_is_nothing_else(server: Make) -> None:
    client = server(tokens=tokens())

    assert (await client.get("/health")).json() == {"status": "ok"}
    assert refused(await client.get("/decode")) == (405, "http/405")
    assert refused(await client.get("/openapi.json")) == (404, "http/404")


def test_it_is_not_served_to_a_network_without_tokens(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codec-server", "--host", "0.0.0.0"]) == 2
    assert "[cli/no-tokens]" in capsys.readouterr().err


@pytest.mark.parametrize("origin", ["*", "127.0.0.1:8233", "http://127.0.0.1:8233/namespaces", "https://*.example.org"])
def test_an_origin_that_no_browser_sends_is_refused(origin: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["codec-server", "--port", "0", "--origin", "http://127.0.0.1:8233/", "--origin", origin]) == 2
    assert f"[cli/bad-origin] --origin {origin!r}" in capsys.readouterr().err


def test_a_port_that_is_taken_is_not_exchanged_for_another(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["codec-server", "--port", str(taken.getsockname()[1])]) == 2
    assert "[cli/port-taken]" in capsys.readouterr().err


def test_a_bad_setting_is_said_before_anything_is_served(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LARGEST_PAYLOAD", "much")

    assert main(["codec-server", "--port", "0"]) == 2
    assert "[codec/bad-setting]" in capsys.readouterr().err
