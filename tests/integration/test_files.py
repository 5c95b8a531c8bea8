"""Agents' files in all three stores, on the real server and a real S3. Models are scripted, tools are functions."""

import asyncio
import hashlib
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast import Agent, CheckpointStore, Flow, FlowFailedError, Node, Python, SubFlow, read_file, tool
from holdfast.checkpoints.models import FlowCheckpoint
from holdfast.codecs.blobs import StoreRefusedError
from holdfast.contracts import names
from holdfast.file_stores import FileStores
from holdfast.flows.files import FileStoreParams
from holdfast.flows.spec import Dependency, FlowSpec
from holdfast.starter.bundle_files import InvalidExportError
from holdfast.starter.bundles import write_bundle
from holdfast.starter.moving import export, import_bundle, import_file
from tests.integration.conftest import Bench
from tests.integration.test_agents import calls, scripted
from tests.servers.s3 import S3Server

MEGABYTE = 10**6
STORES: dict[str, dict[str, Any]] = {
    "memory": {"type": "memory"},
    "local": {"type": "local", "path": "agents/clerk"},
    "s3": {"type": "s3", "connection": "papers", "prefix": "clerk"},
}
OUTSIDE = [name for name in STORES if name != "memory"]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Generator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3"), "papers") as server:
        yield server


