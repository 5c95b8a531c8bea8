"""Connections that a module provides: `@connection("crm")` on a function that knows where its secrets are kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ConnectionSource:
    """A function that gives a connection. The worker finds it in the modules it loads, by its `name`."""

    name: str
    function: Callable[[], Any]

    def __call__(self) -> Any:
        return self.function()


def variables(name: str) -> str:
    """What the environment's variables for a connection begin with."""
    return f"HOLDFAST_CONNECTION_{name.upper().replace('-', '_')}_"


def connection(name: str) -> Callable[[Callable[[], Any]], ConnectionSource]:
    """Makes a function, sync or async, the source of a connection: it gives `base_url`, `api_key` and `headers`.

    It is asked whenever the connection is used, so a key may change at any time. None: it has nothing to give.
    """

    def make(function: Callable[[], Any]) -> ConnectionSource:
        return ConnectionSource(name, function)

    return make
