"""Checkpoints that come and go over HTTP: encrypted, large, bare, or written by Dynamiq."""

import asyncio
import json
import logging
import uuid
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from holdfast import HoldfastClient, read_flow
from holdfast.checkpoints.validation import InvalidCheckpointError
from holdfast.starter import embedded
from holdfast.starter.api.access import Tokens
from holdfast.starter.api.app import Settings
from holdfast.starter.bundles import ExportKey, InvalidExportError, read_bundle
from holdfast.starter.connecting import connect
from holdfast.starter.moving import import_file
from tests.integration import test_api
from tests.integration.conftest import Bench
from tests.integration.test_api import Api, serving
from tests.integration.test_travel_api import ended, failed, is_there, letter, output, python, said

api = test_api.api
DYNAMIQ = Path(__file__).parents[1] / "unit" / "data" / "dynamiq"
KEY = "Holdfast-Export-Key"
PASSPHRASE = "größer als 1 Wal"
MEBIBYTE = 2**20


def as_header(passphrase: str) -> dict[bytes, bytes]:
    return {KEY.encode(): passphrase.encode()}


async def shown(api: Api, run_id: str) -> dict[str, Any]:
    return (await api.http.get(f"/runs/{run_id}/checkpoints/latest")).json()


@asynccontextmanager
async def server(client: HoldfastClient, **more: Any) -> AsyncGenerator[Api]:
    async def same(_: str) -> HoldfastClient:
        return client

    async with (
        serving(Settings(same, Tokens({}, open_to_all="default"), **more)) as url,
        httpx2.AsyncClient(base_url=url, timeout=60) as http,
    ):
        yield Api(url, http)


@pytest.mark.req("DM-10", "RT-2")
@pytest.mark.parametrize("form", ["json", "yaml"])
@pytest.mark.parametrize("key", [PASSPHRASE, "base64:" + "QUJD" * 10 + "QUI="])
async def test_an_encrypted_export_opens_with_its_key_alone(api: Api, tmp_path: Path, form: str, key: str) -> None:
    mended = tmp_path / "mended"
    run_id = await failed(api, letter(mended))
    mended.touch()
    file = await api.http.get(f"/runs/{run_id}/export", params={"format": form}, headers=as_header(key))
    path = tmp_path / f"export.{form}"
    path.write_bytes(file.content)
    locked = await api.http.post("/imports", content=file.content)
    wrong = await api.http.post("/imports", content=file.content, headers=as_header("another"))
    first = await api.http.post("/imports", params={"run": "true"}, content=file.content, headers=as_header(key))
    again = await api.http.post("/imports", content=file.content, headers=as_header(key))
    latest = await ended(api, first.json()["run_id"])

    assert file.status_code == 200
    assert "very old" not in file.text
    assert said(locked) == (422, "export/locked")
    assert said(wrong) == (422, "export/wrong-key")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["run_id"] == first.json()["run_id"]
    assert output(latest, "send") == "old Ada"
    # The same key as on the command line, whatever letters it has.
    assert read_bundle(path, key=ExportKey.from_text(key)).checkpoint.run_id == run_id


@pytest.mark.req("DM-10")
async def test_a_key_that_cannot_be_one_and_a_file_in_clear_are_refused(api: Api, tmp_path: Path) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    where = f"/runs/{run_id}/export"
    clear = (await api.http.get(where)).content
    unlocked = await api.http.post("/imports", content=clear, headers=as_header("secret"))
    bare = {"checkpoint": await shown(api, run_id), "definition": letter(tmp_path / "mended")}
    forged = await api.http.post("/imports", json=bare, headers=as_header("secret"))
    keys = [b"", b"base64:QUJD", b"\xff\xfe"]
    odd = [await api.http.get(where, headers={KEY.encode(): key}) for key in keys]

    assert said(unlocked) == said(forged) == (422, "export/not-locked")
    assert {said(reply) for reply in odd} == {(422, "export/bad-key")}
    assert "QUJD" not in odd[1].text


