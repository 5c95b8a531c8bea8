"""A long node that saves its state goes on from there when its worker dies, instead of starting over."""

import asyncio
from typing import Any

import pytest
from temporalio.client import Client

from holdfast.contracts.calls import ListQuery, RunConfig
from holdfast.contracts.names import QUERY_TRANSITIONS
from holdfast.flows.reading import read_flow
from holdfast.flows.spec import FlowSpec
from holdfast.starter import embedded
from tests.chaos.harness import Stage, result_of, start_run, until

STEPS = 40
# Beats are sent at most once a second and a step takes a tenth of one: that much, and some more, may be done again.
LOST_STEPS = 25
SOON = RunConfig(heartbeat_seconds=3)


def flow(kind: str, retries: int) -> FlowSpec:
    return read_flow(f"""
id: long
nodes:
  long: {{type: {kind}, steps: {STEPS}, error_handling: {{max_retries: {retries}, retry_interval_seconds: 0.1}}}}
""")


async def completed(client: Client, run: str) -> dict[str, Any]:
    """The transition that completed the node."""
    handle = client.get_workflow_handle(run)
    found: list[dict[str, Any]] = await handle.query(QUERY_TRANSITIONS, ListQuery())
    [transition] = [entry for entry in found if entry["kind"] == "node_completed"]
    return transition


@pytest.mark.req("FL-8")
async def test_a_long_node_goes_on_from_its_saved_step(
    client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    worker = await stage.start_worker(temporal.address).ready()
    cases = [(kind, retries) for kind in ("Long", "LongAsync") for retries in (0, 2)]
    handles = {
        case: await start_run(
            client, stage, flow(*case), {"subject": "steps"}, name="-".join(map(str, case)), config=SOON
        )
        for case in cases
    }
    undisturbed = await start_run(client, stage, flow("Long", 0), {"subject": "steps"}, config=SOON)
    reached: dict[tuple[str, int], int] = {}

    def halfway() -> bool:
        return all(len(stage.entries(handle.id, event="step")) >= STEPS // 2 + 5 for handle in handles.values())

    await until(halfway, "every node to be past its middle")
    worker.kill()
    for case, handle in handles.items():
        reached[case] = max(entry.step or 0 for entry in stage.entries(handle.id, event="step"))
        assert not stage.entries(handle.id, event="finished")
    successor = await stage.start_worker(temporal.address).ready()

    wanted = await result_of(undisturbed)
    for case, handle in handles.items():
        result = await result_of(handle)
        assert result.output["long"].output == wanted.output["long"].output
        first, second = stage.entries(handle.id, event="started")
        assert (first.pid, second.pid) == (worker.pid, successor.pid)
        assert first.key == second.key == f"{handle.id}/long"
        assert (first.step, first.resumed, second.resumed) == (0, False, True)
        assert second.step is not None
        assert max(1, reached[case] - LOST_STEPS) <= second.step <= reached[case] + 1, case
        again = [entry.step for entry in stage.entries(handle.id, event="step") if entry.pid == successor.pid]
        assert again == list(range(second.step, STEPS))
        assert (await completed(client, handle.id))["attempts"] == 2


@pytest.mark.req("FL-8")
async def test_a_long_node_survives_one_death_after_another(
    client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    handle = await start_run(client, stage, flow("Long", 0), config=SOON)
    begun: list[int] = []
    for death in range(1, 4):
        worker = await stage.start_worker(temporal.address).ready()

        def further() -> bool:
            steps = [entry for entry in stage.entries(handle.id, event="step") if entry.pid == worker.pid]  # noqa: B023
            return len(steps) >= 12

        await until(further, f"twelve steps before death {death}")
        worker.kill()
        begun.append(stage.entries(handle.id, event="started")[-1].step or 0)
    await stage.start_worker(temporal.address).ready()
    await result_of(handle)

    # Each life began further on than the one before, also one that was short.
    begun.append(stage.entries(handle.id, event="started")[-1].step or 0)
    assert begun == sorted(begun)
    assert len(set(begun)) == len(begun) == 4
    assert {entry.key for entry in stage.entries(handle.id)} == {f"{handle.id}/long"}


@pytest.mark.req("FL-8")
async def test_a_state_that_cannot_be_restored_means_from_scratch_with_a_warning(
    client: Client, temporal: embedded.Running, stage: Stage
) -> None:
    worker = await stage.start_worker(temporal.address).ready()
    handle = await start_run(client, stage, flow("Forgetful", 0), config=SOON)
    await until(lambda: len(stage.entries(handle.id, event="step")) >= 15, "fifteen steps")
    # Saved for certain: a beat went out well before the kill.
    await asyncio.sleep(0.1)
    worker.kill()
    await stage.start_worker(temporal.address).ready()
    result = await result_of(handle)

    first, second = stage.entries(handle.id, event="started")
    assert first.key == second.key
    # Nothing of the half-restored state is left in the node.
    assert (second.step, second.resumed) == (0, False)
    assert result.output["long"].output["steps"] == STEPS
    [warning] = (await completed(client, handle.id))["warnings"]
    assert "could not be restored" in warning
    assert "an old format" in warning
