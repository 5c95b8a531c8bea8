"""Time travel on the real server: resume once, fork at will, change things on the way, do a part again."""

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    FlowCheckpoint,
    FlowFailedError,
    NoCheckpointError,
    Node,
    NonRetryableError,
    RunActiveError,
    RunExistsError,
    RunNotFoundError,
    read_flow,
)
from holdfast.checkpoints.editing import EditError
from holdfast.checkpoints.serial import seal
from holdfast.contracts.people import HumanAnswer
from holdfast.starter.errors import (
    AlreadyResumedError,
    BadRunIdError,
    InnerRunError,
    NoSuchNodeError,
)
from holdfast.starter.moving import export, import_bundle, import_checkpoint
from tests.integration import agent_tools
from tests.integration.conftest import Bench

RAN: list[tuple[str, str, Any]] = []
BROKEN: set[str] = set()


class Work(Node):
    """Says what it was given; fails while its id, or its item, is among the broken ones."""

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        name = kwargs["node_id"]
        item = input_data if isinstance(input_data, int | str) else None
        RAN.append((name, kwargs["idempotency_key"], item))
        if name in BROKEN or str(item) in BROKEN:
            raise NonRetryableError(f"{name} is broken")
        return {"by": name, "item": item}


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools.jsonl").touch()
    monkeypatch.setenv("TOOLS_JOURNAL", str(tmp_path / "tools.jsonl"))
    RAN.clear()
    BROKEN.clear()


def ran() -> list[str]:
    return [name for name, _, _ in RAN]


async def existing(bench: Bench, run_id: str) -> FlowCheckpoint:
    """The latest checkpoint of a run that is about to be there."""
    while True:
        with contextlib.suppress(RunNotFoundError, NoCheckpointError):
            return await bench.client.latest_checkpoint(run_id)
        await asyncio.sleep(0.05)


CHAIN = """
id: chain
nodes:
  a: {type: Work}
  b: {type: Work, depends: a}
  c: {type: Work, depends: b}
  side: {type: Work, depends: a}
  end: {type: transform, depends: [c, side], template: "{{ c.output.by }} {{ side.output.by }}"}
"""


async def failed(bench: Bench, flow: str = CHAIN, broken: str = "c", given: Any = None) -> str:
    BROKEN.add(broken)
    run_id = await bench.start(flow, given)
    with pytest.raises(FlowFailedError):
        await bench.client.result(run_id)
    BROKEN.clear()
    RAN.clear()
    return run_id


@pytest.mark.req("RT-7")
async def test_of_twenty_who_resume_a_run_at_once_one_wins_and_the_others_are_told_its_name(bench: Bench) -> None:
    await bench.worker([Work])
    runs = [await failed(bench) for _ in range(50)]

    async def attempt(run_id: str) -> str:
        try:
            return await bench.client.resume(run_id)
        except AlreadyResumedError as error:
            return f"lost to {error.winner}"

    answers = await asyncio.gather(*(attempt(run_id) for run_id in runs for _ in range(20)))
    for run_id in runs:
        await bench.client.result(f"{run_id}~2")
    counted = Counter(answers)

    assert counted == {f"{run_id}~2": 1 for run_id in runs} | {f"lost to {run_id}~2": 19 for run_id in runs}
    assert Counter(ran()) == {"c": 50}


