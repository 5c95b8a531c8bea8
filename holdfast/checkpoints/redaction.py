"""Hides sensitive fields where a checkpoint is shown. What a run needs to go on is never redacted in the run itself."""

import dataclasses
import re
from collections.abc import Callable, Iterable
from typing import Any, cast

from pydantic import BaseModel

from holdfast.checkpoints.models import FlowCheckpoint
from holdfast.flows.shapes import is_array, is_object

HIDDEN = "[redacted]"
_SENSITIVE = re.compile(
    r"(?i)^(.*[_-])?(api[_-]?key|password|passwd|passphrase|secret|access[_-]?token|refresh[_-]?token|auth[_-]?token|token"
    r"|authorization|credentials?|private[_-]?key|cookie|session[_-]?key|(secret[_-]?)?access[_-]?key|secret[_-]?key)$"
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

IsSensitive = Callable[[str], bool]


def is_sensitive(name: str) -> bool:
    """The default: names that usually hold secrets. `total_tokens` and `max_tokens` do not."""
    return _SENSITIVE.match(_HUMP.sub("_", name)) is not None


def also_sensitive(names: Iterable[str]) -> IsSensitive:
    """The default, and these names in any spelling with anything in front: `iban` is also `customerIban`."""
    own = [re.escape(_plain(name.strip())) for name in names if name.strip()]
    if not own:
        return is_sensitive
    pattern = re.compile(rf"(.*_)?({'|'.join(own)})")
    return lambda name: is_sensitive(name) or pattern.fullmatch(_plain(name)) is not None


def _plain(name: str) -> str:
    return _HUMP.sub("_", name).replace("-", "_").lower()


def redact(value: Any, sensitive: IsSensitive = is_sensitive) -> Any:
    """A copy of `value` in which every field with a sensitive name is hidden, at any depth.

    A model or dataclass is shown as the dict of its fields: with one of them hidden it could not be what it was.
    """
    if isinstance(value, BaseModel):
        return redact(dict(value), sensitive)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return redact({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, sensitive)
    if is_object(value):
        if list(value) == ["__dict__"] and is_array(value["__dict__"]):
            # A dict whose keys are not all names, in its marked form (values.py): pairs.
            return {"__dict__": [_pair(pair, sensitive) for pair in value["__dict__"]]}
        return {
            key: HIDDEN if sensitive(str(key)) and item is not None else redact(item, sensitive)
            for key, item in value.items()
        }
    if is_array(value):
        return [redact(item, sensitive) for item in value]
    if isinstance(value, tuple):
        return tuple(redact(item, sensitive) for item in cast(tuple[Any, ...], value))
    return value


def _pair(pair: Any, sensitive: IsSensitive) -> Any:
    hides = is_array(pair) and len(pair) == 2 and isinstance(pair[0], str) and sensitive(pair[0])
    return [pair[0], HIDDEN] if hides and pair[1] is not None else redact(pair, sensitive)


def redact_checkpoint(checkpoint: FlowCheckpoint, sensitive: IsSensitive = is_sensitive) -> FlowCheckpoint:
    """The checkpoint as it may be shown. It is no longer one to resume from, and carries no checksum."""
    states = {
        node_id: state.model_copy(
            update={
                name: redact(getattr(state, name), sensitive)
                for name in ("input_data", "output_data", "internal_state", "error")
            }
        )
        for node_id, state in checkpoint.node_states.items()
    }
    shown = {
        name: redact(getattr(checkpoint, name), sensitive)
        for name in ("original_input", "original_config", "metadata", "pending_inputs")
    }
    waiting = checkpoint.pending_input_context
    if waiting is not None:
        shown["pending_input_context"] = waiting.model_copy(update={"metadata": redact(waiting.metadata, sensitive)})
    return checkpoint.model_copy(update={**shown, "node_states": states, "checksum": None})
