"""Tools and nodes that are held in the middle of their work, until they may go on."""

import threading
from typing import Any

from holdfast import Node, tool

HELD: list[str] = []
GO = threading.Event()


@tool
def look(word: str) -> str:
    """Answers at once."""
    return f"{word} is a weed"


@tool
def ponder(word: str) -> str:
    """Answers when it may."""
    HELD.append(word)
    assert GO.wait(60)
    return f"{word} is edible"


class Quick(Node):
    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        return "quick"


class Slow(Node):
    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        HELD.append("slow")
        assert GO.wait(60)
        return "slow"
