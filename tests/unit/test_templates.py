"""Jinja templates over a node's input."""

from typing import Any

import pytest

from holdfast.flows.templates import BadTemplateError, render, verify


@pytest.mark.parametrize(
    ("template", "data", "rendered"),
    [
        ("Hello {{ name }}", {"name": "you"}, "Hello you"),
        ("no braces", {"name": "you"}, "no braces"),
        ("{{ input.name }}", {"name": "you"}, "you"),
        ("{{ input }}", "plain", "plain"),
        ("{{ input[1] }}", [1, 2], "2"),
        ("{{ a }}\n", {"a": "<b>"}, "<b>\n"),
        ({"q": "{{ a }}", "n": 5, "l": ["{{ a }}", None]}, {"a": 1}, {"q": "1", "n": 5, "l": ["1", None]}),
        (5, {}, 5),
        ("{% for x in input %}{{ x }},{% endfor %}", [1, 2], "1,2,"),
    ],
)
def test_texts_are_rendered_wherever_they_are(template: Any, data: Any, rendered: Any) -> None:
    assert render(template, data) == rendered


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{{ nobody }}", "'nobody' is undefined"),
        ("{{ a.b.c }}", "has no attribute 'b'"),
        ("{{ 1 / a }}", "division by zero"),
        ("{{ a + 'x' }}", "unsupported operand"),
        ("{{ a | dictsort }}", "no attribute 'items'"),
        ("{{ ().__class__.__bases__ }}", "unsafe"),
        ("{{ range(10000000) }}", "Range too big"),
        ("{{ a[", "unexpected 'end of template'"),
    ],
)
def test_a_template_that_cannot_be_rendered_says_why(template: str, complaint: str) -> None:
    with pytest.raises(BadTemplateError, match=complaint) as refused:
        render(template, {"a": 0})

    assert str(refused.value).count(f"template {template!r}: ") == 1


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{{ open", "unexpected end of template"),
        ({"a": ["fine {{ x }}", {"b": "{% for %}"}]}, "Expected an expression"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "nested too deeply"),
    ],
)
def test_a_template_that_does_not_parse_is_found_before_anything_runs(template: Any, complaint: str) -> None:
    with pytest.raises(BadTemplateError, match=complaint):
        verify(template)


def test_what_parses_is_accepted_whatever_it_needs() -> None:
    verify({"a": ["{{ not_there_yet }}", 5, None]})


def test_a_long_template_is_cut_short_in_the_message() -> None:
    with pytest.raises(BadTemplateError) as refused:
        verify("x" * 100 + "{{")

    assert f"{'x' * 77}...'" in str(refused.value)
