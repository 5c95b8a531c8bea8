"""The command line as a person uses it: real processes, a real server on free ports, a real kill."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast.starter.cli import HELP
from holdfast.starter.embedded import free_port

HOLDFAST = str(Path(sys.executable).parent / "holdfast")
EXAMPLES = Path(__file__).parents[2] / "examples"
Holdfast = Callable[..., subprocess.CompletedProcess[str]]

SLOW = """
id: slow
nodes:
  first: {type: python, code: "def run(input_data): return 1"}
  second:
    type: python
    depends: first
    code: |
      import time
      def run(input_data):
          time.sleep(2)
          return 2
  third: {type: transform, template: "{{ second.output + 1 }}", depends: second}
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    return {**kept, "HOLDFAST_HOME": str(tmp_path / "home"), "COLUMNS": "200"}


@pytest.fixture
def holdfast(environment: dict[str, str], tmp_path: Path) -> Generator[Holdfast]:
    def run(*arguments: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [HOLDFAST, *arguments], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=120
        )
        if check is not None:
            assert done.returncode == check, done.stdout + done.stderr
        return done

    yield run
    run("stop", check=None)


@pytest.fixture
def dev(environment: dict[str, str], tmp_path: Path) -> Generator[dict[str, Any]]:
    """A `holdfast dev` in a process of its own."""
    ports = ["--port", str(free_port()), "--ui-port", str(free_port())]
    process = subprocess.Popen(
        [HOLDFAST, "dev", "--json", *ports], stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
    )
    assert process.stdout is not None
    announced = json.loads(process.stdout.readline())
    yield {**announced, "process": process}
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    process.stdout.close()


