"""What a model's endpoint can do wrong in the middle of an agent, and how each of it ends. The server is protocol-true.

In every case a tool has had its effect before the trouble: it must not have it again.
"""

import json
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Flow, FlowFailedError, RunnableResult
from holdfast.flows.spec import Streaming
from tests.integration import agent_tools
from tests.integration.conftest import Bench
from tests.servers.llm import LlmServer

TROUBLES: dict[str, dict[str, Any]] = {
    "limited": {"response": {"error": {"message": "slow down"}, "status": 429, "retryAfter": 1}},
    "broken": {"response": {"error": {"message": "oops"}, "status": 500}},
    "slow": {"response": {"content": "too late"}, "latency": 4000},
    "cut": {
        "response": {"content": "nobody reads this to its end"},
        "chunkSize": 4,
        "truncateAfterChunks": 3,
        "latency": 20,
    },
    "hollow": {"response": {"content": ""}},
    "malformed": {"response": {"toolCalls": [{"id": "bad", "name": "look_up", "arguments": '{"word": '}]}},
    "unknown": {"response": {"toolCalls": [{"id": "bad", "name": "look_down", "arguments": "{}"}]}},
    "forbidden": {"response": {"error": {"message": "bad key"}, "status": 401}},
}


def fixtures() -> dict[str, Any]:
    """For each trouble: a tool call, the trouble once (a wrong key: always), then the answer."""
    found: list[dict[str, Any]] = []
    for name, trouble in TROUBLES.items():
        call = {"id": f"first_{name}", "name": "look_up", "arguments": json.dumps({"word": name})}
        found.append({"match": {"userMessage": name, "hasToolResult": False}, "response": {"toolCalls": [call]}})
        once = {} if name == "forbidden" else {"sequenceIndex": 0}
        found.append({"match": {"userMessage": name, "toolCallId": f"first_{name}", **once}, **trouble})
        # After a repair the user's last message is ours, and after a bad call the last result is its complaint.
        for match in ({"userMessage": name, "toolCallId": f"first_{name}"}, {"toolCallId": "bad"}):
            found.append({"match": match, "response": {"content": f"{name} is over"}})
    found.append({"match": {"userMessage": "Your reply was empty"}, "response": {"content": "hollow is over"}})
    return {"fixtures": found}


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Generator[LlmServer]:
    path = tmp_path_factory.mktemp("troubles") / "llm.json"
    path.write_text(json.dumps(fixtures()))
    with LlmServer(path) as server:
        yield server


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, llm: LlmServer) -> None:
    (tmp_path / "tools.jsonl").touch()
    monkeypatch.setenv("TOOLS_JOURNAL", str(tmp_path / "tools.jsonl"))
    monkeypatch.setenv("HOLDFAST_CONNECTION_LOCAL_BASE_URL", llm.url)
    monkeypatch.setenv("HOLDFAST_CONNECTION_LOCAL_API_KEY", "none")


class Case:
    def __init__(self, bench: Bench, llm: LlmServer) -> None:
        self._bench = bench
        self._llm = llm
        self.run_id = ""

    async def play(self, trouble: str, *, stream: bool = False, **fields: Any) -> RunnableResult:
        await self._bench.worker()
        handling = {"max_retries": 3, "retry_interval_seconds": 0.1, "timeout_seconds": 2}
        agent = Agent(
            id="a",
            llm={"model": "m", "connection": "local"},
            tools=[agent_tools.look_up],
            llm_error_handling=handling,
            **fields,
        )
        flow = Flow(nodes=[agent], id="troubles").spec()
        flow.nodes[0].streaming = Streaming(enabled=stream)
        self.run_id = await self._bench.start(flow, {"input": trouble})
        return await self._bench.client.result(self.run_id)

    def asked(self) -> Counter[str]:
        """How often each call was made, by its loop."""
        keys = [entry["headers"]["idempotency-key"] for entry in self._llm.journal()]
        return Counter(key.removeprefix(f"{self.run_id}/a/") for key in keys if key.startswith(self.run_id))

    async def messages(self) -> list[dict[str, Any]]:
        state = (await self._bench.client.latest_checkpoint(self.run_id)).node_states["a"].internal_state
        return state["prompt_messages"]


