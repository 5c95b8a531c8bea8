"""A flow that is changed between a checkpoint and the resume: what becomes of each node is what the table says.

The table is data: the tests run it on the real server and count what is executed; docs/time-travel.md shows it.
"""

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from holdfast import (
    CheckpointMixin,
    FlowCheckpoint,
    FlowFailedError,
    InvalidCheckpointError,
    NoCheckpointError,
    Node,
    NonRetryableError,
    RunNotFoundError,
    read_flow,
)
from holdfast.checkpoints.ledger import NodeCompleted, RunResumed
from holdfast.checkpoints.resuming import ResumePlan
from holdfast.checkpoints.serial import deserialize_checkpoint, serialize_checkpoint
from holdfast.flows.ids import is_nested
from holdfast.starter.travel import Changes
from tests.integration.conftest import Bench
from tests.integration.test_connections_refreshed import Guarded

Fate = Literal["kept", "goes on", "runs again", "new", "dropped"]
KEPT, GOES_ON, AGAIN, NEW, DROPPED = FATES = ("kept", "goes on", "runs again", "new", "dropped")

CHAIN = """
id: chain
nodes:
  a: {type: Work}
  b: {type: Work, depends: a}
  c: {type: Work, depends: b}
  d: {type: Work, depends: c}
  side: {type: Work, depends: a}
"""
CHOICE = """
id: choosing
nodes:
  pick: {type: choice, options: [{id: left}, {id: right}]}
  l: {type: Work, depends: [{node: pick, option: left}]}
  r: {type: Work, depends: [{node: pick, option: right}]}
  d: {type: Work}
"""
NESTED = """
id: outer
nodes:
  sub: {type: flow, flow: {id: inner, nodes: {x: {type: Work}, y: {type: Work, depends: x}, z: {type: Work}}}}
  d: {type: Work, depends: sub}
"""
WAITING = """
id: outer
nodes:
  sub:
    type: flow
    flow:
      id: inner
      nodes: {x: {type: Work}, z: {type: Work}, ask: {type: human, prompt: 'Go on?', depends: z}}
  d: {type: Work, depends: sub}
"""
AGENT = """
id: talking
nodes:
  agent:
    type: agent
    system: You are brief.
    prompt: Go.
    llm: {model: m, provider: scripted, replies: [{tool_calls: [{name: d, arguments: {}}]}, done]}
    tools: [{id: d, type: Work, on_error: fail, description: Works., input_schema: {type: object}}]
"""
KEEPER = "id: f\nnodes:\n  a: {type: Work}\n  n: {type: Keeper, depends: a}"
CALLER = "id: f\nnodes:\n  a: {type: Work}\n  ask: {type: http, url: /ask, connection: scribe, depends: a}"


@dataclass(frozen=True)
class Row:
    """A change, what it means for each node, and the words in which one is told. `edit` is old text and new text.

    `executed` is given where it is not what the fates say: a node that is decided anew may be skipped then.
    """

    change: str
    fates: Mapping[str, Fate]
    told: Sequence[str] = ()
    edit: Sequence[tuple[str, str]] = ()
    flow: str = CHAIN
    broken: str = "d"
    keep: Sequence[str] = ()
    executed: Sequence[str] | None = None
    special: bool = field(default=False, kw_only=True)
    """Not a change of the definition: the row has a test of its own."""

    def runs(self) -> Counter[str]:
        busy = [name for name, fate in self.fates.items() if fate not in (KEPT, DROPPED)]
        return Counter(busy if self.executed is None else self.executed)


def fates(**listed: str) -> dict[str, Fate]:
    """`kept="a b", again="c"` by node, in the order of the words."""
    names: dict[str, Fate] = {"kept": "kept", "on": "goes on", "again": "runs again", "new": "new", "gone": "dropped"}
    return {node: names[fate] for fate, nodes in listed.items() for node in nodes.split()}


