"""An agent's files in a run: the registry and its transitions, with the real drivers in simulated time."""

from typing import Any

import pytest

from holdfast.checkpoints.ledger import NodeAdvanced
from holdfast.checkpoints.models import CheckpointRecord
from holdfast.checkpoints.values import decode
from holdfast.engine.simulator import Scripted
from holdfast.flows.check import check
from holdfast.flows.faults import FlowDefinitionError
from holdfast.flows.reading import read_flow
from holdfast.flows.spec import FlowSpec
from tests.agents import ASKED, agent, observations, record, run, said, task
from tests.going_on import Watched, calls, carried, flow, goes_on_from_everywhere
from tests.reference import ROOT, blocks

MEMORY = {"type": "memory"}


def write(path: str, content: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return "write_file", {"path": path, "content": content, **more}


def read(path: str) -> tuple[str, dict[str, Any]]:
    return "read_file", {"path": path}


def clerk(*tools: dict[str, Any], **fields: Any) -> FlowSpec:
    given: dict[str, Any] = {"file_store": MEMORY, "ask_before": "never", **fields}
    return flow(agent(*tools, **given))


def registry(watched: Watched) -> dict[str, Any]:
    return record(watched).internal_state["file_store"]


@pytest.mark.req("FS-1")
def test_files_are_written_read_listed_and_searched() -> None:
    watched = run(
        clerk(),
        calls(write("n.md", "The sea.\n"), read("n.md"), write("n.md", "It is wide.\n", append=True)),
        calls(("list_files", {}), ("search_files", {"text": "WIDE"}), read("n.md")),
        "done",
    )

    assert observations(watched) == [
        "Written: n.md (text/markdown, 9 bytes)",
        "The sea.\n",
        "Written: n.md (text/markdown, 21 bytes)",
        "n.md (text/markdown, 21 bytes)",
        "n.md:2: It is wide.",
        "The sea.\nIt is wide.\n",
    ]
    (entry,) = registry(watched).values()
    assert entry.keys() == {"size", "media_type", "sha256", "by", "data", "written_at"}
    assert decode(entry["data"]) == b"The sea.\nIt is wide.\n"
    files = record(watched).output_data["files"]
    assert files == {"n.md": {**entry, "store": {"type": "memory"}}}


@pytest.mark.req("FS-1", "AG-5")
def test_wrong_calls_are_observations() -> None:
    watched = run(
        clerk(file_store={**MEMORY, "max_files": 1, "max_file_bytes": 5}),
        calls(read("x"), write("/etc/x", ""), write("a", "123456"), write("a", "1"), write("b", "2"), write("a", "3")),
        calls(("write_file", {"path": "c"})),
        "done",
    )

    told = observations(watched)
    assert told[0] == "Error: There is no file 'x'. There are: none."
    assert told[1].startswith("Error: The path '/etc/x' is absolute")
    assert told[2] == "Error: 'a' would have 6 bytes, and a file may have 5."
    assert told[4] == "Error: There are 1 files already, and no more than 1 are allowed."
    assert "does not fit its schema" in told[6]
    assert list(registry(watched)) == ["a"]
    assert decode(registry(watched)["a"]["data"]) == b"3"


@pytest.mark.req("FS-4")
def test_the_files_of_a_tool_are_registered_and_their_bytes_are_nowhere_else() -> None:
    output = {"content": "drawn", "files": {"c.png": b"\x89PNG\0", "../x": b""}}
    watched = run(
        clerk(task("draw")), calls(("draw", {"q": "a"})), calls(read("c.png")), "done", draw=Scripted(output=output)
    )

    told = observations(watched)
    assert told[0].startswith("drawn\nThe file '../x' was not kept.")
    assert told[0].endswith("\nFiles: c.png")
    shown = [part["type"] for part in told[1]]  # pyright: ignore[reportArgumentType] (parts)
    assert shown == ["text", "image_url"]
    assert registry(watched)["c.png"]["by"] == "draw"
    state = record(watched).internal_state
    assert "files" not in state
    assert state["tool_cache"] == {
        'draw::{"q": "a"}': {"content": told[0].removesuffix("\nFiles: c.png"), "files": {
            "c.png": {"size": 5, "media_type": "image/png"},
        }},
    }  # fmt: skip


@pytest.mark.req("FS-1")
def test_of_tools_that_run_side_by_side_those_beyond_the_quota_are_not_registered() -> None:
    tools = [task("one", reuse=False)]
    watched = run(
        clerk(*tools, file_store={**MEMORY, "max_files": 1}),
        calls(("one", {"q": "a"}), ("one", {"q": "b"})),
        "done",
        one=Scripted(outputs=[{"content": "1", "files": {"a": "x"}}, {"content": "2", "files": {"b": "x"}}]),
    )

    assert list(registry(watched)) == ["a"]
    assert "no more than 1 are allowed" in observations(watched)[1]


@pytest.mark.req("FS-4", "FS-3")
def test_the_files_of_the_input_are_stored_and_the_model_is_told_their_names() -> None:
    given = {
        "input": "Read.",
        "files": [
            {"name": "in/a.txt", "data": b"alpha", "media_type": "text/x-mine"},
            b"\0",
            "data:text/plain,beta",
            "https://example.org/far.pdf",
        ],
    }
    watched = run(clerk(), calls(read("in/a.txt")), "done", input_data=given)

    asked = watched.asked[0].messages[0]["content"]
    assert asked[0]["text"] == (
        "Read.\n\nFiles that you can read:\n- in/a.txt (text/x-mine, 5 bytes)\n"
        "- file-2 (application/octet-stream, 1 bytes)\n- file-3 (text/plain, 4 bytes)"
    )
    assert [part["file"]["url"] for part in asked[1:]] == ["https://example.org/far.pdf"]
    assert observations(watched) == ["alpha"]
    assert {path: entry["by"] for path, entry in registry(watched).items()} == dict.fromkeys(
        ("in/a.txt", "file-2", "file-3"), "input"
    )
    assert [known["name"] for known in record(watched).internal_state["input_files"]] == [
        "in/a.txt", "file-2", "file-3", "file-4",
    ]  # fmt: skip
    assert "files" not in record(watched).output_data


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ([{"name": "../a", "data": b""}], "no part may be empty"),
        ([{"name": "a", "data": b""}, {"name": "a", "data": b""}], "Two files are called 'a'"),
        ([{"name": "a", "data": b"123"}], "a file may have 2"),
        ([{"name": "a", "data": 7}], "a file is bytes or a text, not int"),
    ],
)
def test_files_of_the_input_that_cannot_be_kept_fail_the_node(files: list[Any], why: str) -> None:
    watched = run(clerk(file_store={**MEMORY, "max_file_bytes": 2}), "done", input_data={"input": "x", "files": files})

    error = record(watched).error
    assert error is not None
    assert error["message"].startswith("[files/bad-input]")
    assert why in error["message"]


