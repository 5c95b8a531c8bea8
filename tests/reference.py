"""The reference as the tests read it: a page's sections, its tables, its examples, its words in code marks."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "docs" / "reference"


def section(text: str, heading: str) -> str:
    """What stands under a heading, up to the next one that is not deeper."""
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found is not None, f"no heading {heading!r}"
    rest = text[found.end() :]
    following = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: following.start()] if following else rest


def tables(text: str, first: str) -> Iterator[list[list[str]]]:
    """The tables whose first column is called `first`, as rows of cells, without the head."""
    for block in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
        rows = [re.split(r"\s*(?<!\\)\|\s*", line)[1:-1] for line in block.splitlines()]
        if rows[0][0] == first:
            yield rows[2:]


def named(text: str) -> set[str]:
    """Everything in code marks."""
    return set(re.findall(r"`([^`\n]+)`", text))


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
