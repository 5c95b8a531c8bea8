"""The nodes that talk to the world, against real loopback servers: the requests are counted there."""

import json
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast import FlowFailedError
from tests.integration.conftest import Bench
from tests.servers.llm import LlmServer


@pytest.fixture(scope="module")
def llm() -> Generator[LlmServer]:
    with LlmServer() as server:
        yield server


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch, llm: LlmServer) -> None:
    monkeypatch.setenv("HOLDFAST_CONNECTION_LOCAL_BASE_URL", llm.url)
    monkeypatch.setenv("HOLDFAST_CONNECTION_LOCAL_API_KEY", "sk-very-secret")


def _llm(prompt: str, more: str = "") -> str:
    return f"id: f\nnodes:\n  ask: {{type: llm, model: m, connection: local, prompt: '{prompt}'{more}}}"


def _asked(llm: LlmServer, text: str) -> int:
    return sum(text in json.dumps(entry) for entry in llm.journal())


@pytest.mark.req("EX-6")
async def test_a_model_is_asked_with_the_rendered_prompt_and_its_usage_is_kept(bench: Bench, llm: LlmServer) -> None:
    await bench.worker()
    result = await bench.run(_llm("Say hello to {{ name }}"), {"name": "Ada"})
    output = result.output["ask"]["output"]

    assert output["content"] == "Hello, Ada!"
    assert output["usage"]["total_tokens"] > 0
    assert _asked(llm, "Say hello to Ada") == 1


async def test_a_rate_limit_is_waited_out_as_the_server_says(bench: Bench, llm: LlmServer) -> None:
    await bench.worker()
    run_id = await bench.start(_llm("limited", ", error_handling: {max_retries: 1, retry_interval_seconds: 60}"))
    result = await bench.client.result(run_id)

    assert result.output["ask"]["output"]["content"] == "at last"
    assert _asked(llm, "limited") == 2


async def test_a_server_error_is_retried_and_a_wrong_key_is_not(bench: Bench, llm: LlmServer) -> None:
    await bench.worker()
    retry = ", error_handling: {max_retries: 3, retry_interval_seconds: 0.1}"
    result = await bench.run(_llm("broken", retry))
    with pytest.raises(FlowFailedError, match="bad key"):
        await bench.run(_llm("forbidden", retry))

    assert result.output["ask"]["output"]["content"] == "mended"
    assert _asked(llm, "forbidden") == 1


async def test_no_secret_of_a_connection_is_in_the_history(bench: Bench) -> None:
    await bench.worker()
    run_id = await bench.start(_llm("Say hello to {{ name }}"), {"name": "Ada"})
    await bench.client.result(run_id)
    history = await bench.client.temporal.get_workflow_handle(run_id).fetch_history()

    assert "sk-very-secret" not in history.to_json()


async def test_an_unknown_connection_is_named_with_what_to_set(bench: Bench) -> None:
    await bench.worker()
    with pytest.raises(FlowFailedError, match="HOLDFAST_CONNECTION_NOWHERE_BASE_URL"):
        await bench.run("id: f\nnodes:\n  ask: {type: llm, model: m, connection: nowhere, prompt: hi}")


class _Api(BaseHTTPRequestHandler):
    """Remembers what it was asked, and answers as the path says."""

    seen: list[dict[str, Any]] = []

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length).decode()
        self.seen.append({"path": self.path, "method": self.command, "headers": dict(self.headers), "body": body})
        earlier = sum(entry["path"] == self.path for entry in self.seen) - 1
        status = {"/busy": 503 if earlier == 0 else 200, "/gone": 404}.get(self.path.partition("?")[0], 200)
        payload = b"\x00\xff" if self.path == "/bytes" else json.dumps({"path": self.path, "body": body}).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream" if self.path == "/bytes" else "application/json")
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@pytest.fixture
def api() -> Generator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Api)
    _Api.seen.clear()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


async def test_a_request_is_rendered_and_carries_the_idempotency_key(bench: Bench, api: str) -> None:
    await bench.worker()
    run_id = await bench.start(f"""
id: f
nodes:
  post:
    type: http
    method: POST
    url: "{api}/items/{{{{ n }}}}"
    query: {{page: "{{{{ n }}}}"}}
    body: {{name: "item {{{{ n }}}}"}}
  get: {{type: http, url: "{api}/bytes", depends: post}}
""", {"n": 7})  # fmt: skip
    result = await bench.client.result(run_id)
    [post, _] = _Api.seen

    assert result.output["post"]["output"]["body"] == {"path": "/items/7?page=7", "body": '{"name":"item 7"}'}
    assert post["headers"]["Idempotency-Key"] == f"{run_id}/post"
    assert result.output["get"]["output"]["body"] == b"\x00\xff"


async def test_a_busy_server_is_asked_again_with_the_same_key_and_a_missing_page_is_not(bench: Bench, api: str) -> None:
    await bench.worker()
    retry = "error_handling: {max_retries: 2, retry_interval_seconds: 0.1}"
    await bench.run(f"id: f\nnodes:\n  get: {{type: http, url: '{api}/busy', {retry}}}")
    with pytest.raises(FlowFailedError, match="answered 404"):
        await bench.run(f"id: f\nnodes:\n  get: {{type: http, url: '{api}/gone', {retry}}}")
    busy = [entry["headers"]["Idempotency-Key"] for entry in _Api.seen if entry["path"] == "/busy"]

    assert len(busy) == 2
    assert len(set(busy)) == 1
    assert sum(entry["path"] == "/gone" for entry in _Api.seen) == 1