@pytest.mark.req("DM-10", "PR-2")
async def test_a_passphrase_is_neither_answered_nor_logged(
    api: Api, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    with caplog.at_level(logging.DEBUG):
        file = await api.http.get(f"/runs/{run_id}/export", headers=as_header("open-sesame"))
        replies = [
            await api.http.post("/imports", content=content, headers=as_header("shut-sesame"))
            for content in (file.content, file.content[:-9], b"{}", b'{"checkpoint": 1}')
        ]

    assert [reply.status_code for reply in replies] == [422] * 4
    # This test's own client logs what it sends.
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith(("http", "hpack"))]
    assert "sesame" not in "".join([*logged, *(reply.text for reply in replies)])
    assert "sesame" not in f"{file.text} {file.headers} {[reply.headers for reply in replies]}"


def heavy(size: int) -> dict[str, Any]:
    """A flow whose first node gives so many bytes that no compression makes smaller."""
    made = python(f"import random\n    return random.Random(7).randbytes({size} // 2).hex()")
    told = python("return len(input_data['made']['output'])", depends="made")
    return {"id": f"heavy-{uuid.uuid4().hex[:8]}", "nodes": {"made": made, "told": told}}


@pytest.mark.req("DM-10")
async def test_a_file_of_several_mebibytes_is_imported_and_other_routes_keep_their_limit(api: Api) -> None:
    run_id = await api.run(heavy(5 * MEBIBYTE))
    await ended(api, run_id)
    file = await api.http.get(f"/runs/{run_id}/export", timeout=60)
    imported = await api.http.post("/imports", params={"run": "true"}, content=file.content, timeout=60)
    latest = await ended(api, imported.json()["run_id"])
    elsewhere = [
        await api.http.post(path, content=file.content, timeout=60)
        for path in ("/runs", f"/runs/{run_id}/fork", "/gc", "/imports/")
    ]

    assert len(file.content) > 5 * MEBIBYTE
    assert imported.status_code == 201
    assert output(latest, "told") == 5 * MEBIBYTE
    assert {said(reply) for reply in elsewhere} == {(413, "request/too-large")}
    assert "larger than 2 MiB" in elsewhere[0].json()["detail"]


@pytest.mark.req("DM-10")
async def test_a_file_above_the_limit_is_refused_with_the_limit_and_what_to_do(
    api: Api, bench: Bench, tmp_path: Path
) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    small = (await api.http.get(f"/runs/{run_id}/export")).content
    name = json.loads(small)["checksum"][:10]
    # White space is free in a file, so this is a whole one.
    large = small + b" " * (4 * MEBIBYTE - len(small) + 1)

    async def in_pieces() -> AsyncGenerator[bytes]:
        for begin in range(0, len(large), 100_000):
            yield large[begin : begin + 100_000]

    async with server(bench.client, largest_import=4 * MEBIBYTE) as narrow:
        whole = await narrow.http.post("/imports", content=large)
        pieces = await narrow.http.post("/imports", content=in_pieces())
        there = await is_there(api, f"{run_id}~i{name}")
        fits = await narrow.http.post("/imports", content=large[:-1])
    default = await api.http.post("/imports", content=b" " * (64 * MEBIBYTE + 1), timeout=60)

    for reply, limit in ((whole, "4 MiB"), (pieces, "4 MiB"), (default, "64 MiB")):
        assert said(reply) == (413, "request/too-large")
        for part in (f"larger than {limit}", "HOLDFAST_LARGEST_IMPORT", "holdfast import"):
            assert part in reply.json()["detail"]
    assert not there
    assert (fits.status_code, fits.json()["run_id"]) == (201, f"{run_id}~i{name}")


