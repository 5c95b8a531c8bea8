"""What people are shown, without what is sensitive by its name: names that we know, and those in HOLDFAST_REDACT."""

import os
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from holdfast.checkpoints import diff, redaction
from holdfast.checkpoints.models import FlowCheckpoint

REDACT_VARIABLE = "HOLDFAST_REDACT"
"""Further names to hide, with commas: `iban,ssn`."""


@lru_cache(maxsize=1)
def _sensitive(names: str) -> redaction.IsSensitive:
    return redaction.also_sensitive(names.split(","))


def is_sensitive(name: str) -> bool:
    return _sensitive(os.environ.get(REDACT_VARIABLE, ""))(name)


def redact(value: Any) -> Any:
    return redaction.redact(value, is_sensitive)


def redact_checkpoint(checkpoint: FlowCheckpoint) -> FlowCheckpoint:
    return redaction.redact_checkpoint(checkpoint, is_sensitive)


def redact_changes(changes: Iterable[diff.Change]) -> list[diff.Change]:
    return diff.redact_changes(changes, is_sensitive)