@pytest.mark.req("RT-7")
async def test_a_run_is_resumed_once_and_its_successor_is_resumed_next(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await failed(bench)
    BROKEN.add("c")
    second = await bench.client.resume(run_id, key="mine")
    with pytest.raises(FlowFailedError):
        await bench.client.result(second)
    BROKEN.clear()
    with pytest.raises(AlreadyResumedError, match=f"as '{second}'") as caught:
        await bench.client.resume(run_id)
    again = await bench.client.resume(run_id, key="mine")
    third = await bench.client.resume(second)
    result = await bench.client.result(third)

    assert caught.value.winner == again == second == f"{run_id}~2"
    assert third == f"{run_id}~3"
    assert result.output["end"]["output"] == "c side"
    # One effect, one key, however often it is tried.
    assert {key for name, key, _ in RAN if name == "c"} == {f"{run_id}/c"}


@pytest.mark.req("FL-2")
async def test_a_fork_goes_its_own_way_while_the_old_run_goes_on(bench: Bench) -> None:
    await bench.worker([Work])
    flow = CHAIN + "  ask: {type: human, prompt: 'Go on?', depends: a}\n  late: {type: Work, depends: ask}\n"
    run_id = await bench.start(flow)
    while "end" not in (await bench.client.latest_checkpoint(run_id)).completed_node_ids:
        await asyncio.sleep(0.05)
    RAN.clear()
    with pytest.raises(RunActiveError, match="fork"):
        await bench.client.resume(run_id)
    fork = await bench.client.fork(run_id)
    while not (await bench.client.latest_checkpoint(fork)).pending_inputs:
        await asyncio.sleep(0.05)
    (request,) = (await bench.client.latest_checkpoint(fork)).pending_inputs.values()
    for name in (fork, run_id):
        await bench.client.send_input(name, HumanAnswer(feedback=name))
    results = [await bench.client.result(name) for name in (fork, run_id)]

    assert request["is_resumed"]
    assert [result.output["ask"]["output"]["feedback"] for result in results] == [fork, run_id]
    # Each has an effect of its own.
    assert [(name, key) for name, key, _ in RAN] == [("late", f"{fork}/late"), ("late", f"{run_id}/late")]


async def test_a_fork_with_a_key_is_the_same_fork_again_and_an_id_is_taken_once(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await failed(bench)
    first, again = [await bench.client.fork(run_id, key="one") for _ in range(2)]
    other = await bench.client.fork(run_id, key="two")
    await bench.client.fork(run_id, run_id=f"{run_id}-mine")
    with pytest.raises(RunExistsError, match=f"{run_id}-mine"):
        await bench.client.fork(run_id, run_id=f"{run_id}-mine")

    assert first == again
    assert other != first


@pytest.mark.req("FL-2")
async def test_an_edited_output_stands_and_what_is_made_from_it_is_made_anew(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await bench.start(CHAIN)
    await bench.client.result(run_id)
    RAN.clear()
    fork = await bench.client.fork(run_id, edits={"b:output.by": "hand", "side:output": {"by": "me"}})
    result = await bench.client.result(fork)
    (resumed, *_) = [entry for entry in await bench.client.transitions(fork) if entry.kind == "run_resumed"]

    assert ran() == ["c"]
    assert RAN[0][1] == f"{fork}/c"
    assert result.output["b"]["output"]["by"] == "hand"
    assert result.output["end"]["output"] == "c me"
    assert resumed.model_dump()["edited"] == ["b:output.by", "side:output"]


@pytest.mark.req("FL-3")
async def test_a_failed_node_is_given_its_output_by_hand_and_the_run_goes_on(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await failed(bench, broken="b")
    BROKEN.add("b")
    result = await bench.client.result(await bench.client.resume(run_id, edits={"b:output": {"by": "hand"}}))

    assert ran() == ["c"]
    assert result.output["end"]["output"] == "c side"


async def test_an_edit_that_cannot_be_made_starts_nothing(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await failed(bench)
    with pytest.raises(EditError, match="no node 'nobody'"):
        await bench.client.resume(run_id, edits={"nobody:output": 1})

    assert await bench.client.resume(run_id) == f"{run_id}~2"


@pytest.mark.req("FL-2")
async def test_a_node_and_what_comes_after_it_is_done_again(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await bench.start(CHAIN)
    first = await bench.client.result(run_id)
    RAN.clear()
    again = await bench.client.rerun(run_id, "b")
    second = await bench.client.result(again)
    with pytest.raises(NoSuchNodeError, match="it has: a, b, c, side, end"):
        await bench.client.rerun(run_id, "x")
    # What it began from is the old run's, and is not to be done again there.
    with pytest.raises(NoCheckpointError, match="this execution has"):
        await bench.client.fork(f"{again}@{(await bench.client.transitions(again))[0].seq - 1}")

    assert [(name, key) for name, key, _ in RAN] == [("b", f"{again}/b"), ("c", f"{again}/c")]
    assert second.output == first.output


@pytest.mark.req("OR-3")
@pytest.mark.parametrize("more", ["", "inline_limit: 2, batch_size: 3,"])
async def test_of_a_map_only_the_failed_items_are_done_again(bench: Bench, more: str) -> None:
    await bench.worker([Work])
    flow = f"""
id: mapped
nodes:
  each: {{type: map, behavior: return, {more} node: {{id: item, type: Work}}}}
  sum: {{type: Work, depends: each}}
"""
    BROKEN.update({"3", "7"})
    run_id = await bench.start(flow, {"input": list(range(10))})
    first = await bench.client.result(run_id)
    BROKEN.clear()
    keys = {item: key for _, key, item in RAN}
    RAN.clear()
    again = await bench.client.rerun(run_id, "each", only_failed=True)
    second = await bench.client.result(again)

    assert first.output["each"]["output"]["failed_iterations"] == [3, 7]
    assert second.output["each"]["output"]["failed_iterations"] == []
    assert [entry["item"] for entry in second.output["each"]["output"]["output"]] == list(range(10))
    assert sorted((item, key) for name, key, item in RAN if name != "sum") == [(3, keys[3]), (7, keys[7])]
    assert [key for name, key, _ in RAN if name == "sum"] == [f"{again}/sum"]


@pytest.mark.req("FL-7")
async def test_a_flow_inside_a_flow_goes_on_where_it_was_when_the_outer_one_is_resumed(bench: Bench) -> None:
    await bench.worker([Work])
    flow = """
id: outer
nodes:
  sub:
    type: flow
    flow:
      id: inner
      nodes:
        x: {type: Work}
        deeper:
          type: flow
          depends: x
          flow: {id: innermost, nodes: {y: {type: Work}, w: {type: delay, seconds: 1h, depends: y}}}
  after: {type: Work, depends: sub}
"""
    run_id = await bench.start(flow)
    while "y" not in ran():
        await asyncio.sleep(0.05)
    while "y" not in (await bench.client.latest_checkpoint(f"{run_id}/sub/deeper")).completed_node_ids:
        await asyncio.sleep(0.05)
    await bench.client.temporal.get_workflow_handle(run_id).terminate()
    for inner in ("sub", "sub/deeper"):
        while (await bench.client.get_run(f"{run_id}/{inner}")).closed_at is None:
            await asyncio.sleep(0.05)
    RAN.clear()
    with pytest.raises(InnerRunError, match=f"inside run '{run_id}'"):
        await bench.client.resume(f"{run_id}/sub")
    short = read_flow(flow.replace("seconds: 1h", "seconds: 0.1"))
    resumed = await bench.client.resume(run_id, flow=short)
    # A timer that had begun keeps its time: it is not what is wanted here.
    inner = f"{resumed}/sub/deeper"
    checkpoint = await existing(bench, inner)

    assert ran() == []
    assert checkpoint.completed_node_ids == ["y"]
    assert checkpoint.metadata["parent_run_id"] == f"{resumed}/sub"
    await bench.client.cancel(resumed)


@pytest.mark.req("AG-2")
async def test_an_agents_conversation_is_changed_on_the_way(bench: Bench) -> None:
    await bench.worker()
    flow = read_flow("""
id: talk
nodes:
  a:
    type: agent
    prompt: "{{ input }}"
    llm:
      model: m
      provider: scripted
      replies: [{tool_calls: [{name: look_up, arguments: {word: sea}}]}, done]
    tools: [{id: look_up, type: python, function: "tests.integration.agent_tools:look_up"}]
""")
    run_id = await bench.start(flow, {"input": "go"})
    await bench.client.result(run_id)
    listed = await bench.client.transitions(run_id)
    (seq,) = [entry.seq for entry in listed if getattr(entry, "event", "") == "loop_completed"]
    before = len(agent_tools.counted())
    fork = await bench.client.fork(f"{run_id}@{seq}", edits={"a:messages[0].content": "stay"})
    await bench.client.result(fork)
    messages = (await bench.client.latest_checkpoint(fork)).node_states["a"].internal_state["prompt_messages"]

    assert messages[0]["content"] == "stay"
    assert len(agent_tools.counted()) == before
    with pytest.raises(EditError, match="is done at this checkpoint"):
        await bench.client.fork(run_id, edits={"a:messages[0].content": "late"})


@pytest.mark.req("FL-2")
async def test_the_family_of_a_run_is_a_tree(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await failed(bench)
    resumed = await bench.client.resume(run_id)
    await bench.client.result(resumed)
    fork = await bench.client.fork(f"{resumed}@14")
    await bench.client.result(fork)
    again = await bench.client.rerun(fork, "c")
    await bench.client.result(again)
    brought = await import_bundle(bench.client, await export(bench.client, fork), paused=False)
    while True:
        (root,) = await bench.client.tree(again)
        if str(root).count("run_id=") == 5:
            break
        await asyncio.sleep(0.1)

    assert root.run_id == run_id
    (first,) = root.children
    assert (first.run_id, first.how) == (resumed, "resume")
    (second,) = first.children
    assert (second.run_id, second.how, second.parent_checkpoint_id) == (fork, "fork", f"{resumed}@14")
    assert [(entry.run_id, entry.how) for entry in second.children] == [(again, "rerun"), (brought.run_id, "import")]


async def test_a_resume_that_would_be_refused_is_refused_when_it_is_planned(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await failed(bench)
    before = await bench.client.plan(run_id, resume=True)
    successor = await bench.client.resume(run_id)
    with pytest.raises(AlreadyResumedError, match=f"as '{successor}'"):
        await bench.client.plan(run_id, resume=True)
    waiting = await bench.start("id: asks\nnodes:\n  ask: {type: human, prompt: Well}\n")
    with pytest.raises(RunActiveError):
        await bench.client.plan(waiting, resume=True)
    fork = await bench.client.plan(run_id, rerun=["b", "side"], edits={"a:output.by": "hand"})
    both = await bench.client.rerun(run_id, ["b", "side"])
    await bench.client.result(both)

    assert before.forgotten == ["c", "end"]
    assert (fork.kept, fork.edited) == (["a"], ["a:output.by"])
    assert Counter(ran()) == {"b": 1, "c": 2, "side": 1}


async def test_an_id_that_reads_as_a_checkpoints_is_none_for_a_run(bench: Bench) -> None:
    await bench.worker([Work])
    run_id = await failed(bench)
    with pytest.raises(BadRunIdError, match=r"\[run/bad-id\] 'mine@3' reads as checkpoint 3 of run 'mine'"):
        await bench.client.fork(run_id, run_id="mine@3")
    with pytest.raises(BadRunIdError):
        await bench.client.start(read_flow(CHAIN, "chain"), run_id="mine@3")
    with pytest.raises(RunNotFoundError, match=f"'{run_id}@3' is a checkpoint's id; the run's is '{run_id}'"):
        await bench.client.tree(f"{run_id}@3")
    with pytest.raises(RunNotFoundError, match="a checkpoint's id ends in its number"):
        await bench.client.fork(f"{run_id}@last")


@pytest.mark.req("DM-10")
async def test_a_checkpoint_with_another_flow_is_another_import(bench: Bench) -> None:
    await bench.worker([Work])
    bundle = await export(bench.client, await failed(bench))
    changed = read_flow(CHAIN.replace("{{ c.output.by }} ", ""), "chain")
    first = await import_bundle(bench.client, bundle)
    runs = [await import_bundle(bench.client, bundle, flow=changed) for _ in range(2)]
    (new, again) = runs
    listed = await bench.client.get_run(first.run_id)

    # Paused, it does nothing that would count what it came with.
    assert (listed.done, listed.total) == (3, 5)
    assert new.run_id != first.run_id
    assert ([run.created for run in runs], again.run_id) == ([True, False], new.run_id)
    assert await bench.client.definition(new.run_id) == changed


@pytest.mark.req("DM-10", "RT-4")
async def test_what_was_approved_is_asked_again_where_nobody_knows_what_it_was(bench: Bench) -> None:
    await bench.worker([Work])
    flow = read_flow("id: paying\nnodes:\n  pay: {type: Work, approval: {enabled: true}}")
    run_id = await bench.client.start(flow)
    async for transition in bench.client.follow(run_id):
        if transition.kind == "input_requested":
            await bench.client.send_input(run_id, HumanAnswer(is_approved=True))
    approved = next(entry.seq for entry in await bench.client.transitions(run_id) if entry.kind == "input_received")
    bundle = await export(bench.client, f"{run_id}@{approved}")
    whole = await import_bundle(bench.client, bundle, paused=False)
    result = await bench.client.result(whole.run_id)
    bare, _ = await import_checkpoint(bench.client, seal(bundle.checkpoint), flow=flow, paused=False)
    async with asyncio.timeout(30):
        while not await bench.client.inbox(bare.run_id):
            await asyncio.sleep(0.05)
    await bench.client.cancel(bare.run_id)

    assert result.output["pay"]["status"] == "success"
    assert ran() == ["pay", "pay"]
