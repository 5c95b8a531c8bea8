"""How a node of the user's takes part in checkpoints."""

from typing import Any

import pytest

from holdfast.checkpoints.protocol import CheckpointableNode, CheckpointMixin
from holdfast.flows.nodes import Node


class Counting(Node, CheckpointMixin):
    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.count = 0

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"count": self.count}

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        super().restore_from_checkpoint(state)
        self.count = state["count"]


class Plain(Node, CheckpointMixin):
    pass


class Stateless(Node):
    pass


@pytest.mark.req("DM-1")
def test_the_protocol_is_recognised_at_run_time() -> None:
    assert isinstance(Counting(), CheckpointableNode)
    assert not isinstance(Stateless(), CheckpointableNode)


@pytest.mark.req("DM-1")
def test_by_default_there_is_no_state_and_only_the_flag_is_set() -> None:
    node = Plain()
    assert node.get_checkpoint_state() == {}
    assert not node.is_resumed

    node.restore_from_checkpoint({"anything": 1})
    assert node.is_resumed

    node.reset_resumed_flag()
    assert not node.is_resumed


@pytest.mark.req("DM-1", "FL-8")
def test_a_node_gives_its_state_away_and_takes_it_back() -> None:
    first = Counting()
    first.count = 7
    second = Counting()

    second.restore_from_checkpoint(first.get_checkpoint_state())

    assert (second.count, second.is_resumed) == (7, True)
    assert (first.count, first.is_resumed) == (7, False)
