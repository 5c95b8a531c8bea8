"""growth: what a long conversation costs, in bytes stored and in the worker's time, against a bare Temporal agent.

A hundred turns of two messages of 2 KB, with twenty tools. Both sides send the whole conversation with every call of
the model, so both store it again and again; the codec that keeps each message once comes with the payloads.
"""

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from temporalio.client import Client

from benchmarks.bare_agent import QUEUE
from benchmarks.measuring import Line
from benchmarks.stage import FLOWS, Stage, stage
from holdfast.flows.spec import FlowSpec, NodeSpec

_TURNS = 100
_TEXT = 2048
_CONNECTION = "HOLDFAST_CONNECTION_BENCH"


class _Model:
    """A model that calls a tool for so many turns; it tells a listener of every request."""

    def __init__(self, turns: int) -> None:
        model = self
        self.turns = turns
        self.listener: Callable[[int], None] = lambda _: None

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked = sum(message["role"] == "assistant" for message in body["messages"])
                model.listener(asked)
                answer = json.dumps(_completion(asked, model.turns)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _completion(asked: int, turns: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": f"turn {asked} ".ljust(_TEXT, ".")}
    if asked < turns:
        call = {"name": "tool_0", "arguments": json.dumps({"query": str(asked)})}
        message["tool_calls"] = [{"id": f"call_{asked}", "type": "function", "function": call}]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}


def _tools() -> list[dict[str, Any]]:
    properties = {"query": {"type": "string", "description": "What to look for, in words."}}
    schema = {"type": "object", "properties": properties, "required": ["query"]}
    described = {"description": "Looks something up, like nineteen others.", "parameters": schema}
    return [{"type": "function", "function": {"name": f"tool_{number}", **described}} for number in range(20)]


def _flow() -> FlowSpec:
    code = f"def run(arguments): return f'{{arguments}} '.ljust({_TEXT}, '.')"
    tools = [
        {
            "id": tool["function"]["name"],
            "type": "python",
            "code": code,
            "description": tool["function"]["description"],
            "input_schema": tool["function"]["parameters"],
        }
        for tool in _tools()
    ]
    params = {"llm": {"model": "m", "connection": "bench"}, "tools": tools, "max_loops": _TURNS + 1}
    return FlowSpec(id="growth", nodes=[NodeSpec(id="agent", type="agent", params=params)])


def _cpu(pid: int) -> float:
    """Seconds of processor time a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _stored(client: Client, run_id: str) -> int:
    """Bytes of history over all executions of the run."""
    total, execution = 0, None
    first = (await client.get_workflow_handle(run_id).describe()).raw_description.workflow_execution_info
    execution = first.first_run_id or first.execution.run_id
    while execution:
        handle = client.get_workflow_handle(run_id, run_id=execution)
        described = await handle.describe()
        total += described.raw_description.workflow_execution_info.history_size_bytes
        history = [event async for event in handle.fetch_history_events(skip_archival=True)]
        execution = history[-1].workflow_execution_continued_as_new_event_attributes.new_execution_run_id
    return total


async def _measure(model: _Model, worker: list[str], run: Callable[[], Any]) -> dict[str, float]:
    """The worker's time in the first and in the second half of the turns."""
    process = subprocess.Popen(worker, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    marks: dict[int, float] = {}

    def note(asked: int) -> None:
        # The first turns pay for what is loaded on first use.
        if asked in (5, _TURNS // 2, _TURNS):
            marks[asked] = _cpu(process.pid)

    model.listener = note
    try:
        await run()
    finally:
        process.kill()
        process.wait()
    half = _TURNS // 2
    return {"first": (marks[half] - marks[5]) / (half - 5), "second": (marks[_TURNS] - marks[half]) / half}


async def growth() -> list[Line]:
    model = _Model(_TURNS)
    os.environ |= {f"{_CONNECTION}_BASE_URL": model.url, f"{_CONNECTION}_API_KEY": "none"}
    try:
        async with stage() as on:
            return await _compare(on, model)
    finally:
        model.close()


async def _compare(on: Stage, model: _Model) -> list[Line]:
    address = on.client.service_client.config.target_host
    ours, bare = f"growth-{uuid.uuid4()}", f"bare-{uuid.uuid4()}"
    worker = [sys.executable, "-m", "holdfast.worker", "--address", address, "--task-queue", FLOWS]

    async def run_bare() -> None:
        url = f"{model.url}/chat/completions"
        await on.client.execute_workflow("BareAgent", args=[url, _tools()], id=bare, task_queue=QUEUE)

    held = await _measure(model, worker, lambda: on.run_flow(_flow(), ours, {"input": "go"}))
    plain = await _measure(model, [sys.executable, "-m", "benchmarks.bare_agent", address], run_bare)
    sizes = {"holdfast_bytes": await _stored(on.client, ours), "bare_bytes": await _stored(on.client, bare)}
    raw = _TURNS * 2 * _TEXT
    extra = {**sizes, "raw_bytes": raw, "turns": _TURNS}
    cpu = {"holdfast_ms_a_turn": _ms(held), "bare_ms_a_turn": _ms(plain)}
    growing = (held["second"] - held["first"]) / max(plain["second"] - plain["first"], 1e-4)
    return [
        Line("growth_bytes", sizes["holdfast_bytes"] / sizes["bare_bytes"], "x bare", "at most", 1.3, extra),
        # What a turn costs more for every turn before it is what the longer payload costs, to us as to anybody.
        Line("growth_cpu", growing, "x bare's growth", "at most", 1.2, cpu),
    ]


def _ms(halves: dict[str, float]) -> dict[str, float]:
    return {f"{name}_half": round(seconds * 1000, 2) for name, seconds in halves.items()}
