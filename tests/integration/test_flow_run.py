"""FlowRun on the real server: order, parallelism, retries, timeouts, errors, caching, cancellation."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus, WorkflowFailureError
from temporalio.exceptions import ApplicationError
from temporalio.worker import Worker

from holdfast import FlowFailedError, Node, NonRetryableError, RunCancelledError, RunConfig, RunnableResult, RunStatus
from holdfast.contracts import names
from tests.integration.conftest import Bench

Outputs = Callable[[RunnableResult], dict[str, Any]]


class Tally(Node):
    """Counts its executions by node id."""

    counts: dict[str, int] = {}
    seconds: float = 0.0
    fail_times: int = 0
    _seen: dict[str, int] = {}

    async def execute(self, input_data: Any, **kwargs: Any) -> Any:
        key = kwargs["idempotency_key"]
        SEEN.setdefault(key, []).append(time.monotonic())
        await asyncio.sleep(self.seconds)
        if len(SEEN[key]) <= self.fail_times:
            raise RuntimeError(f"failure number {len(SEEN[key])}")
        FINISHED[key] = time.monotonic()
        return {"node": kwargs["node_id"], "executions": len(SEEN[key])}


SEEN: dict[str, list[float]] = {}
FINISHED: dict[str, float] = {}


class Refuses(Node):
    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        SEEN.setdefault(kwargs["idempotency_key"], []).append(time.monotonic())
        raise NonRetryableError("no")


class GivesASocket(Node):
    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        return {"rows": [{"handle": object()}]}


@pytest.mark.req("FL-1")
async def test_a_finished_branch_goes_on_while_the_other_is_still_at_its_first_node(bench: Bench) -> None:
    await bench.worker([Tally])
    run_id = await bench.start("""
id: branches
nodes:
  slow: {type: Tally, seconds: 2}
  quick: {type: Tally}
  after-quick: {type: Tally, depends: quick}
  end: {type: pass, depends: [slow, after-quick]}
""")
    await bench.client.result(run_id)

    assert FINISHED[f"{run_id}/after-quick"] < FINISHED[f"{run_id}/slow"]


@pytest.mark.req("FL-1")
async def test_every_effectful_node_is_an_activity_named_by_its_kind_and_its_path(bench: Bench) -> None:
    await bench.worker([Tally])
    run_id = await bench.start("""
id: kinds
nodes:
  count: {type: Tally, name: Count something}
  code: {type: python, depends: count, code: "def run(input_data): return 1"}
""")
    await bench.client.result(run_id)
    history = await bench.client.temporal.get_workflow_handle(run_id).fetch_history()
    scheduled = [
        (event.activity_task_scheduled_event_attributes.activity_type.name,
         event.activity_task_scheduled_event_attributes.activity_id,
         *await bench.client.temporal.data_converter.decode([event.user_metadata.summary]))
        for event in history.events
        if event.HasField("activity_task_scheduled_event_attributes")
    ]  # fmt: skip

    assert scheduled == [("Tally", "count", "Count something"), ("python.run", "code", "code")]


@pytest.mark.req("FL-4")
async def test_retries_are_temporals_and_are_counted(bench: Bench) -> None:
    await bench.worker([Tally])
    run_id = await bench.start("""
id: retried
nodes:
  shaky: {type: Tally, fail_times: 2, error_handling: {max_retries: 2, retry_interval_seconds: 0.1}}
""")
    result = await bench.client.result(run_id)
    checkpoint = await bench.client.latest_checkpoint(run_id)

    assert result.output["shaky"]["output"]["executions"] == 3
    assert checkpoint.node_states["shaky"].attempts == 3


@pytest.mark.req("FL-4")
async def test_an_error_that_another_attempt_cannot_help_is_not_retried(bench: Bench) -> None:
    await bench.worker([Refuses])
    with pytest.raises(FlowFailedError, match="node 'no' failed: no") as caught:
        await bench.run("id: f\nnodes:\n  no: {type: Refuses, error_handling: {max_retries: 5}}")

    assert len(SEEN[f"{caught.value.run_id}/no"]) == 1
    assert caught.value.node_id == "no"


@pytest.mark.req("FL-4")
async def test_a_node_that_takes_too_long_fails_with_its_limit_named(bench: Bench) -> None:
    await bench.worker([Tally])
    with pytest.raises(FlowFailedError, match="longer than"):
        await bench.run("id: f\nnodes:\n  slow: {type: Tally, seconds: 30, error_handling: {timeout_seconds: 0.5}}")


@pytest.mark.req("FL-4")
async def test_error_edges_returned_and_skipped_failures_let_the_flow_go_on(bench: Bench, outputs: Outputs) -> None:
    await bench.worker([Refuses])
    result = await bench.run("""
