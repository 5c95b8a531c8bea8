"""JSONPath over a run's data."""

from typing import Any

import pytest

from holdfast.flows.selectors import BadSelectorError, all_paths_of, find, names, paths_of, transform, verify
from holdfast.flows.spec import Transformer

DATA: dict[str, Any] = {
    "size": 3,
    "empty": None,
    "a": {"output": {"items": [1, 2], "one": [5], "text": "hi"}},
    "b": {"output": "a text"},
}


@pytest.mark.req("FL-4")
@pytest.mark.parametrize(
    ("selector", "value"),
    [
        ("$.a.output.text", "hi"),
        ("$.a.output.items", [1, 2]),
        ("$.a.output.items[*]", [1, 2]),
        ("$.a.output.one[*]", 5),
        ("$.nothing", None),
        ("$.empty", None),
        ("$.nothing || $.size", 3),
        ("$.empty || $.nothing || a literal", "a literal"),
        ("  $.nothing||$.size  ", 3),
        ("plain text", "plain text"),
        ("plain || text", "plain || text"),
        ("", ""),
        ("$.a.output.items[?@ == 1 || @ == 2]", [1, 2]),
        ("$.nowhere[?@ == 1 || @ == 2] || $.size", 3),
        ("$['a']['output']['text']", "hi"),
        ("$..text", "hi"),
        ("$.size | $.a.output.text", [3, "hi"]),
        ("$.a.output.items[?@ < $.size]", [1, 2]),
    ],
)
def test_a_selector_finds_what_it_names(selector: str, value: Any) -> None:
    assert find(selector, DATA) == value


@pytest.mark.parametrize("text", ["hello", "123", "null", '{"a": 1}', '{"a": 1', "[1, 2", "", "ä\n"])
def test_a_text_is_never_taken_for_a_document(text: str) -> None:
    assert find("$", text) == text
    assert find("$.a", text) is None
    assert find("$[0]", text) is None


@pytest.mark.parametrize("value", [None, 5, True, 1.5, [1, 2]])
def test_the_root_is_the_value_itself(value: Any) -> None:
    assert find("$", value) == value
    assert find("$.a", value) is None


@pytest.mark.parametrize("selector", ["$[?@ in $.text]", "$[?@.n < 'x']", "$.*[?match(@.n, $.text)]"])
def test_a_filter_that_compares_what_cannot_be_compared_matches_nothing(selector: str) -> None:
    assert find(f"{selector} || nothing", {"text": "x(", "list": [{"n": 5}], "object": {"n": "x"}}) == "nothing"


def test_data_as_deep_as_json_can_be_is_searched() -> None:
    deep: Any = {"x": "bottom"}
    for _ in range(180):
        deep = {"y": deep}

    assert find("$..x", deep) == "bottom"


@pytest.mark.parametrize(
    "selector", ["$.a[", "$..", "$.a || $[?@.b >]", "$5 off", "$.a[?nofunction(@.b)]", "$[?@.a =~ /(/]"]
)
def test_a_path_that_does_not_parse_is_refused(selector: str) -> None:
    with pytest.raises(BadSelectorError, match="is not a JSONPath"):
        verify(selector)


def test_a_text_and_a_good_path_are_accepted() -> None:
    verify("5 $ off")
    verify("$.a || 5 off")


@pytest.mark.parametrize(
    ("selector", "read"),
    [
        ("$.a.output.x", {"a"}),
        ("$['a', 'b'].output", {"a", "b"}),
        ("$.a || $.b.output || literal", {"a", "b"}),
        ("literal", set[str]()),
        ("$", None),
        ("$.*.output", None),
        ("$..output", None),
        ("$[?@.output]", None),
        ("$.a || $.*", None),
        ("$.a | $.b", None),
        ("$.a[?@.n == $.b.output]", None),
    ],
)
def test_the_names_a_selector_reads_are_known_or_known_to_be_unknown(selector: str, read: set[str] | None) -> None:
    assert names(selector) == read


@pytest.mark.req("FL-4")
def test_a_transformer_narrows_first_and_then_builds() -> None:
    transformer = Transformer(
        path="$.a.output", selector={"t": "$.text", "n": 5, "all": ["$.items", {"size": "$.size"}], "l": "as it is"}
    )

    assert transform(transformer, DATA) == {"t": "hi", "n": 5, "all": [[1, 2], {"size": None}], "l": "as it is"}
    assert transform(Transformer(path="$.b.output"), DATA) == "a text"
    assert transform(Transformer(selector={}), DATA) == {}
    assert transform(Transformer(), DATA) is DATA
    assert transform(None, DATA) is DATA


def test_a_transformer_does_not_change_what_it_reads() -> None:
    before = repr(DATA)

    built = transform(Transformer(selector={"items": "$.a.output.items", "one": "$.a.output.one[*]"}), DATA)
    built["more"] = 1

    assert repr(DATA) == before


def test_the_selectors_of_a_transformer_are_listed_for_checking_and_for_reading() -> None:
    both = Transformer(path="$.a", selector={"x": "$.b", "y": ["$.c", {"z": "$.d"}], "n": 5})

    assert all_paths_of(both) == ["$.a", "$.b", "$.c", "$.d"]
    assert paths_of(both) == ["$.a"]
    assert paths_of(Transformer(selector={"x": "$.b"})) == ["$.b"]
    assert paths_of(None) == all_paths_of(None) == []