ROWS = [
    Row(
        "a node is added at the end",
        fates(kept="a b c side", on="d", new="end"),
        ["'end' is new"],
        [("  side:", "  end: {type: Work, depends: d}\n  side:")],
    ),
    Row(
        "a node is added between two that are done",
        fates(kept="a side", again="b c d", new="mid"),
        ["'mid' is new", "'b' has changed (depends); it runs again", "'c' runs again: what it is made from changes"],
        [("  b: {type: Work, depends: a}", "  mid: {type: Work, depends: a}\n  b: {type: Work, depends: mid}")],
    ),
    Row(
        "a done node is removed that nothing depends on",
        fates(kept="a b c", on="d", gone="side"),
        ["'side' is no longer in the flow"],
        [("  side: {type: Work, depends: a}\n", "")],
    ),
    Row(
        "a done node is removed that others depend on",
        fates(kept="a side", again="c d", gone="b"),
        ["'b' is no longer in the flow", "'c' has changed (depends)"],
        [("  b: {type: Work, depends: a}\n", ""), ("depends: b", "depends: a")],
    ),
    Row(
        "a done node's parameters change",
        fates(kept="a side", again="b c d"),
        ["'b' has changed (params.word); it runs again", "'c' runs again"],
        [("b: {type: Work,", "b: {type: Work, word: other,")],
    ),
    Row(
        "a failed node's parameters change",
        fates(kept="a b c side", on="d"),
        ["'d' has changed (params.word); it goes on from where it was"],
        [("d: {type: Work,", "d: {type: Work, word: other,")],
    ),
    Row(
        "an agent's parameters change in the middle of its loops",
        fates(on="agent"),
        ["'agent' has changed (params.system, params.max_loops); it goes on from where it was"],
        [("system: You are brief.", "system: You are verbose.\n    max_loops: 30")],
        flow=AGENT,
        broken="agent/d",
        executed=["agent/d"],
    ),
    Row(
        "a node's type changes",
        fates(kept="a side", again="b c d"),
        ["'b' was a Work and is a Other now", "'c' runs again"],
        [("b: {type: Work,", "b: {type: Other,")],
    ),
    Row(
        "a node is renamed",
        fates(kept="a side", again="c d", new="b2", gone="b"),
        ["'b' is no longer in the flow", "'b2' is new", "'c' has changed (depends)"],
        [("  b: {type", "  b2: {type"), ("depends: b", "depends: b2")],
    ),
    Row(
        "a dependency is added",
        fates(kept="a b side", again="c d"),
        ["'c' has changed (depends); it runs again"],
        [("depends: b", "depends: [b, side]")],
    ),
    Row(
        "the condition of a dependency changes",
        fates(kept="a b side", again="c d"),
        ["'c' has changed (depends); it runs again"],
        [
            (
                "depends: b",
                "depends: [{node: b, condition: {variable: $.output.by, operator: string-equals, value: b}}]",
            )
        ],
    ),
    Row(
        "the option of a dependency changes",
        fates(kept="pick", on="d", again="l r"),
        ["'l' has changed (depends)", "'r' has changed (depends)"],
        [("option: left", "option: x"), ("option: right", "option: left"), ("option: x", "option: right")],
        flow=CHOICE,
        executed=["r", "d"],
    ),
    Row(
        "an input_transformer changes",
        fates(kept="a b side", again="c d"),
        ["'c' has changed (input_transformer); it runs again"],
        [("depends: b", "depends: b, input_transformer: {path: $.b.output}")],
    ),
    Row(
        "an output_transformer changes",
        fates(kept="a b side", again="c d"),
        ["'c' has changed (output_transformer); it runs again"],
        [("depends: b", "depends: b, output_transformer: {path: $.by}")],
    ),
    Row(
        "only a name, retries, a timeout, an approval or caching change",
        fates(kept="a b c side", on="d"),
        [],
        [
            ("a: {type: Work", "a: {type: Work, name: First, caching: {enabled: true}"),
            ("depends: a}", "depends: a, error_handling: {max_retries: 9, timeout_seconds: 5}}"),
            ("depends: b", "depends: b, approval: {enabled: true}"),
        ],
    ),
    Row(
        "the order of the nodes changes",
        fates(kept="a b c side", on="d"),
        [],
        [("  side: {type: Work, depends: a}\n", ""), ("nodes:\n", "nodes:\n  side: {type: Work, depends: a}\n")],
    ),
    Row(
        "a flow inside changes while it is unfinished",
        fates(kept="sub/z", on="sub d", again="sub/x sub/y"),
        ["'sub' has changed (params.flow); it goes on from where it was", "'x' has changed (params.word)"],
        [("x: {type: Work}", "x: {type: Work, word: other}")],
        flow=NESTED,
        broken="y",
        executed=["x", "y", "d"],
    ),
    Row(
        "a flow inside changes while it waits for somebody",
        fates(kept="sub/z", on="sub sub/ask", again="sub/x"),
        [
            "'sub' has changed (params.flow); it goes on from where it was",
            "'x' has changed (params.word); it runs again",
        ],
        [("x: {type: Work}", "x: {type: Work, word: other}")],
        flow=WAITING,
        executed=["x", "d"],
        special=True,
    ),
    Row(
        "a flow inside changes after it was done",
        fates(again="sub sub/x sub/y sub/z d"),
        ["'sub' has changed (params.flow); it runs again", "'d' runs again"],
        [("y: {type: Work,", "y: {type: Work, word: other,")],
        flow=NESTED,
        executed=["x", "y", "z", "d"],
    ),
    Row(
        "a changed node is named in keep",
        fates(kept="a b c side", on="d"),
        ["'b' has changed (params.word); its old result is kept, as you wish"],
        [("b: {type: Work,", "b: {type: Work, word: other,")],
        keep=["b"],
    ),
    Row(
        "the checkpoint settings change",
        fates(kept="a b c side", on="d"),
        [],
        [("nodes:\n", "checkpoint: {checkpoint_after_node: false, max_checkpoints: 2}\nnodes:\n")],
    ),
    Row(
        "a node's class can no longer read the state it saved",
        fates(kept="a", again="n"),
        ["node 'n': its state could not be restored", "it runs from scratch"],
        flow=KEEPER,
        special=True,
    ),
    Row(
        "the checkpoint was written by an older version",
        fates(kept="a b c side", on="d"),
        [],
        special=True,
    ),
    Row(
        "the checkpoint was written by a newer version",
        {},
        ["checkpoint version '99.0' is not known to this library", "upgrade holdfast"],
        special=True,
    ),
    Row(
        "a connection is gone from the worker, and comes back",
        fates(kept="a", on="ask"),
        ["[connection/unknown] this worker has no connection 'scribe'", "HOLDFAST_CONNECTION_SCRIBE_BASE_URL"],
        flow=CALLER,
        special=True,
    ),
]
CASES = {row.change: row for row in ROWS}
HEAD = ["the change", *FATES, "you are told"]


