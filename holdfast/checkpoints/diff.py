"""What is different between two checkpoints, or in one node between two moments, in the words people use.

Values stay in their marked form: one that JSON has no word for (bytes, a date, a model) is compared whole. What only
says when something was, and in which run, is no difference. The name of a node's field is also where it is edited:
`draft:output.text`.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import compress, count, groupby
from operator import attrgetter, is_not, ne
from typing import Any, Literal, NamedTuple, TypeGuard

from pydantic import BaseModel, ConfigDict

from holdfast.checkpoints.addresses import INSIDE, Key, keys_of, name_of
from holdfast.checkpoints.models import CheckpointRecord, FlowCheckpoint, NodeRecord
from holdfast.checkpoints.redaction import HIDDEN, IsSensitive, is_sensitive, redact
from holdfast.flows.shapes import is_array, is_object

_FIELDS = ("status", "type", "input", "output", "error", "attempts", *INSIDE, "state", "extra")
# The parts of a run's metadata that are fields of their own, and those that only say which run it is.
_ABOUT_RUN = ("error", "usage", "paused", "approvals")
_IDENTITY = ("creation_time", "key_base", "key_bases", "parent_run_id")

_CLASS_MARKS = frozenset({"__model__", "__enum__", "__dataclass__"})
_SIGNS = {"added": "+", "removed": "-", "changed": "~"}
_ABSENT = object()
_LEAD = 10
"""How much of what two long texts have in common is shown before they part."""


class Change(BaseModel):
    """One difference. `node` is empty for the run itself; a side on which there is nothing is None."""

    model_config = ConfigDict(extra="ignore")

    node: str
    field: str
    kind: Literal["added", "removed", "changed"]
    left: Any = None
    right: Any = None


class Moment(BaseModel):
    """Where in its run a checkpoint is."""

    model_config = ConfigDict(extra="ignore")

    sequence_number: int
    at: datetime


class CheckpointDiff(BaseModel):
    """All that is different: first in the run itself, then node by node in the order of the right checkpoint."""

    model_config = ConfigDict(extra="ignore")

    left: str
    right: str
    left_at: Moment
    right_at: Moment
    changes: list[Change]


class Line(NamedTuple):
    """A line for a terminal. The heading of a group has no sign; the others have one of `+ - ~`."""

    sign: str
    text: str


def diff(left: CheckpointRecord, right: CheckpointRecord) -> CheckpointDiff:
    """What has changed from `left` to `right`. Costs as much as the two are large, less where they share values."""
    left, right = _as_record(left), _as_record(right)
    changes = _compared("", _run_fields(left), _run_fields(right))
    for path in dict.fromkeys([*right.node_states, *left.node_states]):
        before, after = left.node_states.get(path), right.node_states.get(path)
        if before is not after:
            changes += _compared(path, _node_fields(before), _node_fields(after))
    return CheckpointDiff(left=left.id, right=right.id, left_at=_moment(left), right_at=_moment(right), changes=changes)


def node_changes(before: NodeRecord | None, after: NodeRecord | None, field: str | None = None) -> list[Change]:
    """What has changed in one node, or in one field of it (`messages`, `context.topic`, `iterations[3]`, `state.x`).

    ValueError when a node has no field of that name.
    """
    known = after or before
    if known is None or before is after:
        return []
    keys = [] if field is None else _keys_of_node(field)
    return _compared(known.node_id, _find(_node_fields(before), keys), _find(_node_fields(after), keys), keys)


def redact_changes(changes: Iterable[Change], sensitive: IsSensitive = is_sensitive) -> list[Change]:
    """The changes as they may be shown. A change inside a sensitive field does not have its name in the value."""

    def hide(value: Any, whole: bool) -> Any:
        return HIDDEN if whole and value is not None else redact(value, sensitive)

    shown: list[Change] = []
    for change in changes:
        whole = any(sensitive(key) for key in keys_of(change.field) if isinstance(key, str))
        update = {"left": hide(change.left, whole), "right": hide(change.right, whole)}
        shown.append(change.model_copy(update=update))
    return shown


def _as_record(checkpoint: CheckpointRecord) -> CheckpointRecord:
    if isinstance(checkpoint, FlowCheckpoint):
        return CheckpointRecord.model_validate_json(checkpoint.model_dump_json())
    return checkpoint


def _moment(record: CheckpointRecord) -> Moment:
    return Moment(sequence_number=record.sequence_number, at=record.updated_at)


# Fields, by the names people know them by. A mapping that is always there (`state`, `metadata`) is compared entry by
# entry also where the other side has nothing at all.


def _node_fields(record: NodeRecord | None) -> dict[str, Any]:
    if record is None:
        return {"state": {}, "extra": {}}
    inside = record.internal_state
    fields = {
        "status": str(record.status),
        "type": record.node_type,
        "input": record.input_data,
        "output": record.output_data,
        "error": record.error,
        "attempts": record.attempts or None,
    }
    return {
        **_present(fields),
        **{name: inside[key] for name, key in INSIDE.items() if key in inside},
        "state": {key: value for key, value in inside.items() if key not in INSIDE.values()},
        "extra": record.model_extra or {},
    }


def _run_fields(record: CheckpointRecord) -> dict[str, Any]:
    """Which nodes are pending and which are completed is not among them: the nodes' own fields say it."""
    about, waiting = record.metadata, record.pending_input_context
    fields = {
        "status": str(record.status),
        "flow_id": record.flow_id,
        "input": record.original_input,
        "config": record.original_config,
        "waiting_for": None if waiting is None else waiting.model_dump(include={"node_id", "prompt"}),
        "parent_checkpoint_id": record.parent_checkpoint_id,
        "version": record.version,
        "library_version": record.library_version,
    }
    return {
        **_present(fields),
        **{name: about[name] for name in _ABOUT_RUN if name in about},
        "pending_inputs": record.pending_inputs,
        "answered_inputs": record.answered_inputs,
        "metadata": {name: value for name, value in about.items() if name not in (*_ABOUT_RUN, *_IDENTITY)},
        "extra": record.model_extra or {},
    }


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


