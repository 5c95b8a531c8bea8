"""A proxy in front of an LLM server that can keep a request on its way there, or an answer on its way back."""

import contextlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOLD_HEADER = "Idempotency-Key"
_LONGEST = 120.0


class HoldingProxy:
    """Runs while the block lasts. Requests are known by their idempotency key."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._held: dict[tuple[str, str], threading.Event] = {}
        self._arrived: set[tuple[str, str]] = set()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                key = self.headers.get(HOLD_HEADER, "")
                if not proxy.pause(key, "before"):
                    return self._drop()
                status, kind, answer = proxy.forward(self.path, dict(self.headers), body)
                if not proxy.pause(key, "after"):
                    return self._drop()
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                # The worker that asked may be dead by now.
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(answer)
                return None

            def _drop(self) -> None:
                self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> "HoldingProxy":
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.drop()
        self._server.shutdown()
        self._server.server_close()

    def hold(self, key: str, where: str) -> None:
        """The next request with this key stays: `before` the server has it, or `after` it has answered."""
        self._held[key, where] = threading.Event()

    def arrived(self, key: str, where: str) -> bool:
        return (key, where) in self._arrived

    def drop(self) -> None:
        """Whoever asked is gone: what is held goes nowhere, and nothing is held any more."""
        held, self._held = self._held, {}
        for event in held.values():
            event.set()

    def pause(self, key: str, where: str) -> bool:
        """Whether the request goes on."""
        event = self._held.get((key, where))
        if event is None:
            return True
        self._arrived.add((key, where))
        event.wait(_LONGEST)
        return False

    def forward(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        kept = {name: value for name, value in headers.items() if name.lower() not in ("host", "content-length")}
        connection.request("POST", path, body, kept)
        response = connection.getresponse()
        answer = response.read()
        connection.close()
        return response.status, response.getheader("Content-Type", "application/json"), answer
