"""Agents, maps, orchestrators and nested flows on the real server. Models are scripted; tools are real functions."""

import json
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from examples.models import model
from holdfast import (
    Agent,
    Flow,
    FlowFailedError,
    GraphOrchestrator,
    Http,
    Map,
    Memory,
    Python,
    RunConfig,
    SubFlow,
    Tool,
    state,
)
from holdfast.checkpoints.models import CheckpointStatus
from holdfast.checkpoints.validation import validate_checkpoint
from holdfast.contracts import names
from holdfast.flows.check import ensure
from holdfast.flows.params import ModelParams
from holdfast.flows.spec import FlowSpec
from holdfast.starter import embedded
from holdfast.starter.rebuild import executions
from tests.integration import agent_tools
from tests.integration.conftest import Bench

AG_1 = {
    "prompt_messages", "history_offset", "intermediate_steps", "tool_cache", "run_depends", "current_loop",
    "prompt_variables", "call_context", "file_store", "input_files", "input_images",
}  # fmt: skip


@pytest.fixture(autouse=True)
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools.jsonl").touch()
    monkeypatch.setenv("TOOLS_JOURNAL", str(tmp_path / "tools.jsonl"))
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))


def scripted(*replies: Any) -> dict[str, Any]:
    return {"model": "m", "provider": "scripted", "replies": list(replies)}


def calls(*named: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in named]}


def look(*words: str) -> dict[str, Any]:
    return calls(*(("look_up", {"word": word}) for word in words))


def spec(*nodes: Any, **fields: Any) -> FlowSpec:
    return Flow(nodes=nodes, id=fields.pop("id", "agents"), **fields).spec()