@pytest.mark.req("DM-10")
async def test_without_a_store_for_large_values_a_large_import_is_refused_by_name(
    api: Api, temporal: embedded.Running, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = await api.run(heavy(5 * MEBIBYTE))
    await ended(api, run_id)
    file = (await api.http.get(f"/runs/{run_id}/export", timeout=60)).content
    monkeypatch.delenv("HOLDFAST_BLOBS")
    storeless = HoldfastClient(await connect(temporal.address), bench.task_queue)
    async with server(storeless) as other:
        refused = await other.http.post("/imports", content=file)

    assert said(refused) == (413, "codec/too-large")
    assert "set HOLDFAST_BLOBS" in refused.json()["detail"]
    assert not await is_there(api, f"{run_id}~i{json.loads(file)['checksum'][:10]}")


@pytest.mark.req("DM-10", "RT-2")
async def test_a_bare_checkpoint_goes_on_with_the_flow_that_is_given(api: Api, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    flow = letter(mended)
    run_id = await failed(api, flow)
    whole = (await api.http.get(f"/runs/{run_id}/export")).json()["checkpoint"]
    mended.touch()
    (tmp_path / "flows" / "post.yaml").write_text(json.dumps(flow))
    first = await api.http.post("/imports", json={"checkpoint": whole, "flow": "post"})
    imported = first.json()["run_id"]
    async with asyncio.timeout(30):
        while (await api.http.get(f"/runs/{imported}")).json()["status"] != "paused":
            await asyncio.sleep(0.05)
    again = await api.http.post("/imports", params={"run": "true"}, json={"checkpoint": whole, "definition": flow})
    latest = await ended(api, imported)

    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json()["run_id"] == imported
    assert first.json()["plan"]["kept"] == ["fetch", "draft"]
    assert first.json()["notes"] == []
    assert output(latest, "send") == "old Ada"


@pytest.mark.req("DM-10", "RT-2")
async def test_a_checkpoint_as_it_is_shown_is_imported_when_nothing_in_it_is_hidden(api: Api) -> None:
    flow = {"id": "plain", "nodes": {"a": {"type": "transform", "template": "x"}}}
    run_id = await api.run(flow)
    await ended(api, run_id)
    body = {"checkpoint": await shown(api, run_id), "definition": flow}
    imported = await api.http.post("/imports", params={"run": "true"}, json=body)
    latest = await ended(api, imported.json()["run_id"])

    assert imported.status_code == 201
    assert imported.json()["plan"]["kept"] == ["a"]
    assert (latest["status"], output(latest, "a")) == ("completed", "x")


LETTERS: dict[str, Any] = {
    "id": "letters",
    "nodes": {
        "score": python("return input_data", input_transformer={"selector": {"order": "$.order"}}),
        "extra": {"type": "pass"},
    },
}


@pytest.mark.req("DM-10")
async def test_a_checkpoint_of_dynamiq_is_imported_and_what_is_not_carried_is_told(api: Api) -> None:
    written = json.loads((DYNAMIQ / "completed.json").read_text())
    reply = await api.http.post("/imports", params={"run": "true"}, json={"checkpoint": written, "definition": LETTERS})
    latest = await ended(api, reply.json()["run_id"])

    assert reply.status_code == 201
    assert reply.json()["plan"]["kept"] == ["score"]
    assert any("'letter'" in note for note in reply.json()["notes"])
    assert latest["status"] == "completed"
    assert latest["metadata"]["imported_from"]


@pytest.mark.req("DM-10")
async def test_a_checkpoint_that_nothing_can_be_made_of_is_refused_by_name(api: Api, tmp_path: Path) -> None:
    flow = letter(tmp_path / "mended")
    run_id = await failed(api, flow)
    redacted = await shown(api, run_id)
    whole = (await api.http.get(f"/runs/{run_id}/export")).json()["checkpoint"]
    changed = json.loads(json.dumps(whole).replace("very old", "very odd"))
    dynamiqs = json.loads((DYNAMIQ / "completed.json").read_text())
    faulty = {"id": "f", "nodes": {"a": {"type": "http"}}}
    refusals: list[tuple[Any, tuple[int, str]]] = [
        (whole, (422, "run/no-definition")),
        ({"checkpoint": whole}, (422, "request/invalid")),
        ({"checkpoint": whole, "flow": "hello", "definition": flow}, (422, "request/invalid")),
        ({"checkpoint": whole, "definition": flow, "pause": False}, (422, "request/invalid")),
        ({"checkpoint": 7, "definition": flow}, (422, "request/invalid")),
        ({"checkpoint": whole, "flow": "nobody"}, (404, "flow/not-found")),
        ({"checkpoint": whole, "definition": faulty}, (422, "flow/faulty")),
        ({"checkpoint": whole, "definition": LETTERS}, (422, "checkpoint/other-flow")),
        ({"checkpoint": dynamiqs, "definition": flow}, (422, "checkpoint/other-flow")),
        ({"checkpoint": redacted, "definition": flow}, (422, "checkpoint/invalid")),
        ({"checkpoint": changed, "definition": flow}, (422, "checkpoint/invalid")),
        ({"checkpoint": {}, "definition": flow}, (422, "checkpoint/invalid")),
        ({"checkpoint": {"node_states": 7}, "definition": flow}, (422, "checkpoint/invalid")),
        ({"checkpoint": {**whole, "version": "99.0"}, "definition": flow}, (422, "checkpoint/invalid")),
    ]
    for body, wanted in refusals:
        assert said(await api.http.post("/imports", params={"run": "true"}, json=body)) == wanted, str(body)[:200]
    runs = (await api.http.get("/runs", params={"flow": flow["id"]})).json()["runs"]

    assert [run["run_id"] for run in runs if "~i" in run["run_id"]] == []


@pytest.mark.req("RT-2")
async def test_another_input_has_the_form_a_checkpoint_shows_and_no_mark_of_what_is_hidden(api: Api) -> None:
    told = python("day = input_data['day']\n    return [type(day).__name__, str(day), input_data['api_key']]")
    run_id = await api.run({"id": "dated", "nodes": {"told": told}}, input={"day": "none", "api_key": "old"})
    await ended(api, run_id)
    redacted = (await shown(api, run_id))["original_input"]
    dated = {"day": {"__date__": "2026-03-04"}, "api_key": "new"}
    bodies = [{"input_data": redacted}, {"input_data": {"deep": [{"x": "[redacted]"}]}}]
    refused = [
        await api.http.post(f"/runs/{run_id}/{verb}", json=body)
        for verb in ("plan", "fork", "resume")
        for body in bodies
    ]
    planned = await api.http.post(f"/runs/{run_id}/plan", json={"input_data": dated, "rerun": ["told"]})
    fork = await api.http.post(f"/runs/{run_id}/fork", json={"input_data": dated, "rerun": ["told"]})
    latest = await ended(api, fork.json()["run_id"])

    assert redacted == {"day": "none", "api_key": "[redacted]"}
    assert {said(reply) for reply in refused} == {(422, "edit/hidden")}
    assert "the input has the mark" in refused[0].json()["detail"]
    assert not await is_there(api, f"{run_id}~2")
    assert planned.json()["reset"] == ["told"]
    assert output(latest, "told") == ["date", "2026-03-04", "new"]


@pytest.mark.req("DM-10", "PR-1")
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.json", "[" * 100_000),
        ("b.json", '{"node_states":' * 100_000),
        ("c.yaml", "[" * 5_000),
        ("d.yaml", "&all {node_states: {a: *all}}"),
    ],
    ids=["json", "objects", "yaml", "yaml that contains itself"],
)
async def test_a_file_that_is_nested_beyond_measure_is_refused_by_name(
    bench: Bench, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    flow = read_flow("id: any\nnodes: {a: {type: pass}}")
    with pytest.raises((InvalidExportError, InvalidCheckpointError), match=r"\[(export/damaged|checkpoint/invalid)\]"):
        await import_file(bench.client, tmp_path / name, flow=flow)
