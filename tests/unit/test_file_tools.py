"""The tools over the store whose contents are in the checkpoint, and that store itself."""

import secrets
from typing import Any

import pytest

from holdfast.contracts.file_tools import READ_LIMIT, SHOWN_BYTES, Files, Kept
from holdfast.contracts.files import Content, Entry, LostFileError
from holdfast.contracts.memory_files import PLAIN_BYTES, MemoryFiles
from holdfast.flows.files import LIST, READ, SEARCH, WRITE, FileStoreParams

STORE = FileStoreParams(type="memory", max_file_bytes=3 * 2**20)


class Desk:
    """An agent's files as the run would register them, call by call."""

    def __init__(self, **files: bytes) -> None:
        self.registry: dict[str, Entry] = {}
        self.given = files

    async def call(self, tool: str, **arguments: Any) -> Kept:
        for name, data in self.given.items():
            files = Files(MemoryFiles(), STORE, self.registry)
            self.registry[name.replace("_", ".")] = await files.save(name.replace("_", "."), Content(data), "input")
        self.given = {}
        kept = await Files(MemoryFiles(), STORE, self.registry).use(tool, arguments)
        self.registry.update(kept.files)
        return kept

    async def said(self, tool: str, **arguments: Any) -> str:
        output = (await self.call(tool, **arguments)).output
        return output.get("content") or output["refused"]


@pytest.mark.req("FS-1")
async def test_what_is_written_is_listed_read_and_found() -> None:
    desk = Desk()

    assert await desk.said(LIST) == "There are no files yet."
    assert await desk.said(WRITE, path="n/a.md", content="one Sea\n") == "Written: n/a.md (text/markdown, 8 bytes)"
    await desk.call(WRITE, path="n/a.md", content="two\n", append=True)
    await desk.call(WRITE, path="b.txt", content="sea, too", append=True)
    assert await desk.said(READ, path="n/a.md") == "one Sea\ntwo\n"
    assert await desk.said(LIST, glob="*.md") == "n/a.md (text/markdown, 12 bytes)"
    assert await desk.said(SEARCH, text="sea") == "b.txt:1: sea, too\nn/a.md:1: one Sea"
    assert await desk.said(SEARCH, glob="n/*") == "n/a.md (text/markdown, 12 bytes)"
    assert await desk.said(SEARCH, text="whale") == "Nothing was found."
    await desk.call(WRITE, path="n/a.md", content="new")
    assert await desk.said(READ, path="n/a.md") == "new"
    assert desk.registry["n/a.md"]["by"] == "agent"


@pytest.mark.req("FS-1")
async def test_what_the_model_does_wrong_is_told_to_it() -> None:
    desk = Desk(a_txt=b"x")

    assert await desk.said(READ, path="b.txt") == "There is no file 'b.txt'. There are: a.txt."
    assert "absolute" in await desk.said(READ, path="/etc/passwd")
    assert "'..'" in await desk.said(WRITE, path="../x", content="y")
    assert "a file may have 3145728" in await desk.said(WRITE, path="x", content="y" * (3 * 2**20 + 1))
    assert list(desk.registry) == ["a.txt"]


async def test_a_long_text_comes_in_parts() -> None:
    desk = Desk(long_txt=("é" * READ_LIMIT + "end").encode())

    first = await desk.said(READ, path="long.txt")
    assert first.endswith("é\n[characters 0 to 20000 of 20003; read on with offset 20000]")
    assert await desk.said(READ, path="long.txt", offset=READ_LIMIT) == "end\n[characters 20000 to 20003 of 20003]"
    assert await desk.said(READ, path="long.txt", offset=1, limit=2) == (
        "éé\n[characters 1 to 3 of 20003; read on with offset 3]"
    )


@pytest.mark.req("FS-3")
async def test_images_and_documents_are_shown_up_to_a_megabyte_and_the_rest_is_described() -> None:
    desk = Desk(i_png=b"\x89PNG\0", d_pdf=b"%PDF\0", big_png=b"\0" * (SHOWN_BYTES + 1), x_bin=b"\0\1")

    assert (await desk.call(READ, path="i.png")).output["parts"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORwA="}}
    ]
    assert (await desk.call(READ, path="d.pdf")).output["parts"][0]["file"]["name"] == "d.pdf"
    assert "too large to be shown" in await desk.said(READ, path="big.png")
    assert "is no text and cannot be shown" in await desk.said(READ, path="x.bin")


async def test_a_search_stops_where_there_is_too_much() -> None:
    desk = Desk(a_txt=b"x\n" * 60)

    lines = (await desk.said(SEARCH, text="X")).splitlines()

    assert len(lines) == 51
    assert lines[-1] == "… and more: search for something narrower"


@pytest.mark.req("FS-4")
async def test_what_a_tool_gives_is_kept_and_the_model_is_told_what_was_not() -> None:
    files = Files(MemoryFiles(), STORE, {})
    given = {"a.bin": b"\0", "t.csv": "a,b", "../x": b"", "far": "https://example.org", "odd": 7}

    kept = await files.keep({"content": "done", "files": given, "more": 1}, "tool", None)

    assert kept.output["files"] == {
        "a.bin": {"size": 1, "media_type": "application/octet-stream"},
        "t.csv": {"size": 3, "media_type": "text/csv"},
        "far": "https://example.org",
    }
    assert kept.output["content"].startswith("done\nThe file '../x' was not kept. The path")
    assert "The file 'odd' was not kept." in kept.output["content"]
    assert kept.output["more"] == 1
    assert {path: entry["by"] for path, entry in kept.files.items()} == {"a.bin": "tool", "t.csv": "tool"}


async def test_a_reference_is_believed_only_from_an_agent_inside() -> None:
    files = Files(MemoryFiles(), STORE, {})
    forged = {
        "store": {"type": "local", "path": "x"},
        "sha256": "0",
        "key": "n/other/1",
        "size": 1,
        "media_type": "a/b",
    }

    async def fetch(path: str, reference: Any) -> Content:
        return Content(b"inside", reference["media_type"])

    refused = await files.keep({"files": {"f": forged}}, "tool", None)
    taken = await files.keep({"files": {"f": forged}}, "agent", fetch)

    assert refused.files == {}
    assert taken.files["f"]["size"] == 6


@pytest.mark.req("FS-1")
async def test_contents_in_the_checkpoint_are_compressed_beyond_a_megabyte_and_come_back() -> None:
    store = MemoryFiles()
    files = Files(store, FileStoreParams(type="memory"), {})
    noise = secrets.token_bytes(PLAIN_BYTES)
    first = await files.save("a", Content(noise), "agent")
    second = await files.save("b", Content(b"text " * 1000), "agent")

    assert first["data"] == noise
    assert len(second["packed"]) < 200
    assert await store.get("a", first) == noise
    assert await store.get("b", second) == b"text " * 1000


@pytest.mark.parametrize(
    "damage",
    [{"data": b"other"}, {"data": None}, {"packed": b"no frame"}, {"packed": None}, {}],
    ids=["changed", "empty", "damaged", "no bytes", "missing"],
)
async def test_a_content_that_is_not_what_was_written_is_said_to_be_lost(damage: dict[str, Any]) -> None:
    entry = await Files(MemoryFiles(), STORE, {}).save("a", Content(b"x"), "agent")
    del entry["data"]

    with pytest.raises(LostFileError, match="'a'"):
        await MemoryFiles().get("a", {**entry, **damage})
