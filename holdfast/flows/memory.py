"""Where agents keep conversations, by user and session. Subclass `Memory` for a store of your own."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class Memory:
    """A store of conversations. The worker finds subclasses in the modules it loads, by their `name`."""

    name: ClassVar[str]

    def read(self, context: Mapping[str, Any], limit: int) -> Sequence[Mapping[str, Any]]:
        """The last `limit` messages of the user and session in `context`, oldest first."""
        raise NotImplementedError

    def write(self, key: str, context: Mapping[str, Any], messages: Sequence[Mapping[str, Any]]) -> None:
        """Adds messages. The same `key` comes again after a crash, and must not add them twice."""
        raise NotImplementedError
