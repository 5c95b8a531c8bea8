"""The identifiers of the system, told apart by type so that one cannot be passed for another."""

from typing import NewType

NodeId = NewType("NodeId", str)
FlowId = NewType("FlowId", str)
RunId = NewType("RunId", str)
CheckpointId = NewType("CheckpointId", str)


def checkpoint_id(run: str, seq: int) -> CheckpointId:
    """A checkpoint is a run and a sequence number; its id says both, so no index is needed to find it."""
    return CheckpointId(f"{run}@{seq}")


def split_checkpoint_id(text: str) -> tuple[RunId, int | None]:
    """The run and the sequence number; the number is None when `text` names only a run (its latest checkpoint)."""
    run, at, seq = text.rpartition("@")
    if at and seq.isascii() and seq.isdigit():
        return RunId(run), int(seq)
    return RunId(text), None


def successor(run: str) -> RunId:
    """The one run that a run can be resumed as. The id follows from the other's: who comes second finds it taken."""
    first, mark, number = run.rpartition("~")
    if mark and number.isascii() and number.isdigit():
        return RunId(f"{first}~{int(number) + 1}")
    return RunId(f"{run}~2")


# A path is a node's id, or leads from there to something inside it: `research/loop[3]/search[0]`, `each[17]`. Ids have
# neither of the two characters.


def root_of(path: str) -> str:
    """The node of the flow that a path is in."""
    return path.partition("/")[0].partition("[")[0]


def is_nested(path: str) -> bool:
    """Whether the path leads into a node, and is not a node of the flow itself."""
    return "/" in path or "[" in path


def is_within(path: str, outer: str) -> bool:
    """Whether `path` is `outer`, or something inside it."""
    return path == outer or path.startswith((f"{outer}/", f"{outer}["))


def item_of(path: str, outer: str) -> str | None:
    """The number of the item, of the map at `outer`, that a path is or leads into; None when it is in none."""
    inside = path.removeprefix(f"{outer}[")
    return None if inside == path else inside.partition("]")[0]
