"""No secret that a worker is configured with is anywhere afterwards: everything that is written or shown is searched.

The services and nodes here do what they can to spread them. That the search itself finds something is tested, too.
"""

import asyncio
import base64
import contextlib
import json
import re
import threading
import uuid
from collections.abc import AsyncGenerator, Generator, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest
from google.protobuf.message import Message
from temporalio.client import Client

from holdfast import FlowFailedError, HoldfastClient, read_flow
from holdfast.starter import embedded
from holdfast.starter.api.access import Tokens
from holdfast.starter.api.app import Settings, create_app
from holdfast.starter.bundles import bundle_text
from holdfast.starter.moving import export
from holdfast.starter.run_blobs import payloads_in
from tests.conftest import StartWorker

NODES = str(Path(__file__).with_name("secret_nodes.py"))
PATIENCE = 60.0
BASE64 = re.compile(rb"[A-Za-z0-9+/]{12,}|[A-Za-z0-9_-]{12,}")


class Echo:
    """A service that says back whatever it is told in its headers: as data, as bytes, in errors, and as a model."""

    def __init__(self) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                told = json.dumps(dict(self.headers)).encode()
                if self.path.startswith("/fail"):
                    return self._answer(401, told)
                return self._answer(200, told, "application/octet-stream" if "bytes" in self.path else None)

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                told = " ".join(self.headers.values())
                if asked["model"].isdigit():
                    error = {"message": f"Incorrect API key provided: {told}", "type": "invalid_request_error"}
                    return self._answer(int(asked["model"]), json.dumps({"error": error}).encode())
                if asked.get("stream"):
                    return self._answer(200, _streamed(told), "text/event-stream")
                return self._answer(200, json.dumps(_completion(asked, told)).encode())

            def _answer(self, status: int, body: bytes, kind: str | None = None) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind or "application/json")
                self.send_header("X-Told", self.headers.get("Authorization", ""))
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Echo":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()


def _completion(asked: dict[str, Any], told: str) -> dict[str, Any]:
    """The first time a tool is asked for, if there is one, with what was told in its arguments."""
    message: dict[str, Any] = {"role": "assistant", "content": f"You said {told}"}
    if asked.get("tools") and asked["messages"][-1]["role"] != "tool":
        function = {"name": "reveal", "arguments": "{}"}
        message["tool_calls"] = [{"id": "call-1", "type": "function", "function": function}]
    reason = "tool_calls" if "tool_calls" in message else "stop"
    return {"id": "1", "model": "m", "choices": [{"index": 0, "message": message, "finish_reason": reason}]}


def _streamed(told: str) -> bytes:
    pieces = [told[start : start + 7] for start in range(0, len(told), 7)]
    deltas: list[dict[str, Any]] = [{"delta": {"content": piece}, "finish_reason": None} for piece in pieces]
    deltas.append({"delta": {}, "finish_reason": "stop"})
    lines = [json.dumps({"id": "1", "model": "m", "choices": [{"index": 0, **delta}]}) for delta in deltas]
    return "".join(f"data: {line}\n\n" for line in [*lines, "[DONE]"]).encode()


class Canaries:
    """A secret for every place where one may be configured, unlike any other text."""

    def __init__(self) -> None:
        mark = uuid.uuid4().hex
        self.environment = f"sk-env-{mark}"
        self.file = f"sk-file/{mark}+x"
        self.header = f"sk-header-{mark}"
        self.referred = f"sk-referred={mark}"
        self.password = f"sk-password-{mark}"
        self.vault = f"sk-vault+&/?{mark}"
        self.named = f"sk-named-{mark}"

    def all(self) -> dict[str, str]:
        return dict(vars(self))


def forms(secret: str) -> Iterator[bytes]:
    """Written here once more, so that the search does not share the mistakes of what it searches."""
    yield from (secret.encode(), quote(secret).encode(), quote(secret, safe="").encode())
    yield base64.b64encode(secret.encode()).rstrip(b"=")


