"""Names of files, and what may be kept under them."""

import base64
import io
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.files import (
    Content,
    FileRefusedError,
    clean_path,
    content_of,
    object_name,
    over_quota,
    references,
    without_content,
)
from holdfast.flows.files import FileStoreParams


@pytest.mark.req("FS-1")
@pytest.mark.parametrize(
    "path", ["a", "notes/plan.md", "pkg/__init__.py", "Größe/naïve ☃.txt", "a b/c-d_e.tar.gz", ".hidden", "x" * 200]
)
def test_a_path_is_taken_as_it_is(path: str) -> None:
    assert clean_path(path) == path


@pytest.mark.req("FS-1")
@pytest.mark.parametrize(
    "path",
    [
        "", "/etc/passwd", "..", "../x", "a/../b", "a/./b", ".", "a//b", "a/", "a\\b", "..\\x", "C:\\x", "a\0b", "a\nb",
        "a\u202eb", "a\u200bb", "a\u2028b", "a\ud800b", "／etc", "a／b", "‥/x", "．．/x", "a＼b", "…", " a", "a /b",
        "a\u00a0b", "__bytes__", "__init__.py",
        "x" * 201, "a/" * 300 + "b", 7, None, ["a"],
    ],
)  # fmt: skip
def test_what_leads_elsewhere_or_cannot_be_seen_is_no_path(path: Any) -> None:
    with pytest.raises(FileRefusedError):
        clean_path(path)


@pytest.mark.req("FS-1")
@given(st.text(max_size=40))
def test_a_path_that_is_taken_stays_below_and_is_taken_again(text: str) -> None:
    try:
        path = clean_path(text)
    except FileRefusedError:
        return
    assert clean_path(path) == path
    assert not path.startswith("/")
    assert not {"", ".", ".."} & set(unicodedata.normalize("NFKC", path).split("/"))
    assert "\\" not in path
    assert path.isprintable()


_paths = st.text(st.sampled_from("ab/.-é"), min_size=1, max_size=12)


@pytest.mark.req("FS-1", "FS-2")
@given(_paths, _paths, st.sampled_from(["k", "k2"]), st.sampled_from(["k", "k2"]), st.booleans())
def test_an_object_is_of_one_path_one_call_and_one_content(
    path: str, other: str, key: str, other_key: str, same: bool
) -> None:
    left, right = (path, key, "s"), (other, other_key, "s" if same else "t")

    assert (object_name(*left) == object_name(*right)) == (left == right)


@pytest.mark.req("FS-4", "FS-3")
@pytest.mark.parametrize(
    ("value", "content"),
    [
        (b"x", Content(b"x")),
        (bytearray(b"x"), Content(b"x")),
        (io.BytesIO(b"x"), Content(b"x")),
        ("words: more", Content(b"words: more")),
        ("data: not one", Content(b"data: not one")),
        ("data:image/png;base64," + base64.b64encode(b"\x89PN").decode(), Content(b"\x89PN", "image/png")),
        ("data:,a%20b", Content(b"a b", "text/plain")),
        ({"data": b"x", "media_type": "a/b"}, Content(b"x", "a/b")),
        ({"content": "x", "content_type": "a/b"}, Content(b"x", "a/b")),
        ({"data": b""}, Content(b"")),
        ("https://example.org/x", None),
        ({"url": "https://example.org/x"}, None),
    ],
)
def test_a_file_is_given_in_many_forms(value: Any, content: Content | None) -> None:
    assert content_of(value) == content


@pytest.mark.parametrize("value", [7, None, {}, {"data": 7}, "data:image/png;base64,!!", ["x"]])
def test_anything_else_is_no_file(value: Any) -> None:
    with pytest.raises(FileRefusedError):
        content_of(value)


@pytest.mark.req("FS-1")
def test_quotas_are_for_a_file_for_all_of_them_and_for_their_number() -> None:
    store = FileStoreParams(type="memory", max_file_bytes=10, max_bytes=15, max_files=2)
    registry = {"a": {"size": 10}}

    assert over_quota(store, registry, "b", 5) is None
    assert over_quota(store, registry, "a", 10) is None
    assert "a file may have 10" in str(over_quota(store, {}, "b", 11))
    assert "16 bytes, and 15 are allowed" in str(over_quota(store, registry, "b", 6))
    assert "no more than 2" in str(over_quota(store, {**registry, "b": {"size": 1}}, "c", 1))
    assert over_quota(FileStoreParams(type="memory"), {}, "a", 2**24) is not None
    assert over_quota(FileStoreParams(type="s3", bucket="bb"), {}, "a", 2**24) is None


def test_contents_are_passed_on_for_one_file_alone() -> None:
    registry = {"a": {"size": 1, "data": b"x"}, "b": {"size": 1, "packed": b"y"}}

    assert without_content(registry) == {"a": {"size": 1}, "b": {"size": 1}}
    assert without_content(registry, keep="b") == {"a": {"size": 1}, "b": {"size": 1, "packed": b"y"}}


def test_what_came_with_the_input_is_not_given_on() -> None:
    registry = {"a": {"by": "input"}, "b": {"by": "agent", "key": "k"}}
    store = FileStoreParams(type="local", path="p", max_files=3)

    assert references(store, registry) == {"b": {"by": "agent", "key": "k", "store": {"type": "local", "path": "p"}}}
