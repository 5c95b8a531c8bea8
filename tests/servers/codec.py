"""A real codec server, `holdfast codec-server`, in a process of its own."""

import os
import subprocess
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager

import httpx2

from holdfast.starter.embedded import free_port


@contextmanager
def codec_server(
    *arguments: str, port: int | None = None, environment: Mapping[str, str] | None = None
) -> Generator[str]:
    """Its URL, while the block lasts. It has the keys and the blobs of this process unless `environment` has others."""
    port = port or free_port()
    command = [sys.executable, "-m", "holdfast.starter.cli", "codec-server", "--port", str(port), *arguments]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 60
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the codec server did not start: {command}")
            time.sleep(0.05)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/health").status_code == 200
    except httpx2.TransportError:
        return False
