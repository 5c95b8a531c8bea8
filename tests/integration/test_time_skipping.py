"""A month passes in seconds: durable timers in the SDK's time-skipping environment, on the real server."""

import asyncio
import time
from collections.abc import AsyncGenerator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from temporalio.common import SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from holdfast import FlowFailedError, FlowSpec, HoldfastClient, Node, read_flow
from holdfast.activities.failures import ExternalError
from holdfast.activities.registry import Registry
from holdfast.checkpoints.ledger import InputRequested
from holdfast.checkpoints.models import CheckpointStatus
from holdfast.contracts.names import ATTRIBUTE_FAMILY, ATTRIBUTE_FLOW, ATTRIBUTE_REQUESTS, ATTRIBUTE_STATUS
from holdfast.starter.embedded import binary
from holdfast.worker import running_worker

FLOW = """
id: patient
nodes:
  before: {type: transform, template: "before"}
  month: {type: delay, seconds: 30d, depends: before}
  after: {type: transform, template: "after {{ before }}", depends: [month, before],
          input_transformer: {selector: {before: $.before.output}}}
"""


class Deprived(Node):
    """Its surroundings fail it so many times, and it keeps count in its state."""

    times: int
    _count = 0

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"count": self._count}

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        self._count = state["count"]

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        self._count += 1
        if self._count <= self.times:
            raise ExternalError("[blob/unavailable] the store is away", kind="StoreAway", retryable=False)
        return self._count


@pytest.fixture
async def skipping(tmp_path: Path) -> AsyncGenerator[HoldfastClient]:
    """A client on a server whose time passes as fast as nothing happens."""
    environment = await WorkflowEnvironment.start_time_skipping_v2(
        data_converter=pydantic_data_converter,
        dev_server_existing_path=binary(),
        dev_server_log_level="never",
        search_attributes=[
            *(SearchAttributeKey.for_keyword(name) for name in (ATTRIBUTE_FLOW, ATTRIBUTE_STATUS)),
            SearchAttributeKey.for_keyword_list(ATTRIBUTE_REQUESTS),
            SearchAttributeKey.for_keyword(ATTRIBUTE_FAMILY),
        ],
        dev_server_extra_args=[
            "--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true",
            "--dynamic-config-value", 'history.timerProcessorMaxTimeShift="10ms"',
        ],
    )  # fmt: skip
    registry = Registry()
    registry.add_class(Deprived)
    async with environment, running_worker(environment.client, registry=registry, cache=tmp_path / "cache.db"):
        yield HoldfastClient(environment.client)


@pytest.mark.req("FL-4")
async def test_a_delay_of_thirty_days_takes_seconds(skipping: HoldfastClient) -> None:
    began = time.monotonic()
    run_id = await skipping.start(read_flow(FLOW))
    result = await skipping.result(run_id)
    took = time.monotonic() - began
    month = (await skipping.latest_checkpoint(run_id)).node_states["month"]

    assert month.completed_at is not None
    assert month.started_at is not None
    assert month.completed_at - month.started_at >= timedelta(days=30)
    assert result.output["after"]["output"] == "after before"
    assert took < 10


def asking(deadline: str) -> FlowSpec:
    return read_flow(f"""
id: asking
nodes:
  ask: {{type: human, prompt: "May we?", to: ada, reminders: [10d, 20d], deadline: {deadline}}}
""")


@pytest.mark.req("RT-5")
async def test_a_deadline_takes_the_default_answer_after_its_reminders(skipping: HoldfastClient) -> None:
    run_id = await skipping.start(asking("{after: 30d, effect: default, answer: {feedback: yes}}"))
    result = await skipping.result(run_id)
    happened = await skipping.transitions(run_id)
    reminded = [entry.at for entry in happened if entry.kind == "input_reminded"]
    asked = next(entry.at for entry in happened if entry.kind == "input_requested")

    assert result.output["ask"]["output"] == {"content": "yes", "feedback": "yes", "by": "deadline"}
    assert [(moment - asked).days for moment in reminded] == [10, 20]


@pytest.mark.req("RT-5")
async def test_a_deadline_fails_the_node_when_it_is_to(skipping: HoldfastClient) -> None:
    run_id = await skipping.start(asking("{after: 30d, effect: fail}"))
    with pytest.raises(FlowFailedError, match=r"nobody answered within 30d: May we\?"):
        await skipping.result(run_id)


@pytest.mark.req("RT-5")
async def test_a_deadline_hands_the_question_on_to_somebody_else(skipping: HoldfastClient) -> None:
    then = "{after: 5d, effect: default, answer: {feedback: by the book}}"
    run_id = await skipping.start(asking(f"{{after: 30d, effect: escalate, to: boss, then: {then}}}"))
    result = await skipping.result(run_id)
    happened = await skipping.transitions(run_id)
    asked = [(entry.request.get("to"), entry.at) for entry in happened if isinstance(entry, InputRequested)]

    assert [to for to, _ in asked] == ["ada", "boss"]
    assert (asked[1][1] - asked[0][1]).days == 30
    assert result.output["ask"]["output"]["content"] == "by the book"


@pytest.mark.req("RT-5")
async def test_a_deadline_that_waits_leaves_the_run_pending_and_the_answer_counts(skipping: HoldfastClient) -> None:
    run_id = await skipping.start(asking("{after: 30d, effect: wait}"))
    async with asyncio.timeout(20):
        while not any(getattr(entry, "overdue", False) for entry in await skipping.transitions(run_id)):
            await asyncio.sleep(0.1)
    overdue = await skipping.latest_checkpoint(run_id)
    await skipping.send_input(run_id, {"feedback": "at last"}, by="ada")
    result = await skipping.result(run_id)

    assert overdue.status == CheckpointStatus.PENDING_INPUT
    assert next(iter(overdue.pending_inputs.values()))["overdue"] is True
    assert result.output["ask"]["output"]["content"] == "at last"


@pytest.mark.req("PR-6")
async def test_a_node_waits_for_its_surroundings_for_hours_seldom_and_with_its_state(skipping: HoldfastClient) -> None:
    run_id = await skipping.start(read_flow("id: deprived\nnodes: {a: {type: Deprived, times: 80}}"))
    result = await skipping.result(run_id)
    handle = skipping.temporal.get_workflow_handle(run_id)
    timers = [
        event.timer_started_event_attributes.start_to_fire_timeout.ToSeconds()
        async for event in handle.fetch_history_events()
        if event.HasField("timer_started_event_attributes")
    ]

    assert result.output["a"]["output"] == 81
    assert timers == [1, 2, 4, 8, 16, 32, *[60] * 60, *[300] * 14]
