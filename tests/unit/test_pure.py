"""The pure built-in nodes."""

from datetime import date
from typing import Any

import pytest

from holdfast.engine.pure import PURE_NODES, NotValidError
from holdfast.flows.kinds import KINDS
from holdfast.flows.templates import BadTemplateError

DEEP = "[" * 100_000
VALID: list[tuple[str, dict[str, Any], Any]] = [
    ("validate-json", {}, '{"a": [1]}'),
    ("validate-json", {}, b"[1]"),
    ("validate-json", {}, {"already": ["data"]}),
    ("validate-python", {}, "x = 1"),
    ("validate-choices", {"choices": ["a", 1]}, "a"),
    ("validate-regex", {"regex": "a+"}, "aa"),
    ("validate-regex", {"regex": "a+", "match": "search"}, "baab"),
]
INVALID: list[tuple[str, dict[str, Any], Any, str]] = [
    ("validate-json", {}, "{a}", "not JSON: Expecting property name"),
    ("validate-json", {}, b"\xff", "not JSON: 'utf-8' codec"),
    ("validate-json", {}, {"at": date(2026, 1, 1)}, "not JSON: Object of type date"),
    ("validate-json", {}, DEEP, "not JSON: maximum recursion depth"),
    ("validate-python", {}, "x =", "not Python: invalid syntax"),
    ("validate-python", {}, 5, "not Python: "),
    ("validate-python", {}, "-" * 100_000 + "1", "nested too deeply"),
    ("validate-choices", {"choices": ["a"]}, "b", "'b' is none of"),
    ("validate-choices", {"choices": ["a"]}, ["a"], "is none of"),
    ("validate-regex", {"regex": "a+"}, "baab", "'baab' does not match 'a\\+'"),
    ("validate-regex", {"regex": "a+"}, 5, "5 does not match"),
]


@pytest.mark.req("FL-1")
def test_every_pure_kind_that_is_not_decided_by_the_engine_has_its_function() -> None:
    assert PURE_NODES.keys() == {name for name, kind in KINDS.items() if kind.pure and kind.activity}


@pytest.mark.parametrize(("kind", "params", "content"), VALID)
def test_valid_content_is_handed_on(kind: str, params: dict[str, Any], content: Any) -> None:
    assert PURE_NODES[kind](params, {"content": content}) == {"valid": True, "content": content}
    assert PURE_NODES[kind]({**params, "field": "f"}, {"f": content}) == {"valid": True, "content": content}


@pytest.mark.parametrize(("kind", "params", "content", "complaint"), INVALID)
def test_invalid_content_fails_the_node_or_is_returned_with_the_complaint(
    kind: str, params: dict[str, Any], content: Any, complaint: str
) -> None:
    with pytest.raises(NotValidError, match=complaint) as refused:
        PURE_NODES[kind](params, {"content": content})

    returned = PURE_NODES[kind]({**params, "on_invalid": "return"}, {"content": content})

    assert returned == {"valid": False, "content": content, "complaint": str(refused.value)}


@pytest.mark.parametrize("kind", ["validate-json", "validate-python"])
@pytest.mark.parametrize("given", [{}, {"other": 1}, "text", None])
def test_a_missing_field_is_named(kind: str, given: Any) -> None:
    with pytest.raises(NotValidError, match="the input has no field 'content'; select it with an input_transformer"):
        PURE_NODES[kind]({}, given)


def test_a_transform_renders_its_template() -> None:
    params = {"template": {"greeting": "Hello {{ name }}", "fixed": [1, "{{ input.name }}"]}}

    assert PURE_NODES["transform"](params, {"name": "you"}) == {"greeting": "Hello you", "fixed": [1, "you"]}
    with pytest.raises(BadTemplateError, match="'name' is undefined"):
        PURE_NODES["transform"](params, {})
