"""Connections by name, resolved on the worker when they are used: nothing secret is in a definition or a history."""

import os
from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr

from holdfast.flows.nodes import NonRetryableError

FILE_VARIABLE = "HOLDFAST_CONNECTIONS"


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
    if name == "openai":
        found.setdefault("base_url", os.environ.get("OPENAI_BASE_URL"))
        found.setdefault("api_key", os.environ.get("OPENAI_API_KEY"))
    connection = Connection.model_validate(found)
    if connection == Connection():
        raise NonRetryableError(
            f"[connection/unknown] this worker has no connection {name!r}: "
            f"set {prefix}BASE_URL and {prefix}API_KEY, or add it to the file that {FILE_VARIABLE} names"
        )
    return connection


def _from_file() -> dict[str, Any]:
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return {}
    try:
        data = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        raise NonRetryableError(f"[connection/bad-file] {FILE_VARIABLE}={path}: {error}") from error
    return cast(dict[str, Any], data or {})
