"""A real, small, local language model at the end of the line. What it says is its own; that it is asked is ours."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, Flow, Llm
from tests.servers.small_model import SmallModel

SCHEMA = {
    "type": "object",
    "properties": {"animal": {"type": "string"}, "legs": {"type": "integer"}},
    "required": ["animal", "legs"],
}


@pytest.fixture(scope="module")
def model() -> Generator[SmallModel]:
    with SmallModel() as server:
        yield server


@pytest.fixture(autouse=True)
def surroundings(model: SmallModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
    monkeypatch.setenv("HOLDFAST_CONNECTION_SMALL_BASE_URL", model.url)
    monkeypatch.setenv("HOLDFAST_CONNECTION_SMALL_API_KEY", "none")


def test_a_real_model_answers_a_node_and_an_agent_with_a_schema() -> None:
    small: dict[str, Any] = {"model": "smollm2", "connection": "small", "temperature": 0.0, "max_tokens": 60}
    ask = Llm(id="ask", prompt="Name a colour.", **small)
    fill = Agent(id="fill", llm=small, prompt="Describe an animal as JSON.", output_schema=SCHEMA)
    flow = Flow(nodes=[ask, fill], id="small")
    result = flow.run_sync({})
    checkpoint = flow.get_latest_checkpoint()

    assert result.output["ask"]["output"]["content"].strip()
    assert result.output["ask"]["output"]["usage"]["completion_tokens"] > 0
    assert isinstance(result.output["fill"]["output"]["content"]["legs"], int)
    assert checkpoint is not None
    assert checkpoint.metadata["usage"]["llm_calls"] >= 2
    assert checkpoint.metadata["usage"]["total_tokens"] > 10
