"""Every supported value comes back from JSON as it was; every other one is refused with the path that leads to it."""

import dataclasses
import io
import json
import sys
import threading
from collections import OrderedDict
from collections.abc import Hashable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, Flag, IntEnum, auto
from pathlib import PurePosixPath
from typing import Any, NamedTuple, cast
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, RootModel, SecretStr
from pydantic_core import from_json, to_json

from holdfast.checkpoints import values
from holdfast.checkpoints.values import Foreign, UnserialisableError, decode, encode


class Color(Enum):
    RED = "red"
    DEEP = ("blue", 7)


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Rights(Flag):
    READ = auto()
    WRITE = auto()


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    text: str
    length: int = dataclasses.field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", len(self.text))


class Note(BaseModel):
    model_config = ConfigDict(extra="allow")

    text: Any
    tags: set[str] = set()
    aliased: int = Field(default=0, alias="theAlias")


class Names(RootModel[dict[str, Any]]):
    pass


class Loud(BaseModel):
    """Cannot be made from what it was stored as."""

    text: str

    def model_post_init(self, _: Any) -> None:
        if self.text == "changed since":
            raise KeyError(self.text)


class Pair(NamedTuple):
    left: int
    right: int


OFFSETS = st.sampled_from(
    [None, UTC, timezone(timedelta(hours=5, minutes=45)), timezone(-timedelta(hours=3, seconds=7))]
)
HASHABLE: st.SearchStrategy[Hashable] = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.binary(max_size=8),
    st.dates(),
    st.datetimes(timezones=OFFSETS),
    st.times(timezones=OFFSETS),
    st.timedeltas(),
    st.uuids(),
    st.decimals(allow_nan=False),
    st.sampled_from([*Color, *Level, *Rights]),
    st.builds(PurePosixPath, st.sampled_from(["/", "a/b", "../c d"])),
    st.tuples(st.integers(), st.text(max_size=3)),
    st.frozensets(st.integers(), max_size=3),
)
LEAVES: st.SearchStrategy[Any] = st.one_of(
    HASHABLE,
    st.floats(),
    st.decimals(),
    st.complex_numbers(),
    st.binary(max_size=8).map(bytearray),
    st.binary(max_size=8).map(io.BytesIO),
)
KEYS = st.one_of(st.text(max_size=5), st.sampled_from(["__bytes__", "__dict__", "__model__", "__", "value"]))


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(HASHABLE, inner, max_size=4),
        st.sets(HASHABLE, max_size=4),
        st.frozensets(HASHABLE, max_size=4),
        st.builds(Point, inner, inner),
        st.builds(Note, text=inner, tags=st.sets(st.text(max_size=3), max_size=2), surplus=inner),
    )


VALUES = st.recursive(LEAVES, nested, max_leaves=12)


def identity(value: Any) -> Hashable:
    """What must not be lost of a value: equal only for values of the same type and content, at every depth."""
    kind = cast(type[object], type(value))
    if isinstance(value, list | tuple):
        return kind, tuple(map(identity, cast(list[Any], value)))
    if isinstance(value, set | frozenset):
        return kind, frozenset(map(identity, cast(set[Any], value)))
    if isinstance(value, dict):
        items = cast(dict[Any, Any], value).items()
        return kind, tuple((identity(key), identity(item)) for key, item in items)
    if isinstance(value, BaseModel):
        return kind, identity(dict(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return kind, identity({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if isinstance(value, io.BytesIO):
        return kind, value.getvalue()
    if isinstance(value, float | complex | Decimal | bytearray):
        return kind, repr(value)
    if isinstance(value, datetime | time):
        return kind, value.isoformat()
    return kind, value


def round_trip(value: Any) -> Any:
    return decode(from_json(to_json(encode(value))))


@pytest.mark.req("DM-7")
@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(VALUES)
def test_any_nested_value_comes_back_equal_and_of_the_same_type(value: Any) -> None:
    assert identity(round_trip(value)) == identity(value)


@pytest.mark.req("DM-7")
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(VALUES)
def test_encoding_gives_strict_json_and_the_same_json_for_what_came_back(value: Any) -> None:
    written = encode(value)

    assert json.loads(json.dumps(written, allow_nan=False, sort_keys=True)) == written
    assert encode(decode(written)) == written


@pytest.mark.req("DM-7")
def test_bytes_that_are_not_text_lose_nothing() -> None:
    every_byte = bytes(range(256))

    assert round_trip({"file": io.BytesIO(every_byte)})["file"].getvalue() == every_byte
    assert round_trip(every_byte) == every_byte
    assert round_trip(memoryview(every_byte)) == every_byte


def test_a_time_in_a_named_zone_comes_back_as_the_same_moment() -> None:
    moment = datetime(2026, 7, 1, 12, 30, tzinfo=ZoneInfo("Europe/Paris"))

    assert round_trip(moment) == moment
    assert round_trip(moment).utcoffset() == timedelta(hours=2)


def test_a_model_is_found_by_its_mark_wherever_the_mark_stands() -> None:
    note = Note.model_validate({"text": "a", "Zebra": 1})
    stored = encode(note)

    assert decode(dict(reversed(stored.items()))) == note


@pytest.mark.parametrize(
    "value",
    [
        Note.model_validate({"text": "a", "theAlias": 4, "more": b"x"}),
        Names({"root": 1}),
        Measured("four"),
        Rights.READ | Rights.WRITE,
        Color.DEEP,
        {(1, "a"): {frozenset({2}): None}},
        {"__bytes__": "not base64"},
        float("-inf"),
        complex("nan+infj"),
        Decimal("NaN"),
    ],
    ids=repr,
)
def test_a_value_with_a_catch_comes_back_as_it_was(value: Any) -> None:
    assert identity(round_trip(value)) == identity(value)


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (OrderedDict({"a": 1}), {"a": 1}),
        (Pair(1, 2), (1, 2)),
        (type("Text", (str,), {})("a"), "a"),
        (type("Number", (float,), {})(1.5), 1.5),
        (type("Listing", (list,), {})([1]), [1]),
        (OrderedDict({1: 2}), {1: 2}),
    ],
)
def test_a_subclass_of_a_plain_type_is_kept_as_what_it_is_at_heart(value: Any, plain: Any) -> None:
    assert identity(round_trip(value)) == identity(plain)


def test_equal_sets_are_written_alike() -> None:
    numbers = list(range(50))

    assert json.dumps(encode({str(n) for n in numbers})) == json.dumps(encode({str(n) for n in reversed(numbers)}))


def closed_file() -> io.BytesIO:
    file = io.BytesIO(b"gone")
    file.close()
    return file


@pytest.mark.req("DM-7")
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "the output"),
        ({"a": [1, {"b": object()}]}, "the output.a[1].b"),
        ((1, threading.Lock()), "the output[1]"),
        ({1, len}, "the output"),
        (Point(1, Point(sys, 2)), "the output.y.x"),
        (Note(text={"deep": [print]}), "the output.text.deep[0]"),
        ({(1, 2): object()}, "the output[(1, 2)]"),
        ({len: 1}, "the output key"),
        ({"token": SecretStr("s")}, "the output.token"),
        ({"text": "half a \ud83d"}, "the output.text"),
        ({"half a \ud83d": 1}, "the output key"),
        ([int], "the output[0]"),
        ([closed_file()], "the output[0]"),
        ({"a": iter([1])}, "the output.a"),
    ],
)
def test_an_unsupported_value_is_refused_with_the_path_to_it(value: Any, path: str) -> None:
    with pytest.raises(UnserialisableError) as refused:
        encode(value, "the output")

    assert refused.value.path.startswith(path)
    assert str(refused.value).startswith(path)


