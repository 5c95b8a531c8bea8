"""Holdfast as somebody has it who has installed it: the embedded server in its home, a key, and a blob store.

The other benchmarks run on `stage`, where there is neither a key nor a store: they are about time, and what they pass
around is small.
"""

import base64
import contextlib
import os
import secrets
import tempfile
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

from benchmarks.stage import Stage
from holdfast.codecs.keys import FILE_VARIABLE, KEYS_VARIABLE, SERVICE_VARIABLE
from holdfast.codecs.settings import BLOBS_VARIABLE
from holdfast.starter import embedded
from holdfast.starter.connecting import connect


@contextlib.contextmanager
def _environment(wanted: dict[str, str | None]) -> Generator[None]:
    """For us and the workers we start; afterwards it is as it was."""
    before = {name: os.environ.get(name) for name in wanted}

    def change(to: dict[str, str | None]) -> None:
        for name, value in to.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value

    change(wanted)
    try:
        yield
    finally:
        change(before)


@contextlib.asynccontextmanager
async def installed(blobs: str | None = None, **more: str) -> AsyncGenerator[Stage]:
    """Without `blobs`, large payloads are in the home, as they are by default. `more`: variables of the environment."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-home-") as name:
        key = f"bench:{base64.b64encode(secrets.token_bytes(32)).decode()}"
        keys = {KEYS_VARIABLE: key, FILE_VARIABLE: None, SERVICE_VARIABLE: None}
        variables = {**keys, embedded.HOME_VARIABLE: name, BLOBS_VARIABLE: blobs, **more}
        with _environment(variables), embedded.server(None, 0, 0) as server:
            yield Stage(await connect(server.address), Path(name) / "cache.db")
