"""The text of an answer while it is being written, for those who watch."""

import time

from holdfast.activities.heartbeat import show

_EVERY_SECONDS = 0.2


class Partial:
    """Collects pieces, and shows what there is, but not at every token."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._shown = 0.0

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        now = time.monotonic()
        if now - self._shown >= _EVERY_SECONDS:
            self._shown = now
            show(self.text)

    @property
    def text(self) -> str:
        return "".join(self._pieces)