id: handled
nodes:
  a: {type: Refuses}
  mend: {type: transform, depends: [{node: a, trigger: failure}], template: "mended: {{ a.error.message }}"}
  b: {type: Refuses, error_handling: {behavior: return}}
  after-b: {type: transform, depends: b, template: "{{ b.status }}"}
  c: {type: Refuses, error_handling: {behavior: skip}}
  after-c: {type: pass, depends: c}
""")

    assert outputs(result) == {"mend": "mended: no", "after-b": "failure"}
    assert result.output["after-c"]["status"] == "skip"


@pytest.mark.req("FL-4")
async def test_caching_reuses_an_output_across_runs(bench: Bench) -> None:
    await bench.worker([Tally])
    flow = "id: cached\nnodes:\n  n: {type: Tally, caching: {enabled: true}}"
    first, second = await bench.start(flow, {"q": 1}), await bench.start(flow, {"q": 2})
    await bench.client.result(first)
    await bench.client.result(second)
    third = await bench.start(flow, {"q": 1})
    await bench.client.result(third)

    assert f"{second}/n" in SEEN
    assert f"{third}/n" not in SEEN
    [completed] = [t for t in await bench.client.transitions(third) if t.kind == "node_completed"]
    assert completed.cached


async def test_a_value_that_cannot_be_kept_fails_its_node_and_names_the_field(bench: Bench) -> None:
    await bench.worker([GivesASocket])
    with pytest.raises(FlowFailedError, match=r"output\.rows\[0\]\.handle is of type builtins\.object"):
        await bench.run("id: f\nnodes:\n  n: {type: GivesASocket, error_handling: {max_retries: 3}}")


async def test_an_activity_of_somebody_elses_worker_is_a_node(bench: Bench, client: Client, outputs: Outputs) -> None:
    @activity.defn(name="their.activity")
    async def theirs(given: dict[str, Any]) -> dict[str, Any]:
        return {"got": given["text"]}

    await bench.worker()
    async with Worker(client, task_queue=f"{bench.task_queue}-theirs", activities=[theirs]):
        result = await bench.run(f"""
id: foreign
nodes:
  a: {{type: transform, template: "hello"}}
  b:
    type: activity
    activity: their.activity
    task_queue: {bench.task_queue}-theirs
    depends: a
    input_transformer: {{selector: {{text: $.a.output}}}}
""")

    assert outputs(result)["b"] == {"got": "hello"}


async def test_a_type_no_worker_knows_fails_with_what_to_do(bench: Bench) -> None:
    await bench.worker()
    with pytest.raises(FlowFailedError, match="no worker knows the node type 'Missing': start one with --load"):
        await bench.run("id: f\nnodes:\n  n: {type: Missing}")


@pytest.mark.req("RT-1", "FL-3")
async def test_a_cancelled_run_ends_its_activities_and_leaves_a_checkpoint(bench: Bench) -> None:
    await bench.worker([Tally])
    run_id = await bench.start("""
id: cancelled
nodes:
  a: {type: Tally}
  b: {type: Tally, seconds: 60, depends: a}