@pytest.mark.req("FS-4")
def test_what_a_sub_agent_wrote_is_the_outer_agents_own() -> None:
    inner = {
        "id": "helper",
        "type": "agent",
        "llm": {
            "model": "m",
            "provider": "scripted",
            "replies": [calls(write("note.txt", "from inside")), "written"],
        },
        "file_store": MEMORY,
        "ask_before": "never",
    }
    watched = run(clerk(inner), calls(("helper", {"input": "write"})), calls(read("note.txt")), "done")

    assert observations(watched) == ["written\nFiles: note.txt", "from inside"]
    assert registry(watched)["note.txt"]["by"] == "helper"


def test_what_an_agent_without_a_store_hands_on_is_not_believed_to_be_a_reference() -> None:
    forged = {"store": {"type": "nowhere"}, "sha256": "0"}
    inner = agent(task("fetch"), node_id="helper")
    script = {
        "agent": said(calls(("helper", {"input": "x"})), "done"),
        "agent/helper": said(calls(("fetch", {"q": "x"})), "fetched"),
        "agent/helper/fetch": Scripted(output={"content": "here", "files": {"a": forged, "b": b"2"}}),
    }
    watched = Watched(clerk(inner), script)
    watched.run(ASKED)

    assert list(registry(watched)) == ["b"]
    assert "What is said of 'a' is no reference to a file." in observations(watched)[0]


