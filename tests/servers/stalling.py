"""A proxy of bytes in front of a server, which stops in the middle of what it passes on."""

import contextlib
import socket
import threading
from typing import Literal
from urllib.parse import urlsplit


class StallingProxy:
    """Runs while the block lasts. Until `release`, no more than `after` bytes of all requests reach the server; or,
    with `answers`, all of them do, and no answer comes back from then on."""

    def __init__(self, endpoint: str, after: int, what: Literal["requests", "answers"] = "requests") -> None:
        parts = urlsplit(endpoint)
        self._target = (parts.hostname or "", parts.port or 0)
        self._after = after
        self._what = what
        self._passed = 0
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._released = False
        self.stalled = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "StallingProxy":
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._listener.close()

    def release(self) -> None:
        """What was stopped is dropped, and everything else passes."""
        with self._lock:
            self._released = True
            held, self._sockets = self._sockets, []
        for end in held:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            with self._lock:
                self._sockets += [client, server]
            for source, target, kind in ((client, server, "requests"), (server, client, "answers")):
                threading.Thread(target=self._pass_on, args=(source, target, kind), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, kind: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not self._may_pass(kind, len(data)):
                    self.stalled.set()
                    return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _may_pass(self, kind: str, size: int) -> bool:
        with self._lock:
            if kind == "requests":
                self._passed += size
            return self._released or kind != self._what or self._passed < self._after
