"""The files that a checkpoint refers to, in an export of it."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoints import values
from holdfast.checkpoints.models import CheckpointRecord, NodeRecord, RunnableStatus
from holdfast.contracts.files import digest
from holdfast.file_stores import FileStores
from holdfast.flows.files import FileStoreParams
from holdfast.starter.bundle_files import InvalidExportError
from holdfast.starter.carried_files import CarriedFiles

STORE = {"type": "local", "path": "a"}


async def nowhere(name: str) -> None:
    """No connection is known here."""


async def entry(stores: FileStores, name: str, data: bytes) -> dict[str, Any]:
    await (await stores.open(FileStoreParams.model_validate(STORE))).put(f"n/run/{name}", data)
    return {"key": f"n/run/{name}", "size": len(data), "sha256": digest(data), "media_type": "text/plain"}


def node(status: RunnableStatus, **fields: Any) -> NodeRecord:
    return NodeRecord(node_id="a", node_type="agent", status=status, **fields)


def record(**states: NodeRecord) -> CheckpointRecord:
    return CheckpointRecord(flow_id="f", run_id="run", node_states=states)


async def test_a_finished_nodes_output_and_an_unfinished_ones_state_get_their_files(tmp_path: Path) -> None:
    stores = FileStores(tmp_path, nowhere)
    known = await entry(stores, "x", b"text")
    reference = {**known, "store": STORE}
    inside = {"file_store": {"x": known}, "files_of": {"run": "run", "store": STORE}, "more": [{"deep": reference}]}
    given = record(
        done=node(RunnableStatus.SUCCESS, input_data={"in": reference}, output_data={"files": {"x": reference}}),
        busy=node(RunnableStatus.RUNNING, input_data={"in": reference}, internal_state=inside),
    )
    carried = (await CarriedFiles(stores).put_into(given)).node_states

    there = {name: value for name, value in known.items() if name != "key"} | {"data": values.encode(b"text", "x")}
    assert carried["done"].output_data == {"files": {"x": {**there, "store": {"type": "memory"}}}}
    # What went into a node that is done is not needed any more.
    assert carried["done"].input_data == {"in": reference}
    assert carried["busy"].input_data == {"in": {**there, "store": {"type": "memory"}}}
    assert carried["busy"].internal_state == {
        "file_store": {"x": there},
        "files_of": {"run": "run", "store": {"type": "memory"}},
        "more": [{"deep": {**there, "store": {"type": "memory"}}}],
    }
    assert given.node_states["busy"].internal_state == inside


async def test_a_checkpoint_without_files_asks_no_store(tmp_path: Path) -> None:
    lookalike = {"store": {"type": "shop"}, "sha256": "", "list": [1, {"a": None}]}
    given = record(done=node(RunnableStatus.SUCCESS, output_data=lookalike))

    assert await CarriedFiles(FileStores(tmp_path, nowhere)).put_into(given) == given


async def test_what_cannot_be_carried_is_named(tmp_path: Path) -> None:
    stores = FileStores(tmp_path, nowhere)
    large = {**await entry(stores, "large", b"x" * 100), "store": STORE}
    gone = {**large, "key": "n/run/gone"}
    away = {**large, "store": {"type": "s3", "connection": "papers"}}

    async def said(reference: dict[str, Any], largest: int = 1000) -> str:
        given = record(done=node(RunnableStatus.SUCCESS, output_data={"files": {"big.bin": reference}}))
        with pytest.raises(InvalidExportError) as refused:
            await CarriedFiles(stores, largest).put_into(given)
        return str(refused.value)

    assert "all files together have more than 99 bytes" in await said(large, 99)
    assert "the file 'big.bin' cannot be read in its store (local): The content of 'big.bin' is gone" in await said(
        gone
    )
    assert "the base_url of connection 'papers' is no bucket" in await said(away)
    assert "the file 'big.bin' cannot be read in its store (s3)" in await said(
        {**large, "store": {"type": "s3", "x": 1}}
    )


async def test_a_file_that_is_referred_to_often_is_read_and_counted_once(tmp_path: Path) -> None:
    stores = FileStores(tmp_path, nowhere)
    reference = {**await entry(stores, "x", b"x" * 60), "store": STORE}
    given = record(done=node(RunnableStatus.SUCCESS, output_data=[reference, reference]))

    first, second = (await CarriedFiles(stores, 100).put_into(given)).node_states["done"].output_data

    assert first == second
