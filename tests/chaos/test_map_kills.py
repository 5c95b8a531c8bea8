"""SIGKILL of a worker in the middle of a map: what had completed never runs again, and the rest does."""

from collections import Counter

import pytest

from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from tests.chaos.harness import Stage, connected, result_of, start_run, until

ITEMS = 200
WINDOW = 16
FLOW = """
id: many
nodes:
  each:
    type: map
    max_workers: {window}
    inline_limit: {limit}
    batch_size: 60
    items: $.items
    node: {{id: work, type: Work, seconds: 0.02}}
"""


@pytest.mark.req("OR-3", "PR-7")
@pytest.mark.parametrize("limit", [ITEMS, 10], ids=["inline", "in batches"])
async def test_a_map_that_loses_its_worker_runs_only_what_is_left(
    limit: int, temporal: embedded.Running, stage: Stage
) -> None:
    client = await connected(temporal.address)
    worker = await stage.start_worker(temporal.address).ready()
    flow = read_flow(FLOW.format(window=WINDOW, limit=limit))
    handle = await start_run(client, stage, flow, {"items": list(range(ITEMS))}, name="map")

    def finished() -> int:
        return len([entry for entry in stage.entries(event="finished") if entry.run.startswith(handle.id)])

    await until(lambda: finished() >= 0.6 * ITEMS, "60 % of the items")
    worker.kill()
    done = {entry.key for entry in stage.entries(event="finished")}
    successor = await stage.start_worker(temporal.address).ready()
    result = await result_of(handle)
    ran = Counter(entry.key for entry in stage.entries(event="started"))
    again = [key for key, count in ran.items() if count > 1]
    output = result.output["each"].output

    assert len(output["output"]) == ITEMS
    assert len({entry["saw"] for entry in output["output"]}) == ITEMS
    assert output["failed_iterations"] == []
    assert len(ran) == ITEMS
    # Only what was in flight at the kill: unfinished, or finished and not yet reported.
    assert len(again) <= WINDOW
    assert max(ran.values()) <= 2
    assert {entry.key for entry in stage.entries(event="started") if entry.pid == successor.pid} & done <= set(again)
