"""A month passes in seconds: durable timers in the SDK's time-skipping environment, on the real server."""

import time
from datetime import timedelta
from pathlib import Path

import pytest
from temporalio.common import SearchAttributeKey
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.testing import WorkflowEnvironment

from holdfast import HoldfastClient, read_flow
from holdfast.contracts.names import ATTRIBUTE_FLOW, ATTRIBUTE_STATUS
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


@pytest.mark.req("FL-4")
async def test_a_delay_of_thirty_days_takes_seconds(tmp_path: Path) -> None:
    environment = await WorkflowEnvironment.start_time_skipping_v2(
        data_converter=pydantic_data_converter,
        dev_server_existing_path=binary(),
        dev_server_log_level="never",
        search_attributes=[SearchAttributeKey.for_keyword(name) for name in (ATTRIBUTE_FLOW, ATTRIBUTE_STATUS)],
        dev_server_extra_args=[
            "--dynamic-config-value", "frontend.WorkflowTimeSkippingEnabled=true",
            "--dynamic-config-value", 'history.timerProcessorMaxTimeShift="10ms"',
        ],
    )  # fmt: skip
    async with environment, running_worker(environment.client, cache=tmp_path / "cache.db"):
        client = HoldfastClient(environment.client)
        began = time.monotonic()
        run_id = await client.start(read_flow(FLOW))
        result = await client.result(run_id)
        took = time.monotonic() - began
        month = (await client.latest_checkpoint(run_id)).node_states["month"]

    assert month.completed_at is not None
    assert month.started_at is not None
    assert month.completed_at - month.started_at >= timedelta(days=30)
    assert result.output["after"]["output"] == "after before"
    assert took < 10
