"""Histories recorded by this and earlier versions replay on the present code, in the sandbox and as workers run it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer, WorkflowRunner
from temporalio.workflow import NondeterminismError

from holdfast.engine.scheduler import FlowDriver
from holdfast.worker import runner, sandbox
from holdfast.workflows.flow_run import FlowRun
from tests.replay.record import HISTORIES, STORIES

FILES = sorted(HISTORIES.glob("*.json"))


def _replayer(workflow_runner: WorkflowRunner) -> Replayer:
    return Replayer(workflows=[FlowRun], workflow_runner=workflow_runner, data_converter=pydantic_data_converter)


def _history(path: Path) -> WorkflowHistory:
    text = path.read_text()
    # The run's own id: the ids of its children begin with it.
    started = json.loads(text)["events"][0]["workflowExecutionStartedEventAttributes"]
    return WorkflowHistory.from_json(started["workflowId"], text)


@pytest.mark.parametrize("make_runner", [runner, sandbox])
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
async def test_a_recorded_history_replays(path: Path, make_runner: Callable[[], WorkflowRunner]) -> None:
    await _replayer(make_runner()).replay_workflow(_history(path))


def test_every_story_is_recorded() -> None:
    told = {path.stem for path in FILES}
    assert all(any(story.__name__ in name for name in told) for story in STORIES)


async def test_a_changed_order_of_the_scheduler_would_be_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    forwards = FlowDriver._pump  # pyright: ignore[reportPrivateUsage]

    def backwards(self: FlowDriver) -> None:
        self._queue.reverse()  # pyright: ignore[reportPrivateUsage]
        forwards(self)

    monkeypatch.setattr(FlowDriver, "_pump", backwards)
    [path] = HISTORIES.glob("*-fan_out.json")
    with pytest.raises(NondeterminismError):
        await _replayer(runner()).replay_workflow(_history(path))
