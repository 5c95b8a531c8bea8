"""Time travel over HTTP on the real server: every route, what it gives, and what it refuses."""

import asyncio
import json
import uuid
from pathlib import Path
from typing import Any, Never

import pytest
import yaml
from temporalio.client import Client

from holdfast import RunNotFoundError
from tests.integration import test_api
from tests.integration.conftest import Bench
from tests.integration.test_api import ASK, OTHER, Api

api, tenants = test_api.api, test_api.tenants
HIDDEN = "[redacted]"


def python(body: str, **more: Any) -> dict[str, Any]:
    return {"type": "python", "code": f"def run(input_data):\n    {body}", **more}


def letter(mended: Path, word: str = "old") -> dict[str, Any]:
    """A flow that only this test has runs of; its last node fails until the file is there."""
    send = f"import os\n    assert os.path.exists({str(mended)!r}), 'no stamps'\n    return str(input_data['draft'])"
    return {
        "id": f"letter-{uuid.uuid4().hex[:8]}",
        "nodes": {
            "fetch": python(f"return {{'word': {word!r}, 'api_key': 'very ' + {word!r}}}"),
            "draft": {"type": "transform", "template": "{{ fetch.output.word }} {{ name }}", "depends": "fetch"},
            "send": python(send, depends="draft", input_transformer={"selector": {"draft": "$.draft.output"}}),
        },
    }


async def ended(api: Api, run_id: str) -> dict[str, Any]:
    """The latest checkpoint of a run when it has ended."""
    await api.events(run_id)
    return (await api.http.get(f"/runs/{run_id}/checkpoints/latest")).json()


async def failed(api: Api, flow: dict[str, Any]) -> str:
    run_id = await api.run(flow, input={"name": "Ada"})
    assert (await ended(api, run_id))["status"] == "failed"
    return run_id


def output(checkpoint: dict[str, Any], node: str) -> Any:
    return checkpoint["node_states"][node]["output_data"]


def said(reply: Any) -> tuple[int, str]:
    assert reply.headers["content-type"] == "application/problem+json", reply.text
    return reply.status_code, reply.json()["title"]


async def is_there(api: Api, run_id: str) -> bool:
    return (await api.http.get(f"/runs/{run_id}")).status_code == 200