@pytest.fixture(autouse=True)
def surroundings(s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("HOLDFAST_FILES", str(tmp_path / "files"))
    monkeypatch.setenv("HOLDFAST_CONNECTION_PAPERS_BASE_URL", s3.url("agents"))
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def stores(s3: S3Server, tmp_path: Path) -> FileStores:
    """As a worker has them."""

    async def address(name: str) -> str:
        return s3.url("agents")

    return FileStores(tmp_path / "files", address)


def blob(size: int) -> bytes:
    """Bytes that no compression makes small, the same every time."""
    block = b"".join(hashlib.sha256(number.to_bytes(4)).digest() for number in range(2**15))
    return (block * (size // len(block) + 1))[:size]


@tool
def draw(size: int) -> dict[str, Any]:
    """Draws a picture of so many bytes."""
    return {"content": "drawn", "files": {"pictures/big.bin": {"data": blob(size), "media_type": "image/x-mine"}}}


def measure(input_data: Mapping[str, Any]) -> str:
    return hashlib.sha256(read_file(input_data["clerk"]["output"]["files"]["pictures/big.bin"])).hexdigest()


def write(path: str, content: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "write_file", {"path": path, "content": content, **more}


def read(path: str) -> tuple[str, dict[str, Any]]:
    return "read_file", {"path": path}


def clerk(store: Mapping[str, Any], *replies: Any, nodes: tuple[Any, ...] = (), **fields: Any) -> FlowSpec:
    agent = Agent(id="clerk", llm=scripted(*replies), file_store=dict(store), ask_before="never", **fields)
    flow = Flow(id="files", nodes=[agent, *nodes]).spec()
    flow.checkpoint.checkpoint_mid_agent_loop = True
    return flow


def state_of(checkpoint: FlowCheckpoint) -> dict[str, Any]:
    return checkpoint.node_states["clerk"].internal_state


def reference(checkpoint: FlowCheckpoint, path: str) -> dict[str, Any]:
    state = state_of(checkpoint)
    return {**state["file_store"][path], "store": state["files_of"]["store"]}


async def stored(entry: dict[str, Any]) -> bytes:
    return await asyncio.to_thread(read_file, entry)


def essence(registry: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Without what differs between a run and a fork of it: when, and under which prefix."""
    return {
        path: {name: value for name, value in entry.items() if name not in ("key", "written_at")}
        for path, entry in registry.items()
    }


async def told(bench: Bench, run_id: str) -> list[str]:
    messages = state_of(await bench.client.latest_checkpoint(run_id))["prompt_messages"]
    return [message["content"] for message in messages if message["role"] == "tool"]


@pytest.mark.req("FS-1", "AG-5")
@pytest.mark.parametrize("store", STORES)
async def test_an_agent_writes_reads_lists_and_searches(store: str, bench: Bench) -> None:
    await bench.worker()
    flow = clerk(
        STORES[store],
        calls(write("n/sea.md", "The sea.\n"), write("n/sea.md", "It is wide.\n", append=True), write("b.txt", "x")),
        calls(read("n/sea.md"), ("list_files", {}), ("search_files", {"text": "WIDE", "glob": "*.md"})),
        calls(read("no.md"), write("../up", "x"), write("/etc/x", "x"), write("a\\b", "x")),
        "done",
    )
    run_id = await bench.start(flow, {"input": "go"})
    result = await bench.client.result(run_id)
    latest = await bench.client.latest_checkpoint(run_id)
    observed = await told(bench, run_id)

    assert observed[3:6] == [
        "The sea.\nIt is wide.\n",
        "b.txt (text/plain, 1 bytes)\nn/sea.md (text/markdown, 21 bytes)",
        "n/sea.md:2: It is wide.",
    ]
    assert all(observation.startswith("Error: ") for observation in observed[6:])
    assert state_of(latest)["files_of"] == {"run": run_id, "store": STORES[store]}
    files = result.output["clerk"]["output"]["files"]
    assert {path: await stored(entry) for path, entry in files.items()} == {
        "n/sea.md": b"The sea.\nIt is wide.\n", "b.txt": b"x",
    }  # fmt: skip
    scheduled = [
        event.activity_task_scheduled_event_attributes.activity_type.name
        async for event in bench.client.temporal.get_workflow_handle(run_id).fetch_history_events()
        if event.HasField("activity_task_scheduled_event_attributes")
    ]
    assert scheduled.count(names.USE_FILES) == 10


@pytest.mark.req("FS-4", "FS-3", "FS-1")
@pytest.mark.parametrize("store", STORES)
async def test_a_file_of_a_megabyte_comes_with_the_input_and_back(store: str, bench: Bench) -> None:
    await bench.worker()
    data = blob(MEGABYTE)
    flow = clerk(STORES[store], calls(("list_files", {}), read("in/data.bin")), "done")
    given = {"input": "go", "files": [{"name": "in/data.bin", "data": data, "media_type": "application/x-mine"}, b"2"]}
    run_id = await bench.start(flow, given)
    await bench.client.result(run_id)
    latest = await bench.client.latest_checkpoint(run_id)
    observed = await told(bench, run_id)

    assert await stored(reference(latest, "in/data.bin")) == data
    assert await stored(reference(latest, "file-2")) == b"2"
    assert observed[0] == "file-2 (text/plain, 1 bytes)\nin/data.bin (application/x-mine, 1000000 bytes)"
    assert "cannot be shown" in observed[1]
    assert "in/data.bin (application/x-mine, 1000000 bytes)" in state_of(latest)["prompt_messages"][0]["content"]
    assert state_of(latest)["input_files"][0] == {
        "name": "in/data.bin", "media_type": "application/x-mine", "size": MEGABYTE,
    }  # fmt: skip


@pytest.mark.req("FS-4", "FS-1")
@pytest.mark.parametrize("store", OUTSIDE)
async def test_a_deleted_run_takes_its_files_along(store: str, bench: Bench) -> None:
    await bench.worker()
    flow = clerk(STORES[store], calls(write("a.txt", "one")), "done")
    run_id = await bench.start(flow, {"input": "go"})
    result = await bench.client.result(run_id)
    entry = result.output["clerk"]["output"]["files"]["a.txt"]
    before = await stored(entry)
    await CheckpointStore(bench.client).delete(run_id)

    assert before == b"one"
    with pytest.raises(Exception, match="is gone"):
        await stored(entry)


@pytest.mark.req("FS-4", "FS-3", "FS-1")
async def test_an_input_file_of_64_megabytes_is_kept_and_comes_back(bench: Bench) -> None:
    await bench.worker()
    data = blob(64 * MEGABYTE)
    flow = clerk(STORES["s3"], "done")
    run_id = await bench.start(flow, {"input": "go", "files": [{"name": "big.bin", "data": data}]})
    await bench.client.result(run_id)
    described = await bench.client.temporal.get_workflow_handle(run_id).describe()

    assert await stored(reference(await bench.client.latest_checkpoint(run_id), "big.bin")) == data
    assert described.raw_description.workflow_execution_info.history_size_bytes < 100_000


@pytest.mark.req("FS-4", "FS-1")
@pytest.mark.parametrize("store", OUTSIDE)
async def test_a_tool_gives_64_megabytes_that_no_history_sees(store: str, bench: Bench) -> None:
    await bench.worker()
    size = 64 * MEGABYTE
    after = Python(id="measure", function=measure, depends=["clerk"])
    flow = clerk(STORES[store], calls(("draw", {"size": size})), "done", tools=[draw], nodes=(after,))
    run_id = await bench.start(flow, {"input": "go"})
    result = await bench.client.result(run_id)
    described = await bench.client.temporal.get_workflow_handle(run_id).describe()
    entry = result.output["clerk"]["output"]["files"]["pictures/big.bin"]

    assert result.output["measure"]["output"] == hashlib.sha256(blob(size)).hexdigest() == entry["sha256"]
    assert (entry["size"], entry["media_type"], entry["by"]) == (size, "image/x-mine", "draw")
    assert await told(bench, run_id) == ["drawn\nFiles: pictures/big.bin"]
    assert described.raw_description.workflow_execution_info.history_size_bytes < 100_000


@pytest.mark.req("FS-1", "AG-1")
@pytest.mark.parametrize("store", STORES)
async def test_from_every_checkpoint_a_fork_has_the_same_files_and_they_are_its_own(
    store: str, bench: Bench, stores: FileStores
) -> None:
    await bench.worker()
    flow = clerk(
        STORES[store],
        calls(write("a.txt", "one")),
        calls(write("a.txt", "two"), ("draw", {"size": 100})),
        calls(read("a.txt")),
        "done",
        tools=[draw],
    )
    run_id = await bench.start(flow, {"input": "go", "files": [{"name": "in.txt", "data": b"in"}]})
    await bench.client.result(run_id)
    last = await bench.client.latest_checkpoint(run_id)
    # Not from the last two: there the agent has ended, and is not run again.
    transitions = [entry.seq for entry in await bench.client.transitions(run_id)][1:-2]
    forks = {seq: await bench.client.fork(f"{run_id}@{seq}") for seq in transitions[::3]}
    for fork in forks.values():
        await bench.client.result(fork)
    await stores.delete_run(flow, bench.client.temporal.namespace, run_id)

    for seq, fork in forks.items():
        latest = await bench.client.latest_checkpoint(fork)
        registry = state_of(latest)["file_store"]
        assert essence(registry) == essence(state_of(last)["file_store"]), f"from {seq}"
        assert state_of(latest)["files_of"]["run"] == fork
        contents = {path: await stored(reference(latest, path)) for path in registry}
        assert contents == {"in.txt": b"in", "a.txt": b"two", "pictures/big.bin": blob(100)}, f"from {seq}"
        assert await told(bench, fork) == await told(bench, run_id)


def look_at(input_data: Mapping[str, Any]) -> dict[str, str]:
    files = {**input_data["painter"]["output"]["files"], **input_data["clerk"]["output"]["files"]}
    return {path: hashlib.sha256(read_file(entry)).hexdigest() for path, entry in files.items()}


def fail(input_data: Mapping[str, Any]) -> None:
    raise ValueError("not now")


async def objects(stores: FileStores, store: str, *run_ids: str) -> list[str]:
    """What is in a store, of these runs and of notes about them."""
    blobs = await stores.open(FileStoreParams.model_validate(STORES[store]))
    return [blob.name async for blob in blobs.find("") if any(run_id in blob.name for run_id in run_ids)]


@pytest.mark.req("FS-1", "FL-9")
@pytest.mark.parametrize("order", ["oldest first", "newest first", "side by side", "all at once"])
@pytest.mark.parametrize("store", OUTSIDE)
async def test_what_a_run_has_written_stays_as_long_as_one_of_its_family_is_there(
    store: str, order: str, bench: Bench, stores: FileStores
) -> None:
    await bench.worker()
    broken = Python(id="send", function=f"{__name__}:fail").depends_on("clerk")
    mended = Python(id="send", function=f"{__name__}:measure").depends_on("clerk")
    replies = [calls(("draw", {"size": 100})), "done"]
    flow = clerk(STORES[store], *replies, nodes=(broken,), tools=[draw])
    flow.id = f"files-{bench.task_queue}"
    with pytest.raises(FlowFailedError) as failed:
        await bench.run(flow, {"input": "go"})
    first, after = failed.value.run_id, CheckpointStore(bench.client)
    second = await bench.client.resume(first)
    with pytest.raises(FlowFailedError):
        await bench.client.result(second)
    other = clerk(STORES[store], *replies, nodes=(mended,), tools=[draw])
    other.id = flow.id
    third = await bench.client.resume(second, flow=other)
    result = await bench.client.result(third)
    family = [first, second, third]
    ended = f"HoldfastFlow = '{flow.id}' AND ExecutionStatus != 'Running'"
    while (await bench.client.temporal.count_workflows(ended)).count < len(family):
        await asyncio.sleep(0.05)
    entry = result.output["clerk"]["output"]["files"]["pictures/big.bin"]
    readable: list[bool] = []
    if order == "all at once":
        await after.cleanup(flow.id, 0)
    elif order == "side by side":
        await asyncio.gather(*(after.delete(run_id) for run_id in family))
    else:
        for run_id in family if order == "oldest first" else reversed(family):
            await after.delete(run_id)
            if run_id != (third if order == "oldest first" else first):
                readable.append(await stored(entry) == blob(100))

    assert result.output["send"]["output"] == hashlib.sha256(blob(100)).hexdigest()
    assert first in entry["key"]
    assert readable == ([True, True] if order.endswith("first") else [])
    assert await objects(stores, store, *family) == []


async def has_ended(bench: Bench, *run_ids: str) -> None:
    """As the listings have it, by which relatives are found."""
    for run_id in run_ids:
        ended = f"WorkflowId = '{run_id}' AND ExecutionStatus = 'Completed'"
        while not (await bench.client.temporal.count_workflows(ended)).count:
            await asyncio.sleep(0.05)


@pytest.mark.req("FS-1", "FL-9")
@pytest.mark.parametrize("store", OUTSIDE)
async def test_a_run_that_was_deleted_and_is_there_again_is_one_of_its_family(
    store: str, bench: Bench, stores: FileStores
) -> None:
    await bench.worker()
    after = CheckpointStore(bench.client)
    flow = clerk(STORES[store], calls(write("a.txt", "one")), "done")
    flow.id = f"files-{bench.task_queue}"
    first = await bench.start(flow, {"input": "go"})
    await bench.client.result(first)
    bundle = await export(bench.client, first, files=False)

    async def imported() -> tuple[str, dict[str, Any]]:
        new = (await import_bundle(bench.client, bundle, paused=False)).run_id
        result = await bench.client.result(new)
        await has_ended(bench, first, new)
        return new, result.output["clerk"]["output"]["files"]["a.txt"]

    once, _ = await imported()
    await after.delete(once)
    while await after.load(once) is not None:
        await asyncio.sleep(0.05)
    again, entry = await imported()
    await after.delete(first)
    readable = await stored(entry)
    await after.delete(again)

    assert again == once
    assert readable == b"one"
    assert await objects(stores, store, first, again) == []


@pytest.mark.req("FS-1", "FL-9")
async def test_a_fork_of_a_flow_inside_a_run_is_of_that_runs_family(bench: Bench, stores: FileStores) -> None:
    await bench.worker()
    inner = clerk(STORES["local"], calls(write("a.txt", "one")), "done")
    flow = Flow(id="outer", nodes=[SubFlow(id="sub", flow=inner)]).spec()
    first = await bench.start(flow, {"input": "go"})
    await bench.client.result(first)
    again = await bench.client.rerun(first, "sub")
    await bench.client.result(again)
    forks = [await bench.client.fork(f"{run_id}/sub") for run_id in (first, again)]
    results = [await bench.client.result(fork) for fork in forks]
    await has_ended(bench, first, again, *forks)
    after = CheckpointStore(bench.client)
    await after.delete(first)
    await after.delete(again)
    entries = [result.output["clerk"]["output"]["files"]["a.txt"] for result in results]
    readable = [await stored(entry) for entry in entries]
    tree = [member.run_id for member in await bench.client.tree(forks[0])]
    for fork in forks:
        await after.delete(fork)

    assert readable == [b"one", b"one"]
    assert sorted(tree) == sorted(forks)
    assert await objects(stores, "local", first, again, *forks) == []


@pytest.mark.req("FS-1", "DM-10")
async def test_an_import_without_files_is_of_the_family_that_has_them(bench: Bench, stores: FileStores) -> None:
    await bench.worker()
    first = await bench.start(clerk(STORES["local"], calls(write("a.txt", "one")), "done"), {"input": "go"})
    await bench.client.result(first)
    fork = await bench.client.fork(first)
    await bench.client.result(fork)
    bundle = await export(bench.client, fork, files=False)
    await has_ended(bench, first, fork)
    after = CheckpointStore(bench.client)
    await after.delete(fork)
    while await after.load(fork) is not None:
        await asyncio.sleep(0.05)
    new = (await import_bundle(bench.client, bundle, paused=False)).run_id
    result = await bench.client.result(new)
    await has_ended(bench, new)
    await after.delete(first)
    readable = await stored(result.output["clerk"]["output"]["files"]["a.txt"])
    await after.delete(new)

    assert readable == b"one"
    assert await objects(stores, "local", first, fork, new) == []


class Own(Node):
    """Somebody's own, which has fields of the same names as an agent."""

    llm: str
    file_store: dict[str, Any]

    def execute(self, input_data: Any, **kwargs: Any) -> None: ...


async def test_a_node_that_only_looks_like_an_agent_does_not_keep_its_run_from_going(bench: Bench) -> None:
    await bench.worker([Own])
    run_id = await bench.start("id: own\nnodes:\n  a: {type: Own, llm: mine, file_store: {type: tape, shelf: 7}}")
    await bench.client.result(run_id)

    assert await CheckpointStore(bench.client).delete(run_id)


@pytest.mark.req("FS-1", "DM-10")
@pytest.mark.parametrize("store", OUTSIDE)
async def test_an_export_has_the_files_that_its_store_would_keep_to_itself(
    store: str, bench: Bench, stores: FileStores, tmp_path: Path
) -> None:
    await bench.worker()
    painter = Agent(
        id="painter",
        llm=scripted(calls(("draw", {"size": MEGABYTE * 2})), "drawn"),
        tools=[draw],
        file_store=STORES[store],
    )
    seen = Python(id="seen", function=f"{__name__}:look_at").depends_on("painter", "clerk")
    replies = [calls(write("a.txt", "one")), calls(write("b.txt", "two")), calls(read("a.txt"), read("b.txt")), "done"]
    flow = clerk(STORES[store], *replies, nodes=(painter, seen))
    flow.node("clerk").depends.append(Dependency(node="painter"))
    run_id = await bench.start(flow, {"input": "go"})
    whole = await bench.client.result(run_id)
    (loop,) = [
        entry
        for entry in await bench.client.list_checkpoints(run_id)
        if entry.event == "loop_completed" and entry.node_id == "clerk" and entry.detail["loop"] == 1
    ]
    bundle = await export(bench.client, loop.id)
    bare = await export(bench.client, loop.id, files=False)
    write_bundle(bundle, tmp_path / "run.json", blobs=tmp_path / "large")
    await stores.delete_run(flow, bench.client.temporal.namespace, run_id)
    with pytest.raises(InvalidExportError, match=r"\[export/files\] the file .*big.bin.* cannot be read .*--no-files"):
        await export(bench.client, loop.id)
    new, _ = await import_file(bench.client, tmp_path / "run.json", paused=False)
    result = await bench.client.result(new.run_id)
    latest = await bench.client.latest_checkpoint(new.run_id)

    assert result.output["seen"]["output"] == whole.output["seen"]["output"]
    assert await told(bench, new.run_id) == await told(bench, run_id)
    # What is left to be written is in the store of where it is now.
    assert state_of(latest)["files_of"] == {"run": new.run_id, "store": STORES[store]}
    assert await stored(reference(latest, "a.txt")) == b"one"
    assert "data" not in state_of(latest)["file_store"]["a.txt"]
    assert bare.checkpoint.node_states["painter"].output_data["files"]["pictures/big.bin"]["store"] == STORES[store]


@pytest.mark.req("FS-1")
@pytest.mark.parametrize("store", OUTSIDE)
async def test_a_file_that_is_gone_stops_the_agent_until_it_is_put_back(
    store: str, bench: Bench, stores: FileStores
) -> None:
    await bench.worker()
    flow = clerk(STORES[store], calls(write("a.txt", "one"), write("b.txt", "two")), calls(read("a.txt")), "done")
    run_id = await bench.start(flow, {"input": "go"})
    await bench.client.result(run_id)
    (loop,) = [
        entry
        for entry in await bench.client.list_checkpoints(run_id)
        if entry.event == "loop_completed" and entry.detail["loop"] == 1
    ]
    entry = state_of(await bench.client.get_checkpoint(loop.id))["file_store"]["a.txt"]
    blobs = await stores.open(FileStoreParams.model_validate(STORES[store]))
    await blobs.delete([entry["key"]])
    with pytest.raises(FlowFailedError) as gone:
        await bench.client.result(await bench.client.fork(loop.id))
    failed = await bench.client.latest_checkpoint(gone.value.run_id)
    await blobs.put(entry["key"], b"other")
    with pytest.raises(FlowFailedError, match=r"'a.txt' has been changed in the store"):
        await bench.client.result(await bench.client.fork(loop.id))
    await blobs.delete([entry["key"]])
    await blobs.put(entry["key"], b"one")
    resumed = await bench.client.resume(gone.value.run_id)
    result = await bench.client.result(resumed)

    assert "[files/lost] 1 of the checkpoint's files cannot be taken over" in str(gone.value)
    assert "'a.txt' is gone" in str(gone.value)
    assert "b.txt" not in str(gone.value)
    # The model was not asked again in between.
    assert state_of(failed)["current_loop"] == 1
    assert result.output["clerk"]["output"]["content"] == "done"
    assert (await told(bench, resumed))[2] == "one"


@pytest.mark.req("FS-1")
@pytest.mark.parametrize("store", STORES)
async def test_quotas_hold_for_files_their_number_and_all_of_them(store: str, bench: Bench) -> None:
    await bench.worker()
    limited = {**STORES[store], "max_files": 2, "max_file_bytes": 100, "max_bytes": 150}
    flow = clerk(
        limited,
        calls(write("a", "x" * 101), write("a", "x" * 100), write("b", "x" * 51), write("b", "x"), write("c", "x")),
        calls(("draw", {"size": 80})),
        "done",
        tools=[draw],
    )
    run_id = await bench.start(flow, {"input": "go"})
    await bench.client.result(run_id)
    observed = await told(bench, run_id)

    assert observed[0] == "Error: 'a' would have 101 bytes, and a file may have 100."
    assert observed[2] == "Error: With 'b' all files would have 151 bytes, and 150 are allowed."
    assert observed[4] == "Error: There are 2 files already, and no more than 2 are allowed."
    assert observed[5].startswith("drawn\nThe file 'pictures/big.bin' was not kept. There are 2 files already")
    assert list(state_of(await bench.client.latest_checkpoint(run_id))["file_store"]) == ["a", "b"]


@pytest.mark.req("FS-1")
async def test_a_link_that_leads_out_of_the_store_is_not_followed(bench: Bench, tmp_path: Path) -> None:
    await bench.worker()
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "agents").symlink_to(outside)
    flow = clerk(STORES["local"], calls(write("a", "x")), "done")
    with pytest.raises(FlowFailedError, match="a link leads out of it") as failed:
        await bench.run(flow, {"input": "go"})
    (tmp_path / "files" / "agents").unlink()
    resumed = await bench.client.resume(failed.value.run_id)
    result = await bench.client.result(resumed)

    assert list(outside.iterdir()) == []
    # It went on with the call that had failed.
    assert result.output["clerk"]["output"]["content"] == "done"
    assert await told(bench, resumed) == ["Written: a (text/plain, 1 bytes)"]


@pytest.mark.req("FS-1")
async def test_a_link_in_place_of_an_object_is_not_followed(bench: Bench, tmp_path: Path, stores: FileStores) -> None:
    secret = tmp_path / "secret"
    secret.write_text("x")
    blobs = await stores.open(FileStoreParams.model_validate(STORES["local"]))
    place = tmp_path / "files" / "agents" / "clerk" / "default" / "run"
    place.mkdir(parents=True)
    (place / "object").symlink_to(secret)
    (place.parent / "other").symlink_to(tmp_path)

    with pytest.raises(StoreRefusedError, match="a link leads out of the store"):
        await blobs.get("default/run/object")
    with pytest.raises(StoreRefusedError):
        await blobs.put("default/other/object", b"y")


async def test_wrong_credentials_fail_the_node_and_are_not_shown(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    await bench.worker()
    with pytest.raises(FlowFailedError) as failed:
        await bench.run(clerk(STORES["s3"], calls(write("a", "x")), "done"), {"input": "go"})

    assert "[files/refused]" in str(failed.value)
    assert "wrong-and-secret" not in str(failed.value)


@pytest.mark.req("FS-1", "FS-2")
async def test_a_store_that_is_away_is_waited_for(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with S3Server(tmp_path / "away", "papers") as server:
        monkeypatch.setenv("HOLDFAST_CONNECTION_PAPERS_BASE_URL", server.url())
        await bench.worker()
        server.kill()
        run_id = await bench.start(clerk(STORES["s3"], calls(write("a", "x")), "done"), {"input": "go"})
        while not any(pending.last_failure for pending in (await bench.client.get_run(run_id)).pending):
            await asyncio.sleep(0.2)
        server.start()
        await bench.client.result(run_id)

    assert await told(bench, run_id) == ["Written: a (text/plain, 1 bytes)"]


@pytest.mark.req("FS-4")
async def test_what_a_sub_agent_wrote_is_copied_into_the_store_of_the_agent_above(bench: Bench) -> None:
    await bench.worker()
    helper = Agent(
        id="helper",
        llm=scripted(calls(write("note.txt", "from inside")), "written"),
        file_store=STORES["local"],
        ask_before="never",
    )
    flow = clerk(STORES["s3"], calls(("helper", {"input": "x"})), calls(read("note.txt")), "done", tools=[helper])
    run_id = await bench.start(flow, {"input": "go"})
    await bench.client.result(run_id)
    entry = state_of(await bench.client.latest_checkpoint(run_id))["file_store"]["note.txt"]

    assert await told(bench, run_id) == ["written\nFiles: note.txt", "from inside"]
    assert entry["by"] == "helper"


@pytest.mark.req("FS-1")
async def test_with_another_store_in_the_changed_flow_the_files_move_there(bench: Bench) -> None:
    await bench.worker()
    replies = [calls(write("a.txt", "one")), calls(read("a.txt")), "done"]
    run_id = await bench.start(clerk(STORES["memory"], *replies), {"input": "go"})
    await bench.client.result(run_id)
    (loop,) = [
        entry
        for entry in await bench.client.list_checkpoints(run_id)
        if entry.event == "loop_completed" and entry.detail["loop"] == 1
    ]
    fork = await bench.client.fork(loop.id, flow=clerk(STORES["s3"], *replies))
    await bench.client.result(fork)
    latest = await bench.client.latest_checkpoint(fork)

    assert state_of(latest)["files_of"] == {"run": fork, "store": STORES["s3"]}
    assert "data" not in state_of(latest)["file_store"]["a.txt"]
    assert await stored(reference(latest, "a.txt")) == b"one"


@pytest.mark.req("FS-3", "FS-4")
async def test_a_large_file_of_the_input_goes_through_the_payloads_own_store(bench: Bench) -> None:
    await bench.worker()
    data = blob(8 * MEGABYTE)
    flow = clerk(STORES["s3"], calls(("list_files", {})), "done")
    run_id = await bench.start(flow, {"input": "go", "files": [{"name": "in/big.bin", "data": data}]})
    await bench.client.result(run_id)
    latest = await bench.client.latest_checkpoint(run_id)

    assert await stored(reference(latest, "in/big.bin")) == data
    assert await told(bench, run_id) == ["in/big.bin (application/octet-stream, 8000000 bytes)"]
