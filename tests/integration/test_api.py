"""The HTTP API on the real server, over real sockets."""

import asyncio
import contextlib
import json
import random
import uuid
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
import websockets
from temporalio.api.workflowservice.v1 import RegisterNamespaceRequest
from temporalio.client import Client
from temporalio.service import RPCError

from holdfast import FlowSpec, HoldfastClient, RunConfig
from holdfast.starter.api.access import Tokens
from holdfast.starter.api.app import Settings, create_app
from holdfast.starter.connecting import NotReachableError, connect, ensure_search_attributes
from holdfast.starter.embedded import free_port
from holdfast.starter.rebuild import executions as executions_of
from tests.integration.conftest import Bench
from tests.servers.llm import LlmServer

HELLO = "id: hello\nname: Hello\nnodes:\n  greet: {type: transform, template: 'Hello, {{ name }}!'}\n"
ASK: dict[str, Any] = {
    "id": "ask",
    "nodes": {
        "before": {"type": "transform", "template": "x"},
        "ask": {"type": "human", "prompt": "What now?", "depends": "before"},
        "after": {"type": "transform", "template": "{{ ask.output.content }}", "depends": "ask"},
    },
}
OTHER = "other-tenant"
MODELS = Path(__file__).parents[1] / "servers" / "models.json"


@dataclass
class Api:
    """A running server and a browser's worth of HTTP."""

    url: str
    http: httpx2.AsyncClient

    async def run(self, definition: dict[str, Any] | None = None, **body: Any) -> str:
        reply = await self.http.post("/runs", json={"definition": definition or ASK, "input": {}, **body})
        assert reply.status_code == 201, reply.text
        return reply.json()["run_id"]

    async def question(self, run_id: str) -> dict[str, Any]:
        async with asyncio.timeout(20):
            while True:
                requests = (await self.http.get("/inbox", params={"run": run_id})).json()["requests"]
                if requests:
                    return requests[0]
                await asyncio.sleep(0.05)

    async def events(self, run_id: str, after: int = 0, stop_after: int | None = None) -> list[dict[str, Any]]:
        """Server-sent events until the run ends, or until so many have come."""
        found: list[dict[str, Any]] = []
        headers = {"Last-Event-ID": str(after)} if after else {}
        async with self.http.stream("GET", f"/runs/{run_id}/stream", headers=headers, timeout=30) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            async for line in reply.aiter_lines():
                if line == "event: end":
                    return found
                if line.startswith("data: "):
                    found.append(json.loads(line.removeprefix("data: ")))
                    if stop_after is not None and len(found) >= stop_after:
                        return found
        return found


@contextlib.asynccontextmanager
async def serving(settings: Settings) -> AsyncGenerator[str]:
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(create_app(settings), port=port, log_level="warning", lifespan="off"))
    server.install_signal_handlers = lambda: None  # pyright: ignore[reportAttributeAccessIssue]
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await task


@pytest.fixture
async def api(bench: Bench, tmp_path: Path) -> AsyncGenerator[Api]:
    await bench.worker()
    flows = tmp_path / "flows"
    flows.mkdir()
    (flows / "hello.yaml").write_text(HELLO)
    (flows / "wrong.yaml").write_text("id: wrong\nnodes:\n  a: {type: http}\n")

    async def same(_: str) -> HoldfastClient:
        return bench.client

    async with (
        serving(Settings(same, Tokens({}, open_to_all="default"), flows)) as url,
        httpx2.AsyncClient(base_url=url) as http,
    ):
        yield Api(url, http)


@pytest.mark.req("RT-2")
async def test_a_flow_is_started_by_name_and_its_run_is_found(api: Api) -> None:
    catalogue = (await api.http.get("/flows")).json()["flows"]
    names = [entry["name"] for entry in catalogue if entry["fault"] is None]
    faults = {entry["name"]: entry["fault"] for entry in catalogue if entry["fault"] is not None}
    started = (await api.http.post("/runs", json={"flow": "hello", "input": {"name": "Ada"}})).json()
    events = await api.events(started["run_id"])
    run = (await api.http.get(f"/runs/{started['run_id']}")).json()
    latest = (await api.http.get(f"/runs/{started['run_id']}/checkpoints/latest")).json()

    assert names == ["hello"]
    assert "needs 'url'" in faults["wrong"]
    assert started["created"] is True
    assert run["status"] == "completed"
    assert latest["node_states"]["greet"]["output_data"] == "Hello, Ada!"
    assert [event["event"] for event in events][-2:] == ["run_completed", "checkpoint_created"]


