"""How a node with state of its own takes part in checkpoints."""

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class CheckpointableNode(Protocol):
    """A node whose state is saved with the run and given back to it."""

    def get_checkpoint_state(self) -> dict[str, Any]:
        """Only what is needed to go on: no configuration, no connections, nothing that can be computed again."""
        ...

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        """Takes back what `get_checkpoint_state` (or `checkpoint`) gave. If it raises, the node runs from scratch."""
        ...


class CheckpointMixin:
    """The default: no state, and a flag that says whether the node goes on from an earlier execution."""

    _is_resumed: bool = False

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {}

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        self._is_resumed = True

    @property
    def is_resumed(self) -> bool:
        return self._is_resumed

    def reset_resumed_flag(self) -> None:
        self._is_resumed = False
