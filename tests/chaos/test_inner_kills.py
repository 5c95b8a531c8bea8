"""SIGKILL of a worker inside orchestrators, nested flows and approved nodes: the outer run and the inner one go on."""

from typing import Any

import pytest

from holdfast import HoldfastClient
from holdfast.contracts.people import HumanAnswer
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from tests.chaos.harness import Stage, connected, executions, result_of, start_run, timeless, until

MANAGER = "{model: m, provider: scripted, replies: [%s]}"
PLAN = """'[{"description": "x", "agent": "w"}, {"description": "y", "agent": "w"}]', all done"""
FLOWS = {
    "graph": f"""
id: graph
nodes:
  g:
    type: graph-orchestrator
    manager: {MANAGER % '"one", "end"'}
    states:
      - {{id: one, tasks: [{{id: a, type: Work}}, {{id: b, type: WorkAsync}}], next: [{{to: two}}]}}
      - {{id: two, tasks: [{{id: c, type: Work}}], next: [{{to: one}}, {{to: end}}]}}
""",
    "linear": f"""
id: linear
nodes:
  l: {{type: linear-orchestrator, manager: {MANAGER % PLAN}, agents: [{{id: w, type: Work}}]}}
""",
    "nested": """
id: nested
nodes:
  before: {type: Work}
  sub: {type: flow, depends: before, flow: {id: inner, nodes: {x: {type: Work}, y: {type: Work, depends: x}}}}
  after: {type: Work, depends: sub}
""",
}
# Where the run is held when its worker dies: the node, how far it is, what of the run's id is the inner run, and the
# key of the work that was in flight.
PLACES = [
    ("graph", "g/a", "started", "", "/g/step[0]/a"),
    ("graph", "g/c", "finished", "", "/g/step[1]/c"),
    ("linear", "l/w", "started", "", "/l/task[0]/w"),
    ("linear", "l/w", "finished", "", "/l/task[0]/w"),
    ("nested", "x", "finished", "/sub", "/sub/x"),
    ("nested", "y", "started", "/sub", "/sub/y"),
]
# Runs beside what was held, and may not have been reported when the worker died.
BESIDE = {"/g/step[0]/a": {"/g/step[0]/b"}}


def _keys(stage: Stage, run: str) -> dict[str, int]:
    """How often each piece of work was begun, by its key."""
    counts: dict[str, int] = {}
    for entry in stage.entries(event="started"):
        if entry.run.startswith(run):
            key = entry.key.removeprefix(run)
            counts[key] = counts.get(key, 0) + 1
    return counts


@pytest.mark.req("OR-1", "OR-2", "FL-7", "PR-7")
@pytest.mark.parametrize(("flow", "node", "event", "inner", "in_flight"), PLACES)
async def test_an_orchestrator_and_a_nested_flow_survive_their_worker(
    flow: str, node: str, event: str, inner: str, in_flight: str, temporal: embedded.Running, stage: Stage
) -> None:
    client = await connected(temporal.address)
    worker = await stage.start_worker(temporal.address).ready()
    spec = read_flow(FLOWS[flow])
    whole = await start_run(client, stage, spec, {"input": "go"}, name=f"{flow}-whole")
    undisturbed = timeless(await result_of(whole))
    handle = await start_run(client, stage, spec, {"input": "go"}, name=flow)
    run = handle.id + inner
    stage.hold(run, node, event)
    await until(lambda: bool(stage.entries(run, node, event)), f"{node} {event}")
    worker.kill()
    stage.release()
    await stage.start_worker(temporal.address).ready()
    disturbed = timeless(await result_of(handle))
    expected, ran = _keys(stage, whole.id), _keys(stage, handle.id)

    assert _plain(disturbed, handle.id) == _plain(undisturbed, whole.id)
    assert ran.keys() == expected.keys()
    # What was in flight, and nothing else, ran again with the key it had.
    again = {key for key, count in ran.items() if count != expected[key]}
    assert in_flight in again
    assert again <= {in_flight} | BESIDE.get(in_flight, set())
    assert max(ran.values()) == 2


def _plain(result: dict[str, Any], run: str) -> str:
    """Without the run's own id, which is in the ids of its children."""
    return repr(result).replace(run, "RUN")


@pytest.mark.req("RT-4", "RT-5", "FL-6")
async def test_an_approval_and_a_pause_hold_when_the_worker_dies_right_after_them(
    temporal: embedded.Running, stage: Stage
) -> None:
    client = HoldfastClient(await connected(temporal.address), stage.queue)
    worker = await stage.start_worker(temporal.address).ready()
    flow = read_flow("""
id: approved
nodes:
  pay: {type: Work, approval: {enabled: true, editable: [amount]}}
  after: {type: Work, depends: pay}
""")
    handle = await start_run(client.temporal, stage, flow, {"amount": 10}, holds=[("pay", "started")])

    async def asked() -> bool:
        return bool(await client.inbox(handle.id))

    await until(asked, "the question")
    (request,) = await client.inbox(handle.id)
    receipt = await client.send_input(
        handle.id, HumanAnswer(is_approved=True, data={"amount": 7}), request_id=request.id, by="ada"
    )
    await until(lambda: bool(stage.entries(handle.id, "pay", "started")), "the approved node")
    await client.pause(handle.id, "bob")
    worker.kill()
    stage.release()
    await stage.start_worker(temporal.address).ready()

    async def paused() -> bool:
        return (await client.latest_checkpoint(handle.id)).completed_node_ids == ["pay"]

    await until(paused, "the approved node to end")
    waiting = await client.latest_checkpoint(handle.id)
    begun = stage.entries(handle.id, "after")
    await client.continue_run(handle.id, "bob")
    result = await result_of(handle)
    ran = executions(stage.entries(handle.id))

    assert receipt.status == "accepted"
    assert waiting.status == "paused"
    assert begun == []
    assert result.output["pay"].input == {"amount": 7}
    assert {node: len(entries) for node, entries in ran.items()} == {"pay": 2, "after": 1}
    assert len({entry.key for entry in ran["pay"]}) == 1
    # It was approved once, and nobody was asked again.
    kinds = [entry.kind for entry in await client.transitions(handle.id)]
    assert kinds.count("input_requested") == 1
