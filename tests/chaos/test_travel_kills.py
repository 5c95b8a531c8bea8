"""SIGKILL of `resume`, `fork`, `import`, `export` and `gc` wherever they touch the world: repeated, it is as if once.

Each case has a run of its own. The command dies at one point of those that an undisturbed one passes, the same command
is given again, and what there is then (runs, results, what the nodes did) is compared with what the undisturbed one
left behind.
"""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast import CheckpointStore, FlowFailedError, HoldfastClient, RunConfig, read_file
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from holdfast.starter.bundles import read_bundle, write_bundle
from holdfast.starter.errors import RunNotFoundError
from holdfast.starter.families import Member
from holdfast.starter.moving import export
from tests.chaos.harness import Stage, WorkerProcess, connected, until
from tests.chaos.killed_command import Commands
from tests.chaos.test_server_kills import Server

# Fails inside a flow inside it, while the gate is shut: a resume finds something done on both levels.
GATED = """
id: gated
nodes:
  a: {type: Work, seconds: 0}
  sub:
    type: flow
    depends: a
    flow:
      id: inner
      nodes:
        x: {type: Work, seconds: 0}
        gate:
          type: python
          depends: x
          code: |
            import os
            def run(input_data):
                if os.path.exists(os.environ["CHAOS_CONTROL"] + "/shut"):
                    raise ValueError("the gate is shut")
                return "open"
  c: {type: WorkAsync, seconds: 0, depends: sub}
"""
START = "start_workflow_execution"
STARTED = f"after {START} 1"


class Scene:
    """A worker, a client, the command line, and runs to travel from."""

    def __init__(self, address: str, client: HoldfastClient, stage: Stage, folder: Path) -> None:
        self.client = client
        self.stage = stage
        self.commands = Commands(folder, "--address", address)

    async def failed(self, count: int) -> list[str]:
        """Runs that have failed halfway, and would not fail any more."""
        gate = self.stage.root / "control" / "shut"
        gate.touch()
        # A worker that is killed is missed soon.
        config = RunConfig(heartbeat_seconds=2)
        runs = [await self.client.start(read_flow(GATED), config=config) for _ in range(count)]
        for run in runs:
            with pytest.raises(FlowFailedError, match="the gate is shut"):
                await self.client.result(run)
        gate.unlink()
        return runs

    def travel(self, command: str, run: str, key: str | None = "mine") -> list[str]:
        given = ["--key", key] if key else []
        return [command, run, *given, "--detach", "--task-queue", self.stage.queue]

    async def relatives(self, run: str, count: int) -> list[Member]:
        """The runs that come from this one, once the visibility store has them."""
        found: list[Member] = []

        async def listed() -> bool:
            (root,) = await self.client.tree(run)
            found[:] = root.children
            return len(found) >= count

        await until(listed, f"{count} runs from {run}")
        return found

    async def outcome(self, run: str) -> dict[str, Any]:
        """All that a command has brought about, without what is different from case to case."""
        relatives = await self.relatives(run, 1)
        new = relatives[0].run_id
        result = await self.client.result(new)
        checkpoint = await self.client.latest_checkpoint(new)
        ours = (run, f"{run}/sub", new, f"{new}/sub")
        ran = Counter((entry.event, entry.run, entry.key) for entry in self.stage.entries() if entry.run in ours)
        told: dict[str, Any] = {
            "family": [(entry.run_id, entry.how, entry.children) for entry in relatives],
            "output": result.model_dump(mode="json")["output"],
            "checkpoint": (checkpoint.id, checkpoint.status.value, checkpoint.completed_node_ids),
            "ran": {" ".join(what): count for what, count in ran.items()},
        }
        return json.loads(json.dumps(told).replace(new, "NEW").replace(run, "OLD"))


def ran(*work: str) -> dict[str, int]:
    """That this work (the run and the key) was done once."""
    return {f"{event} {what}": 1 for event in ("started", "finished") for what in work}


@pytest.fixture(scope="module")
def manned(temporal: embedded.Running, tmp_path_factory: pytest.TempPathFactory) -> Generator[Stage]:
    """A stage with a worker that nobody kills, for all tests that kill commands only."""
    stage = Stage(tmp_path_factory.mktemp("travel") / "stage")
    try:
        worker = stage.start_worker(temporal.address)
        asyncio.run(_ready(worker))
        yield stage
    finally:
        stage.close()


