"""The model of `growth`: an endpoint that speaks OpenAI's protocol and says what is written in `growth_texts`.

Not the scripted model of the library: its replies are part of the definition, which would be stored with the run, and
no other side has to.
"""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from benchmarks.growth_texts import said


class Model:
    """It calls a tool for so many turns, and tells a listener of every request."""

    def __init__(self) -> None:
        model = self
        self.turns = 0
        self.listener: Callable[[int], None] = lambda _: None

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                asked = sum(message["role"] == "assistant" for message in body["messages"])
                model.listener(asked)
                answer = json.dumps(_completion(asked, model.turns)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/v1"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _completion(asked: int, turns: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said(asked)}
    if asked < turns:
        call = {"name": "tool_0", "arguments": json.dumps({"turn": asked})}
        message["tool_calls"] = [{"id": f"call_{asked}", "type": "function", "function": call}]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice], "usage": usage}