@pytest.mark.req("RT-2")
async def test_the_same_key_starts_the_same_run(api: Api) -> None:
    key = {"Idempotency-Key": uuid.uuid4().hex}
    body = {"flow": "hello", "input": {"name": "Ada"}}
    replies = await asyncio.gather(*(api.http.post("/runs", json=body, headers=key) for _ in range(10)))

    assert len({reply.json()["run_id"] for reply in replies}) == 1
    assert sorted(reply.status_code for reply in replies) == [200] * 9 + [201]


@pytest.mark.req("RT-2", "RT-3", "RT-4")
async def test_a_question_is_announced_answered_and_closed(api: Api) -> None:
    run_id = await api.run()
    question = await api.question(run_id)
    waiting = (await api.http.get(f"/runs/{run_id}")).json()["status"]
    message = {"entity_id": "ask", "data": {"feedback": "go on"}, "event": "approval"}
    taken = await api.http.post(f"/runs/{run_id}/input", json=message)
    again = await api.http.post(f"/runs/{run_id}/input", json=message)
    events = await api.events(run_id)
    announced = next(event for event in events if event["event"] == "approval")
    late = await api.http.post(f"/inbox/{question['id']}", json={"feedback": "me too"})

    assert waiting == "pending_input"
    assert taken.json() == {"status": "accepted", "request_id": question["id"], "path": "ask"}
    assert again.status_code == 409
    assert "already answered by dev" in again.json()["detail"]
    assert again.headers["content-type"] == "application/problem+json"
    assert announced["data"]["entity_id"] == "ask"
    assert announced["data"]["prompt"] == "What now?"
    assert announced["data"]["checkpoint_id"] == f"{run_id}@{announced['seq']}"
    assert announced["data"]["is_resumed"] is False
    assert late.status_code == 404


@pytest.mark.req("RT-3")
async def test_a_client_that_is_cut_off_twenty_times_has_every_event_once_and_in_order(api: Api) -> None:
    nodes: dict[str, Any] = {"n0": {"type": "transform", "template": "x"}}
    for number in range(1, 40):
        code = "import time\ndef run(x):\n    time.sleep(0.01)\n    return 1"
        nodes[f"n{number}"] = {"type": "python", "code": code, "depends": f"n{number - 1}"}
    run_id = await api.run({"id": "long", "nodes": nodes})
    chance = random.Random(7)
    seen: list[dict[str, Any]] = []
    for _ in range(20):
        after = seen[-1]["id"] if seen else 0
        seen += await api.events(run_id, after, stop_after=chance.randrange(1, 9))
    seen += await api.events(run_id, seen[-1]["id"])
    whole = await api.events(run_id)

    assert [event["id"] for event in seen] == [event["id"] for event in whole]
    assert seen == whole
    assert whole[-1]["event"] == "checkpoint_created"


@pytest.mark.req("RT-3")
async def test_watching_adds_nothing_to_a_run(api: Api, bench: Bench) -> None:
    run_id = await api.run()
    await api.question(run_id)
    before = (await bench.client.get_run(run_id)).history_events
    for _ in range(5):
        await api.events(run_id, stop_after=3)
    after = (await bench.client.get_run(run_id)).history_events
    await bench.client.cancel(run_id)

    assert after == before


@pytest.mark.req("RT-2")
async def test_a_socket_gives_the_stream_and_takes_the_answer(api: Api) -> None:
    run_id = await api.run()
    await api.question(run_id)
    events: list[dict[str, Any]] = []
    async with websockets.connect(f"{api.url.replace('http', 'ws')}/runs/{run_id}/ws") as socket:
        async for text in socket:
            event = json.loads(text)
            events.append(event)
            if event["event"] == "approval":
                await socket.send(json.dumps({"entity_id": "ask", "data": {"feedback": ""}}))
            if event["event"] == "input_refused":
                await socket.send(json.dumps({"entity_id": "ask", "data": {"feedback": "by socket"}}))
            if event["event"] == "end":
                break
    names = [event["event"] for event in events]

    assert "say something" in events[names.index("input_refused")]["data"]["detail"]
    assert "input_result" in names
    assert "run_completed" in names


