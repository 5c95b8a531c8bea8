"""The server a command talks to: the one that is configured, or the embedded one, with a worker where one is needed."""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from urllib.parse import quote

from holdfast.starter import embedded
from holdfast.starter.cli.outcomes import UsageError
from holdfast.starter.client import HoldfastClient
from holdfast.starter.connecting import is_configured

# Ids are mostly plain, and stay readable; a run inside another has a '/' in its own.
_PLAIN = "~@:"
_WORKER_SECONDS = 60.0
_CODEC_SECONDS = 5.0


class Session:
    """A connection, and what a person may want to know about it."""

    def __init__(self, client: HoldfastClient, ui_url: str | None) -> None:
        self.client = client
        self.ui_url = ui_url

    def link(self, run_id: str) -> str | None:
        """The run in the Temporal Web UI."""
        if self.ui_url is None:
            return None
        return f"{self.ui_url}/namespaces/{self.client.temporal.namespace}/workflows/{quote(run_id, safe=_PLAIN)}"


def with_session(
    options: argparse.Namespace, work: Callable[[Session], Awaitable[int]], *, worker: bool = False
) -> int:
    """Runs `work` with a session, and gives its exit code."""

    async def main() -> int:
        async with _session(options, worker=worker) as session:
            return await work(session)

    return asyncio.run(main())


@contextlib.asynccontextmanager
async def _session(options: argparse.Namespace, *, worker: bool) -> AsyncGenerator[Session]:
    queue = getattr(options, "task_queue", "holdfast")
    if is_configured(options.address):
        yield Session(await HoldfastClient.connect(options.address, options.namespace, queue), None)
        return
    state = embedded.home()
    with embedded.server(state) as server, contextlib.ExitStack() as stack:
        load: Sequence[str] = getattr(options, "load", [])
        if worker and dev_is_running(state):
            if load:
                raise UsageError(
                    "[cli/dev-running] 'holdfast dev' has a worker here already: "
                    f"start it with --load {load[0]}, or stop it"
                )
        elif worker:
            process = start_worker(server, state, load, queue)
            stack.callback(embedded.stop, process)
        yield Session(await HoldfastClient.connect(server.address, options.namespace, queue), server.ui_url)


def worker_command(address: str, load: Sequence[str], queue: str) -> list[str]:
    """A worker is a process of its own: the starter never imports activities."""
    command = [sys.executable, "-m", "holdfast.worker", "--address", address, "--task-queue", queue]
    for module in load:
        command += ["--load", module]
    return command


def start_worker(server: embedded.Running, state: Path, load: Sequence[str], queue: str) -> subprocess.Popen[bytes]:
    """Starts a worker and waits until it says that it is there; UsageError with its own words when it fails."""
    path = state / "worker.log"
    offset = path.stat().st_size if path.exists() else 0
    with path.open("ab") as log:
        process = embedded.spawn(worker_command(server.address, load, queue), log)
    deadline = time.monotonic() + _WORKER_SECONDS
    while b"on task queue" not in (text := path.read_bytes()[offset:]):
        if process.poll() is not None or time.monotonic() > deadline:
            embedded.stop(process)
            raise UsageError(f"[cli/no-worker] the worker did not start:\n{text.decode(errors='replace').strip()}")
        time.sleep(0.02)
    return process


class CodecServer:
    """The codec server of the embedded server's Web UI, which was told where it is when it was started."""

    def __init__(self, server: embedded.Running, state: Path) -> None:
        self._server = server
        self._log = state / "codec-server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._tried = 0.0

    def keep_up(self) -> None:
        """Puts it up if it is not there. Where somebody else has it up already, that one will do."""
        if self._process is not None and self._process.poll() is None:
            return
        if time.monotonic() - self._tried < _CODEC_SECONDS:
            return
        self._tried = time.monotonic()
        if embedded.answers(self._server.codec_port):
            return
        arguments = ["--port", str(self._server.codec_port)]
        for host in ("127.0.0.1", "localhost"):
            arguments += ["--origin", f"http://{host}:{self._server.ui_port}"]
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "holdfast.starter.cli", "codec-server", *arguments]
            self._process = embedded.spawn(command, log)

    def __enter__(self) -> "CodecServer":
        self.keep_up()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            embedded.stop(self._process)


def dev_is_running(state: Path) -> bool:
    return dev_pid(state) is not None


def dev_pid(state: Path) -> int | None:
    """The process id of a `holdfast dev` on this directory."""
    try:
        pid = int(json.loads((state / "dev.json").read_text())["pid"])
        os.kill(pid, 0)
    except (OSError, ValueError, KeyError):
        return None
    return pid