def table() -> Iterator[list[str]]:
    """The rows as the documentation has them."""
    for row in ROWS:
        nodes = [[f"`{node}`" for node, found in row.fates.items() if found == fate] for fate in FATES]
        yield [row.change, *(" ".join(names) for names in nodes), ", ".join(f"`{words}`" for words in row.told)]


RAN: list[tuple[str, str]] = []
BROKEN: set[str] = set()


class Work(Node):
    """Fails while its id is among the broken ones."""

    word: str = "work"

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        RAN.append((kwargs["node_id"], kwargs["idempotency_key"]))
        if kwargs["node_id"] in BROKEN:
            raise NonRetryableError(f"{kwargs['node_id']} is broken")
        return {"by": kwargs["node_id"], "word": self.word}


class Other(Work):
    """The same work under another type."""


class Keeper(Work, CheckpointMixin):
    """Keeps a count; a newer version of it wants another form."""

    _count: int = 0

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"count": self._count}

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        self._count = state["counted" if "new form" in BROKEN else "count"]

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        self._count += 1
        return {**super().execute(input_data, **kwargs), "count": self._count}


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SCRIPTED_JOURNAL", str(tmp_path / "models.jsonl"))
    RAN.clear()
    BROKEN.clear()


async def failed(bench: Bench, row: Row, broken: str) -> str:
    await bench.worker([Work, Other, Keeper])
    BROKEN.add(broken)
    run_id = await bench.start(row.flow)
    with pytest.raises(FlowFailedError):
        await bench.client.result(run_id)
    BROKEN.clear()
    RAN.clear()
    return run_id


