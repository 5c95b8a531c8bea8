"""Fixtures shared by all tests: the real Temporal server on free ports, workers in this process or their own."""

import base64
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from temporalio.client import Client

from holdfast.starter import embedded
from holdfast.starter.connecting import connect


@pytest.fixture(scope="session", autouse=True)
def payloads(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Everything is encrypted, and large things are stored apart: in this process and those it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_BLOBS", str(tmp_path_factory.mktemp("blobs")))
        patch.setenv("HOLDFAST_KEYS", f"tests:{base64.b64encode(os.urandom(32)).decode()}")
        yield


@pytest.fixture(scope="session")
def temporal(tmp_path_factory: pytest.TempPathFactory) -> Generator[embedded.Running]:
    """One server for the whole session, with a state directory of its own."""
    with embedded.server(tmp_path_factory.mktemp("temporal"), 0, 0) as running:
        yield running


@pytest.fixture
async def client(temporal: embedded.Running) -> Client:
    return await connect(temporal.address)


class WorkerProcess:
    """A real worker in a process of its own, to be killed."""

    def __init__(self, address: str, task_queue: str, load: list[str], log: Path, environment: dict[str, str]) -> None:
        self._log = log.open("ab")
        self._log_path = log
        arguments = [sys.executable, "-m", "holdfast.worker", "--address", address, "--task-queue", task_queue]
        for module in load:
            arguments += ["--load", module]
        offset = log.stat().st_size
        self.process = subprocess.Popen(
            arguments, stdout=self._log, stderr=self._log, env={**os.environ, **environment}, start_new_session=True
        )
        self._wait_until_ready(offset)

    def _wait_until_ready(self, offset: int) -> None:
        deadline = time.monotonic() + 60
        while b"on task queue" not in self._log_path.read_bytes()[offset:]:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the worker did not start:\n{self._log_path.read_text()[-4000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: nothing is handed over."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self._log.close()

    def stop(self) -> None:
        """SIGTERM: a graceful end."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()


StartWorker = Callable[..., WorkerProcess]


@pytest.fixture
def start_worker(tmp_path: Path) -> Generator[StartWorker]:
    """Starts worker processes and leaves none behind: `start_worker(address, task_queue, load=[…])`."""
    with contextlib.ExitStack() as stack:

        def start(
            address: str, task_queue: str, load: list[str] | None = None, environment: dict[str, str] | None = None
        ) -> WorkerProcess:
            home = {"HOLDFAST_HOME": str(tmp_path / "home")}
            worker = WorkerProcess(
                address, task_queue, load or [], tmp_path / "worker.log", {**home, **(environment or {})}
            )
            stack.callback(worker.stop)
            return worker

        yield start