async def _ready(worker: WorkerProcess) -> None:
    await worker.ready()


@pytest.fixture
async def scene(temporal: embedded.Running, manned: Stage, tmp_path: Path) -> Scene:
    client = HoldfastClient(await connected(temporal.address), manned.queue)
    return Scene(temporal.address, client, manned, tmp_path / "commands")


def distinct(points: Sequence[str], changing: str) -> list[str]:
    """Those at which the world is different: after a request that only reads it is as before the next one."""
    return [point for point in points if point.startswith("before ") or point.split()[1] == changing]


def around(points: Sequence[str], changing: str) -> list[str]:
    """The first of all, and those before and after what changes something."""
    return [*points[:1], *(point for point in points if point.split()[1] == changing)]


@pytest.mark.req("RT-7", "FL-2")
@pytest.mark.parametrize("command", ["resume", "fork"])
async def test_a_resume_and_a_fork_that_are_killed_and_given_again_have_started_one_run(
    command: str, scene: Scene
) -> None:
    (whole,) = await scene.failed(1)
    once = await scene.commands.run(*scene.travel(command, whole))
    expected = await scene.outcome(whole)
    # A resume at every point; a fork goes the same way up to its start.
    points = distinct(once.points, START) if command == "resume" else around(once.points, START)
    runs = dict(zip(points, await scene.failed(len(points)), strict=True))

    async def case(point: str) -> str:
        arguments = scene.travel(command, runs[point])
        await scene.commands.run(*arguments, kill=point)
        return (await scene.commands.run(*arguments)).output

    said = dict(zip(points, await asyncio.gather(*map(case, points)), strict=True))
    found = {point: await scene.outcome(runs[point]) for point in points}

    assert f"before {START} 1" in points
    assert STARTED in points
    assert [entry[1:] for entry in expected["family"]] == [[command, []]]
    key = "OLD/c" if command == "resume" else "NEW/c"
    assert expected["ran"] == ran("OLD OLD/a", "OLD/sub OLD/sub/x", f"NEW {key}")
    assert found == dict.fromkeys(points, expected)
    for point, words in said.items():
        (new,) = await scene.relatives(runs[point], 1)
        assert f"run {new.run_id}\n" in words
        # Told whenever it was so, and only then.
        assert (f"the same key has started {new.run_id} before" in words) == (point == STARTED), point


@pytest.mark.req("RT-7")
async def test_a_killed_resume_without_a_key_is_not_taken_for_somebody_elses(scene: Scene) -> None:
    early, late = await scene.failed(2)
    await scene.commands.run(*scene.travel("resume", early, key=None), kill=f"before {START} 1")
    await scene.commands.run(*scene.travel("resume", late, key=None), kill=STARTED)
    await scene.commands.run(*scene.travel("resume", early, key=None))
    again = [await scene.commands.run(*scene.travel("resume", run, key=None), code=2) for run in (early, late)]
    other = await scene.commands.run(*scene.travel("resume", late, key="other"), code=2)

    assert [f"as '{run}~2'" in done.errors for run, done in zip((early, late), again, strict=True)] == [True, True]
    assert f"as '{late}~2'" in other.errors
    assert await scene.outcome(early) == await scene.outcome(late)


