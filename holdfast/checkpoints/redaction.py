"""Hides sensitive fields where a checkpoint is shown. What a run needs to go on is never redacted in the run itself."""

import re
from collections.abc import Callable
from typing import Any, cast

from holdfast.checkpoints.models import FlowCheckpoint
from holdfast.flows.shapes import is_array, is_object

HIDDEN = "[redacted]"
_SENSITIVE = re.compile(
    r"(?i)^(.*[_-])?(api[_-]?key|password|passwd|secret|access[_-]?token|refresh[_-]?token|auth[_-]?token|token"
    r"|authorization|credentials?|private[_-]?key|cookie|session[_-]?key)$"
)

IsSensitive = Callable[[str], bool]


def is_sensitive(name: str) -> bool:
    """The default: names that usually hold secrets. `total_tokens` and `max_tokens` do not."""
    return _SENSITIVE.match(name) is not None


def redact(value: Any, sensitive: IsSensitive = is_sensitive) -> Any:
    """A copy of `value` in which every field with a sensitive name is hidden, at any depth."""
    if is_object(value):
        return {
            key: HIDDEN if sensitive(str(key)) and item is not None else redact(item, sensitive)
            for key, item in value.items()
        }
    if is_array(value):
        return [redact(item, sensitive) for item in value]
    if isinstance(value, tuple):
        return tuple(redact(item, sensitive) for item in cast(tuple[Any, ...], value))
    return value


def redact_checkpoint(checkpoint: FlowCheckpoint, sensitive: IsSensitive = is_sensitive) -> FlowCheckpoint:
    """The checkpoint as it may be shown. It is no longer one to resume from, and carries no checksum."""
    states = {
        node_id: state.model_copy(
            update={
                name: redact(getattr(state, name), sensitive)
                for name in ("input_data", "output_data", "internal_state")
            }
        )
        for node_id, state in checkpoint.node_states.items()
    }
    shown = {
        name: redact(getattr(checkpoint, name), sensitive) for name in ("original_input", "original_config", "metadata")
    }
    return checkpoint.model_copy(update={**shown, "node_states": states, "checksum": None})