def edited(row: Row) -> str:
    text = row.flow
    for old, new in row.edit:
        assert old in text
        text = text.replace(old, new)
    return text


def planned(plan: ResumePlan, before: FlowCheckpoint, nodes: Sequence[str]) -> dict[str, str]:
    """What a plan says of each node of the flow itself; of one that had not begun, nothing."""
    said = {name: DROPPED for name in before.node_states if name not in nodes and not is_nested(name)}
    said |= {name: NEW for name in nodes if name not in [*before.node_states, *before.pending_node_ids]}
    said |= dict.fromkeys(plan.kept, KEPT) | dict.fromkeys(plan.forgotten, GOES_ON) | dict.fromkeys(plan.reset, AGAIN)
    return said


async def told(bench: Bench, run_id: str) -> str:
    """All warnings of a run and of the flow inside it."""
    runs = (
        [run_id, f"{run_id}/sub"] if "sub" in (await bench.client.latest_checkpoint(run_id)).node_states else [run_id]
    )
    entries = [entry for run in runs for entry in await bench.client.transitions(run)]
    return "\n".join(
        warning for entry in entries if isinstance(entry, RunResumed | NodeCompleted) for warning in entry.warnings
    )


@pytest.mark.req("DM-9", "FL-10", "FL-2")
@pytest.mark.parametrize("row", [row for row in ROWS if not row.special], ids=lambda row: row.change)
async def test_a_changed_flow_is_resumed_as_the_table_says(bench: Bench, row: Row, tmp_path: Path) -> None:
    run_id = await failed(bench, row, row.broken)
    before = await bench.client.latest_checkpoint(run_id)
    models = tmp_path / "models.jsonl"
    asked = len(models.read_text().splitlines()) if models.exists() else 0
    flow = read_flow(edited(row))
    plan = await bench.client.travel.plan(run_id, Changes(flow=flow, keep=row.keep))
    resumed = await bench.client.resume(run_id, flow=flow, keep=row.keep)
    result = await bench.client.result(resumed)
    warnings = await told(bench, resumed)

    expected = {name: fate for name, fate in row.fates.items() if not is_nested(name)}
    assert planned(plan, before, [node.id for node in flow.nodes]) == expected
    assert Counter(name for name, _ in RAN) == row.runs()
    assert [words for words in row.told if words not in warnings] == []
    assert (warnings == "") == (row.told == [])
    assert {outcome["status"] for outcome in result.output.values()} <= {"success", "skip"}
    # What is done anew is another effect; what goes on is the same one.
    keys = dict(RAN)
    for path, fate in row.fates.items():
        name = path.rpartition("/")[2]
        if name in keys and fate in (AGAIN, GOES_ON):
            # What goes on has the key it had, unless it is another request now.
            changed = any(f"'{name}' has changed" in words for words in row.told)
            assert keys[name] == f"{resumed if fate == AGAIN or changed else run_id}/{path}"
    if row.flow == AGENT:
        # The call that had been answered is not made again: only the second one is.
        assert len(models.read_text().splitlines()) == asked + 1 == 2


async def asked(bench: Bench, run_id: str) -> None:
    """Until a run that is about to be there has a question."""
    while True:
        with contextlib.suppress(RunNotFoundError, NoCheckpointError):
            if (await bench.client.latest_checkpoint(run_id)).pending_inputs:
                return
        await asyncio.sleep(0.05)


@pytest.mark.req("DM-9", "FL-7", "FL-10")
async def test_a_flow_inside_that_waits_is_forked_with_another_definition(bench: Bench) -> None:
    row = CASES["a flow inside changes while it waits for somebody"]
    await bench.worker([Work])
    run_id = await bench.start(row.flow)
    await asked(bench, f"{run_id}/sub")
    # Both of the nodes that run there are done.
    while len((await bench.client.latest_checkpoint(f"{run_id}/sub")).completed_node_ids) < 2:
        await asyncio.sleep(0.05)
    RAN.clear()
    before = await bench.client.latest_checkpoint(run_id)
    changes = Changes(flow=read_flow(edited(row)))
    plan = await bench.client.travel.plan(run_id, changes)
    fork = await bench.client.fork(run_id, flow=changes.flow)
    await asked(bench, f"{fork}/sub")
    await bench.client.send_input(f"{fork}/sub", {"feedback": "yes"})
    await bench.client.result(fork)
    await bench.client.cancel(run_id)
    warnings = await told(bench, fork)

    expected = {name: fate for name, fate in row.fates.items() if not is_nested(name)}
    assert planned(plan, before, ["sub", "d"]) == expected
    assert Counter(name for name, _ in RAN) == row.runs()
    assert [words for words in row.told if words not in warnings] == []


