"""SIGKILL of a worker in the middle of a map: what had completed never runs again, and the rest does."""

import json
from collections import Counter
from pathlib import Path
from uuid import uuid4

import pytest

from holdfast import HoldfastClient, RunConfig
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


AGENTS = read_flow("""
id: readers
nodes:
  each:
    type: map
    items: $.items
    max_workers: 4
    inline_limit: 1
    batch_size: 2
    node:
      id: reader
      type: agent
      prompt: "{{ input }}"
      llm:
        model: m
        provider: scripted
        replies:
          - {tool_calls: [{name: step, arguments: {number: 1}}]}
          - {tool_calls: [{name: step, arguments: {number: 2}}]}
          - done
      tools:
        - id: step
          type: tool
          function: chaos_tools:step
          description: Does one step.
          input_schema: {type: object, properties: {number: {type: integer}}, required: [number]}
""")
READERS = 4


@pytest.mark.req("OR-3", "AG-2", "PR-7")
async def test_agents_in_batches_go_on_in_a_resumed_run_that_loses_its_worker_as_well(
    temporal: embedded.Running, stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = tmp_path / "models.jsonl"
    models.touch()
    monkeypatch.setenv("HOLDFAST_SCRIPTED_JOURNAL", str(models))
    tools = str(Path(__file__).with_name("chaos_tools.py"))
    client = HoldfastClient(await connected(temporal.address), stage.queue)
    first = f"readers-{uuid4().hex[:8]}"

    async def killed_in_the_second_step(run: str) -> None:
        for batch in ("each[0-1]", "each[2-3]"):
            stage.hold(f"{run}/{batch}", "step-2", "started")
        worker = await stage.start_worker(temporal.address, "--load", tools).ready()
        inside = [f"{run}/each[0-1]", f"{run}/each[2-3]"]
        await until(lambda: sum(len(stage.entries(batch, "step-2", "started")) for batch in inside) == READERS, "steps")
        worker.kill()

    await client.start(AGENTS, {"items": list("abcd")}, run_id=first, config=RunConfig(heartbeat_seconds=2))
    await killed_in_the_second_step(first)
    await client.temporal.get_workflow_handle(first).terminate()
    # Nobody is there to be asked: what the batches had done is read from their histories.
    second = await client.resume(first)
    await killed_in_the_second_step(second)
    stage.release()
    await stage.start_worker(temporal.address, "--load", tools).ready()
    output = (await client.result(second)).output["each"]["output"]
    asked = Counter(json.loads(line)["key"] for line in models.read_text().splitlines())
    steps = Counter(entry.key for entry in stage.entries(event="started"))

    assert [answer["content"] for answer in output["output"]] == ["done"] * READERS
    assert set(asked.values()) == {1}
    assert len(asked) == 3 * READERS
    # Only the step that was in flight, at each of the two kills, with the key it had.
    assert sorted(steps.values()) == [1] * READERS + [3] * READERS
    assert {key for key, count in steps.items() if count == 3} == {
        f"{first}/each/each[{index}]/loop[2]/step[0]" for index in range(READERS)
    }