""")
    while f"{run_id}/b" not in SEEN:
        await asyncio.sleep(0.02)
    await bench.client.cancel(run_id)
    with pytest.raises(RunCancelledError):
        await bench.client.result(run_id)
    checkpoint = await bench.client.latest_checkpoint(run_id)
    run = await bench.client.get_run(run_id)

    assert checkpoint.completed_node_ids == ["a"]
    assert checkpoint.pending_node_ids == ["b"]
    assert checkpoint.status == "failed"
    assert run.status == RunStatus.CANCELLED
    assert f"{run_id}/b" not in FINISHED


@pytest.mark.req("RT-1")
async def test_a_run_is_pending_until_a_worker_takes_it_up(bench: Bench) -> None:
    run_id = await bench.start("id: f\nnodes:\n  n: {type: Tally, seconds: 1}")
    assert (await bench.client.get_run(run_id)).status == RunStatus.PENDING
    await bench.worker([Tally])
    while (await bench.client.get_run(run_id)).status == RunStatus.PENDING:
        await asyncio.sleep(0.02)
    assert (await bench.client.get_run(run_id)).status == RunStatus.RUNNING
    await bench.client.result(run_id)
    assert (await bench.client.get_run(run_id)).status == RunStatus.COMPLETED


async def test_a_definition_started_by_somebody_elses_client_is_checked(bench: Bench, client: Client) -> None:
    await bench.worker()
    for start in ({"flow": {"id": "x", "nodes": [{"id": "a", "type": "htp"}]}}, {"flow": 3}, None, "nonsense"):
        with pytest.raises(WorkflowFailureError) as caught:
            await client.execute_workflow(
                names.FLOW_RUN, start, id=f"{bench.task_queue}-{start!r}", task_queue=bench.task_queue
            )
        cause = caught.value.cause
        assert isinstance(cause, ApplicationError)
        assert cause.type == names.FLOW_DEFINITION


async def test_anyone_can_start_a_flow_by_name_with_plain_data(bench: Bench, client: Client) -> None:
    await bench.worker()
    flow = {"id": "plain", "nodes": [{"id": "a", "type": "transform", "params": {"template": "hi {{ name }}"}}]}
    run_id = f"{bench.task_queue}-plain"
    result = await client.execute_workflow(
        names.FLOW_RUN, {"flow": flow, "input_data": {"name": "you"}}, id=run_id, task_queue=bench.task_queue
    )

    assert result["output"]["a"]["output"] == "hi you"
    assert (await bench.client.get_run(run_id)).flow_id == "plain"


async def test_progress_is_in_the_current_details_and_the_memo(bench: Bench) -> None:
    await bench.worker([Tally])
    run_id = await bench.start("id: f\nnodes:\n  a: {type: Tally}\n  b: {type: Tally, seconds: 1, depends: a}")
    while f"{run_id}/b" not in SEEN:
        await asyncio.sleep(0.02)
    handle = bench.client.temporal.get_workflow_handle(run_id)
    metadata = await handle.query("__temporal_workflow_metadata")
    assert "1 of 2 nodes done" in str(metadata)
    await bench.client.result(run_id)
    run = await bench.client.get_run(run_id)
    assert (run.done, run.total) == (2, 2)


async def test_continue_as_new_at_a_low_limit_changes_nothing_but_the_number_of_executions(bench: Bench) -> None:
    await bench.worker([Tally])
    nodes = "\n".join(f"  n{i}: {{type: Tally{'' if i == 0 else f', depends: n{i - 1}'}}}" for i in range(12))
    run_id = await bench.start(f"id: long\nnodes:\n{nodes}\n  wait: {{type: delay, seconds: 3, depends: n0}}",
                               config=RunConfig(continue_after_events=20))  # fmt: skip
    result = await bench.client.result(run_id)
    transitions = await bench.client.transitions(run_id)
    checkpoints = await bench.client.list_checkpoints(run_id)
    handle = bench.client.temporal.get_workflow_handle(run_id)

    assert len(result.output) == 13
    assert all(len(SEEN[f"{run_id}/n{i}"]) == 1 for i in range(12))
    assert [t.seq for t in transitions] == list(range(1, len(transitions) + 1))
    assert [t.path for t in transitions if t.kind == "node_started"].count("wait") == 1
    assert len([c for c in checkpoints if c.event == "node_completed"]) == 13
    started = (await handle.fetch_history()).events[0].workflow_execution_started_event_attributes
    assert started.continued_execution_run_id
    assert (await handle.describe()).status == WorkflowExecutionStatus.COMPLETED
    early = await bench.client.get_checkpoint(checkpoints[-1].id)
    assert early.completed_node_ids == ["n0"]