@pytest.mark.req("RT-2")
async def test_a_failed_run_is_resumed_from_its_latest_checkpoint(api: Api, tmp_path: Path) -> None:
    marker = tmp_path / "mended"
    code = f"import os\ndef run(x):\n    assert os.path.exists({str(marker)!r})\n    return 1"
    frail = {"type": "python", "code": code, "depends": "a"}
    run_id = await api.run({"id": "frail", "nodes": {"a": {"type": "transform", "template": "x"}, "b": frail}})
    await api.events(run_id)
    active = await api.http.post(f"/runs/{await api.run()}/resume")
    marker.touch()
    resumed = (await api.http.post(f"/runs/{run_id}/resume")).json()["run_id"]
    events = await api.events(resumed)
    listed = (await api.http.get(f"/runs/{run_id}/checkpoints", params={"limit": 2})).json()["checkpoints"]

    assert active.status_code == 409
    assert events[0]["event"] == "checkpoint_resumed"
    assert events[0]["data"]["skipped_nodes"] == ["a"]
    assert (await api.http.get(f"/runs/{resumed}")).json()["status"] == "completed"
    assert len(listed) == 2


@pytest.mark.req("FL-6")
async def test_a_run_is_paused_continued_and_cancelled(api: Api) -> None:
    run_id = await api.run()
    await api.question(run_id)
    await api.http.post(f"/runs/{run_id}/pause")
    async with asyncio.timeout(30):
        while (await api.http.get(f"/runs/{run_id}")).json()["status"] != "paused":
            await asyncio.sleep(0.05)
    await api.http.post(f"/runs/{run_id}/continue")
    async with asyncio.timeout(30):
        while (await api.http.get(f"/runs/{run_id}")).json()["status"] != "pending_input":
            await asyncio.sleep(0.05)
    await api.http.post(f"/runs/{run_id}/cancel")
    events = await api.events(run_id)

    assert [event["event"] for event in events if event["event"].startswith("run_")] == [
        "run_started", "run_paused", "run_continued", "run_cancelled",
    ]  # fmt: skip


async def test_runs_are_listed_page_by_page(api: Api) -> None:
    flow_id = f"pages-{uuid.uuid4().hex[:6]}"
    made = [await api.run({**ASK, "id": flow_id}) for _ in range(5)]
    async with asyncio.timeout(30):
        while len((await api.http.get("/runs", params={"flow": flow_id})).json()["runs"]) < 5:
            await asyncio.sleep(0.1)
    found: list[str] = []
    cursor: str | None = None
    while True:
        params = {"flow": flow_id, "limit": "2", **({"cursor": cursor} if cursor else {})}
        page = (await api.http.get("/runs", params=params)).json()
        found += [run["run_id"] for run in page["runs"]]
        cursor = page["cursor"]
        if cursor is None:
            break
    bad = await api.http.get("/runs", params={"cursor": "nonsense"})

    assert sorted(found) == sorted(made)
    assert bad.status_code == 422


async def test_what_is_wrong_is_said_as_a_problem(api: Api) -> None:
    missing = await api.http.get("/runs/nobody")
    faulty = await api.http.post("/runs", json={"definition": {"id": "f", "nodes": {"a": {"type": "http"}}}})
    both = await api.http.post("/runs", json={})
    nowhere = await api.http.get("/nothing/here")
    large = await api.http.post("/runs", content=b"x" * (2 * 2**20 + 1))

    async def endless() -> AsyncGenerator[bytes]:
        for _ in range(30):
            yield b" " * 100_000

    endless_reply = await api.http.post("/runs", content=endless(), headers={"Content-Type": "application/json"})

    assert (missing.status_code, missing.json()["title"]) == (404, "run/not-found")
    assert (faulty.status_code, faulty.json()["faults"][0]["code"]) == (422, "node/missing-field")
    assert both.status_code == 422
    assert nowhere.headers["content-type"] == "application/problem+json"
    for reply in (large, endless_reply):
        assert (reply.status_code, reply.json()["title"]) == (413, "request/too-large")
        assert "larger than 2 MiB" in reply.json()["detail"]