@pytest.mark.req("RT-2", "RT-7")
async def test_a_run_is_resumed_once_and_who_comes_second_is_told_the_winner(api: Api, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    run_id = await failed(api, letter(mended))
    mended.touch()
    replies = await asyncio.gather(*(api.http.post(f"/runs/{run_id}/resume") for _ in range(5)))
    (won,) = [reply for reply in replies if reply.status_code == 201]
    lost = [reply for reply in replies if reply is not won]
    latest = await ended(api, f"{run_id}~2")

    assert won.json()["run_id"] == f"{run_id}~2"
    assert won.json()["created"] is True
    assert won.json()["plan"]["kept"] == ["fetch", "draft"]
    assert {said(reply) for reply in lost} == {(409, "run/resumed")}
    assert {reply.json()["winner"] for reply in lost} == {f"{run_id}~2"}
    assert output(latest, "send") == "old Ada"


@pytest.mark.req("RT-2", "RT-7")
async def test_the_same_key_is_the_same_resume_and_the_same_fork(api: Api, tmp_path: Path) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    mine, yours = {"Idempotency-Key": "mine"}, {"Idempotency-Key": "yours"}
    resumes = [await api.http.post(f"/runs/{run_id}/resume", headers=headers) for headers in (mine, mine, yours)]
    forks = [await api.http.post(f"/runs/{run_id}/fork", headers=headers) for headers in (mine, mine, yours)]

    assert [reply.status_code for reply in resumes] == [201, 200, 409]
    assert [reply.json()["created"] for reply in resumes[:2]] == [True, False]
    assert {reply.json()["run_id"] for reply in resumes[:2]} == {resumes[2].json()["winner"]}
    assert [reply.status_code for reply in forks] == [201, 200, 201]
    assert forks[0].json()["run_id"] == forks[1].json()["run_id"] != forks[2].json()["run_id"]


@pytest.mark.req("RT-2")
async def test_a_run_that_has_not_ended_is_forked_and_not_resumed(api: Api) -> None:
    run_id = await api.run()
    await api.question(run_id)
    active = await api.http.post(f"/runs/{run_id}/resume")
    fork = (await api.http.post(f"/runs/{run_id}/fork")).json()["run_id"]
    question = await api.question(fork)

    assert said(active) == (409, "run/active")
    assert "fork" in active.json()["detail"]
    assert question["is_resumed"] is True
    for name in (run_id, fork):
        await api.http.post(f"/runs/{name}/cancel")


@pytest.mark.req("RT-2")
async def test_a_run_is_resumed_with_another_input_definition_and_edits(api: Api, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    flow = letter(mended)
    run_id = await failed(api, flow)
    mended.touch()
    changed = {**flow, "nodes": {**flow["nodes"], "fetch": python("return 1"), "end": {"type": "pass"}}}
    before = next(
        entry["id"]
        for entry in (await api.http.get(f"/runs/{run_id}/checkpoints")).json()["checkpoints"]
        if entry["node_id"] == "fetch"
    )
    body: dict[str, Any] = {
        "checkpoint_id": before,
        "input_data": {"name": "Bob"},
        "definition": changed,
        "keep": ["fetch"],
        "edits": {"fetch:output.word": "dear"},
    }
    resumed = (await api.http.post(f"/runs/{run_id}/resume", json=body)).json()
    latest = await ended(api, resumed["run_id"])

    assert resumed["plan"]["kept"] == ["fetch"]
    assert resumed["plan"]["fresh"] == ["draft", "send"]
    assert any("'end' is new" in warning for warning in resumed["plan"]["warnings"])
    assert resumed["plan"]["edited"] == ["fetch:output.word"]
    assert output(latest, "send") == "dear Bob"
    assert latest["node_states"]["end"]["status"] == "success"


@pytest.mark.req("RT-2")
async def test_what_cannot_be_done_is_refused_by_name_and_nothing_is_started(api: Api, tmp_path: Path) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    refusals: list[tuple[dict[str, Any], tuple[int, str]]] = [
        ({"edits": {"nobody:output": 1}}, (422, "edit/impossible")),
        ({"edits": {"draft": 1}}, (422, "edit/impossible")),
        ({"edits": {"fetch:output": {"word": "x", "api_key": HIDDEN}}}, (422, "edit/hidden")),
        ({"edits": {"__date__": "2026-01-01"}}, (422, "edit/impossible")),
        ({"keep": ["nobody"]}, (404, "run/no-node")),
        ({"definition": {"id": "f", "nodes": {"a": {"type": "http"}}}}, (422, "flow/faulty")),
        ({"definition": {"id": "f", "nodes": {"a": {"type": "pass"}}}}, (422, "checkpoint/other-flow")),
        ({"checkpoint_id": "another@1"}, (404, "checkpoint/none")),
        ({"checkpoint_id": f"{run_id}@99"}, (404, "checkpoint/none")),
        ({"checkpoint": f"{run_id}@1"}, (422, "request/invalid")),
    ]
    for verb in ("plan", "fork", "resume"):
        for body, wanted in refusals:
            assert said(await api.http.post(f"/runs/{run_id}/{verb}", json=body)) == wanted, (verb, body)
        assert said(await api.http.post(f"/runs/nobody/{verb}")) == (404, "run/not-found")

    assert not await is_there(api, f"{run_id}~2")


async def test_json_that_nothing_can_be_made_of_is_refused(api: Api, tmp_path: Path) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    fields = ['"edits": {"draft:output": %s}', '"input_data": %s', '"definition": {"id": "f", "nodes": %s}']
    bodies = ["{" + field % ("[" * depth + "]" * depth) + "}" for field in fields for depth in (300, 600, 1500, 50_000)]
    half = json.dumps("\ud800")
    bodies += [f'{{"edits": {{"fetch:output.{half[1:]}: 1}}}}', f'{{"edits": {{"fetch:output": {half}}}}}']
    bodies += [f'{{"definition": {{"id": {half}, "nodes": {{"a": {{"type": "pass"}}}}}}}}', "{", "[]"]
    for verb in ("fork", "resume"):
        for body in bodies:
            as_json = {"Content-Type": "application/json"}
            reply = await api.http.post(f"/runs/{run_id}/{verb}", content=body, headers=as_json)
            assert said(reply)[0] == 422, body[:80]
    plain = await api.http.post(f"/runs/{run_id}/resume", content="{}", headers={"Content-Type": "text/plain"})
    flow = await api.http.post("/gc", json={"flow": "\0"})

    assert said(plain) == said(flow) == (422, "request/invalid")
    assert not await is_there(api, f"{run_id}~2")


@pytest.mark.req("RT-2")
async def test_a_fork_has_an_id_of_its_own_and_an_id_is_taken_once(api: Api, tmp_path: Path) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    named = await api.http.post(f"/runs/{run_id}/fork", json={"run_id": f"{run_id}-mine"})
    taken = await api.http.post(f"/runs/{run_id}/fork", json={"run_id": f"{run_id}-mine"})
    other = await api.http.post(f"/runs/{run_id}/fork")
    odd = await api.http.post(f"/runs/{run_id}/fork", json={"run_id": "a/b"})

    assert (named.status_code, named.json()["run_id"]) == (201, f"{run_id}-mine")
    assert said(taken) == (409, "run/exists")
    assert other.status_code == 201
    assert other.json()["run_id"] not in (run_id, f"{run_id}-mine", f"{run_id}~2")
    assert said(odd) == (422, "request/invalid")


@pytest.mark.req("RT-2")
async def test_nodes_are_done_again_and_of_a_map_only_the_failed_items(api: Api, tmp_path: Path) -> None:
    mended, journal = tmp_path / "mended", tmp_path / "journal"
    work = f"import os\n    with open({str(journal)!r}, 'a') as file:\n        file.write(f'{{input_data}} ')\n"
    work += f"    assert input_data != 2 or os.path.exists({str(mended)!r})\n    return input_data"
    each = {"type": "map", "behavior": "return", "node": {"id": "item", **python(work)}}
    run_id = await api.run({"id": "mapped", "nodes": {"each": each}}, input={"input": [1, 2, 3]})
    first = await ended(api, run_id)
    mended.touch()
    journal.write_text("")
    body = {"rerun": ["each"], "only_failed": True}
    some = (await api.http.post(f"/runs/{run_id}/fork", json=body)).json()
    latest = await ended(api, some["run_id"])
    tried = journal.read_text()
    journal.write_text("")
    whole = (await api.http.post(f"/runs/{run_id}/fork", json={"rerun": ["each"]})).json()
    await ended(api, whole["run_id"])
    none = await api.http.post(f"/runs/{some['run_id']}/fork", json=body)
    beside = (await api.http.post(f"/runs/{run_id}/fork", json={"only_failed": True})).json()["run_id"]
    bases = [(await ended(api, name))["metadata"].get("key_base") for name in (some["run_id"], beside)]

    assert output(first, "each")["failed_iterations"] == [1]
    assert output(latest, "each")["failed_iterations"] == []
    assert output(latest, "each")["output"] == [1, 2, 3]
    assert tried == "2 "
    assert sorted(journal.read_text().split()) == ["1", "2", "3"]
    assert said(none) == (422, "edit/impossible")
    # What is tried again has the keys it had; where there is nothing to try again, a fork has its own.
    assert bases == [run_id, beside]


@pytest.mark.req("RT-2")
async def test_a_plan_says_what_would_be_and_starts_nothing(api: Api, bench: Bench, tmp_path: Path) -> None:
    flow = letter(tmp_path / "mended")
    run_id = await failed(api, flow)
    planned = await api.http.post(f"/runs/{run_id}/plan", json={"edits": {"fetch:output.word": "new"}})
    bare = await api.http.post(f"/runs/{run_id}/plan")
    query = f"HoldfastFlow = '{flow['id']}'"
    while (await bench.client.temporal.count_workflows(query)).count < 1:
        await asyncio.sleep(0.05)

    assert planned.status_code == bare.status_code == 200
    assert (planned.json()["kept"], planned.json()["reset"]) == (["fetch"], ["draft", "send"])
    assert planned.json()["edited"] == ["fetch:output.word"]
    assert any("'draft' runs again" in warning for warning in planned.json()["warnings"])
    assert bare.json()["kept"] == ["fetch", "draft"]
    assert (await bench.client.temporal.count_workflows(query)).count == 1
    assert not await is_there(api, f"{run_id}~2")


@pytest.mark.req("RT-2")
async def test_the_family_of_a_run_is_a_tree(api: Api, tmp_path: Path) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    resumed = (await api.http.post(f"/runs/{run_id}/resume")).json()["run_id"]
    fork = (await api.http.post(f"/runs/{run_id}/fork", json={"rerun": ["draft"]})).json()["run_id"]
    async with asyncio.timeout(30):
        while True:
            (root,) = (await api.http.get(f"/runs/{fork}/tree")).json()
            if len(root["children"]) == 2:
                break
            await asyncio.sleep(0.1)
    missing = await api.http.get("/runs/nobody/tree")

    assert (root["run_id"], root["how"]) == (run_id, None)
    assert [(entry["run_id"], entry["how"]) for entry in root["children"]] == [(resumed, "resume"), (fork, "rerun")]
    assert root["children"][0]["parent_checkpoint_id"].startswith(f"{run_id}@")
    assert said(missing) == (404, "run/not-found")


@pytest.mark.req("RT-2")
async def test_the_history_of_a_node_and_of_a_field_and_what_there_is_none_of(api: Api, tmp_path: Path) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    where = f"/runs/{run_id}/history"
    whole = await api.http.get(where, params={"node": "fetch"})
    word = (await api.http.get(where, params={"node": "fetch", "field": "output.word"})).json()
    no_node = await api.http.get(where, params={"node": "nobody"})
    no_field = await api.http.get(where, params={"node": "fetch", "field": "nothing"})
    no_run = await api.http.get("/runs/nobody/history", params={"node": "fetch"})
    unsaid = await api.http.get(where)

    assert [(moment["event"], moment["status"]) for moment in whole.json()] == [
        ("node_started", "running"),
        ("node_completed", "success"),
    ]
    assert "very old" not in whole.text
    assert [change["right"] for moment in word for change in moment["changes"]] == ["old"]
    assert said(no_node) == (404, "run/no-node")
    assert "fetch, draft, send" in no_node.json()["detail"]
    assert said(no_field)[0] == 404
    assert said(no_run) == (404, "run/not-found")
    assert said(unsaid) == (422, "request/invalid")


@pytest.mark.req("RT-2")
async def test_a_difference_is_told_without_its_secrets(api: Api, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    mended.touch()
    flow = letter(mended)
    left = await api.run(flow, input={"name": "Ada"})
    right = await api.run(letter(mended, "new"), input={"name": "Ada"})
    for run_id in (left, right):
        await ended(api, run_id)
    reply = await api.http.get("/diff", params={"left": left, "right": right})
    within = (await api.http.get("/diff", params={"left": f"{left}@1", "right": left})).json()
    no_run = await api.http.get("/diff", params={"left": left, "right": "nobody"})
    no_checkpoint = await api.http.get("/diff", params={"left": f"{left}@99", "right": left})
    changes = {f"{change['node']}:{change['field']}": change for change in reply.json()["changes"]}

    assert (changes["fetch:output.word"]["left"], changes["fetch:output.word"]["right"]) == ("old", "new")
    assert changes["fetch:output.api_key"]["left"] == changes["fetch:output.api_key"]["right"] == HIDDEN
    assert "very" not in reply.text
    assert within["left_at"]["sequence_number"] == 1
    assert {"node": "", "field": "status", "kind": "changed", "left": "active", "right": "completed"} in [
        change for change in within["changes"] if change["field"] == "status" and not change["node"]
    ]
    assert said(no_run) == (404, "run/not-found")
    assert said(no_checkpoint) == (404, "checkpoint/none")


@pytest.mark.req("DM-10", "RT-2")
@pytest.mark.parametrize("form", ["json", "yaml"])
async def test_an_export_is_imported_once_as_a_paused_run_that_goes_on(api: Api, tmp_path: Path, form: str) -> None:
    mended = tmp_path / "mended"
    run_id = await failed(api, letter(mended))
    mended.touch()
    file = await api.http.get(f"/runs/{run_id}/export", params={"format": form})
    data = yaml.safe_load(file.text)
    first = await api.http.post("/imports", content=file.content)
    again = await api.http.post("/imports", content=file.content)
    imported = first.json()["run_id"]
    async with asyncio.timeout(30):
        while (await api.http.get(f"/runs/{imported}")).json()["status"] != "paused":
            await asyncio.sleep(0.05)
    await api.http.post(f"/runs/{imported}/continue")
    latest = await ended(api, imported)

    assert file.headers["content-type"].startswith(f"application/{form}")
    disposition = file.headers["content-disposition"]
    assert disposition.startswith(f'attachment; filename="{run_id}@')
    assert disposition.endswith(f'.{form}"')
    assert (data["format"], data["made_for"]) == ("holdfast-export", "default")
    # A file to go on from has everything in clear.
    assert data["checkpoint"]["node_states"]["fetch"]["output_data"]["api_key"] == "very old"
    assert (first.status_code, first.json()["created"]) == (201, True)
    assert (again.status_code, again.json()["created"]) == (200, False)
    assert again.json()["run_id"] == imported == f"{run_id}~i{data['checksum'][:10]}"
    assert first.json()["plan"]["kept"] == ["fetch", "draft"]
    assert first.json()["notes"] == []
    assert output(latest, "send") == "old Ada"


@pytest.mark.req("DM-10")
async def test_an_earlier_checkpoint_is_exported_and_goes_on_at_once(api: Api, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    run_id = await failed(api, letter(mended))
    mended.touch()
    where = f"/runs/{run_id}/export"
    file = await api.http.get(where, params={"checkpoint_id": f"{run_id}@1"})
    imported = (await api.http.post("/imports", params={"run": "true"}, content=file.content)).json()
    latest = await ended(api, imported["run_id"])
    elsewhere = await api.http.get(where, params={"checkpoint_id": "another@1"})
    missing = await api.http.get("/runs/nobody/export")
    unknown = await api.http.get(where, params={"format": "xml"})

    assert imported["plan"]["kept"] == []
    assert output(latest, "send") == "old Ada"
    assert said(elsewhere) == (404, "checkpoint/none")
    assert said(missing) == (404, "run/not-found")
    assert said(unknown) == (422, "request/invalid")


@pytest.mark.req("DM-10", "PR-3")
async def test_a_file_that_is_not_whole_or_not_for_this_tenant_starts_nothing(api: Api, tmp_path: Path) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    whole = (await api.http.get(f"/runs/{run_id}/export")).text
    foreign = await api.http.get(f"/runs/{run_id}/export", params={"for": OTHER})
    wrong: list[tuple[str, str]] = [
        (whole.replace("very old", "very odd"), "export/damaged"),
        (whole[:-100], "export/damaged"),
        (whole[: len(whole) // 2], "export/damaged"),
        (foreign.text, "export/wrong-tenant"),
        (whole.replace("holdfast-export", "something"), "export/not-one"),
        ("{}", "export/not-one"),
        ("", "export/not-one"),
        ("[" * 3000, "export/damaged"),
    ]
    replies = [await api.http.post("/imports", params={"run": "true"}, content=text) for text, _ in wrong]
    garbage = await api.http.post("/imports", content=b"\xff\x00")
    names = [json.loads(text)["checksum"][:10] for text in (whole, foreign.text)]

    assert [said(reply) for reply in replies] == [(422, code) for _, code in wrong]
    assert OTHER in replies[3].json()["detail"]
    assert said(garbage) == (422, "export/damaged")
    for name in names:
        assert not await is_there(api, f"{run_id}~i{name}")


async def test_a_run_with_any_name_is_exported(api: Api) -> None:
    flow = {"id": "f", "nodes": {"a": {"type": "pass"}}}
    run_id = await api.run(flow, run_id=f"żółw-{uuid.uuid4().hex}")
    await ended(api, run_id)
    file = await api.http.get(f"/runs/{run_id}/export")

    assert file.status_code == 200
    assert file.json()["source"]["run_id"] == run_id
    assert "filename*=UTF-8''%C5%BC%C3%B3" in file.headers["content-disposition"]


@pytest.mark.req("RT-2")
async def test_a_run_is_deleted_when_it_has_ended(api: Api, tmp_path: Path) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    open_run = await api.run()
    part = await api.http.delete(f"/runs/{run_id}@2")
    refused = await api.http.delete(f"/runs/{open_run}")
    deleted = await api.http.delete(f"/runs/{run_id}")
    async with asyncio.timeout(30):
        while await is_there(api, run_id):
            await asyncio.sleep(0.05)
    again = await api.http.delete(f"/runs/{run_id}")

    assert said(part) == (422, "checkpoint/part-of-run")
    assert said(refused) == (409, "run/active")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert said(again) == (404, "run/not-found")
    assert await is_there(api, open_run)
    await api.http.post(f"/runs/{open_run}/cancel")


@pytest.mark.req("RT-2")
async def test_a_clean_up_only_looks_unless_told_otherwise(api: Api, bench: Bench, tmp_path: Path) -> None:
    flow = letter(tmp_path / "mended")
    run_id = await failed(api, flow)
    open_run = await api.run({**ASK, "id": flow["id"]})
    # The visibility store lags a little.
    for status in ("Failed", "Running"):
        query = f"HoldfastFlow = '{flow['id']}' AND ExecutionStatus = '{status}'"
        while (await bench.client.temporal.count_workflows(query)).count < 1:
            await asyncio.sleep(0.05)
    body = {"flow": flow["id"], "older_than_days": 0}
    looked = await api.http.post("/gc", json=body)
    young = (await api.http.post("/gc", json={**body, "older_than_days": 1, "dry_run": False})).json()
    kept = (await api.http.post("/gc", json={"flow": flow["id"], "keep": 1, "dry_run": False})).json()
    own = (await api.http.post("/gc", json={"flow": flow["id"], "dry_run": False})).json()
    there = await is_there(api, run_id)
    bare = await api.http.post("/gc")
    negative = await api.http.post("/gc", json={"older_than_days": -1})
    collected = (await api.http.post("/gc", json={**body, "dry_run": False})).json()
    async with asyncio.timeout(30):
        while await is_there(api, run_id):
            await asyncio.sleep(0.05)

    expected = {"runs": [run_id], "orphans": [], "kept_open": 1, "executions": 1, "blobs": 0, "blob_bytes": 0}
    assert looked.json() == {**expected, "dry_run": True}
    assert young["runs"] == kept["runs"] == own["runs"] == []
    assert there
    assert (bare.status_code, bare.json()["dry_run"]) == (200, True)
    assert said(negative) == (422, "request/invalid")
    assert collected == {**expected, "dry_run": False}
    assert await is_there(api, open_run)
    await api.http.post(f"/runs/{open_run}/cancel")


async def test_a_clean_up_passes_over_what_somebody_else_has_just_deleted(
    api: Api, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flow = {**letter(tmp_path / "mended"), "checkpoint": {"retention_days": 1}}
    await failed(api, flow)
    query = f"HoldfastFlow = '{flow['id']}' AND ExecutionStatus = 'Failed'"
    while (await bench.client.temporal.count_workflows(query)).count < 1:
        await asyncio.sleep(0.05)

    async def gone(_: Client, run_id: str) -> Never:
        raise RunNotFoundError(run_id)

    monkeypatch.setattr("holdfast.starter.store.started_with", gone)
    collected = await api.http.post("/gc", json={"flow": flow["id"], "dry_run": False})

    assert (collected.status_code, collected.json()["runs"]) == (200, [])


@pytest.mark.req("RT-2")
async def test_a_date_and_bytes_are_edited_in_the_form_a_checkpoint_shows_them_in(api: Api) -> None:
    told = "return [type(input_data[name]).__name__ for name in ('day', 'blob')] + [input_data['day'].year]"
    made = python("from datetime import date\n    return {'day': date(2025, 1, 2), 'blob': b'old', 'text': '__date__'}")
    selector = {"selector": {"day": "$.made.output.day", "blob": "$.made.output.blob"}}
    flow = {"id": "marked", "nodes": {"made": made, "told": python(told, depends="made", input_transformer=selector)}}
    run_id = await api.run(flow)
    shown = output(await ended(api, run_id), "made")
    edits = {"made:output.day": {"__date__": "2026-03-04"}, "made:output.blob": {"__bytes__": "bmV3"}}
    forks = [
        (await api.http.post(f"/runs/{run_id}/fork", json={"edits": given})).json()["run_id"]
        for given in (edits, {"made:output": {**shown, "day": {"__date__": "2027-03-04"}}})
    ]
    latest = [await ended(api, fork) for fork in forks]

    assert shown == {"day": {"__date__": "2025-01-02"}, "blob": {"__bytes__": "b2xk"}, "text": "__date__"}
    assert output(latest[0], "made") == {**shown, "day": {"__date__": "2026-03-04"}, "blob": {"__bytes__": "bmV3"}}
    assert [output(checkpoint, "told") for checkpoint in latest] == [["date", "bytes", 2026], ["date", "bytes", 2027]]


@pytest.mark.req("PR-3")
async def test_another_tenant_cannot_travel_with_a_run_or_take_it_away(
    tenants: tuple[Api, Api, Api], tmp_path: Path
) -> None:
    mine, other, nobody = tenants
    run_id = await failed(mine, letter(tmp_path / "mended"))
    file = await mine.http.get(f"/runs/{run_id}/export")
    own = f"/runs/{run_id}"
    asked: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", f"{own}/resume", {}),
        ("POST", f"{own}/resume", {"json": {"checkpoint_id": f"{run_id}@1"}}),
        ("POST", f"{own}/fork", {"json": {"rerun": ["draft"]}}),
        ("POST", f"{own}/plan", {}),
        ("GET", f"{own}/tree", {}),
        ("GET", f"{own}/history", {"params": {"node": "fetch"}}),
        ("GET", f"{own}/export", {}),
        ("GET", f"{own}/export", {"params": {"for": OTHER}}),
        ("GET", "/diff", {"params": {"left": run_id, "right": run_id}}),
        ("DELETE", own, {}),
    ]
    for method, path, more in asked:
        theirs = await other.http.request(method, path, **more)
        without = await nobody.http.request(method, path, **more)
        assert said(theirs) == (404, "run/not-found"), (method, path)
        assert said(without)[0] == 401, (method, path)
    taken = await other.http.post("/imports", content=file.content)
    swept = (await other.http.post("/gc", json={"older_than_days": 0, "dry_run": False})).json()
    given = await mine.http.get(f"{own}/export", params={"for": OTHER})
    moved = await other.http.post("/imports", content=given.content)

    assert said(taken) == (422, "export/wrong-tenant")
    assert run_id not in swept["runs"]
    assert await is_there(mine, run_id)
    assert not await is_there(mine, f"{run_id}~2")
    # Whoever has the run may give it away.
    assert moved.status_code == 201
    assert await is_there(other, moved.json()["run_id"])
    assert not await is_there(mine, moved.json()["run_id"])
    await other.http.post(f"/runs/{moved.json()['run_id']}/cancel")


@pytest.mark.req("RT-2", "DM-10")
async def test_a_paused_import_goes_on_when_its_file_is_imported_again_to_run(api: Api, tmp_path: Path) -> None:
    mended = tmp_path / "mended"
    run_id = await failed(api, letter(mended))
    mended.touch()
    file = (await api.http.get(f"/runs/{run_id}/export")).content
    paused = await api.http.post("/imports", content=file)
    replies = [await api.http.post("/imports", params={"run": "true"}, content=file)]
    latest = await asyncio.wait_for(ended(api, paused.json()["run_id"]), 30)
    replies.append(await api.http.post("/imports", params={"run": "true"}, content=file))

    assert [reply.status_code for reply in replies] == [200, 200]
    assert {reply.json()["run_id"] for reply in replies} == {paused.json()["run_id"]}
    assert output(latest, "send") == "old Ada"


@pytest.mark.req("RT-2")
async def test_a_body_that_cannot_be_read_says_how_to_send_it(api: Api, tmp_path: Path) -> None:
    run_id = await failed(api, letter(tmp_path / "mended"))
    where = f"/runs/{run_id}/plan"
    as_form = {"Content-Type": "application/x-www-form-urlencoded"}
    form = await api.http.post(where, content=b'{"rerun": ["draft"]}', headers=as_form)
    broken = await api.http.post(where, content=b"{bad", headers={"Content-Type": "application/json"})
    # A variable that was not set: without a word it would be a new run each time.
    no_key = await api.http.post(f"/runs/{run_id}/fork", headers={"Idempotency-Key": ""})

    assert {said(reply) for reply in (form, broken, no_key)} == {(422, "request/invalid")}
    assert "'Content-Type: application/json'" in form.json()["detail"]
    assert "x-www-form-urlencoded" in form.json()["detail"]
    assert "Expecting property name" in broken.json()["detail"]
