"""The stores outside the checkpoint: where they are, whose their objects are, and how a run's are deleted."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.codecs.blobs import BadStoreError, LocalBlobs, StoreRefusedError, prefix_of
from holdfast.codecs.s3 import S3Blobs
from holdfast.contracts.files import LostFileError, digest
from holdfast.file_stores import BlobFiles, FileStores, files_root, load, stores_of
from holdfast.flows.files import FileStoreParams
from holdfast.flows.spec import FlowSpec
from tests.agents import agent

LOCAL = {"type": "local", "path": "a"}


def stores(root: Path, address: str | None = "s3://bucket/base?endpoint=http://127.0.0.1:9") -> FileStores:
    async def known(name: str) -> str | None:
        return address

    return FileStores(root, known)


def entry(data: bytes, **fields: Any) -> dict[str, Any]:
    return {"size": len(data), "sha256": digest(data), **fields}


@pytest.mark.req("FS-2")
async def test_the_same_write_again_is_the_same_object_and_any_other_is_another(tmp_path: Path) -> None:
    files = BlobFiles(LocalBlobs(tmp_path), "n", "run", "key")
    first = await files.put("a", b"1", digest(b"1"), 0)

    assert await files.put("a", b"1", digest(b"1"), 0) == first
    others = [
        await files.put("a", b"2", digest(b"2"), 0),
        await files.put("b", b"1", digest(b"1"), 0),
        await BlobFiles(LocalBlobs(tmp_path), "n", "run", "later").put("a", b"1", digest(b"1"), 0),
        await BlobFiles(LocalBlobs(tmp_path), "n", "fork", "key").put("a", b"1", digest(b"1"), 0),
    ]
    assert len({first["key"], *(other["key"] for other in others)}) == 5
    assert await files.get("a", entry(b"1", **first)) == b"1"


@pytest.mark.req("FS-1")
async def test_an_object_of_another_run_is_read_only_to_be_taken_over(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    kept = {
        run: entry(b"1", **await BlobFiles(blobs, namespace, run, "k").put("a", b"1", digest(b"1"), 0))
        for namespace, run in [("n", "run"), ("n", "run/inside"), ("n", "running"), ("m", "elsewhere")]
    }
    own = BlobFiles(blobs, "n", "run", "k")
    taking = BlobFiles(blobs, "n", "run", "k", any_run=True)

    assert await own.get("a", kept["run"]) == await own.get("a", kept["run/inside"]) == b"1"
    assert await taking.get("a", kept["running"]) == b"1"
    for files, run in [(own, "running"), (own, "elsewhere"), (taking, "elsewhere")]:
        with pytest.raises(LostFileError, match="not in this run's part"):
            await files.get("a", kept[run])
    with pytest.raises(LostFileError):
        await own.get("a", entry(b"1"))


@pytest.mark.req("FS-1")
async def test_what_is_gone_or_changed_is_said_to_be(tmp_path: Path) -> None:
    blobs = LocalBlobs(tmp_path)
    await blobs.put("n/r/x", b"1")

    with pytest.raises(LostFileError, match="'a' is gone"):
        await load(blobs, "a", entry(b"1", key="n/r/y"))
    with pytest.raises(LostFileError, match="'a' has been changed"):
        await load(blobs, "a", entry(b"2", key="n/r/x"))


async def test_a_bucket_is_found_by_name_or_by_connection(tmp_path: Path) -> None:
    known = stores(tmp_path)
    by_name = await known.open(FileStoreParams(type="s3", bucket="other", prefix="a/b"))
    by_connection = await known.open(FileStoreParams(type="s3", connection="papers", prefix="in side"))
    without = await known.open(FileStoreParams(type="s3", connection="papers"))

    assert isinstance(by_name, S3Blobs)
    assert await known.open(FileStoreParams(type="s3", connection="papers")) is without
    shown = [str(getattr(store, "_settings")) for store in (by_name, by_connection, without)]  # noqa: B009
    assert shown == [
        "s3://other/a/b/files at Amazon S3",
        "s3://bucket/base/in side/files at http://127.0.0.1:9",
        "s3://bucket/base/files at http://127.0.0.1:9",
    ]


@pytest.mark.parametrize("address", [None, "https://example.org", "file:///tmp"])
async def test_a_connection_that_is_no_bucket_is_refused(address: str | None, tmp_path: Path) -> None:
    with pytest.raises(BadStoreError, match="'papers' is no bucket"):
        await stores(tmp_path, address).open(FileStoreParams(type="s3", connection="papers"))


@pytest.mark.req("FS-1")
async def test_a_local_store_does_not_leave_its_root(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "a").symlink_to(tmp_path)
    (tmp_path / "root" / "b").mkdir()
    (tmp_path / "root" / "inside").symlink_to(tmp_path / "root" / "b")

    with pytest.raises(StoreRefusedError, match="a link leads out of it"):
        await stores(tmp_path / "root").open(FileStoreParams(type="local", path="a"))
    inside = await stores(tmp_path / "root").open(FileStoreParams(type="local", path="inside"))
    await inside.put("n/r/x", b"1")
    assert (tmp_path / "root" / "b" / "n" / "r" / "x").read_bytes() == b"1"


def test_all_stores_of_a_flow_are_found_each_once() -> None:
    inner = agent(node_id="inner", file_store={"type": "s3", "bucket": "bb"})
    mapped = {"id": "m", "type": "map", "params": {"node": agent(file_store={**LOCAL, "max_files": 3})}}
    flow = FlowSpec.model_validate(
        {
            "id": "f",
            "nodes": [agent(inner, file_store=LOCAL), mapped, agent(node_id="b", file_store={"type": "memory"})],
        }
    )

    assert [params.type for params in stores_of(flow)] == ["local", "s3"]


async def test_a_runs_objects_are_deleted_and_no_others(tmp_path: Path) -> None:
    known = stores(tmp_path)
    flow = FlowSpec.model_validate({"id": "f", "nodes": [agent(file_store=LOCAL)]})
    blobs = await known.open(FileStoreParams.model_validate(LOCAL))
    for run in ("run", "run/inside", "run~2"):
        await blobs.put(f"{prefix_of('n', run)}/x", b"1")

    assert await known.delete_run(flow, "n", "run") == 1
    assert await known.delete_run(flow, "n", "run") == 0
    assert [blob.name async for blob in blobs.find("n/")] == ["n/run%2Finside/x", "n/run~2/x"]


async def test_what_is_left_to_a_family_goes_with_its_last_member(tmp_path: Path) -> None:
    known = stores(tmp_path)
    flow = FlowSpec.model_validate({"id": "f", "nodes": [agent(file_store=LOCAL)]})
    blobs = await known.open(FileStoreParams.model_validate(LOCAL))
    for run in ("run", "run/inside", "run~2", "stranger"):
        await blobs.put(f"{prefix_of('n', run)}/x", b"1")
    for run in ("run", "run/inside", "run"):
        assert await known.leave_to("run", flow, "n", run, "1", {"run~2": "2"})

    # Of two who go at the same moment, the second to say so is the last.
    assert not await known.leave_to("run", flow, "n", "run/inside", "1", {"run": "1"})
    # Another has its id now.
    assert await known.leave_to("run", flow, "n", "run/inside", "1", {"run": "3"})
    assert await known.delete_left_to("stranger", flow, "n") == 0
    assert await known.delete_left_to("run", flow, "n") == 2
    assert await known.delete_left_to("run", flow, "n") == 0
    assert [blob.name async for blob in blobs.find("")] == ["n/run~2/x", "n/stranger/x"]


def test_local_stores_are_beside_a_workers_state_unless_it_is_said_otherwise() -> None:
    assert files_root(Path("/home"), {}) == Path("/home/files")
    assert files_root(Path("/home"), {"HOLDFAST_FILES": "/mnt/files"}) == Path("/mnt/files")
