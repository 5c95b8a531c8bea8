"""Brings an old checkpoint up to the present schema, one version at a time; a newer one is refused by name.

Version 0 is the schema's first draft: node states as a list, `state` for `internal_state`, times as Unix seconds.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, cast

from holdfast.checkpoints.models import SCHEMA_VERSION
from holdfast.checkpoints.validation import InvalidCheckpointError

Data = dict[str, Any]


def _time(value: Any) -> Any:
    return datetime.fromtimestamp(value, UTC).isoformat() if isinstance(value, int | float) else value


def _from_0(data: Data) -> Data:
    states: Data = {}
    for state in cast(list[Data], data.get("node_states", [])):
        renamed = {("internal_state" if key == "state" else key): value for key, value in state.items()}
        for key in ("started_at", "completed_at"):
            renamed[key] = _time(renamed.get(key))
        states[str(renamed.get("node_id", ""))] = renamed
    times = {key: _time(data[key]) for key in ("created_at", "updated_at") if key in data}
    # Its checksum was of the old form; the new form gets its own when it is written.
    return {**data, **times, "node_states": states, "version": "1.0", "checksum": None}


MIGRATIONS: dict[str, Callable[[Data], Data]] = {"0": _from_0}


def migrate(data: Data) -> Data:
    """`data` in the present schema. Data without a version is version 0."""
    version = str(data.get("version", "0"))
    while version != SCHEMA_VERSION:
        if version not in MIGRATIONS:
            known = ", ".join([*MIGRATIONS, SCHEMA_VERSION])
            raise InvalidCheckpointError(
                [f"checkpoint version {version!r} is not known to this library (it knows {known}): upgrade holdfast"]
            )
        try:
            data = MIGRATIONS[version](data)
        except (AttributeError, TypeError, ValueError, OverflowError, OSError) as error:
            raise InvalidCheckpointError([f"it is not a checkpoint of version {version!r}: {error}"]) from error
        version = str(data["version"])
    return data