@pytest.mark.req("DM-10", "FL-2")
async def test_an_import_that_is_killed_and_given_again_is_one_paused_run(scene: Scene) -> None:
    async def file_of(run: str) -> Path:
        path = scene.commands.folder / f"{run}.json"
        write_bundle(await export(scene.client, run), path)
        return path

    async def once(run: str, kill: str | None = None) -> tuple[list[str], str]:
        arguments = ["import", str(await file_of(run)), "--task-queue", scene.stage.queue]
        if kill is not None:
            await scene.commands.run(*arguments, kill=kill)
        done = await scene.commands.run(*arguments)
        return done.points, done.output

    async def held(run: str) -> list[Any]:
        """What is there before somebody lets it go on."""
        relatives = await scene.relatives(run, 1)

        async def paused() -> bool:
            return (await scene.client.get_run(relatives[0].run_id)).status == "paused"

        await until(paused, f"the import of {run} to be paused")
        begun = [entry for entry in scene.stage.entries() if entry.run.startswith(relatives[0].run_id)]
        await scene.client.continue_run(relatives[0].run_id)
        return [len(relatives), relatives[0].how, begun]

    (whole,) = await scene.failed(1)
    points = distinct((await once(whole))[0], START)
    assert await held(whole) == [1, "import", []]
    expected = await scene.outcome(whole)
    runs = dict(zip(points, await scene.failed(len(points)), strict=True))
    said = await asyncio.gather(*(once(runs[point], kill=point) for point in points))
    waiting = {point: await held(runs[point]) for point in points}
    found = {point: await scene.outcome(runs[point]) for point in points}

    assert list(waiting.values()) == [[1, "import", []]] * len(points)
    assert found == dict.fromkeys(points, expected)
    assert expected["ran"] == ran("OLD OLD/a", "OLD/sub OLD/sub/x", "NEW OLD/c")
    told = {point: "(it was imported before)" in words for point, (_, words) in zip(points, said, strict=True)}
    assert [point for point, before in told.items() if before] == [STARTED]


@pytest.mark.req("DM-10")
@pytest.mark.parametrize("old", [None, "what was there before"], ids=["a new file", "over an old one"])
async def test_a_killed_export_leaves_the_old_file_or_the_whole_new_one(old: str | None, scene: Scene) -> None:
    (run,) = await scene.failed(1)
    folder = scene.commands.folder

    def content(path: Path) -> dict[str, Any]:
        return read_bundle(path, namespace="default").model_dump(mode="json", exclude={"exported_at", "checksum"})

    once = await scene.commands.run("export", run, "whole.json")
    written = [point for point in once.points if point.split()[1] in ("open", "fsync", "rename")]
    written.remove("after fsync 1")  # The same as before the renaming.
    points = [once.points[0], *written] if old is None else ["before rename 1", "before fsync 2"]

    async def case(number: int, point: str) -> tuple[str | None, dict[str, Any]]:
        path = folder / str(number) / "export.json"
        path.parent.mkdir()
        if old is not None:
            path.write_text(old)
        await scene.commands.run("export", run, str(path), kill=point)
        left = path.read_text() if path.exists() else None
        if left != old:
            left = "whole" if content(path) == content(folder / "whole.json") else left
        await scene.commands.run("export", run, str(path))
        others = [other.name for other in path.parent.iterdir() if other != path]
        assert all(name.startswith(".holdfast-") for name in others)
        return left, content(path)

    found = await asyncio.gather(*(case(number, point) for number, point in enumerate(points)))
    renamed = points.index("before rename 1")

    assert [left for left, _ in found] == [old] * (renamed + 1) + ["whole"] * (len(points) - renamed - 1)
    assert points[renamed + 1] == "before fsync 2"
    assert [again for _, again in found] == [content(folder / "whole.json")] * len(points)


DELETE = "delete_workflow_execution"
LARGE = """
id: {id}
nodes:
  sub: {{type: flow, flow: {{id: inner, nodes: {{x: {{type: pass}}}}}}}}
  each: {{type: map, inline_limit: 1, batch_size: 2, items: "$.items", node: {{id: i, type: Work, seconds: 0}}}}
"""