def test_the_refusal_names_the_type_and_says_what_may_be_returned() -> None:
    with pytest.raises(UnserialisableError) as refused:
        encode({"lock": threading.Lock()}, "the output of node 'a'")

    assert str(refused.value) == (
        "the output of node 'a'.lock is of type _thread.lock and cannot be stored; "
        "return JSON values, bytes, dates, sets, enums, dataclasses or pydantic models"
    )


def test_a_value_that_contains_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append({"again": endless})

    with pytest.raises(UnserialisableError, match="contains itself") as refused:
        encode(endless)

    assert len(str(refused.value)) < 500


def test_the_deepest_value_that_is_accepted_can_be_read_back() -> None:
    plain: Any = "bottom"
    marked: Any = "bottom"
    for _ in range(100):
        plain = [plain]
    for _ in range(50):
        marked = (marked,)

    assert round_trip(plain) == plain
    assert round_trip(marked) == marked
    for deeper in ([plain, plain], {"a": plain}):
        with pytest.raises(UnserialisableError, match="more than 100 levels deep"):
            encode([deeper])


@pytest.mark.parametrize(
    "stored",
    [
        {"__bytes__": 5},
        {"__uuid__": 5},
        {"__decimal__": "many"},
        {"__datetime__": "yesterday"},
        {"__set__": [[1]]},
        {"__dict__": [1]},
        {"__timedelta__": [10**12]},
        {"__model__": "tests:Gone", "text": "a"},
        {"__model__": 7},
        {"__model__": "json:JSONDecoder"},
        {"__enum__": f"{__name__}:Color", "value": "green"},
        {"__enum__": f"{__name__}:Note", "value": "green"},
        {"__enum__": f"{__name__}:Color"},
        {"__dataclass__": f"{__name__}:Point", "z": 1},
        {"__dataclass__": f"{__name__}:Note", "text": 1},
        {"__model__": f"{__name__}:Loud", "text": "changed since"},
        {"__model__": f"{__name__}:Loud", "text": 5},
    ],
)
def test_what_cannot_be_restored_is_read_as_a_dict_and_written_back_unchanged(stored: dict[str, Any]) -> None:
    read = decode(stored)

    assert type(read) is Foreign
    assert read == stored
    assert encode({"kept": read}) == {"kept": stored}


def test_data_never_causes_an_import() -> None:
    name = "this"  # Prints a poem when it is imported.
    assert name not in sys.modules

    assert decode({"__model__": f"{name}:s"}) == {"__model__": "this:s"}
    assert name not in sys.modules


def test_an_unknown_mark_is_an_ordinary_key() -> None:
    assert decode({"__later__": [{"__bytes__": "YQ=="}]}) == {"__later__": [b"a"]}


def test_the_marks_are_those_of_the_documented_schema() -> None:
    moment = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    assert encode(b"a") == {"__bytes__": "YQ=="}
    assert encode(io.BytesIO(b"a")) == {"__bytesio__": "YQ=="}
    assert encode(moment) == {"__datetime__": "2026-01-02T03:04:05+00:00"}
    assert encode(date(2026, 1, 2)) == {"__date__": "2026-01-02"}
    assert encode(UUID(int=1)) == {"__uuid__": "00000000-0000-0000-0000-000000000001"}
    assert encode({1}) == {"__set__": [1]}
    assert encode((1,)) == {"__tuple__": [1]}
    assert encode(Decimal("1.50")) == {"__decimal__": "1.50"}
    assert encode(Color.RED) == {"__enum__": f"{Color.__module__}:Color", "value": "red"}
    assert values.encode({"__bytes__": 1}) == {"__dict__": [["__bytes__", 1]]}