@pytest.fixture
def case(bench: Bench, llm: LlmServer) -> Case:
    return Case(bench, llm)


@pytest.mark.req("AG-2")
@pytest.mark.parametrize(("trouble", "stream"), [("limited", False), ("broken", False), ("slow", True)])
async def test_what_passes_is_tried_again_and_nothing_else_is(case: Case, trouble: str, stream: bool) -> None:
    result = await case.play(trouble, stream=stream)

    assert result.output["a"]["output"] == {"content": f"{trouble} is over", "finished": True, "loops": 2}
    assert case.asked() == {"loop[1]/llm": 1, "loop[2]/llm": 2}
    assert [entry["word"] for entry in agent_tools.counted()] == [trouble]


@pytest.mark.req("AG-2", "PR-10")
async def test_a_stream_that_is_cut_is_asked_for_again_and_the_half_answer_is_not_kept(case: Case) -> None:
    result = await case.play("cut", stream=True)

    assert result.output["a"]["output"]["content"] == "cut is over"
    assert case.asked() == {"loop[1]/llm": 1, "loop[2]/llm": 2}
    assert [entry["word"] for entry in agent_tools.counted()] == ["cut"]
    assert "nobody" not in json.dumps(await case.messages())


@pytest.mark.req("AG-5")
async def test_an_empty_answer_is_said_to_the_model(case: Case) -> None:
    result = await case.play("hollow")

    assert result.output["a"]["output"] == {"content": "hollow is over", "finished": True, "loops": 3}
    assert case.asked() == {"loop[1]/llm": 1, "loop[2]/llm": 1, "loop[3]/llm": 1}
    assert "Your reply was empty" in json.dumps(await case.messages())


@pytest.mark.req("AG-5")
@pytest.mark.parametrize(("trouble", "told"), [("malformed", "cannot be used"), ("unknown", "no tool 'look_down'")])
async def test_a_call_that_cannot_be_made_is_an_observation(case: Case, trouble: str, told: str) -> None:
    result = await case.play(trouble)
    results = [entry["content"] for entry in await case.messages() if entry["role"] == "tool"]

    assert result.output["a"]["output"]["loops"] == 3
    assert told in results[1]
    assert [entry["word"] for entry in agent_tools.counted()] == [trouble]


@pytest.mark.req("AG-2", "FL-3")
async def test_a_wrong_key_is_not_tried_again_and_a_resume_asks_only_for_what_is_left(bench: Bench, case: Case) -> None:
    with pytest.raises(FlowFailedError, match="bad key"):
        await case.play("forbidden")
    assert case.asked() == {"loop[1]/llm": 1, "loop[2]/llm": 1}

    with pytest.raises(FlowFailedError, match="bad key"):
        await bench.client.result(await bench.client.resume(case.run_id))
    # The same keys: the second call of the same loop, and neither the first loop nor its tool.
    assert case.asked() == {"loop[1]/llm": 1, "loop[2]/llm": 2}
    assert [entry["word"] for entry in agent_tools.counted()] == ["forbidden"]


@pytest.mark.req("EX-5")
async def test_the_fallback_takes_over_and_stays(bench: Bench, llm: LlmServer) -> None:
    await bench.worker()
    replies = [{"tool_calls": [{"name": "look_up", "arguments": {"word": "kelp"}}]}, "by the second"]
    second = {"model": "s", "provider": "scripted", "replies": replies}
    agent = Agent(
        id="a",
        llm={"model": "m", "connection": "local", "fallback": second},
        tools=[agent_tools.look_up],
        llm_error_handling={"max_retries": 0},
    )
    run_id = await bench.start(Flow(nodes=[agent], id="fallback").spec(), {"input": "nobody knows this"})
    result = await bench.client.result(run_id)
    state = (await bench.client.latest_checkpoint(run_id)).node_states["a"].internal_state
    asked = [entry for entry in llm.journal() if entry["headers"]["idempotency-key"].startswith(run_id)]

    assert result.output["a"]["output"]["content"] == "by the second"
    assert state["is_fallback_run"] is True
    # Asked once in the first loop; the second loop goes straight to the fallback.
    assert len(asked) == 1