@pytest.fixture
async def tenants(bench: Bench, client: Client) -> AsyncGenerator[tuple[Api, Api, Api]]:
    """Two tenants and somebody without a token, on one server."""
    request = RegisterNamespaceRequest(namespace=OTHER)
    request.workflow_execution_retention_period.FromSeconds(24 * 3600)
    with contextlib.suppress(RPCError):
        await client.workflow_service.register_namespace(request)
    async with asyncio.timeout(30):
        while True:
            try:
                other = await connect(client.service_client.config.target_host, OTHER)
                await ensure_search_attributes(other)
                break
            except NotReachableError:
                # The server takes a moment to know a new namespace.
                await asyncio.sleep(0.3)
    await bench.worker()

    async def by_name(namespace: str) -> HoldfastClient:
        return bench.client if namespace == "default" else HoldfastClient(other, bench.task_queue)

    from holdfast.starter.api.access import Tenant, _digest  # pyright: ignore[reportPrivateUsage]

    tokens = Tokens({_digest("one"): Tenant("default", "ada"), _digest("two"): Tenant(OTHER, "bob")})
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(serving(Settings(by_name, tokens)))
        made = [
            Api(url, await stack.enter_async_context(httpx2.AsyncClient(base_url=url, headers=headers)))
            for headers in ({"Authorization": "Bearer one"}, {"Authorization": "Bearer two"}, {})
        ]
        yield made[0], made[1], made[2]


@pytest.mark.req("RT-2", "PR-3")
async def test_a_token_of_one_tenant_reaches_nothing_of_another_on_any_route(tenants: tuple[Api, Api, Api]) -> None:
    mine, other, nobody = tenants
    run_id = await mine.run()
    question = await mine.question(run_id)
    document = (await mine.http.get("/openapi.json")).json()
    tried = 0
    for path, methods in document["paths"].items():
        if path in ("/health", "/ready", "/flows", "/flows/{name}"):
            continue
        for method in methods:
            where = path.replace("{run_id}", run_id).replace("{checkpoint_id}", f"{run_id}@1")
            where = where.replace("{request_id}", question["id"])
            feedback: dict[str, Any] = {"feedback": "x"}
            body = {"data": feedback} if path.endswith("input") else feedback
            sent = body if method == "post" else None
            theirs = await other.http.request(method.upper(), where, json=sent)
            without = await nobody.http.request(method.upper(), where, json=sent)
            tried += 1
            assert without.status_code == 401, (method, path)
            if path == "/runs" and method == "post":
                assert theirs.status_code == 422
            elif path in ("/runs", "/inbox"):
                assert run_id not in theirs.text, (method, path)
            else:
                assert theirs.status_code in (404, 422), (method, path, theirs.text)
    address, theirs = f"{mine.url.replace('http', 'ws')}/runs/{run_id}/ws", {"Authorization": "Bearer two"}
    with pytest.raises(websockets.InvalidStatus):
        async with websockets.connect(address, additional_headers=theirs):
            pass
    still = (await mine.http.get(f"/runs/{run_id}")).json()
    receipt = await mine.http.post(f"/runs/{run_id}/input", json={"data": {"feedback": "mine"}})

    assert tried >= 13
    assert still["status"] == "pending_input"
    assert receipt.json()["status"] == "accepted"


async def test_a_caller_has_so_many_requests_a_minute(bench: Bench) -> None:
    async def same(_: str) -> HoldfastClient:
        return bench.client

    settings = Settings(same, Tokens({}, open_to_all="default"), per_minute=5)
    async with serving(settings) as url, httpx2.AsyncClient(base_url=url) as http:
        replies = [await http.get("/flows") for _ in range(7)]

    assert [reply.status_code for reply in replies] == [200] * 5 + [429] * 2
    assert int(replies[-1].headers["retry-after"]) >= 1


async def test_the_console_is_served_with_a_strict_policy(api: Api) -> None:
    page = await api.http.get("/")
    outside = await api.http.get("/console/../app.py")

    assert page.status_code == 200
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert outside.status_code == 404


