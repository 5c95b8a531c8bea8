"""`holdfast dev`: the embedded server with a worker that is put up again when it dies; and `stop`, and `worker`."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast.starter import embedded
from holdfast.starter.cli.outcomes import FINISHED, NOT_FOUND, UNREACHABLE, UsageError, print_json
from holdfast.starter.cli.session import CodecServer, dev_pid, start_worker
from holdfast.starter.connecting import settings

_QUICK_DEATH = 5.0
_MOST_QUICK_DEATHS = 3
_UP_SECONDS = 20.0


def dev_command(options: argparse.Namespace) -> int:
    """Server, Web UI and worker until Ctrl-C. Everything is on disk: the next `dev` goes on where this one ended."""
    state = embedded.home()
    if (pid := dev_pid(state)) is not None:
        raise UsageError(f"[cli/dev-running] 'holdfast dev' runs on {state} already (process {pid})")
    stopping = _StopRequest()
    try:
        with embedded.server(state, options.port, options.ui_port, options.codec_port) as server:
            (state / "dev.json").write_text(json.dumps({"pid": os.getpid()}))
            console = _console(options, server, state)
            try:
                with CodecServer(server, state) as codec:
                    worker = start_worker(server, state, options.load, options.task_queue)
                    # What is announced can be opened at once.
                    _await([options.console_port, server.codec_port], console, stopping)
                    _announce(options, server, state, worker.pid)
                    return _supervise(options, server, state, worker, codec, stopping)
            finally:
                embedded.stop(console)
    finally:
        # The last thing to go: whoever waits for us to stop looks at it.
        (state / "dev.json").unlink(missing_ok=True)


def _console(options: argparse.Namespace, server: embedded.Running, state: Path) -> subprocess.Popen[bytes]:
    """The HTTP API and the console page, in a process of their own."""
    options.console_port = embedded.free_port(options.console_port)
    arguments = ["--address", server.address, "--port", str(options.console_port), "--ui-url", server.ui_url]
    if options.flows:
        arguments += ["--flows", options.flows]
    command = [sys.executable, "-m", "holdfast.starter.cli", "serve", "--task-queue", options.task_queue, *arguments]
    with (state / "console.log").open("ab") as log:
        return embedded.spawn(command, log)


class _StopRequest:
    """Ctrl-C or SIGTERM, noticed between two looks at the worker."""

    def __init__(self) -> None:
        self.received = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._receive)

    def _receive(self, *_: object) -> None:
        self.received = True


def _await(ports: list[int], console: subprocess.Popen[bytes], stopping: _StopRequest) -> None:
    """For a moment only: who does not come up says why in its log, and the rest is of use without it."""
    deadline = time.monotonic() + _UP_SECONDS
    while not all(map(embedded.answers, ports)) and time.monotonic() < deadline:
        if console.poll() is not None or stopping.received:
            return
        time.sleep(0.02)


def _announce(options: argparse.Namespace, server: embedded.Running, state: Path, worker_pid: int) -> None:
    if options.json:
        console = f"http://127.0.0.1:{options.console_port}/"
        found = {"address": server.address, "ui": server.ui_url, "console": console, "codec": server.codec_url}
        print_json({**found, "state": str(state), "worker_pid": worker_pid})
        sys.stdout.flush()
        return
    print(
        f"Temporal   {server.address}\n"
        f"Web UI     {server.ui_url}\n"
        f"console    http://127.0.0.1:{options.console_port}/\n"
        f"codecs     {server.codec_url}   (for 'temporal … --codec-endpoint')\n"
        f"worker     process {worker_pid}, task queue {options.task_queue!r}\n"
        f"state      {state}  (survives restarts)\n\n"
        "In another terminal:  holdfast run examples/hello.yaml --input name=World\n"
        f"Try to break it:      kill -9 {worker_pid}   (a new worker takes over)\n"
        "Ctrl-C stops everything; runs go on at the next start.",
        flush=True,
    )


def _supervise(
    options: argparse.Namespace,
    server: embedded.Running,
    state: Path,
    worker: subprocess.Popen[bytes],
    codec: CodecServer,
    stopping: _StopRequest,
) -> int:
    quick_deaths, started = 0, time.monotonic()
    try:
        while not stopping.received:
            time.sleep(0.1)
            if embedded.running(state) is None:
                print(f"the Temporal server is gone; its log is {state / 'server.log'}", file=sys.stderr)
                return UNREACHABLE
            codec.keep_up()
            if worker.poll() is None:
                continue
            quick_deaths = quick_deaths + 1 if time.monotonic() - started < _QUICK_DEATH else 0
            if quick_deaths == _MOST_QUICK_DEATHS:
                print(f"the worker dies at once, again and again; its log is {state / 'worker.log'}", file=sys.stderr)
                return UNREACHABLE
            worker, started = start_worker(server, state, options.load, options.task_queue), time.monotonic()
            print(f"the worker died; process {worker.pid} has taken over", flush=True)
        print("stopping", flush=True)
        return FINISHED
    finally:
        embedded.stop(worker, seconds=15)


def start_detached(load: list[str], queue: str) -> None:
    """A `holdfast dev` in the background, for a run that is to go on after its command has returned."""
    state = embedded.home()
    state.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "holdfast.starter.cli", "dev", "--json", "--task-queue", queue]
    for module in load:
        command += ["--load", module]
    with (state / "dev.log").open("ab") as log:
        process = embedded.spawn(command, log, detached=True)
    deadline = time.monotonic() + 60
    while dev_pid(state) is None or not _has_worker(state):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = (state / "dev.log").read_text(errors="replace")[-2000:]
            raise UsageError(f"[cli/no-worker] the background server did not start:\n{tail}")
        time.sleep(0.05)


def _has_worker(state: Path) -> bool:
    with contextlib.suppress(OSError):
        return b"worker_pid" in (state / "dev.log").read_bytes()
    return False


def stop_command(options: argparse.Namespace) -> int:
    """Ends the `holdfast dev` on this directory and waits for it."""
    state = embedded.home()
    pid = dev_pid(state)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 40
        while dev_pid(state) is not None and time.monotonic() < deadline:
            time.sleep(0.05)
    if options.json:
        print_json({"stopped": pid})
    else:
        print(f"stopped process {pid}; its runs go on at the next start" if pid else f"nothing runs on {state}")
    return FINISHED if pid else NOT_FOUND


def worker_command(options: argparse.Namespace) -> int:
    """Becomes the worker: the command line itself must not load activities."""
    arguments = [sys.executable, "-m", "holdfast.worker", "--task-queue", options.task_queue]
    for module in options.load:
        arguments += ["--load", module]
    address = options.address or settings().get("target_host")
    if address is None and (running := embedded.running(embedded.home())) is not None:
        address = running.address
    if address:
        arguments += ["--address", address]
    if options.namespace:
        arguments += ["--namespace", options.namespace]
    if options.json:
        arguments.append("--json")
    os.execv(sys.executable, arguments)  # noqa: S606