def _data(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def _slow_flow(tmp_path: Path) -> str:
    path = tmp_path / "slow.yaml"
    path.write_text(SLOW)
    return str(path)


def _gone(pid: int) -> bool:
    """Ended; a process that nobody has collected yet counts as ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_help_is_one_screen_and_ends_with_something_to_paste(holdfast: Holdfast) -> None:
    shown = holdfast("--help").stdout

    assert shown == HELP
    assert len(shown.splitlines()) <= 26
    assert shown.splitlines()[-1] == "holdfast run examples/hello.yaml --input name=World"
    for command in re.findall(r"^  holdfast ([\w-]+)", shown, re.MULTILINE):
        assert "usage: holdfast" in holdfast(command, "--help").stdout


def test_a_flow_runs_with_nothing_set_up_and_is_there_afterwards(holdfast: Holdfast) -> None:
    ran = holdfast("run", str(EXAMPLES / "hello.yaml"), "--input", "name=World", "--id", "my-run")
    shown = holdfast("show", "my-run").stdout
    listed = _data(holdfast("checkpoints", "my-run", "--json"))
    checkpoint = _data(holdfast("checkpoint", "my-run@3", "--json"))
    as_yaml = holdfast("checkpoint", "my-run", "--format", "yaml").stdout
    newest = _data(holdfast("checkpoint", "--json"))
    [run] = _data(holdfast("runs", "--json"))

    assert "HELLO, WORLD! (13 letters)" in ran.stdout
    assert "3 of 3 nodes done" in shown
    assert [entry["node_id"] for entry in listed] == [None, "shout", "count", "greet"]
    assert checkpoint["completed_node_ids"] == ["greet"]
    assert as_yaml.startswith("id: my-run@8")
    assert newest["id"] == "my-run@8"
    assert (run["run_id"], run["flow_id"], run["status"], run["done"]) == ("my-run", "hello", "completed", 3)


def test_a_failing_flow_says_where_and_can_be_resumed_with_a_mended_definition(
    holdfast: Holdfast, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text(
        "id: f\nnodes:\n  a: {type: python, code: 'def run(input_data): return 1'}\n"
        "  b: {type: transform, template: '{{ missing }}', depends: a}\n"
    )
    failed = holdfast("run", str(broken), "--id", "broken", check=1)
    told = _data(holdfast("run", str(broken), "--id", "broken-2", "--json", check=1))
    broken.write_text(broken.read_text().replace("missing", "a.output"))
    mended = holdfast("resume", "broken", "--flow", str(broken))

    assert "node 'b' failed: template '{{ missing }}'" in failed.stderr
    assert (told["node_id"], told["run_id"], told["exit_code"]) == ("b", "broken-2", 1)
    assert "kept: a" in mended.stdout
    assert "b: 1" in mended.stdout


def test_mistakes_are_named_with_file_and_line_and_nothing_is_started(holdfast: Holdfast, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("id: f\nnodes:\n  a: {type: htp}\n  b: {type: pass, depends: aa}\n")
    checked = holdfast("check", str(wrong), check=2)
    data = _data(holdfast("check", str(wrong), "--json", check=2))
    ran = holdfast("run", str(wrong), check=2)

    assert f"in {wrong}:3, node 'a'" in checked.stderr
    assert "Did you mean 'http'?" in checked.stderr
    assert [(fault["code"], fault["line"]) for fault in data["faults"]] == [
        ("node/unknown-type", 3),
        ("flow/unknown-node", 4),
    ]
    assert ran.stderr == checked.stderr
    assert not (tmp_path / "home").exists()


def test_custom_nodes_are_loaded_and_missing_ones_named(holdfast: Holdfast) -> None:
    flow, nodes = str(EXAMPLES / "contract_review.yaml"), str(EXAMPLES / "contract_nodes.py")
    sound = holdfast("check", flow, "--load", nodes).stdout
    missing = holdfast("run", flow, check=2).stderr
    unloadable = holdfast("check", flow, "--load", "no_such_module", check=2).stderr

    assert sound == "flow 'contract-review' is sound: 9 nodes\n"
    assert "no loaded module has a node class 'Read'" in missing
    assert "[worker/cannot-load] --load no_such_module" in unloadable


def test_a_flow_is_simulated_without_a_server(holdfast: Holdfast, tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("first: {output: 1, seconds: 5}\nsecond: {output: 2, seconds: 86400}\n")
    simulated = _data(holdfast("simulate", _slow_flow(tmp_path), "--script", str(script), "--json"))
    unscripted = holdfast("simulate", _slow_flow(tmp_path), check=2).stderr

    assert simulated["output"]["third"] == "3"
    assert simulated["transitions"][-1]["seconds"] == 86405
    assert "no scripted result for 'first', 'second'" in unscripted
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["show", "nobody"], 4, "there is no run 'nobody'"),
        (["runs", "--address", "127.0.0.1:1"], 3, "no answer from 127.0.0.1:1"),
        (["run", "missing.yaml"], 2, "missing.yaml"),
        (["run", "missing.yaml", "--input", "novalue"], 2, "missing.yaml"),
        (["nonsense"], 2, "invalid choice"),
    ],
)
def test_what_goes_wrong_has_its_exit_code_and_says_what(
    holdfast: Holdfast, arguments: list[str], code: int, words: str
) -> None:
    assert words in holdfast(*arguments, check=code).stderr


def test_dev_puts_up_a_new_worker_when_one_is_killed_and_the_run_goes_on(
    holdfast: Holdfast, dev: dict[str, Any], tmp_path: Path
) -> None:
    flow, begun, may_end = tmp_path / "held.yaml", tmp_path / "begun", tmp_path / "may-end"
    flow.write_text(SLOW.replace("time.sleep(2)", f"""
          open({str(begun)!r}, "a").close()
          while not __import__("os").path.exists({str(may_end)!r}):
              time.sleep(0.05)"""))  # fmt: skip
    started = _data(holdfast("run", str(flow), "--detach", "--id", "survivor", "--json"))
    while not begun.exists():
        time.sleep(0.05)
    os.kill(dev["worker_pid"], signal.SIGKILL)
    may_end.touch()
    deadline = time.monotonic() + 60
    while _data(holdfast("show", "survivor", "--json"))["status"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.5)
    run = _data(holdfast("show", "survivor", "--json"))

    assert started["run_id"] == "survivor"
    assert run["status"] == "completed"
    assert run["nodes"]["first"]["attempts"] == 1
    assert run["nodes"]["second"]["attempts"] == 2


def _completed(holdfast: Holdfast, run_id: str) -> list[str]:
    nodes = _data(holdfast("show", run_id, "--json"))["nodes"]
    return [name for name, node in nodes.items() if node["status"] == "success"]


def test_ctrl_c_stops_dev_cleanly_and_the_next_start_goes_on(
    holdfast: Holdfast, dev: dict[str, Any], tmp_path: Path
) -> None:
    holdfast("run", _slow_flow(tmp_path), "--detach", "--id", "resting")
    process: subprocess.Popen[str] = dev["process"]
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert _gone(dev["worker_pid"])
    holdfast("run", str(EXAMPLES / "hello.yaml"), "--input", "name=again")
    deadline = time.monotonic() + 60
    # A command that needs a worker brings one along, and it takes up what was left.
    while _data(holdfast("show", "resting", "--json"))["status"] != "completed":
        holdfast("run", _slow_flow(tmp_path))
        assert time.monotonic() < deadline


def test_a_detached_run_brings_its_own_server_and_stop_ends_it(holdfast: Holdfast, tmp_path: Path) -> None:
    started = _data(holdfast("run", _slow_flow(tmp_path), "--detach", "--json"))
    server = json.loads((tmp_path / "home" / "server.json").read_text())
    deadline = time.monotonic() + 60
    while _data(holdfast("show", started["run_id"], "--json"))["status"] != "completed":
        assert time.monotonic() < deadline
        time.sleep(0.2)
    stopped = _data(holdfast("stop", "--json"))

    deadline = time.monotonic() + 10
    while not _gone(stopped["stopped"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert _gone(server["pid"])
    holdfast("stop", check=4)


def test_a_run_is_cancelled_and_what_it_did_is_kept(holdfast: Holdfast, dev: dict[str, Any], tmp_path: Path) -> None:
    flow = tmp_path / "wait.yaml"
    flow.write_text("id: w\nnodes:\n  a: {type: pass}\n  b: {type: delay, seconds: 1h, depends: a}\n")
    holdfast("run", str(flow), "--detach", "--id", "waiting")
    while "a" not in _completed(holdfast, "waiting"):
        time.sleep(0.1)
    holdfast("cancel", "waiting")
    deadline = time.monotonic() + 30
    while (run := _data(holdfast("show", "waiting", "--json")))["status"] != "cancelled":
        assert time.monotonic() < deadline
    assert run["nodes"]["a"]["status"] == "success"


def test_killing_the_command_itself_leaves_nothing_running_and_loses_nothing(
    environment: dict[str, str], holdfast: Holdfast, tmp_path: Path
) -> None:
    process = subprocess.Popen(
        [HOLDFAST, "run", _slow_flow(tmp_path), "--id", "orphan"],
        stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path,
    )  # fmt: skip
    assert process.stdout is not None
    while "first" not in process.stdout.readline():
        pass
    server = json.loads((tmp_path / "home" / "server.json").read_text())
    process.kill()
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 30
    while not _gone(server["pid"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    deadline = time.monotonic() + 60
    while _data(holdfast("show", "orphan", "--json"))["status"] != "completed":
        holdfast("run", _slow_flow(tmp_path))
        assert time.monotonic() < deadline
    assert _data(holdfast("show", "orphan", "--json"))["nodes"]["first"]["attempts"] == 1
