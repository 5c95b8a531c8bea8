"""What is wrong with a definition: each fault says what, where and what to do; all of them are found at once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from holdfast.flows.spec import NodeSpec


@dataclass(frozen=True, slots=True)
class Place:
    """Where a fault is. In definitions built in Python there is no file; the node still says where to look."""

    file: str | None = None
    line: int | None = None
    node: str | None = None

    def __str__(self) -> str:
        parts: list[str] = []
        if self.file:
            parts.append(f"{self.file}:{self.line}" if self.line else self.file)
        if self.node:
            parts.append(f"node {self.node!r}")
        return ", ".join(parts) or "the flow"


Locate = Callable[..., Place]
"""Where a node, or something in it, is: `locate(node_id, "tools", 0)`."""

ParamsCheck = Callable[[NodeSpec], list[str]]
"""Checks a custom node's parameters with its own class, and returns complaints."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One mistake of the author. `code` is stable and explained in docs/reference/errors.md."""

    code: str
    message: str
    place: Place
    remedy: str

    def __str__(self) -> str:
        return f"[{self.code}] {self.message}\n  in {self.place}\n  {self.remedy}"


class FlowDefinitionError(ValueError):
    """The author must change the flow. Raised before anything runs, with every fault found."""

    def __init__(self, faults: Sequence[Fault]) -> None:
        self.faults = tuple(faults)
        count = f"{len(self.faults)} faults in the flow" if len(self.faults) > 1 else "the flow has a fault"
        super().__init__("\n".join([f"{count}:", *map(str, self.faults)]))