def searched(data: bytes) -> bytes:
    """The data, and what is in base64 in it."""
    found = [data]
    for match in BASE64.finditer(data):
        text = match.group().replace(b"-", b"+").replace(b"_", b"/")
        found.append(base64.b64decode(text[: len(text) // 4 * 4]))
    return b"\n".join(found)


class Collection:
    """What was written and shown, by where it was found."""

    def __init__(self) -> None:
        self.places: dict[str, list[bytes]] = {}

    def add(self, place: str, data: bytes | str | Any) -> None:
        if not isinstance(data, bytes | str):
            data = json.dumps(data, default=repr)
        self.places.setdefault(place, []).append(data if isinstance(data, bytes) else data.encode())

    def leaks(self, secrets: dict[str, str]) -> set[tuple[str, str]]:
        """Where which of the secrets is."""
        return {
            (place, name)
            for place, pieces in self.places.items()
            for data in [searched(b"\n".join(pieces))]
            for name, secret in secrets.items()
            if any(form in data for form in forms(secret))
        }


class Collector:
    """Reads all that there is of a run."""

    def __init__(self, client: HoldfastClient) -> None:
        self.client = client
        self.found = Collection()

    async def _message(self, place: str, message: Message) -> None:
        """As it is stored, and decoded."""
        self.found.add(f"{place}, raw", message.SerializeToString())
        codec = self.client.temporal.data_converter.payload_codec
        payloads = list(payloads_in(message))
        for payload in await codec.decode(payloads) if codec and payloads else payloads:
            self.found.add(place, payload.data)

    async def describe(self, run_id: str) -> None:
        description = await self.client.temporal.get_workflow_handle(run_id).describe()
        await self._message("describe", description.raw_description)
        self.found.add("memo", await description.memo())
        self.found.add("search attributes", repr(description.typed_search_attributes))

    async def run(self, run_id: str) -> None:
        async for event in self.client.temporal.get_workflow_handle(run_id).fetch_history_events():
            await self._message("history", event)
        await self.describe(run_id)
        for transition in await self.client.transitions(run_id):
            self.found.add("transitions", transition.model_dump_json())
            checkpoint = await self.client.get_checkpoint(f"{run_id}@{transition.seq}")
            self.found.add("checkpoints", checkpoint.model_dump_json())
            self.found.add("checkpoints", repr(checkpoint.model_dump()))
        self.found.add("export", bundle_text(await export(self.client, run_id), "json"))

    async def events(self, run_id: str) -> None:
        async with contextlib.aclosing(self.client.stream(run_id, tokens=True)) as events:
            async for event in events:
                self.found.add("events", event.model_dump_json())

    async def api(self, http: httpx2.AsyncClient, run_id: str, nodes: Iterable[str]) -> None:
        about = f"/runs/{run_id}"
        ways = ["", "/checkpoints", "/checkpoints/latest", "/transitions", "/definition", "/stream", "/tree", "/export"]
        ways += [f"/history?node={node}" for node in nodes]
        for address in [*(about + way for way in ways), "/runs", f"/diff?left={run_id}@1&right={run_id}", "/inbox"]:
            reply = await http.get(address)
            assert reply.status_code == 200, f"{address}: {reply.text}"
            self.found.add("api", reply.content)
            self.found.add("api", repr(reply.headers))

    def files(self, place: str, paths: Iterable[Path]) -> None:
        for path in paths:
            if path.is_file():
                self.found.add(place, path.read_bytes())


@pytest.fixture
def echo() -> Generator[Echo]:
    with Echo() as server:
        yield server


@pytest.fixture
def canaries() -> Canaries:
    return Canaries()


@pytest.fixture
def client_of_worker(
    client: Client,
    temporal: embedded.Running,
    start_worker: StartWorker,
    echo: Echo,
    canaries: Canaries,
    tmp_path: Path,
) -> HoldfastClient:
    """With a worker process that has every canary."""
    (tmp_path / "referred.txt").write_text(canaries.referred + "\n")
    connections = {
        "filed": {"base_url": echo.url, "api_key": canaries.file, "headers": {"X-Extra": canaries.header}},
        "referred": {"base_url": echo.url, "api_key": {"file": "referred.txt"}},
        "unreachable": {"base_url": f"http://anna:{canaries.password}@127.0.0.1:{embedded.free_port()}"},
        "model": {"base_url": echo.url + "/v1", "api_key": {"env": "HOLDFAST_CONNECTION_PLAIN_API_KEY"}},
    }
    (tmp_path / "connections.yaml").write_text(json.dumps(connections))
    environment = {
        "HOLDFAST_CONNECTION_PLAIN_BASE_URL": echo.url,
        "HOLDFAST_CONNECTION_PLAIN_API_KEY": canaries.environment,
        "HOLDFAST_CONNECTIONS": str(tmp_path / "connections.yaml"),
        "HOLDFAST_SECRETS": "MY_OWN_KEY",
        "MY_OWN_KEY": canaries.named,
        "VAULT": canaries.vault,
        "ECHO_URL": echo.url,
        # What the careless nodes read, past all connections.
        "FILED": canaries.file,
        "CANARIES": "HOLDFAST_CONNECTION_PLAIN_API_KEY MY_OWN_KEY FILED VAULT",
        "LET_GO": str(tmp_path / "let-go"),
    }
    queue = f"secrets-{uuid.uuid4().hex}"
    start_worker(temporal.address, queue, [NODES], environment)
    return HoldfastClient(client, queue)


@pytest.fixture
async def http(client_of_worker: HoldfastClient) -> AsyncGenerator[httpx2.AsyncClient]:
    async def same(_: str) -> HoldfastClient:
        return client_of_worker

    app = create_app(Settings(same, Tokens({}, open_to_all="default"), per_minute=10_000))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://api") as found:
        yield found


def _http(connection: str) -> str:
    return f"""
id: http-{connection}
nodes:
  ok: {{type: http, url: /ok, connection: {connection}, caching: {{enabled: true}}}}
  again: {{type: http, url: /ok, connection: {connection}, caching: {{enabled: true}}, depends: ok}}
  bytes: {{type: http, url: /bytes, connection: {connection}, depends: again}}
  said: {{type: transform, template: '{{{{ ok.output.body }}}}', depends: bytes}}
  fail: {{type: http, url: /fail, connection: {connection}, depends: said}}
"""


FAILING = [
    *(_http(connection) for connection in ("vaulted", "plain", "filed", "referred")),
    """
id: unreachable
nodes:
  call:
    {type: http, url: /x, connection: unreachable, error_handling: {max_retries: 1, retry_interval_seconds: 0.1}}
""",
    "id: refused\nnodes:\n  ask: {type: llm, model: '401', connection: model, prompt: hi}\n",
    "id: bad\nnodes:\n  ask: {type: llm, model: '400', connection: filed, prompt: hi}\n",
    "id: refused-agent\nnodes:\n  ask: {type: agent, llm: {model: '401', connection: model}, prompt: hi}\n",
    "id: raises\nnodes:\n  raises: {type: Raises}\n",
    """
id: raises-in-code
nodes:
  raises:
    type: python
    code: |
      import os
      def run(input_data):
          raise RuntimeError(os.environ["MY_OWN_KEY"])
""",
]
SUCCEEDING = [
    "id: llm\nnodes:\n  ask: {type: llm, model: m, connection: model, prompt: hi}\n",
    "id: streamed\nnodes:\n  ask: {type: llm, model: m, connection: model, prompt: hi, streaming: {enabled: true}}\n",
    f"""
id: agent
nodes:
  ask:
    type: agent
    llm: {{model: m, connection: model}}
    prompt: hi
    memory: {{limit: 10}}
    tools:
      - {{id: reveal, type: tool, function: "{Path(NODES).stem}:reveal", input_schema: {{type: object}}}}
""",
    "id: logs\nnodes:\n  logs: {type: Logs}\n  reveals: {type: Reveals, depends: logs, caching: {enabled: true}}\n",
    "id: pure\nnodes:\n  reveals: {type: Reveals, pure: true}\n  then: {type: pass, depends: reveals}\n",
]
KEEPS = """
id: keeps
nodes:
  keeps: {type: Keeps, error_handling: {max_retries: 1, retry_interval_seconds: 0.1}}
"""
ASKS = """
id: asks
nodes:
  reveals: {type: Reveals}
  ask: {type: human, prompt: 'What of {{ reveals.output }}?', depends: reveals}
"""


async def until_it_beats_again(client: HoldfastClient, run_id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            description = await client.temporal.get_workflow_handle(run_id).describe()
            for pending in description.raw_description.pending_activities:
                if pending.attempt == 2 and pending.heartbeat_details.payloads and pending.HasField("last_failure"):
                    return
            await asyncio.sleep(0.05)


async def until_it_asks(client: HoldfastClient, run_id: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await client.inbox(run_id):
            await asyncio.sleep(0.1)


@pytest.mark.req("PR-2")
async def test_no_secret_of_a_worker_is_in_anything_that_is_written_or_shown(
    client_of_worker: HoldfastClient,
    http: httpx2.AsyncClient,
    canaries: Canaries,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    collector = Collector(client_of_worker)
    runs: dict[str, list[str]] = {}

    async def start(text: str) -> str:
        flow = read_flow(text)
        run_id = await client_of_worker.start(flow, {})
        runs[run_id] = [node.id for node in flow.nodes]
        return run_id

    for text in FAILING:
        with pytest.raises(FlowFailedError) as caught:
            await client_of_worker.result(await start(text))
        collector.found.add("result", f"{caught.value!s} {caught.value!r} {vars(caught.value)}")
    for text in SUCCEEDING:
        collector.found.add("result", (await client_of_worker.result(await start(text))).model_dump())
    keeps, asks = await start(KEEPS), await start(ASKS)
    await until_it_beats_again(client_of_worker, keeps)
    await until_it_asks(client_of_worker, asks)
    for run_id in (keeps, asks):
        await collector.describe(run_id)
        collector.found.add("api", (await http.get(f"/runs/{run_id}")).content)
    collector.found.add("inbox", (await http.get("/inbox", params={"run": asks})).content)
    (tmp_path / "let-go").touch()
    collector.found.add("result", (await client_of_worker.result(keeps)).model_dump())
    await client_of_worker.send_input(asks, {"feedback": "nothing"})
    await client_of_worker.result(asks)
    for run_id, nodes in runs.items():
        await collector.run(run_id)
        await collector.events(run_id)
        await collector.api(http, run_id, nodes)
    collector.files("worker's log", [tmp_path / "worker.log"])
    collector.files("worker's files", (tmp_path / "home").rglob("*"))
    collector.files("server's database", tmp_path_factory.getbasetemp().glob("temporal*/**/*.db*"))
    written = {place: b"\n".join(pieces) for place, pieces in collector.found.places.items()}

    assert collector.found.leaks(canaries.all()) == set()
    # And it is not that nothing was there to be found.
    for place in ("history", "checkpoints", "events", "api", "export", "describe", "worker's log", "result"):
        assert b"[secret]" in written[place], place
    assert b"everything but secrets" in written["worker's log"]
    assert b"Basic bWU6[secret]" in written["worker's log"]
    assert {path.name for path in (tmp_path / "home").rglob("*.db")} == {"cache.db", "memory.db"}
    assert keeps.encode() in written["server's database"]


@pytest.mark.req("PR-2")
async def test_a_secret_in_the_input_of_a_run_is_found_everywhere_by_the_same_search(
    client_of_worker: HoldfastClient,
    http: httpx2.AsyncClient,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    collector = Collector(client_of_worker)
    planted = {"planted": f"sk-planted/+{uuid.uuid4().hex}"}
    flow = read_flow(
        "id: planted\nnodes:\n  a: {type: pass}\n  ask: {type: human, prompt: '{{ a.output }}', depends: a}"
    )
    as_bytes = base64.b64encode(b"before " + planted["planted"].encode() + b" after").decode()
    run_id = await client_of_worker.start(flow, {"note": planted["planted"]})
    await until_it_asks(client_of_worker, run_id)
    await collector.describe(run_id)
    collector.found.add("inbox", (await http.get("/inbox", params={"run": run_id})).content)
    await client_of_worker.send_input(run_id, {"feedback": "x"})
    collector.found.add("result", (await client_of_worker.result(run_id)).model_dump())
    collector.found.add("bytes", as_bytes)
    await collector.run(run_id)
    await collector.events(run_id)
    await collector.api(http, run_id, ["a"])

    places = {place for place, _ in collector.found.leaks(planted)}
    assert places >= {
        "history",
        "describe",
        "checkpoints",
        "transitions",
        "export",
        "events",
        "api",
        "inbox",
        "result",
        "bytes",
    }
