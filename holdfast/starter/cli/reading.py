"""What people give on the command line: flows in files, and inputs in several forms."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.flows.reading import read_flow
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import FlowSpec
from holdfast.loading import load_modules
from holdfast.starter.cli.outcomes import UsageError


def flow_from(path: str, load: Sequence[str] = (), *, trust: bool = True) -> FlowSpec:
    """The flow in a file, checked. With `trust`, custom nodes are left to the workers when no module is given."""
    custom = load_modules(load).checks() if load or not trust else None
    return read_flow(read_text(path), path, custom)


def read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError as error:
        raise UsageError(f"[cli/cannot-read] {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"[cli/cannot-read] {path}: {error}") from error


def input_from(given: Sequence[str]) -> Any:
    """`key=value`, `key=@file`, `@file.json` or a JSON object; several are put together. None when nothing is given."""
    found: dict[str, Any] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if item.startswith("@"):
            found |= _object(read_text(item[1:]), item)
        elif item.lstrip().startswith("{"):
            found |= _object(item, "--input")
        elif equals and key:
            found[key] = value_from(value)
        else:
            raise UsageError(f"[cli/bad-input] --input {item!r} is neither 'key=value', '@file.json' nor a JSON object")
    return found or None


def json_from(text: str, source: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise UsageError(f"[cli/bad-input] {source} is not JSON: {error}") from error


def _object(text: str, source: str) -> dict[str, Any]:
    data = json_from(text, source)
    if not is_object(data):
        raise UsageError(f"[cli/bad-input] {source} is not a JSON object")
    return dict(data)


def value_from(text: str) -> Any:
    """`@file` is its text; numbers, booleans and the like are what they are; everything else is text."""
    if text.startswith("@"):
        return read_text(text[1:])
    try:
        return json.loads(text)
    except ValueError:
        return text
