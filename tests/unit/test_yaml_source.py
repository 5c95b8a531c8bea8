"""YAML as an author expects it, with the line of every part."""

from typing import Any

import pytest

from holdfast.flows.yaml_source import YamlSyntaxError, read

TEXT = """\
id: flow
nodes:
  a:
    type: pass
    depends:
      - b

      - node: c
        trigger: failure
  b: {type: pass,
      name: x}
"""


def test_every_part_has_the_line_it_starts_on() -> None:
    source = read(TEXT)

    assert source.data["nodes"]["a"]["depends"][1] == {"node": "c", "trigger": "failure"}
    assert source.line(()) == 1
    assert source.line(("nodes",)) == 2
    assert source.line(("nodes", "a", "depends")) == 5
    assert source.line(("nodes", "a", "depends", 0)) == 6
    assert source.line(("nodes", "a", "depends", 1)) == 8
    assert source.line(("nodes", "a", "depends", 1, "trigger")) == 9
    assert source.line(("nodes", "b", "name")) == 11


def test_what_has_no_line_gets_the_line_of_what_is_around_it() -> None:
    source = read(TEXT)

    assert source.line(("nodes", "a", "depends", 1, "node", "deeper", 5)) == 8
    assert source.line(("nowhere",)) == 1
    assert read("").line(("nowhere",)) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("True", True),
        ("FALSE", False),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("Off", "Off"),
        ("null", None),
        ("12", 12),
        ("1.5", 1.5),
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01T12:00:00Z", "2026-01-01T12:00:00Z"),
        ("2026-13-45", "2026-13-45"),
        ("'true'", "true"),
    ],
)
def test_a_scalar_means_what_it_means_in_json(text: str, value: Any) -> None:
    read_value = read(f"v: {text}").data["v"]

    assert read_value == value
    assert type(read_value) is type(value)


def test_a_key_written_twice_is_noticed_and_located() -> None:
    source = read("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n")

    assert source.repeated == [("b", "c")]
    assert source.line(("b", "c")) == 5


def test_an_anchor_is_used_and_a_merge_fills_in() -> None:
    source = read("base: &base {x: 1, y: 2}\nmore: {<<: *base, y: 3}\nsame: *base\n")

    assert source.data == {"base": {"x": 1, "y": 2}, "more": {"x": 1, "y": 3}, "same": {"x": 1, "y": 2}}
    assert source.repeated == []


@pytest.mark.parametrize(
    ("text", "complaint", "line"),
    [
        ("a: [1, 2\nb: 3", "expected ',' or ']'", 2),
        ("a: 1\n\tb: 2", "found character '\\\\t'", 2),
        ("a: 1\n---\nb: 2", "but found another document", 2),
        ("a: 1\nb: *nobody", "found undefined alias 'nobody'", 2),
        ("a: 1\n? [x]\n: 2", "found unhashable key", 2),
        ("a: !!python/name:os.system", "could not determine a constructor", 1),
        ("a: \x00", "special characters are not allowed", None),
        ("a: !!int many", "invalid literal", None),
        ("a: " + "[" * 600, "nested too deeply", None),
        ("a: &a {b: *a}", "an alias contains itself", None),
    ],
)
def test_what_is_not_yaml_is_refused_with_its_line(text: str, complaint: str, line: int | None) -> None:
    with pytest.raises(YamlSyntaxError, match=complaint) as refused:
        read(text)

    assert refused.value.line == line


def test_a_few_lines_that_stand_for_billions_are_refused() -> None:
    laughs = ["l0: &l0 [ha, ha]"]
    laughs += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12)]

    with pytest.raises(YamlSyntaxError, match="aliases stand for more than 500000 values"):
        read("\n".join(laughs))