# Comparing


def _compared(node: str, left: Any, right: Any, keys: Sequence[Key] = ()) -> list[Change]:
    comparison = _Comparison(node, keys)
    comparison.walk(left, right)
    return comparison.changes


class _Comparison:
    """Walks two values side by side. The way to a place is written out only where they differ.

    A fold shares what has not changed, so identity is looked at first.
    """

    def __init__(self, node: str, keys: Sequence[Key]) -> None:
        self.changes: list[Change] = []
        self._node = node
        self._keys = [*keys]

    def walk(self, left: Any, right: Any) -> None:
        if left is right:
            return
        if _is_plain(left) and _is_plain(right):
            for key, item in right.items():
                self._step(key, left.get(key, _ABSENT), item)
            for key, item in left.items():
                if key not in right:
                    self._step(key, item, _ABSENT)
        elif is_array(left) and is_array(right):
            # A conversation that has grown is compared at every step: what is shared is passed over at the speed of C.
            for index in compress(count(), map(is_not, left, right)):
                self._step(index, left[index], right[index])
            for index in range(len(left), len(right)):
                self._step(index, _ABSENT, right[index])
            for index in range(len(right), len(left)):
                self._step(index, left[index], _ABSENT)
        elif not _same(left, right):
            self._note(left, right)

    def _step(self, key: Key, left: Any, right: Any) -> None:
        if left is not right:
            self._keys.append(key)
            self.walk(left, right)
            self._keys.pop()

    def _note(self, left: Any, right: Any) -> None:
        place: dict[str, Any] = {"node": self._node, "field": name_of(self._keys)}
        if left is _ABSENT:
            self.changes.append(Change(**place, kind="added", right=right))
        elif right is _ABSENT:
            self.changes.append(Change(**place, kind="removed", left=left))
        else:
            self.changes.append(Change(**place, kind="changed", left=left, right=right))


def _is_plain(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """An object that is not the marked form of something else (see `values`)."""
    if not is_object(value) or not value.keys().isdisjoint(_CLASS_MARKS):
        return False
    return len(value) != 1 or not next(iter(value)).startswith("__")


def _same(left: Any, right: Any) -> bool:
    """Equal as JSON: `1` is neither `true` nor `1.0`."""
    if is_object(left) and is_object(right):
        return left.keys() == right.keys() and all(_same(item, right[key]) for key, item in left.items())
    if is_array(left) and is_array(right):
        return len(left) == len(right) and all(map(_same, left, right))
    return type(left) is type(right) and left == right


# Names


def _keys_of_node(field: str) -> list[Key]:
    try:
        keys = keys_of(field)
    except ValueError:
        keys: list[Key] = [""]
    if keys[0] not in _FIELDS:
        known = ", ".join(_FIELDS)
        raise ValueError(f"a node has no field {field!r}; it has: {known}, and inside them 'state.x' or 'messages[3]'")
    return keys


def _find(value: Any, keys: Sequence[Key]) -> Any:
    for key in keys:
        if _is_plain(value):
            value = value.get(str(key), _ABSENT)
        elif isinstance(key, int) and is_array(value) and key < len(value):
            value = value[key]
        else:
            return _ABSENT
    return value


# Showing


def render(changes: Iterable[Change], *, width: int = 100) -> list[Line]:
    """The changes as lines for a terminal, grouped by node; with its sign and a space a line has at most `width`."""
    lines: list[Line] = []
    for node, of_node in groupby(changes, key=attrgetter("node")):
        lines.append(Line("", _cut(_printable(node) or "the run", width)))
        lines += [_line(change, width - 2) for change in of_node]
    return lines


def _line(change: Change, width: int) -> Line:
    name = _printable(change.field)
    room = max(2 * _LEAD, width - len(name) - 2)
    if change.kind == "changed":
        shown = _both(_text(change.left), _text(change.right), room)
    else:
        shown = _text(change.right if change.kind == "added" else change.left)
    return Line(_SIGNS[change.kind], _cut(f"{name}: {shown}", width))


def _both(left: str, right: str, room: int) -> str:
    arrow = " → "
    room -= len(arrow)
    if len(left) + len(right) > room:
        # Two long texts are often the same for a while: what is shown has to be where they are not.
        shared = next(compress(count(), map(ne, left, right)), min(len(left), len(right)))
        skipped = shared - _LEAD
        if skipped > 0:
            left, right = f"…{left[skipped:]}", f"…{right[skipped:]}"
    left = _cut(left, max(room // 2, room - len(right)))
    return f"{left}{arrow}{_cut(right, room - len(left))}"


def _text(value: Any) -> str:
    return _printable(json.dumps(value, ensure_ascii=False))


def _printable(text: str) -> str:
    """What a model or a web page has said must not steer the terminal."""
    return text if text.isprintable() else "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"