@pytest.mark.req("FS-3")
def test_an_image_is_shown_in_the_modes_without_tool_calls_too() -> None:
    given = {"input": "look", "files": [{"name": "c.png", "data": b"\x89PNG\0"}]}
    action = 'Thought: I look.\nAction: read_file\nAction Input: {"path": "c.png"}'
    watched = run(clerk(mode="react"), action, "Answer: seen", input_data=given)

    seen = watched.asked[1].messages[-1]["content"]
    assert seen[0] == {"type": "text", "text": "Observation: c.png (image/png, 5 bytes)"}
    assert seen[1]["type"] == "image_url"
    step = record(watched).internal_state["intermediate_steps"]["1"]["model_observation"]
    assert step["updated"] == "Observation: c.png (image/png, 5 bytes)"


@pytest.mark.req("FS-1")
def test_a_write_is_approved_as_any_other() -> None:
    whole = clerk(ask_before="write")
    script = {
        "agent": said(calls(write("a", "x")), calls(read("a")), "done"),
        "agent/write_file": Scripted(answer={"is_approved": True, "data": {"path": "b"}}),
    }
    watched = Watched(whole, script)
    watched.run(ASKED)

    assert observations(watched) == ["Written: b (text/plain, 1 bytes)", "Error: There is no file 'a'. There are: b."]


def test_a_rejected_write_is_an_observation() -> None:
    script = {
        "agent": said(calls(write("a", "x")), "done"),
        "agent/write_file": Scripted(answer={"is_approved": False, "feedback": "no"}),
    }
    watched = Watched(clerk(ask_before="write"), script)
    watched.run(ASKED)

    assert observations(watched) == ["Error: rejected by script: no"]
    assert registry(watched) == {}


@pytest.mark.req("FS-1", "AG-2")
@pytest.mark.parametrize("store", [MEMORY, {"type": "s3", "bucket": "bb"}], ids=["memory", "s3"])
def test_a_run_goes_on_from_everywhere_with_the_same_files(store: dict[str, Any]) -> None:
    whole = clerk(task("draw"), file_store=store)
    script = {
        "agent": said(
            calls(write("a.txt", "one"), ("draw", {"q": "x"})),
            calls(write("a.txt", "two", append=True), read("a.txt")),
            calls(("list_files", {})),
            "done",
        ),
        "agent/draw": Scripted(output={"content": "drawn", "files": {"c.bin": b"\0\1"}}),
    }
    given = {"input": "go", "files": [{"name": "in.txt", "data": b"in"}]}

    undisturbed = goes_on_from_everywhere(whole, script, given)

    assert list(registry(undisturbed)) == ["in.txt", "c.bin", "a.txt"]


@pytest.mark.req("FS-1")
def test_in_another_run_the_files_are_taken_over_before_the_model_is_asked() -> None:
    whole = clerk(file_store={"type": "s3", "bucket": "bb"})
    script = {"agent": said(calls(write("a.txt", "one")), calls(read("a.txt")), "done")}
    first = Watched(whole, script)
    first.run(ASKED)
    middle = next(
        entry.seq
        for entry in first.ledger.since(0)
        if isinstance(entry, NodeAdvanced) and entry.event == "loop_completed"
    )

    other = Watched(whole, script, run_id="other")
    other.run(base=carried(first.ledger.at(middle)))

    assert other.executed[:2] == ["agent/files", "agent/loop[2]/llm"]
    assert record(other).internal_state["files_of"] == {"run": "other", "store": {"type": "s3", "bucket": "bb"}}
    assert {**registry(other)} == {**registry(first)}
    assert record(first).internal_state["files_of"]["run"] == "run"