class Heap:
    """What a clean-up finds: of one flow a run with two others inside it, a small one, and one that is open."""

    def __init__(self, scene: Scene, flow_id: str) -> None:
        self.flow_id = flow_id
        self._client = scene.client

    async def fill(self) -> "Heap":
        small, asking = "a: {type: pass}", "a: {type: human, prompt: Well}"
        self._open = await self._start(f"id: {self.flow_id}\nnodes:\n  {asking}")
        self._small = await self._start(f"id: {self.flow_id}\nnodes:\n  {small}")
        self._other = await self._start(f"id: {self.flow_id}-other\nnodes:\n  {small}")
        self._large = await self._start(LARGE.format(id=self.flow_id), {"items": [1, 2]})
        for run in (self._small, self._large, self._other):
            await self._client.result(run)
        await self.listed([1, 1, 3, 1])
        return self

    async def _start(self, flow: str, given: Any = None) -> str:
        return await self._client.start(read_flow(flow), given)

    async def _count(self, run: str) -> int:
        # Whatever has this run in its name: what is inside a run is found here also when the run is not.
        query = f"WorkflowId = '{run}' OR WorkflowId STARTS_WITH '{run}/'"
        return (await self._client.temporal.count_workflows(query)).count

    async def listed(self, expected: list[int]) -> None:
        """Waits until the visibility store has so many executions of each run."""

        async def are() -> bool:
            return [await self._count(run) for run in (self._open, self._small, self._large, self._other)] == expected

        await until(are, f"{expected} executions of {self.flow_id}")

    @property
    def command(self) -> list[str]:
        return ["gc", "--flow", self.flow_id, "--keep", "0"]

    async def left(self) -> list[Any]:
        """What is there afterwards, when the visibility store has caught up, and by the histories themselves."""
        await self.listed([1, 0, 0, 1])
        inside = [self._large, f"{self._large}/sub", f"{self._large}/each[0-1]"]
        there = [name for name in [self._small, *inside] if await self._exists(name)]
        kept = [(await self._client.get_run(run)).status.value for run in (self._open, self._other)]
        return [there, kept]

    async def _exists(self, run: str) -> bool:
        try:
            await self._client.get_run(run)
        except RunNotFoundError:
            return False
        return True

    async def close(self) -> None:
        await self._client.cancel(self._open)


LEFT = [[], ["pending_input", "completed"]]


async def test_a_clean_up_that_is_killed_and_given_again_leaves_nothing_behind_and_takes_nothing_else(
    scene: Scene,
) -> None:
    name = scene.stage.queue
    whole = await Heap(scene, f"{name}-whole").fill()
    once = await scene.commands.run(*whole.command)
    # What is before a deletion is after the one before it.
    points = [point for point in around(once.points, DELETE) if point.split()[0] == "after" or point.endswith(" 1")]
    heaps = await asyncio.gather(*(Heap(scene, f"{name}-{number}").fill() for number in range(len(points))))

    async def case(heap: Heap, point: str) -> None:
        await scene.commands.run(*heap.command, kill=point)
        await scene.commands.run(*heap.command)

    await asyncio.gather(*map(case, heaps, points))
    found = {point: await heap.left() for heap, point in zip(heaps, points, strict=True)}
    orphans = (await CheckpointStore(scene.client).collect(dry_run=True)).orphans
    again = await scene.commands.run(*whole.command)

    assert points[1:] == [f"before {DELETE} 1", *(f"after {DELETE} {number}" for number in (1, 2, 3, 4))]
    assert await whole.left() == LEFT
    assert found == dict.fromkeys(points, LEFT)
    assert [orphan for orphan in orphans if name in orphan] == []
    assert again.output == "0 runs and 0 orphans (0 executions) deleted; 1 have not ended and stay\n"
    for heap in (whole, *heaps):
        await heap.close()


FILED = read_flow("""
id: filed
nodes:
  clerk:
    type: agent
    prompt: go
    file_store: {type: local, path: clerk}
    ask_before: never
    llm:
      provider: scripted
      model: m
      replies: [{tool_calls: [{name: write_file, arguments: {path: a.txt, content: one}}]}, done]
""")


def _at_each_end(points: Sequence[str], changing: str) -> list[str]:
    found = [point for point in points if point.split()[1] == changing]
    return [*found[:1], *found[-1:]]


@pytest.mark.req("FS-1", "FL-9")
async def test_a_deletion_that_is_killed_and_given_again_takes_files_only_when_nobody_is_left_to_read_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = scene.stage.root / "home" / "files"
    monkeypatch.setenv("HOLDFAST_FILES", str(files))

    async def family() -> tuple[str, str, dict[str, Any]]:
        """A run, one that was forked from it and has its output, and the file that both refer to."""
        run = await scene.client.start(FILED)
        await scene.client.result(run)
        fork = await scene.client.fork(run)
        result = await scene.client.result(fork)
        await scene.relatives(run, 1)
        return run, fork, result.output["clerk"]["output"]["files"]["a.txt"]

    def left_of(*runs: str) -> list[str]:
        return [str(path) for path in files.rglob("*") if path.is_file() and any(run in str(path) for run in runs)]

    run, fork, _ = await family()
    passed = [await scene.commands.run("delete", name) for name in (run, fork)]
    points = [_at_each_end(done.points, "fsync") + _at_each_end(done.points, DELETE) for done in passed]
    readable: list[bytes] = []

    async def case(first: str | None, second: str | None) -> list[str]:
        run, fork, entry = await family()
        for name, kill in ((run, first), (fork, second)):
            if kill is not None:
                await scene.commands.run("delete", name, kill=kill)
            # Killed after its last step, it has nothing left to do.
            await scene.commands.run("delete", name, code=None)
            if name == run:
                readable.append(await asyncio.to_thread(read_file, entry))
        return left_of(run, fork)

    cases = [*((point, None) for point in points[0]), *((None, point) for point in points[1])]
    left = await asyncio.gather(*(case(*kills) for kills in cases))

    # Leaving the files to the family is brought to the disk before the run goes.
    assert [point.split()[1] for point in points[0]] == ["fsync", "fsync", DELETE, DELETE]
    assert left_of(run, fork) == []
    assert left == [[]] * len(cases)
    assert readable == [b"one"] * len(cases)


