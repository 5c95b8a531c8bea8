"""Connections are looked up on the worker whenever one is used: a key may change while a run waits, and is in none."""

import asyncio
import json
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast import FlowFailedError, Node
from holdfast.activities.connections import FILE_VARIABLE
from holdfast.starter.run_blobs import payloads_in
from tests.integration.conftest import Bench

OLD, NEW = "sk-old-5f1b2c", "sk-new-9e8d7a"
RAN: list[str] = []


class Work(Node):
    """Is counted."""

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        RAN.append(kwargs["node_id"])
        return {"by": kwargs["node_id"]}


class Guarded:
    """A service on this machine that lets in who has the key, and counts who came, by what they showed."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.shown: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                shown = self.headers.get("Authorization", "").removeprefix("Bearer ")
                outer.shown.append(shown)
                welcome = shown == outer.key
                body = json.dumps({"welcome": welcome} if welcome else {"error": "the key has expired"}).encode()
                self.send_response(200 if welcome else 401)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> "Guarded":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def service() -> Generator[Guarded]:
    with Guarded(OLD) as server:
        yield server


class Settings:
    """The file of connections that the worker reads."""

    def __init__(self, path: Path, url: str) -> None:
        self._path = path
        self._url = url

    def give(self, key: str) -> None:
        self._path.write_text(json.dumps({"ledger": {"base_url": self._url, "api_key": key}}))


@pytest.fixture
def settings(tmp_path: Path, service: Guarded, monkeypatch: pytest.MonkeyPatch) -> Settings:
    path = tmp_path / "connections.yaml"
    monkeypatch.setenv(FILE_VARIABLE, str(path))
    found = Settings(path, service.url)
    found.give(OLD)
    RAN.clear()
    return found


WAITING = """
id: waiting
nodes:
  before: {type: http, url: /before, connection: ledger}
  ask: {type: human, prompt: 'Go on?', depends: before}
  after: {type: http, url: /after, connection: ledger, depends: ask}
"""


async def everything_written(bench: Bench, run_id: str) -> bytes:
    """The history and every checkpoint of a run, as they are stored and as they are given out."""
    history = await bench.client.temporal.get_workflow_handle(run_id).fetch_history()
    written = [event.SerializeToString() for event in history.events]
    codec = bench.client.temporal.data_converter.payload_codec
    assert codec is not None
    for event in history.events:
        written += [payload.data for payload in await codec.decode(list(payloads_in(event)))]
    for transition in await bench.client.transitions(run_id):
        checkpoint = await bench.client.get_checkpoint(f"{run_id}@{transition.seq}")
        written.append(checkpoint.model_dump_json().encode())
    return b"".join(written)


@pytest.mark.req("FL-11", "EX-7")
async def test_a_key_that_is_rotated_while_a_run_waits_is_used_and_no_key_is_ever_written(
    bench: Bench, service: Guarded, settings: Settings
) -> None:
    await bench.worker()
    run_id = await bench.start(WAITING)
    while not (waiting := await bench.client.latest_checkpoint(run_id)).pending_inputs:
        await asyncio.sleep(0.05)
    service.key = NEW
    settings.give(NEW)
    await bench.client.send_input(run_id, {"feedback": "yes"})
    result = await bench.client.result(run_id)
    written = await everything_written(bench, run_id)
    final = await bench.client.latest_checkpoint(run_id)

    assert service.shown == [OLD, NEW]
    assert result.output["after"]["output"]["body"] == {"welcome": True}
    assert b"/after" in written, "it is the run's own"
    assert OLD.encode() not in written
    assert NEW.encode() not in written
    assert waiting.metadata["creation_time"] == final.metadata["creation_time"]


@pytest.mark.req("FL-11", "EX-7")
async def test_an_expired_key_fails_the_node_at_once_and_after_its_rotation_a_resume_runs_that_node_alone(
    bench: Bench, service: Guarded, settings: Settings
) -> None:
    await bench.worker([Work])
    service.key = NEW
    flow = """
id: expired
nodes:
  first: {type: Work}
  call:
    {type: http, url: /call, connection: ledger, depends: first,
     error_handling: {max_retries: 5, retry_interval_seconds: 0.1}}
  last: {type: Work, depends: call}
"""
    run_id = await bench.start(flow)
    with pytest.raises(FlowFailedError, match=r"node 'call' failed: GET .*/call answered 401") as caught:
        await bench.client.result(run_id)
    tried = list(service.shown)
    error = (await bench.client.latest_checkpoint(run_id)).node_states["call"].error
    settings.give(NEW)
    RAN.clear()
    resumed = await bench.client.resume(run_id)
    result = await bench.client.result(resumed)
    written = await everything_written(bench, run_id) + await everything_written(bench, resumed)

    assert tried == [OLD], "a key that is not accepted is not tried again"
    assert error is not None
    assert (error["details"]["status_code"], "expired" in error["details"]["body"]) == (401, True)
    assert caught.value.node_id == "call"
    assert service.shown == [OLD, NEW]
    assert RAN == ["last"]
    assert result.output["call"]["output"]["body"] == {"welcome": True}
    assert OLD.encode() not in written
    assert NEW.encode() not in written
