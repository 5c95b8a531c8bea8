"""A client for each tenant, connected when it is first needed; and the flows that can be started by name."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from holdfast.flows.faults import FlowDefinitionError
from holdfast.flows.reading import flow_from_data, read_flow
from holdfast.flows.spec import FlowSpec
from holdfast.starter.api.problems import ProblemError
from holdfast.starter.client import HoldfastClient

Connect = Callable[[str], Awaitable[HoldfastClient]]
"""A client for a namespace."""


class Clients:
    """One for each namespace."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._lock = asyncio.Lock()
        self._known: dict[str, HoldfastClient] = {}

    async def of(self, namespace: str) -> HoldfastClient:
        async with self._lock:
            if namespace not in self._known:
                self._known[namespace] = await self._connect(namespace)
            return self._known[namespace]


class FlowFiles:
    """The flows in a folder, by the name of their file. Read anew each time: they are small, and people edit them."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def names(self) -> list[str]:
        return sorted(path.stem for path in self._folder.glob("*.yaml")) if self._folder is not None else []

    def read(self, name: str) -> FlowSpec:
        """The flow; ProblemError when there is none of this name."""
        if self._folder is None or name not in self.names():
            known = ", ".join(self.names()) or "none"
            raise ProblemError(404, "flow/not-found", f"there is no flow {name!r} in the catalogue; there are: {known}")
        return read_flow((self._folder / f"{name}.yaml").read_text(), f"{name}.yaml")

    def chosen(self, name: str | None, definition: Any | None) -> FlowSpec:
        """The flow of this name, or the one that is given; ProblemError unless it is one of the two."""
        if (name is None) == (definition is None):
            raise ProblemError(422, "request/invalid", "give either 'flow' (a name) or 'definition'")
        return self.read(name) if name is not None else flow_from_data(definition)

    def all(self) -> dict[str, FlowSpec | FlowDefinitionError]:
        """Each flow, or what is wrong with it."""
        found: dict[str, FlowSpec | FlowDefinitionError] = {}
        for name in self.names():
            try:
                found[name] = self.read(name)
            except FlowDefinitionError as error:
                found[name] = error
        return found