@pytest.mark.req("RT-7", "FL-2")
async def test_a_resumed_run_survives_its_command_and_its_worker(
    temporal: embedded.Running, stage: Stage, tmp_path: Path
) -> None:
    worker = await stage.start_worker(temporal.address).ready()
    client = HoldfastClient(await connected(temporal.address), stage.queue)
    scene = Scene(temporal.address, client, stage, tmp_path / "commands")
    whole, run = await scene.failed(2)
    await scene.commands.run(*scene.travel("resume", whole))
    expected = await scene.outcome(whole)
    new = f"{run}~2"
    stage.hold(new, "c", "started")
    await scene.commands.run(*scene.travel("resume", run), kill=STARTED)
    await until(lambda: bool(stage.entries(new, "c", "started")), "the resumed run to be in its last node")
    worker.kill()
    again = await scene.commands.run(*scene.travel("resume", run))
    stage.release()
    await stage.start_worker(temporal.address).ready()
    found = await scene.outcome(run)

    assert f"the same key has started {new} before" in again.output
    # What was in flight has begun twice, with one key; nothing else has.
    assert found == {**expected, "ran": {**expected["ran"], "started NEW OLD/c": 2}}


@pytest.fixture
async def mortal(stage: Stage, tmp_path: Path) -> AsyncGenerator[tuple[Server, Scene]]:
    """A scene on a server of its own."""
    server = Server(stage)
    server.start()
    try:
        worker = stage.start_worker(server.address)
        await connected(server.address)
        client = await HoldfastClient.connect(server.address, None, stage.queue)
        await worker.ready()
        yield server, Scene(server.address, client, stage, tmp_path / "commands")
    finally:
        stage.close()
        server.stop()


@pytest.mark.req("RT-7", "DM-10", "FL-2")
async def test_commands_are_given_again_to_a_server_that_was_killed_in_between(mortal: tuple[Server, Scene]) -> None:
    server, scene = mortal
    resumed, forked, brought, whole = await scene.failed(4)
    heap, spared = [await Heap(scene, f"{scene.stage.queue}-{number}").fill() for number in range(2)]
    await scene.commands.run("export", brought, "file.json")
    await scene.commands.run(*scene.travel("resume", whole))
    expected = await scene.outcome(whole)
    gone_in = {
        STARTED: [scene.travel("resume", resumed), scene.travel("fork", forked)],
        f"before {START} 1": [["import", "file.json", "--task-queue", scene.stage.queue]],
        f"after {DELETE} 2": [heap.command],
    }
    for point, commands in gone_in.items():
        for command in commands:
            await scene.commands.run(*command, kill=point)
    server.kill()
    server.start()
    await connected(server.address)
    said = [(await scene.commands.run(*command)).output for commands in gone_in.values() for command in commands]
    (imported,) = await scene.relatives(brought, 1)
    await scene.client.continue_run(imported.run_id)
    found = [await scene.outcome(run) for run in (resumed, forked, brought)]

    assert ["the same key has started" in words for words in said] == [True, True, False, False]
    assert found[0] == expected
    assert [outcome["output"] for outcome in found] == [expected["output"]] * 3
    assert [[how for _, how, _ in entry["family"]] for entry in found] == [["resume"], ["fork"], ["import"]]
    assert [set(entry["ran"].values()) for entry in found] == [{1}] * 3
    assert await heap.left() == LEFT
    await spared.listed([1, 1, 3, 1])