@pytest.mark.req("AG-2", "AG-5", "FL-1")
async def test_an_agent_calls_its_tools_and_answers(bench: Bench) -> None:
    await bench.worker()
    agent = Agent(
        id="research",
        llm=scripted(look("sea", "land"), calls(("send", {"to": "Ada", "urgent": True})), "done"),
        tools=[agent_tools.look_up, agent_tools.send_mail],
        # `send` declares that it writes: by default a person would be asked.
        ask_before="never",
    )
    run_id = await bench.start(spec(agent), {"input": "find out", "user_id": "u1"})
    result = await bench.client.result(run_id)
    saved = (await bench.client.latest_checkpoint(run_id)).node_states["research"].internal_state

    assert result.output["research"]["output"] == {"content": "done", "finished": True, "loops": 3}
    assert {entry["word"] for entry in agent_tools.counted()} == {"sea", "land"}
    assert [entry["node"] for entry in agent_tools.counted()] == ["research/look_up"] * 2
    assert {entry["key"] for entry in agent_tools.counted()} == {
        f"{run_id}/research/loop[1]/look_up[{number}]" for number in (0, 1)
    }
    assert [message["role"] for message in saved["prompt_messages"]] == [
        "user", "assistant", "tool", "tool", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert saved["prompt_messages"][2]["content"] == "sea means aes"
    assert saved["prompt_messages"][5]["content"] == "sent to Ada!"
    assert saved["call_context"] == {"user_id": "u1"}
    assert saved["tool_cache"]['look_up::{"word": "sea"}'] == {"content": "sea means aes"}
    assert saved.keys() >= AG_1


@pytest.mark.req("AG-1", "AG-2", "AG-6")
async def test_every_loop_is_a_checkpoint_and_each_gives_the_same_continuation(bench: Bench) -> None:
    await bench.worker()
    replies = [look(f"word-{loop}") for loop in range(4)]
    flow = Flow(
        nodes=[Agent(id="a", llm=scripted(*replies, "the end"), tools=[agent_tools.look_up])], id="loops"
    ).spec()
    flow.checkpoint.checkpoint_mid_agent_loop = True
    run_id = await bench.start(flow, {"input": "go"})
    undisturbed = await bench.client.result(run_id)
    final = (await bench.client.latest_checkpoint(run_id)).node_states["a"].internal_state
    listed = [entry for entry in await bench.client.list_checkpoints(run_id) if entry.event == "loop_completed"]

    assert [entry.detail for entry in reversed(listed)] == [{"loop": n, "max_loops": 15} for n in (1, 2, 3, 4)]
    for entry in listed:
        checkpoint = await bench.client.get_checkpoint(entry.id)
        before = len(agent_tools.counted())
        resumed = await bench.client.fork(entry.id, flow=flow)
        result = await bench.client.result(resumed)
        continued = (await bench.client.latest_checkpoint(resumed)).node_states["a"].internal_state

        assert validate_checkpoint(checkpoint) == []
        assert checkpoint.node_states["a"].internal_state.keys() >= AG_1
        assert result.output["a"]["output"] == undisturbed.output["a"]["output"]
        assert continued["prompt_messages"] == final["prompt_messages"]
        assert len(agent_tools.counted()) - before == 4 - entry.detail["loop"]


@pytest.mark.req("AG-5")
async def test_what_goes_wrong_in_a_tool_is_told_to_the_model(bench: Bench) -> None:
    await bench.worker()
    agent = Agent(
        id="a",
        llm=scripted(calls(("look_up", {"wrong": 1}), ("nothing", {}), ("look_up", {"word": "broken"})), "I see"),
        tools=[agent_tools.look_up],
    )
    run_id = await bench.start(spec(agent), {"input": "go"})
    result = await bench.client.result(run_id)
    saved = (await bench.client.latest_checkpoint(run_id)).node_states["a"].internal_state
    told = [message["content"] for message in saved["prompt_messages"] if message["role"] == "tool"]

    assert result.output["a"]["output"]["content"] == "I see"
    assert "does not fit its schema" in told[0]
    assert "There is no tool 'nothing'. The tools are: look_up." in told[1]
    assert told[2] == "Error: no such page"
    assert [entry["word"] for entry in agent_tools.counted()] == ["broken"]


@pytest.mark.req("AG-5", "AG-1")
async def test_a_sub_agent_has_a_state_of_its_own_and_may_give_the_final_answer(bench: Bench) -> None:
    await bench.worker()
    inner = Agent(
        id="expert", description="knows words", llm=scripted(look("deep"), "deep is deep"), tools=[agent_tools.look_up]
    )
    outer = Agent(
        id="boss",
        llm=scripted(calls(("expert", {"input": "what is deep?", "delegate_final": True}))),
        tools=[inner],
        delegate=True,
    )
    run_id = await bench.start(spec(outer), {"input": "go"})
    result = await bench.client.result(run_id)
    transitions = await bench.client.transitions(run_id)
    paths = {entry.path for entry in transitions}

    assert result.output["boss"]["output"]["content"] == "deep is deep"
    assert "boss/loop[1]/expert[0]" in paths
    assert agent_tools.counted()[0]["node"] == "boss/expert/look_up"


@pytest.mark.req("FS-4", "FS-3", "AG-4")
async def test_images_come_in_and_files_come_out(bench: Bench) -> None:
    await bench.worker()
    agent = Agent(id="a", llm=scripted(calls(("attach", {"name": "r.bin"})), "ok"), tools=[agent_tools.attach])
    image = b"\x89PNG rest"
    given = {"input": "look", "images": [image, {"url": "https://example.org/i.png", "detail": "low"}]}
    run_id = await bench.start(spec(agent), given)
    result = await bench.client.result(run_id)
    saved = (await bench.client.latest_checkpoint(run_id)).node_states["a"].internal_state
    content = saved["prompt_messages"][0]["content"]

    assert result.output["a"]["output"]["files"] == {"r.bin": b"\x00\xff bytes"}
    assert content[1]["image_url"]["url"].startswith("data:image/png;base64,")
    assert content[2]["image_url"] == {"url": "https://example.org/i.png", "detail": "low"}
    assert saved["input_images"][0]["size"] == len(image)


@pytest.mark.req("AG-5")
async def test_memory_is_kept_by_user_and_session(bench: Bench) -> None:
    await bench.worker()

    async def ask(user: str, words: str) -> list[str]:
        agent = Agent(id="a", llm=scripted("hello"), memory={"limit": 10})
        agent.llm["replies"] = ["hello", "again", "third"]
        run_id = await bench.start(spec(agent), {"input": words, "user_id": user, "session_id": "s"})
        await bench.client.result(run_id)
        saved = (await bench.client.latest_checkpoint(run_id)).node_states["a"].internal_state
        return [message["content"] for message in saved["prompt_messages"]]

    assert await ask("ada", "one") == ["one", "hello"]
    assert await ask("ada", "two") == ["one", "hello", "two", "again"]
    assert await ask("bob", "three") == ["three", "hello"]


@pytest.mark.req("OR-3")
async def test_a_map_of_agents_keeps_its_order_and_lists_what_failed(bench: Bench) -> None:
    await bench.worker()
    inner = Agent(id="each", llm=scripted(look("x"), "ok"), tools=[agent_tools.look_up], max_loops=2)
    mapped = Map(id="all", node=inner, max_workers=3, behavior="return")
    result = await bench.run(spec(mapped), {"input": [{"input": f"item {n}"} for n in range(7)]})
    output = result.output["all"]["output"]

    assert [entry["content"] for entry in output["output"]] == ["ok"] * 7
    assert output["failed_iterations"] == []
    assert len({entry["key"] for entry in agent_tools.counted()}) == 7


@pytest.mark.req("OR-3")
async def test_after_a_failure_only_the_items_that_are_not_done_run(bench: Bench) -> None:
    await bench.worker()
    call = Http(id="get", url="http://127.0.0.1:9/", error_handling={"timeout_seconds": 5})
    mapped = Map(id="all", node=call, max_workers=2)
    flow = spec(mapped)
    with pytest.raises(FlowFailedError, match="of 4 items failed; item 0") as failed:
        await bench.run(flow, {"input": [1, 2, 3, 4]})
    checkpoint = await bench.client.latest_checkpoint(failed.value.run_id)

    assert checkpoint.status == CheckpointStatus.FAILED
    assert checkpoint.node_states["all"].internal_state["failed_iterations"].keys() <= {"0", "1"}


@pytest.mark.req("OR-3")
async def test_a_map_beyond_its_limit_runs_in_batches_that_are_runs_of_their_own(bench: Bench) -> None:
    await bench.worker()
    mapped = Map(
        id="all",
        node=Python(id="twice", code="def run(x): return x * 2"),
        inline_limit=10,
        batch_size=15,
        max_workers=8,
    )
    run_id = await bench.start(spec(mapped), {"input": list(range(40))})
    result = await bench.client.result(run_id)
    saved = (await bench.client.latest_checkpoint(run_id)).node_states["all"].internal_state
    child = await bench.client.latest_checkpoint(f"{run_id}/all[15-29]")
    listed = [run.run_id for run in await bench.client.list_runs(flow_id="agents")]

    assert result.output["all"]["output"]["output"] == [2 * n for n in range(40)]
    assert saved["children"] == {
        f"{run_id}/all[{a}-{b}]": {"status": "completed"} for a, b in ((0, 14), (15, 29), (30, 39))
    }
    assert child.metadata["parent_run_id"] == run_id
    assert not [found for found in listed if found.startswith(f"{run_id}/")]
    assert child.parent_checkpoint_id is not None
    assert child.parent_checkpoint_id.startswith(f"{run_id}@")


@pytest.mark.req("FL-7")
async def test_an_agent_in_a_map_in_a_nested_flow_goes_on_in_new_executions(bench: Bench) -> None:
    await bench.worker()
    agent = Agent(id="each", llm=scripted(look("a"), look("b"), "fine"), tools=[agent_tools.look_up])
    inner = Flow(nodes=[Map(id="all", node=agent, max_workers=2)], id="inner")
    run_id = await bench.start(
        spec(SubFlow(id="sub", flow=inner)), {"input": ["x", "y", "z"]}, RunConfig(continue_after_events=20)
    )
    result = await bench.client.result(run_id)
    child_id = f"{run_id}/sub"
    parent = await bench.client.latest_checkpoint(run_id)
    nested = result.output["sub"]["output"]["all"]["output"]["output"]

    assert [entry["content"] for entry in nested] == ["fine"] * 3
    assert parent.node_states["sub"].internal_state == {"child_run_id": child_id, "status": "completed"}
    assert parent.metadata["usage"]["llm_calls"] == 9
    # Nothing twice, although the child went through several executions.
    assert len(agent_tools.counted()) == 6
    assert len({entry["key"] for entry in agent_tools.counted()}) == 6


@pytest.mark.req("OR-1")
async def test_a_graph_of_states_shares_a_context(bench: Bench) -> None:
    await bench.worker()
    writer = Agent(id="writer", llm=scripted("a draft"), prompt="write about {{ context.topic }}")
    graph = GraphOrchestrator(
        id="g",
        context={"topic": "the sea"},
        states=[
            state("draft", writer, next=["review"]),
            state("review", Agent(id="critic", llm=scripted("good")), next=["draft", "end"]),
        ],
        manager=scripted('{"state": "draft"}', "end"),
    )
    run_id = await bench.start(spec(graph), {"input": "an essay"})
    result = await bench.client.result(run_id)
    saved = (await bench.client.latest_checkpoint(run_id)).node_states["g"].internal_state

    assert result.output["g"]["output"]["states"] == ["draft", "review", "draft", "review"]
    assert result.output["g"]["output"]["context"] == {"topic": "the sea", "writer": "a draft", "critic": "good"}
    assert saved.keys() >= {"chat_history", "context", "current_state_id", "completed_states", "run_depends"}
    assert json.dumps(saved["chat_history"]).count("a draft") >= 2


async def test_a_definition_that_somebody_else_wrote_is_checked_whole(bench: Bench) -> None:
    agent = {"id": "a", "type": "agent", "params": {"llm": {"model": "m"}, "tools": [{"type": "http"}]}}
    flow = FlowSpec.model_validate({"id": "f", "nodes": [agent]})
    with pytest.raises(ValueError, match="needs 'url'"):
        ensure(flow)


@pytest.mark.req("AG-1", "FL-2")
async def test_agents_read_live_and_rebuilt_from_history_are_the_same_at_every_transition(bench: Bench) -> None:
    await bench.worker()
    expert = Agent(id="expert", llm=scripted(look("deep"), "deep is deep"), tools=[agent_tools.look_up])
    boss = Agent(
        id="boss", llm=scripted(calls(("expert", {"input": "?"}), ("look_up", {"word": "x"})), "ok"), tools=[
            expert, agent_tools.look_up,
        ],
    )  # fmt: skip
    each = Map(id="each", node=Agent(llm=scripted(look("a"), "fine"), tools=[agent_tools.look_up]), items="$.items")
    graph = GraphOrchestrator(id="graph", states=[state("one", Agent(id="w", llm=scripted("said")))])
    run_id = await bench.start(spec(boss, each, graph), {"input": "go", "items": ["p", "q"]})
    await bench.client.result(run_id)
    handle = bench.client.temporal.get_workflow_handle(run_id)
    transitions = await bench.client.transitions(run_id)

    assert {"boss/loop[1]/expert[0]", "each[0]", "each[1]", "graph/step[0]/w"} <= {entry.path for entry in transitions}
    for transition in transitions:
        live = await handle.query(names.QUERY_CHECKPOINT, {"sequence_number": transition.seq})
        rebuilt = await bench.client.get_checkpoint(f"{run_id}@{transition.seq}")
        assert live["checksum"] == rebuilt.checksum
        assert validate_checkpoint(rebuilt) == []


@pytest.mark.req("AG-7")
async def test_a_conversation_of_more_than_a_hundred_messages_loses_none_over_several_executions(bench: Bench) -> None:
    await bench.worker()
    replies = [look(f"word-{loop}") for loop in range(60)]
    agent = Agent(id="a", llm=scripted(*replies, "the end"), tools=[agent_tools.look_up], max_loops=100)
    run_id = await bench.start(spec(agent), {"input": "go"}, RunConfig(continue_after_bytes=100_000))
    result = await bench.client.result(run_id)
    messages = (await bench.client.latest_checkpoint(run_id)).node_states["a"].internal_state["prompt_messages"]
    chain = [history async for history in executions(bench.client.temporal, run_id)]

    assert result.output["a"]["output"]["content"] == "the end"
    assert len(messages) == 1 + 61 + 60
    assert [message["content"] for message in messages if message["role"] == "tool"] == [
        f"word-{loop} means {f'word-{loop}'[::-1]}" for loop in range(60)
    ]
    assert len(agent_tools.counted()) == 60
    assert len(chain) > 1


class Board(Memory):
    """A memory of one's own: in this process."""

    name = "board"

    def __init__(self) -> None:
        self.written: dict[str, list[dict[str, Any]]] = {}

    def read(self, context: Mapping[str, Any], limit: int) -> Sequence[Mapping[str, Any]]:
        return [entry for messages in self.written.values() for entry in messages][-limit:]

    def write(self, key: str, context: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
        self.written[key] = [dict(message) for message in messages]


@pytest.mark.req("AG-5")
def test_an_agent_keeps_its_conversations_in_a_memory_of_ones_own(
    temporal: embedded.Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPORAL_ADDRESS", temporal.address)
    board = Board()
    agents = [Agent(id="a", llm=scripted("hello", "again"), memory=board) for _ in range(2)]
    runs = [
        Flow(nodes=[agent], id="board").run_sync({"input": words})
        for agent, words in zip(agents, ("one", "two"), strict=True)
    ]

    assert runs[1].output["a"]["output"]["content"] == "again"
    assert [[entry["content"] for entry in messages] for messages in board.written.values()] == [
        ["one", "hello"], ["two", "again"],
    ]  # fmt: skip


@pytest.mark.req("AG-5")
async def test_an_http_tool_is_called_with_the_models_arguments_and_a_key(bench: Bench) -> None:
    seen: list[tuple[str, str | None]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append((self.path, self.headers["Idempotency-Key"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            self.wfile.write(b'{"degrees": 7}')

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = Http(id="weather", url=f"http://127.0.0.1:{server.server_address[1]}/{{{{ city }}}}")
    agent = Agent(
        id="a", llm=scripted(calls(("weather", {"city": "Lund"})), "cold"), tools=[Tool(weather, input_schema=schema)]
    )
    await bench.worker()
    run_id = await bench.start(spec(agent), {"input": "go"})
    await bench.client.result(run_id)
    messages = (await bench.client.latest_checkpoint(run_id)).node_states["a"].internal_state["prompt_messages"]
    server.shutdown()
    server.server_close()

    assert seen == [("/Lund", f"{run_id}/a/loop[1]/weather[0]")]
    assert '"degrees": 7' in messages[2]["content"]


@pytest.mark.req("OR-3", "FL-7")
async def test_a_map_of_whole_flows_has_a_run_for_every_item(bench: Bench) -> None:
    await bench.worker()
    inner = Flow(nodes=[Python(id="twice", code="def run(x): return x['n'] * 2")], id="inner")
    run_id = await bench.start(spec(Map(id="all", node=SubFlow(id="sub", flow=inner))), {"input": [{"n": 1}, {"n": 2}]})
    output = (await bench.client.result(run_id)).output["all"]["output"]["output"]
    child = await bench.client.latest_checkpoint(f"{run_id}/all[1]")

    assert [entry["twice"]["output"] for entry in output] == [2, 4]
    assert child.metadata["parent_run_id"] == run_id


def test_the_examples_ask_a_real_model_where_there_is_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "HOLDFAST_MODEL"):
        monkeypatch.delenv(name, raising=False)
    chosen = [model("x")]
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    chosen.append(model("x"))
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    monkeypatch.setenv("HOLDFAST_MODEL", "mine")
    chosen.append(model("x"))

    assert [ModelParams.model_validate(entry).provider for entry in chosen] == ["scripted", "anthropic", "openai"]
    assert chosen[2]["model"] == "mine"