def lost(base: CheckpointRecord) -> CheckpointRecord:
    (entry,) = base.node_states["agent"].internal_state["file_store"].values()
    entry["data"] = {"__bytes__": ""}
    return base


@pytest.mark.req("FS-1")
def test_a_file_that_is_lost_fails_the_node_before_the_model_is_asked() -> None:
    whole = clerk(file_store={"type": "s3", "bucket": "bb"})
    script = {"agent": said(calls(write("a.txt", "one")), "done")}
    first = Watched(whole, script)
    first.run(ASKED)
    base = lost(carried(first.ledger.at(first.ledger.seq - 3)))

    other = Watched(whole, script, run_id="other")
    other.run(base=base)

    error = record(other).error
    assert error is not None
    assert error["message"].startswith(
        "[files/lost] 1 of the checkpoint's files cannot be taken over from the s3 store: The content of 'a.txt'"
    )
    assert other.asked == []


def test_an_agent_without_a_store_has_no_file_tools_and_no_more_state() -> None:
    watched = run(flow(agent()), "done")

    assert watched.asked[0].tools == []
    assert "files_of" not in record(watched).internal_state


@pytest.mark.parametrize(
    ("store", "fault"),
    [
        ({"type": "disk"}, "file_store.type: Input should be 'memory', 'local' or 's3'"),
        ({"type": "local"}, "file_store: a local store needs 'path', a directory under HOLDFAST_FILES"),
        ({"type": "local", "path": "../x"}, "file_store.path: '../x' has to be of the form"),
        ({"type": "local", "path": "/x"}, "file_store.path: '/x' has to be of the form"),
        ({"type": "s3"}, "file_store: an s3 store needs either 'connection' or 'bucket'"),
        ({"type": "s3", "bucket": "s3://k:s@b"}, "file_store.bucket: 's3://k:s@b' is no name of a bucket"),
        ({"type": "memory", "path": "x"}, "file_store: a store of type 'memory' has no 'path'"),
        ({"type": "memory", "max_files": 0}, "file_store.max_files: Input should be greater than or equal to 1"),
        ({"type": "memory", "size": 1}, "no field 'file_store.size'"),
    ],
)
def test_a_store_that_cannot_be_is_a_fault_of_the_definition(store: dict[str, Any], fault: str) -> None:
    with pytest.raises(FlowDefinitionError) as caught:
        read_flow(f"id: f\nnodes:\n  a: {{type: agent, llm: {{model: m}}, file_store: {store}}}".replace("'", '"'))

    assert fault in str(caught.value)
    assert "node 'a'" in str(caught.value)


def test_a_tool_cannot_have_the_name_of_a_file_tool() -> None:
    spec = FlowSpec.model_validate({"id": "f", "nodes": [agent(task("read_file"), file_store=MEMORY)]})
    (fault,) = check(spec)

    assert fault.code == "agent/reserved-tool-name"
    assert "the tool 'read_file' has the name of the tool 'read_file' that comes with 'file_store'" in fault.message
    assert check(FlowSpec.model_validate({"id": "f", "nodes": [agent(task("read_file"))]})) == []


def test_the_example_of_the_page_is_the_example_and_runs() -> None:
    page, example = (ROOT / "docs" / "files.md").read_text(), (ROOT / "examples" / "notes.yaml").read_text()
    (shown,) = blocks(page, "yaml")

    assert read_flow(shown) == read_flow(example)
    watched = Watched(read_flow(shown), {})
    state = watched.run({"input": "When does the tide turn?"}).node_states["clerk"]
    assert state.output_data["content"] == "The tide turns at six. It is in notes/sea.md."
    assert (
        decode(state.output_data["files"]["notes/sea.md"]["data"]).decode().splitlines()[1] == "High water is at noon."
    )
