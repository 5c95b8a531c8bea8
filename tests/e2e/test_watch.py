"""`holdfast watch` as a person sees it: on a terminal of its own, beside a run in other processes."""

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

ASKING = """
id: asking
nodes:
  look: {type: python, code: "def run(input_data): return 1"}
  ask: {type: human, prompt: "Go on with it?", depends: look}
  after: {type: pass, depends: ask}
"""
UP = "\x1b[1A"


class Terminal:
    """A command on a pseudo-terminal, and everything it has written there."""

    def __init__(self, command: list[str], environment: dict[str, str], directory: Path) -> None:
        self._screen, other_end = pty.openpty()
        self.process = subprocess.Popen(
            command, stdin=other_end, stdout=other_end, stderr=other_end, env=environment, cwd=directory
        )
        os.close(other_end)
        self.written = ""

    def wait_for(self, words: str) -> None:
        deadline = time.monotonic() + 60
        while words not in self.written:
            assert time.monotonic() < deadline, self.written
            assert self._read(), self.written

    def wait(self) -> int:
        """To its end; the exit code."""
        while self._read():
            pass
        os.close(self._screen)
        return self.process.wait(60)

    def last_tree(self) -> list[str]:
        """The tree as it was drawn last, without colours and the lines that connect it."""
        plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.written).replace("\r", "")
        *_, drawn = plain.split("my-run  ")
        return [line.strip("│├└─ ") for line in f"my-run  {drawn}".splitlines() if line.strip()]

    def _read(self) -> bool:
        try:
            piece = os.read(self._screen, 65536)
        except OSError:
            # How Linux says that nobody has the other end any more.
            return False
        self.written += piece.decode(errors="replace")
        return bool(piece)


Command = Callable[..., subprocess.CompletedProcess[str]]
Open = Callable[..., Terminal]


@pytest.fixture
def command_line(tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "TTY_"))}
    screen = {"TERM": "xterm-256color", "COLUMNS": "120", "LINES": "40"}
    return [sys.executable, "-m", "holdfast.starter.cli"], {**kept, **screen, "HOLDFAST_HOME": str(tmp_path / "home")}


@pytest.fixture
def holdfast(command_line: tuple[list[str], dict[str, str]], tmp_path: Path) -> Generator[Command]:
    program, environment = command_line

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*program, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120
        )

    yield run
    run("stop")


@pytest.fixture
def on_a_terminal(command_line: tuple[list[str], dict[str, str]], tmp_path: Path) -> Generator[Open]:
    program, environment = command_line
    opened: list[Terminal] = []

    def start(*arguments: str) -> Terminal:
        opened.append(Terminal([*program, *arguments], environment, tmp_path))
        return opened[-1]

    yield start
    for terminal in opened:
        if terminal.process.poll() is None:
            terminal.process.kill()
            terminal.process.wait()


def test_a_run_is_a_live_tree_on_a_terminal_and_text_anywhere_else(
    holdfast: Command, on_a_terminal: Open, tmp_path: Path
) -> None:
    (tmp_path / "asking.yaml").write_text(ASKING)
    started = holdfast("run", "asking.yaml", "--id", "my-run", "--detach")
    assert started.returncode == 0, started.stderr

    left = on_a_terminal("watch", "my-run")
    left.wait_for("holdfast inbox --run my-run")
    left.process.send_signal(signal.SIGINT)
    interrupted = left.wait()
    stayed = on_a_terminal("watch", "my-run")
    stayed.wait_for("holdfast inbox --run my-run")
    holdfast("answer", "my-run", "--feedback", "yes", "--by", "ada")
    followed = stayed.wait()
    late = on_a_terminal("watch", "my-run")
    printed = late.wait()
    piped = holdfast("watch", "my-run").stdout

    assert interrupted == 130
    root, look, ask, question, paste, after, farewell = left.last_tree()
    assert (root, ask[:5], question, after) == ("my-run  asking  pending_input", "? ask", "Go on with it?", "· after")
    assert look.startswith("✓ look  ")
    assert paste == "holdfast inbox --run my-run"
    assert farewell == "interrupted; a run that has started goes on by itself"

    assert followed == 0
    assert UP in stayed.written
    assert [line.split("  ")[0] for line in stayed.last_tree()] == ["my-run", "✓ look", "✓ ask", "✓ after"]
    assert stayed.last_tree()[0].endswith("completed")
    assert "answered by ada" in stayed.last_tree()[2]

    assert printed == 0
    assert UP not in late.written
    assert late.written.count("asking") == 1
    assert late.last_tree() == stayed.last_tree()

    assert "  ←  ask: answered by ada\n" in piped
    assert piped.endswith("completed\n")
    assert "\x1b" not in piped
