"""The `holdfast` command, as a process that can end itself with SIGKILL at any point where it touches the world.

Started as a program, it runs the command line as it is and changes nothing of it. It counts what the process does: each
request to Temporal, before and after it, and each step of writing a file. `KILL_LOG` gets a line for every such point;
at the one that `KILL_AT` names, the process is gone. A point is named by what it is and how often it has been there,
so that the same command finds it again.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_AT_ONCE = 3
_SECONDS = 120


@dataclass(frozen=True)
class Done:
    """What became of a command; `points` are the places where it could have been killed."""

    code: int
    output: str
    errors: str
    points: list[str] = field(default_factory=list[str])

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Commands:
    """Runs the command line in a folder, against one server. Some at once: most of a command is its start."""

    def __init__(self, folder: Path, *common: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._common = common
        self._numbers = 0
        self._places = asyncio.Semaphore(_AT_ONCE)

    async def run(self, *arguments: str, kill: str | None = None, code: int | None = 0, **environment: str) -> Done:
        """One command. With `kill` it has to die there; else it has to end with `code`, if that is given."""
        self._numbers += 1
        log = self.folder / f".points-{self._numbers}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
        more = {"HOLDFAST_HOME": str(self.folder / "home"), "COLUMNS": "200", "KILL_LOG": str(log)}
        if kill is not None:
            more["KILL_AT"] = kill
        async with self._places:
            done = await asyncio.to_thread(
                subprocess.run,
                [sys.executable, __file__, *arguments, *self._common],
                capture_output=True,
                text=True,
                env={**kept, **more, **environment},
                cwd=self.folder,
                timeout=_SECONDS,
            )
        points = log.read_text().splitlines() if log.exists() else []
        found = Done(done.returncode, done.stdout, done.stderr, points)
        told = f"{' '.join(arguments)}: {found}"
        if kill is not None:
            assert found.killed, f"did not come to {kill!r}: {told}"
        elif code is not None:
            assert found.code == code, told
        return found


class _Points:
    """Counts them, writes them down, and ends the process at the one that was named."""

    def __init__(self, log: str, kill: str | None) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._kill = kill
        self._seen: Counter[str] = Counter()

    def reached(self, what: str) -> None:
        self._seen[what] += 1
        name = f"{what} {self._seen[what]}"
        os.write(self._log, f"{name}\n".encode())
        if name == self._kill:
            os.kill(os.getpid(), signal.SIGKILL)


def _watch_requests(points: _Points) -> None:
    from temporalio.service import _BridgeServiceClient as Service  # pyright: ignore[reportPrivateUsage] (a test's own)

    call: Callable[..., Any] = Service._rpc_call  # pyright: ignore[reportPrivateUsage] (the one way to the server)

    async def counted(self: Any, rpc: str, *rest: Any, **options: Any) -> Any:
        points.reached(f"before {rpc}")
        answer = await call(self, rpc, *rest, **options)
        points.reached(f"after {rpc}")
        return answer

    Service._rpc_call = counted  # pyright: ignore[reportPrivateUsage] (as above)


def _watch_files(points: _Points, folder: str) -> None:
    """What is opened for writing or renamed in the folder, and every time that something is brought to the disk."""
    sync = os.fsync

    def counted(descriptor: Any) -> None:
        points.reached("before fsync")
        sync(descriptor)
        points.reached("after fsync")

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("open", "os.rename") or not isinstance(arguments[0], str | Path):
            return
        if os.path.abspath(arguments[0]).startswith(folder + os.sep) and (event == "os.rename" or _writes(arguments)):
            points.reached(f"before {event.removeprefix('os.')}")

    os.fsync = counted
    sys.addaudithook(hook)


def _writes(arguments: tuple[Any, ...]) -> bool:
    return isinstance(arguments[2], int) and bool(arguments[2] & (os.O_WRONLY | os.O_RDWR))


def _main() -> None:
    points = _Points(os.environ["KILL_LOG"], os.environ.get("KILL_AT"))
    # The folder of a script is on the path where a command's is not.
    sys.path.pop(0)
    from holdfast.starter.cli import run

    _watch_requests(points)
    _watch_files(points, os.getcwd())
    run()


if __name__ == "__main__":
    _main()