@pytest.mark.req("RT-3", "PR-10")
async def test_partial_texts_are_streamed_outside_the_history(
    api: Api, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LlmServer(MODELS) as llm:
        monkeypatch.setenv("HOLDFAST_CONNECTION_SLOW_BASE_URL", llm.url)
        monkeypatch.setenv("HOLDFAST_CONNECTION_SLOW_API_KEY", "none")
        asked = {"model": "m", "connection": "slow", "prompt": "tell it slowly"}
        node = {"type": "llm", **asked, "streaming": {"enabled": True}}
        streamed = await api.run({"id": "slow", "nodes": {"tell": node}})
        events: list[dict[str, Any]] = []
        async with api.http.stream("GET", f"/runs/{streamed}/stream", params={"tokens": "true"}, timeout=30) as reply:
            async for line in reply.aiter_lines():
                if line.startswith("data: {") and line != "data: {}":
                    events.append(json.loads(line.removeprefix("data: ")))
        plain = await api.run({"id": "slow", "nodes": {"tell": {**node, "streaming": {"enabled": False}}}})
        await api.events(plain)
    texts = [event["data"]["text"] for event in events if event["event"] == "tokens"]
    whole = next(event for event in events if event["event"] == "node_completed")["data"]["output_data"]["content"]
    lengths = [(await bench.client.get_run(run_id)).history_events for run_id in (streamed, plain)]

    assert len(texts) >= 2
    assert all(whole.startswith(text) for text in texts)
    assert texts == sorted(texts, key=len)
    assert all(event["id"] is None for event in events if event["event"] == "tokens")
    # Streaming leaves no trace in the run.
    assert lengths[0] == lengths[1]


@pytest.mark.req("RT-3", "AG-6")
async def test_a_stream_follows_an_agent_through_several_executions_and_tells_what_it_says(
    api: Api, bench: Bench
) -> None:
    call = {"content": "I look.", "tool_calls": [{"name": "look", "arguments": {"input": "x"}}]}
    tool = {"id": "look", "type": "python", "code": "def run(x): return 'seen'", "reuse": False}
    llm = {"model": "m", "provider": "scripted", "replies": [call] * 6 + ["the end"]}
    flow = FlowSpec.model_validate(
        {
            "id": "told",
            "checkpoint": {"checkpoint_mid_agent_loop": True},
            "nodes": [{"id": "a", "type": "agent", "params": {"llm": llm, "tools": [tool]}}],
        }
    )
    run_id = await bench.start(flow, {"input": "go"}, RunConfig(continue_after_events=15))
    live = await api.events(run_id)
    drained = await api.events(run_id)
    executions = [history async for history in executions_of(bench.client.temporal, run_id)]
    thoughts = [event["data"]["thought"] for event in live if event["event"] == "model_replied"]
    loops = [event["data"] for event in live if event["event"] == "loop_completed"]

    assert live == drained
    assert [event["id"] for event in live] == sorted({event["id"] for event in live})
    assert len(executions) > 2
    assert thoughts == ["I look."] * 6
    assert [event["data"]["observation"] for event in live if event["event"] == "tool_completed"] == ["seen"] * 6
    assert next(event["data"]["answer"] for event in live if event["event"] == "answered") == "the end"
    assert loops == [{"loop": number, "max_loops": 15} for number in range(1, 7)]
    # Each loop is announced as a checkpoint, because the author wants those inside a node too.
    announced = {event["seq"] for event in live if event["event"] == "checkpoint_created"}
    assert {event["seq"] for event in live if event["event"] == "loop_completed"} <= announced


@pytest.mark.req("RT-3")
async def test_a_client_that_never_reads_slows_nobody_down(api: Api, bench: Bench) -> None:
    text = "x" * 20_000
    nodes = {f"n{number}": {"type": "transform", "template": text} for number in range(50)}
    run_id = await api.run({"id": "wide", "nodes": nodes})
    host, port = api.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /runs/{run_id}/stream HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    await writer.drain()
    # It has asked for more than any buffer on the way holds, and reads none of it.
    async with asyncio.timeout(20):
        result = await bench.client.result(run_id)
    other = await api.events(run_id)
    reader.feed_eof()
    writer.close()

    assert len(result.output) == 50
    assert other[-2]["event"] == "run_completed"
