"""SIGKILL of a worker in the middle of an upload: the file is registered once, whole, and the model is not asked again.

The store is a real S3 behind a proxy that stops in the middle of a request, or keeps the answer back.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.codecs.blobs import prefix_of
from holdfast.codecs.s3 import S3Blobs, S3Settings
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from tests.chaos.chaos_files import picture
from tests.chaos.harness import Stage, connected, result_of, start_run, until
from tests.servers.llm import LlmServer
from tests.servers.s3 import S3Server
from tests.servers.stalling import StallingProxy

TOOLS = str(Path(__file__).with_name("chaos_files.py"))
PICTURE = 24 * 10**6
TEXT = "All the words of the sea.\n" * 12_000
FLOW = read_flow("""
id: files
nodes:
  agent:
    type: agent
    llm: {model: m, connection: chaos}
    file_store: {type: s3, connection: papers}
    ask_before: never
    tools:
      - id: draw
        type: tool
        function: chaos_files:draw
        description: Draws.
        input_schema: {type: object, properties: {size: {type: integer}}, required: [size]}
""")
# What is stopped, after how many bytes of it, and whose file it is.
KILLS = {
    "write, in the request": ("write_file", 100_000, "requests"),
    "write, before the answer": ("write_file", 100_000, "answers"),
    "tool's file, in one of its parts": ("draw", 12 * 10**6, "requests"),
}


def fixtures(name: str) -> dict[str, Any]:
    arguments = {"path": "words.txt", "content": TEXT} if name == "write_file" else {"size": PICTURE}
    call = {"id": "call_1", "name": name, "arguments": json.dumps(arguments)}
    return {
        "fixtures": [
            {"match": {"userMessage": "work", "hasToolResult": False}, "response": {"toolCalls": [call]}},
            {"match": {"toolCallId": "call_1"}, "response": {"content": "done"}},
        ]
    }


@pytest.mark.req("FS-2", "FS-1", "FS-4", "AG-3")
@pytest.mark.parametrize("kill", KILLS)
async def test_an_upload_in_flight_is_done_again_and_registered_once(
    kill: str, stage: Stage, temporal: embedded.Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, after, what = KILLS[kill]
    path, data = ("words.txt", TEXT.encode()) if name == "write_file" else ("picture.bin", picture(PICTURE))
    (tmp_path / "llm.json").write_text(json.dumps(fixtures(name)))
    with (
        S3Server(tmp_path / "s3", "papers") as s3,
        StallingProxy(s3.endpoint, after, what) as proxy,  # pyright: ignore[reportArgumentType] (one of the two words)
        LlmServer(tmp_path / "llm.json") as llm,
    ):
        for variable, value in s3.environment.items():
            monkeypatch.setenv(variable, value)
        monkeypatch.setenv("HOLDFAST_CONNECTION_CHAOS_BASE_URL", llm.url)
        monkeypatch.setenv("HOLDFAST_CONNECTION_CHAOS_API_KEY", "none")
        monkeypatch.setenv(
            "HOLDFAST_CONNECTION_PAPERS_BASE_URL", f"s3://papers?endpoint={proxy.endpoint}&region=us-east-1"
        )
        client = await connected(temporal.address)
        worker = await stage.start_worker(temporal.address, "--load", TOOLS).ready()
        handle = await start_run(client, stage, FLOW, {"input": "work"})
        await until(proxy.stalled.is_set, "the upload to be under way")
        worker.kill()
        proxy.release()
        stage.start_worker(temporal.address, "--load", TOOLS)
        result = await result_of(handle)
        blobs = S3Blobs(S3Settings.from_url(s3.url("files")))
        objects = [blob.name async for blob in blobs.find(f"{prefix_of(client.namespace, handle.id)}/")]
        state = result.checkpoint["node_states"]["agent"]["internal_state"]
        (entry,) = state["file_store"].values()
        asked = Counter(request["headers"]["idempotency-key"] for request in llm.journal())

        assert result.output["agent"].output["content"] == "done"
        assert list(state["file_store"]) == [path]
        assert objects == [entry["key"]]
        assert await blobs.get(entry["key"]) == data
        assert asked == Counter({f"{handle.id}/agent/loop[{loop}]/llm": 1 for loop in (1, 2)})
        if name == "draw":
            # It ran again, with the key it had.
            assert len(stage.entries(handle.id, "draw", "started")) == 2
            assert len({found.key for found in stage.entries(handle.id, "draw")}) == 1
    assert "Nondeterminism" not in stage.logs()
