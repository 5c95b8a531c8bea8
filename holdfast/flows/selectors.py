"""JSONPath over a run's data: compiled once, evaluated in the workflow, so it must be quick and deterministic.

A selector is `$.a.output || $.b.output || literal`: the first alternative that finds something wins. Several matches
give a list, none gives None, and a string that does not start with `$` is itself.
"""

import json
import re
from functools import lru_cache
from typing import Any

import jsonpath
from jsonpath.selectors import NameSelector

from holdfast.flows.shapes import is_array, is_object
from holdfast.flows.spec import Transformer

_SEPARATOR = "||"


class BadSelectorError(ValueError):
    """A JSONPath that does not parse."""

    def __init__(self, path: str, complaint: str) -> None:
        super().__init__(f"{path!r} is not a JSONPath: {complaint}")


class _Environment(jsonpath.JSONPathEnvironment):
    """JSON itself is never read as deep as this, so that `$..x` cannot fail on data that came this far."""

    max_recursion_depth = 1000


_ENVIRONMENT = _Environment()


@lru_cache(maxsize=4096)
def _compile(path: str) -> Any:
    try:
        return _ENVIRONMENT.compile(path)
    except (jsonpath.JSONPathError, re.error) as error:
        # The rest of the complaint draws the path again, over several lines.
        raise BadSelectorError(path, str(error).partition("\n")[0]) from error


def _alternatives(text: str) -> list[str]:
    if not text.lstrip().startswith("$"):
        return [text]
    # Inside brackets `||` is JSONPath's own "or"; only those outside separate alternatives.
    parts, depth, start = list[str](), 0, 0
    for index, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if depth == 0 and text.startswith(_SEPARATOR, index):
            parts.append(text[start:index])
            start = index + len(_SEPARATOR)
    return [part.strip() for part in [*parts, text[start:]]]


def _is_path(text: str) -> bool:
    return text.startswith("$")


def verify(text: str) -> None:
    """Raises BadSelectorError when a part of `text` that claims to be a path is none."""
    for part in _alternatives(text):
        if _is_path(part):
            _compile(part)


def names(text: str) -> set[str] | None:
    """The top-level names a selector reads; None when it may read any of them (`$.*`, `$..x`, `$.a[?@.b == $.c]`)."""
    found: set[str] = set()
    for part in _alternatives(text):
        if not _is_path(part):
            continue
        # A union (`$.a | $.b`) has no segments of its own.
        segments = getattr(_compile(part), "segments", None)
        if not segments or "$" in part[1:]:
            return None
        selectors = segments[0].selectors
        recursive = type(segments[0]).__name__ == "JSONPathRecursiveDescentSegment"
        if recursive or not all(isinstance(selector, NameSelector) for selector in selectors):
            return None
        found.update(selector.name for selector in selectors)
    return found


def _matches(path: Any, document: Any) -> list[Any]:
    try:
        return path.findall(document)
    except (jsonpath.JSONPathError, TypeError, ValueError):
        # A filter that compares what cannot be compared (`@ in 'text'`) matches nothing: a run could not mend it.
        return []


def find(text: str, data: Any) -> Any:
    """The value a selector stands for."""
    # The library reads a text as a JSON document; written as one, it is itself again.
    document = json.dumps(data) if isinstance(data, str) else data
    for part in _alternatives(text):
        if not _is_path(part):
            return part
        matches = _matches(_compile(part), document)
        if matches:
            value = matches[0] if len(matches) == 1 else matches
            if value is not None:
                return value
    return None


def _build(template: Any, data: Any) -> Any:
    if isinstance(template, str):
        return find(template, data)
    if is_object(template):
        return {key: _build(value, data) for key, value in template.items()}
    if is_array(template):
        return [_build(value, data) for value in template]
    return template


def transform(transformer: Transformer | None, data: Any) -> Any:
    """`path` first, then `selector`; without either, the data as it is."""
    if transformer is None:
        return data
    if transformer.path is not None:
        data = find(transformer.path, data)
    if transformer.selector is not None:
        data = _build(transformer.selector, data)
    return data


def paths_of(transformer: Transformer | None) -> list[str]:
    """Every selector text in a transformer, for checking and for finding what it reads."""
    if transformer is None:
        return []
    found = [] if transformer.path is None else [transformer.path]
    # Once `path` has narrowed the data, the selector reads inside it, not at the top.
    if transformer.path is None:
        _collect(transformer.selector, found)
    return found


def all_paths_of(transformer: Transformer | None) -> list[str]:
    """Like `paths_of`, with the selectors behind a `path` too: for checking that each of them parses."""
    if transformer is None:
        return []
    found = [] if transformer.path is None else [transformer.path]
    _collect(transformer.selector, found)
    return found


def _collect(template: Any, into: list[str]) -> None:
    if isinstance(template, str):
        into.append(template)
    elif is_object(template):
        for value in template.values():
            _collect(value, into)
    elif is_array(template):
        for value in template:
            _collect(value, into)
