"""Connections by name, resolved on the worker when they are used: nothing secret is in a definition or a history."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from holdfast.flows.nodes import NonRetryableError
from holdfast.flows.shapes import is_object

FILE_VARIABLE = "HOLDFAST_CONNECTIONS"
# Known by the variables of their own SDKs, too: OPENAI_API_KEY, ANTHROPIC_BASE_URL.
_OWN_VARIABLES = frozenset({"openai", "anthropic"})


class Connection(BaseModel):
    """Where a service is and how to be let in."""

    model_config = ConfigDict(extra="forbid")

    base_url: str | None = None
    api_key: SecretStr | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict[str, SecretStr])


def resolve(name: str) -> Connection:
    """From HOLDFAST_CONNECTION_<NAME>_BASE_URL and _API_KEY, or the file HOLDFAST_CONNECTIONS names; never kept."""
    prefix = f"HOLDFAST_CONNECTION_{name.upper().replace('-', '_')}_"
    found: dict[str, Any] = dict(_from_file().get(name, {}))
    for field in ("base_url", "api_key"):
        if value := os.environ.get(prefix + field.upper()):
            found[field] = value
        elif name in _OWN_VARIABLES and field not in found:
            found[field] = os.environ.get(f"{name.upper()}_{field.upper()}") or None
    try:
        connection = Connection.model_validate(found)
    except ValidationError as error:
        # Fields are named, values are not: this goes into the history.
        fields = ", ".join(sorted({str(fault["loc"][0]) for fault in error.errors()}))
        known = ", ".join(Connection.model_fields)
        raise NonRetryableError(
            f"[connection/bad-field] connection {name!r} has a bad field: {fields}; it may have {known}"
        ) from None
    if connection == Connection():
        raise NonRetryableError(
            f"[connection/unknown] this worker has no connection {name!r}: "
            f"set {prefix}BASE_URL and {prefix}API_KEY, or add it to the file that {FILE_VARIABLE} names"
        )
    return connection


def _from_file() -> Mapping[str, Any]:
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return {}
    try:
        data: Any = yaml.safe_load(Path(path).read_text()) or {}
    except OSError as error:
        raise NonRetryableError(f"[connection/bad-file] {FILE_VARIABLE}={path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise NonRetryableError(f"[connection/bad-file] {FILE_VARIABLE}={path} is not YAML{line}") from None
    if not is_object(data) or not all(is_object(entry) for entry in data.values()):
        raise NonRetryableError(
            f"[connection/bad-file] {FILE_VARIABLE}={path}: it maps names to base_url, api_key, headers"
        )
    return data
