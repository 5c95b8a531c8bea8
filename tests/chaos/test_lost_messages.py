"""Continue-as-new under fire: a run that goes on in execution after execution, with kills in the middle of it."""

from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client

from holdfast.contracts.calls import ListQuery, RunConfig
from holdfast.contracts.names import QUERY_TRANSITIONS
from holdfast.flows.reading import flow_from_data
from holdfast.starter import embedded
from tests.chaos.harness import Stage, executions, result_of, start_run, timeless, until

WIDTH, DEPTH = 3, 10
SHORT = RunConfig(continue_after_events=30, heartbeat_seconds=3)


def flow() -> dict[str, Any]:
    """Three chains of ten, tied together every few links; sync, async and pure nodes, a timer in the middle."""
    nodes: dict[str, Any] = {}
    for row in range(DEPTH):
        for column in range(WIDTH):
            above = [f"n{column}-{row - 1}"] if row else []
            if row % 4 == 3:
                above.append(f"n{(column + 1) % WIDTH}-{row - 1}")
            body: dict[str, Any] = {"type": ("Work", "WorkAsync")[column % 2], "seconds": 0.03, "depends": above}
            if (row, column) == (2, 2):
                body["pure"] = True
            nodes[f"n{column}-{row}"] = body
    nodes["pause"] = {"type": "delay", "seconds": 1.5, "depends": ["n0-1"]}
    nodes["end"] = {
        "type": "Work",
        "depends": ["pause", *(f"n{column}-{DEPTH - 1}" for column in range(WIDTH))],
        "input_transformer": {"selector": {"last": f"$.n0-{DEPTH - 1}.output", "subject": "$.subject"}},
    }
    return {"id": "chain", "nodes": nodes}


async def chain(client: Client, run: str, first: str) -> list[str]:
    """The run ids of all executions, in order."""
    found = [first]
    while True:
        handle = client.get_workflow_handle(run, run_id=found[-1])
        last = [event async for event in handle.fetch_history_events()][-1]
        if last.event_type != EventType.EVENT_TYPE_WORKFLOW_EXECUTION_CONTINUED_AS_NEW:
            return found
        found.append(last.workflow_execution_continued_as_new_event_attributes.new_execution_run_id)


@pytest.mark.req("FL-2", "PR-7")
async def test_a_chain_of_executions_survives_kills_without_a_hole(
    client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    definition = flow_from_data(flow())
    worker = await stage.start_worker(temporal.address).ready()
    undisturbed = await result_of(await start_run(client, stage, definition, {"subject": "chain"}))
    handle = await start_run(client, stage, definition, {"subject": "chain"}, config=SHORT)
    assert handle.first_execution_run_id is not None

    killed: list[int] = []
    for reached in (8, 20):
        await until(lambda: len(stage.entries(handle.id, event="finished")) >= reached, f"{reached} nodes")  # noqa: B023
        worker.kill()
        killed.append(worker.pid)
        worker = await stage.start_worker(temporal.address).ready()
    result = await result_of(handle)
    assert timeless(result) == timeless(undisturbed)

    ids = await chain(client, handle.id, handle.first_execution_run_id)
    assert len(ids) >= 3, "the run was meant to continue as new more than once"
    ran = executions(stage.entries(handle.id))
    assert ran.keys() == {node.id for node in definition.nodes} - {"pause"}
    again = {node: started for node, started in ran.items() if len(started) > 1}
    for node, started in ran.items():
        assert {entry.key for entry in started} == {f"{handle.id}/{node}"}
    for started in again.values():
        # Only what a killed worker had begun and not reported: each further execution is on the next worker.
        assert len({entry.pid for entry in started}) == len(started)
        assert all(entry.pid in killed for entry in started[:-1])
    # At each kill at most one node of each column, or the pure one, is in flight.
    assert len(again) <= len(killed) * WIDTH

    transitions: list[dict[str, Any]] = []
    for execution in ids:
        part = client.get_workflow_handle(handle.id, run_id=execution)
        page: list[dict[str, Any]] = await part.query(QUERY_TRANSITIONS, ListQuery())
        transitions += page
    assert [entry["seq"] for entry in transitions] == list(range(1, len(transitions) + 1))
    completed = [entry["path"] for entry in transitions if entry["kind"] == "node_completed"]
    assert sorted(completed) == sorted(node.id for node in definition.nodes)
    assert transitions[0]["kind"] == "run_started"
    assert transitions[-1]["kind"] == "run_completed"
    assert result.checkpoint["sequence_number"] == len(transitions)