@pytest.mark.req("DM-9", "FL-8", "FL-10")
async def test_a_state_that_a_changed_class_cannot_read_means_from_scratch(bench: Bench) -> None:
    row = CASES["a node's class can no longer read the state it saved"]
    run_id = await failed(bench, row, "n")
    BROKEN.add("new form")
    resumed = await bench.client.resume(run_id)
    result = await bench.client.result(resumed)
    warnings = await told(bench, resumed)

    assert Counter(name for name, _ in RAN) == row.runs()
    assert [words for words in row.told if words not in warnings] == []
    assert result.output["n"]["output"]["count"] == 1


def _as_version_0(text: str) -> str:
    """The checkpoint as the schema's first draft had it."""
    data = json.loads(text)
    states = [
        {("state" if key == "internal_state" else key): value for key, value in state.items()}
        for state in data["node_states"].values()
    ]
    return json.dumps({**data, "node_states": states, "version": "0", "checksum": None})


@pytest.mark.req("DM-9", "FL-10")
async def test_a_checkpoint_of_an_older_version_is_resumed_like_any_other(bench: Bench) -> None:
    row = CASES["the checkpoint was written by an older version"]
    run_id = await failed(bench, row, row.broken)
    old = _as_version_0(serialize_checkpoint(await bench.client.latest_checkpoint(run_id)))
    checkpoint = deserialize_checkpoint(old)
    plan = await bench.client.travel.plan(checkpoint)
    resumed = await bench.client.resume(checkpoint)
    await bench.client.result(resumed)

    assert planned(plan, checkpoint, ["a", "b", "c", "d", "side"]) == row.fates
    assert Counter(name for name, _ in RAN) == row.runs()
    assert await told(bench, resumed) == ""


@pytest.mark.req("DM-9", "FL-10")
async def test_a_checkpoint_of_a_newer_version_is_refused_by_name_and_nothing_runs(bench: Bench) -> None:
    row = CASES["the checkpoint was written by a newer version"]
    run_id = await failed(bench, row, row.broken)
    checkpoint = await bench.client.latest_checkpoint(run_id)
    checkpoint.version = "99.0"
    with pytest.raises(InvalidCheckpointError) as refused:
        await bench.client.resume(checkpoint)

    assert [words for words in row.told if words not in str(refused.value)] == []
    assert RAN == []
    assert await bench.client.resume(run_id) == f"{run_id}~2", "nothing has taken its place"


@pytest.mark.req("EX-7", "FL-11", "FL-10")
async def test_a_connection_that_is_gone_fails_its_node_by_name_and_a_resume_runs_that_node_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = CASES["a connection is gone from the worker, and comes back"]
    await bench.worker([Work])
    run_id = await bench.start(row.flow)
    with pytest.raises(FlowFailedError) as caught:
        await bench.client.result(run_id)
    plan = await bench.client.travel.plan(run_id)
    checkpoint = await bench.client.latest_checkpoint(run_id)
    RAN.clear()
    with Guarded("sk-scribe") as service:
        monkeypatch.setenv("HOLDFAST_CONNECTION_SCRIBE_BASE_URL", service.url)
        monkeypatch.setenv("HOLDFAST_CONNECTION_SCRIBE_API_KEY", "sk-scribe")
        await bench.client.result(await bench.client.resume(run_id))

    assert [words for words in row.told if words not in str(caught.value)] == []
    assert planned(plan, checkpoint, ["a", "ask"]) == row.fates
    assert service.shown == ["sk-scribe"]
    assert RAN == []
