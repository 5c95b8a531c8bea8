"""Time travel from a terminal: real processes against one embedded server."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from holdfast.starter.embedded import free_port

HOLDFAST = str(Path(sys.executable).parent / "holdfast")
DYNAMIQ = Path(__file__).parents[1] / "unit" / "data" / "dynamiq"
Done = subprocess.CompletedProcess[str]
PLAN = {"kept", "forgotten", "reset", "fresh", "changed", "edited", "warnings"}
RESULT = {"run_id", "status", "output", "ui"}

LETTER = """
id: {id}
nodes:
  fetch: {{type: python, code: "def run(input_data): return {{'word': 'old', 'api_key': 'hush'}}"}}
  draft: {{type: transform, depends: fetch, template: "{{{{ fetch.output.word }}}} {{{{ name }}}}"}}
  send:
    type: python
    depends: draft
    code: |
      import os
      def run(input_data):
          assert os.path.exists(input_data["mended"]), "no stamps"
          return input_data["draft"]["output"]
"""
MAPPED = """
id: mapped
nodes:
  each:
    type: map
    behavior: return
    node:
      id: item
      type: python
      code: |
        import os
        def run(input_data):
            assert input_data["n"] != 2 or os.path.exists(input_data["mended"])
            return input_data["n"]
"""
ASK = "id: litter\nnodes:\n  ask: {type: human, prompt: Well}\n"
OUTER = """
id: outer
nodes:
  inner: {type: flow, flow: {id: in, nodes: {x: {type: pass}}}}
"""
ORDERS = """
id: orders
nodes:
  fetch: {type: python, code: "def run(x): raise ValueError('not again')"}
  charge: {type: python, depends: fetch, code: "def run(x): return {'content': 'paid'}"}
  ship: {type: python, depends: charge, code: "def run(x): return {'content': 'shipped'}"}
"""


class Terminal:
    """Commands in a folder, with a `holdfast dev` behind them."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        self.environment = environment

    def __call__(self, *arguments: str, check: int | None = 0, **more: str) -> Done:
        done = subprocess.run(
            [HOLDFAST, *arguments],
            capture_output=True, text=True, env={**self.environment, **more}, cwd=self.folder, timeout=60,
        )  # fmt: skip
        if check is not None:
            assert done.returncode == check, f"{arguments}: {done.stdout}{done.stderr}"
        return done

    def data(self, *arguments: str, check: int = 0, **more: str) -> Any:
        return json.loads(self(*arguments, "--json", check=check, **more).stdout)

    def write(self, name: str, text: str) -> str:
        (self.folder / name).write_text(text)
        return name

    def failed(self, name: str) -> str:
        """A run that has failed in its last node, and would not fail again."""
        flow = self.write(f"{name}.yaml", LETTER.format(id=name))
        mended = self.folder / f"{name}.mended"
        self("run", flow, "--id", name, "--input", "name=Ada", "--input", f"mended={mended}", check=1)
        mended.touch()
        return name


def together(*calls: Callable[[], Any]) -> list[Any]:
    """What does not depend on each other goes at the same time: a process needs a second to begin."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(call) for call in calls]]


@pytest.fixture(scope="module")
def holdfast(tmp_path_factory: pytest.TempPathFactory) -> Generator[Terminal]:
    folder = tmp_path_factory.mktemp("travel")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "HOLDFAST_"))}
    environment = {**kept, "HOLDFAST_HOME": str(folder / "home"), "COLUMNS": "200"}
    ports = ["--port", str(free_port()), "--ui-port", str(free_port()), "--console-port", str(free_port())]
    process = subprocess.Popen(
        [HOLDFAST, "dev", "--json", *ports], stdout=subprocess.PIPE, text=True, env=environment, cwd=folder
    )
    assert process.stdout is not None
    try:
        assert json.loads(process.stdout.readline())["worker_pid"]
        yield Terminal(folder, environment)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()


@pytest.fixture(scope="module")
def letter(holdfast: Terminal) -> str:
    """A run that several tests go on from; none of them resumes or deletes it."""
    return holdfast.failed("letter")


@pytest.mark.req("RT-1", "RT-7")
def test_a_run_is_resumed_once_and_the_second_time_names_the_winner(holdfast: Terminal) -> None:
    run = holdfast.failed("bill")
    plan = holdfast.data("resume", run, "--dry-run")
    resumed = holdfast.data("resume", run, "--key", "ticket-1")
    refused, told, same, missing = together(
        lambda: holdfast("resume", run, check=2).stderr,
        lambda: holdfast.data("resume", run, check=2),
        lambda: holdfast("resume", run, "--key", "ticket-1").stdout,
        lambda: holdfast.data("resume", "nobody", check=4),
    )

    assert plan.keys() == PLAN
    assert (plan["kept"], plan["forgotten"]) == (["fetch", "draft"], ["send"])
    assert resumed.keys() == RESULT
    assert (resumed["run_id"], resumed["status"]) == ("bill~2", "completed")
    assert resumed["output"]["send"]["output"] == "old Ada"
    assert "[run/resumed]" in refused
    assert "'bill~2'" in refused
    assert (told["winner"], told["run_id"], told["exit_code"]) == ("bill~2", run, 2)
    assert "the same key has started bill~2 before" in same
    assert (missing["exit_code"], "there is no run 'nobody'" in missing["error"]) == (4, True)


@pytest.mark.req("RT-1")
def test_a_fork_is_edited_with_text_json_and_files(holdfast: Terminal, letter: str) -> None:
    holdfast.write("fetch.json", '{"word": "new", "pages": 1}')
    holdfast.write("draft.txt", "Dear Bob")
    edits = ["--edit", "fetch:output=@fetch.json", "--edit", "fetch:output.pages=[2, 3]"]
    edits += ["--edit", 'fetch:output["a=b"]=c=d']
    looked, changed, text, text_file, bad, impossible, other = together(
        lambda: holdfast("fork", letter, *edits, "--dry-run").stdout,
        lambda: holdfast.data("fork", letter, *edits, "--id", "letter-json"),
        lambda: holdfast("fork", letter, "--edit", "draft:output=Hi, you").stdout,
        lambda: holdfast.data("fork", letter, "--edit", "draft:output=@draft.txt"),
        lambda: holdfast("fork", letter, "--edit", "draft.output=x", check=2).stderr,
        lambda: holdfast("fork", letter, "--edit", "nobody:output=x", check=2).stderr,
        lambda: holdfast.data("fork", f"{letter}@1", "--input", "name=Bob", "--input", "mended=."),
    )
    detached, taken = together(
        lambda: holdfast.data("fork", letter, "--detach", "--key", "two"),
        lambda: holdfast("fork", letter, "--id", "letter-json", check=2).stderr,
    )

    assert "fetch  given by hand" in looked
    assert "draft  runs again from its beginning" in looked
    assert "! node 'draft' runs again" in looked
    assert "nothing was started: this was --dry-run" in looked
    assert changed.keys() == RESULT
    assert changed["run_id"] == "letter-json"
    assert changed["output"]["fetch"]["output"] == {"word": "new", "pages": [2, 3], "a=b": "c=d"}
    assert changed["output"]["send"]["output"] == "new Ada"
    assert "send: Hi, you" in text
    assert text_file["output"]["send"]["output"] == "Dear Bob"
    assert "[cli/bad-edit]" in bad
    assert "[edit/impossible]" in impossible
    assert other["output"]["send"]["output"] == "old Bob"
    assert detached.keys() == {"run_id", "status", "ui"}
    assert "[run/exists]" in taken


@pytest.mark.req("RT-1")
def test_a_step_is_done_again_and_of_a_map_what_failed(holdfast: Terminal, letter: str) -> None:
    mapped, mended = holdfast.write("mapped.yaml", MAPPED), holdfast.folder / "mapped.mended"
    items = json.dumps({"input": [{"n": number, "mended": str(mended)} for number in (1, 2, 3)]})
    first = holdfast.data("run", mapped, "--id", "mapped", "--input", items)
    mended.touch()
    some, whole, plan, missing, no_map = together(
        lambda: holdfast.data("rerun", "mapped", "each", "--only-failed"),
        lambda: holdfast.data("rerun", letter, "draft", "--id", "letter-again"),
        lambda: holdfast.data("rerun", letter, "draft", "--dry-run"),
        lambda: holdfast("rerun", letter, "nobody", check=4).stderr,
        lambda: holdfast("rerun", letter, "draft", "--only-failed", check=2).stderr,
    )

    assert first["output"]["each"]["output"]["failed_iterations"] == [1]
    assert some.keys() == whole.keys() == RESULT
    assert some["output"]["each"]["output"]["output"] == [1, 2, 3]
    assert (whole["run_id"], whole["output"]["send"]["output"]) == ("letter-again", "old Ada")
    assert (plan["kept"], plan["reset"]) == (["fetch"], ["draft", "send"])
    assert "it has: fetch, draft, send" in missing
    assert "is no map" in no_map


@pytest.mark.req("RT-1")
def test_what_is_different_and_what_came_from_what(holdfast: Terminal, letter: str) -> None:
    fork = "letter-fork"
    holdfast("fork", letter, "--id", fork, "--edit", 'fetch:output={"word": "new", "api_key": "psst"}')
    text, data, missing, story, moments, drawn, tree = together(
        lambda: holdfast("diff", letter, fork, "--show-secrets").stdout,
        lambda: holdfast.data("diff", letter, fork),
        lambda: holdfast("diff", letter, "nobody", check=4).stderr,
        lambda: holdfast("history", letter, "fetch", "output").stdout,
        lambda: holdfast.data("history", letter, "send"),
        lambda: holdfast("tree", letter).stdout,
        lambda: holdfast.data("tree", fork),
    )
    (root,) = tree
    member = next(entry for entry in root["children"] if entry["run_id"] == fork)
    word = {"node": "fetch", "field": "output.word", "kind": "changed", "left": "old", "right": "new"}

    assert text.startswith(f"- {letter}@")
    assert '"old"' in text
    assert '"new"' in text
    assert "psst" in text
    assert data.keys() == {"left", "right", "left_at", "right_at", "changes"}
    assert data["left_at"].keys() == data["right_at"].keys() == {"sequence_number", "at"}
    assert word in data["changes"]
    assert "psst" not in json.dumps(data)
    assert "[run/not-found]" in missing
    assert "node_completed" in story
    assert "hush" not in story
    assert [moment["event"] for moment in moments] == ["node_started", "node_failed"]
    assert moments[0].keys() == {"sequence_number", "checkpoint_id", "at", "event", "status", "changes"}
    assert f"fork of {letter}@" in drawn
    assert (root["run_id"], root["how"]) == (letter, None)
    assert member["how"] == "fork"
    assert member.keys() >= {"flow_id", "status", "done", "total", "parent_checkpoint_id", "children"}


@pytest.mark.req("RT-1", "DM-10")
def test_a_checkpoint_is_taken_away_and_gone_on_from(holdfast: Terminal, letter: str) -> None:
    key, other = holdfast.write("key", "a long passphrase\n"), "another passphrase"
    told, as_yaml, _, _, elsewhere, no_key = together(
        lambda: holdfast.data("export", letter, "run.json"),
        lambda: holdfast("export", f"{letter}@1", "run.yaml").stdout,
        lambda: holdfast("export", letter, "locked.json", "--encrypt", "--key-file", key),
        lambda: holdfast("export", letter, "variable.yaml", "--encrypt", HOLDFAST_EXPORT_KEY=other),
        lambda: holdfast.data("export", letter, "elsewhere.json", "--for", "staging"),
        lambda: holdfast("export", letter, "never.json", "--encrypt", check=2).stderr,
    )
    broken = holdfast.write("broken.json", (holdfast.folder / "run.json").read_text()[:-50])
    paused, ran, unlocked, by_variable, *refused = together(
        lambda: holdfast.data("import", "run.json"),
        lambda: holdfast.data("import", "run.yaml", "--run", "--id", "letter-yaml"),
        lambda: holdfast("import", "locked.json", "--key-file", key, "--run").stdout,
        lambda: holdfast("import", "variable.yaml", HOLDFAST_EXPORT_KEY=other).stdout,
        lambda: holdfast("import", "locked.json", check=2).stderr,
        lambda: holdfast("import", "elsewhere.json", check=2).stderr,
        lambda: holdfast("import", broken, check=2).stderr,
    )
    shown = holdfast.data("show", paused["run_id"])
    again, _, watched = together(
        lambda: holdfast.data("import", "run.json"),
        lambda: holdfast("continue", paused["run_id"]),
        lambda: holdfast("watch", paused["run_id"]).stdout,
    )

    assert (told["file"], told["made_for"]) == ("run.json", "default")
    assert told["checkpoint_id"].startswith(f"{letter}@")
    assert "holdfast import run.yaml" in as_yaml
    assert "hush" not in (holdfast.folder / "locked.json").read_text()
    assert elsewhere["made_for"] == "staging"
    assert "[cli/no-key]" in no_key
    assert not (holdfast.folder / "never.json").exists()
    assert paused.keys() == {"run_id", "created", "notes"}
    assert (paused["created"], again["created"]) == (True, False)
    assert again["run_id"] == paused["run_id"]
    assert shown["closed_at"] is None
    assert watched.endswith("completed\n")
    assert (ran["run_id"], ran["status"], ran["output"]["send"]["output"]) == ("letter-yaml", "completed", "old Ada")
    assert "kept: fetch, draft" in unlocked
    assert "holdfast continue" in by_variable
    for code, text in zip(["export/locked", "export/wrong-tenant", "export/damaged"], refused, strict=True):
        assert f"[{code}]" in text


@pytest.mark.req("RT-1", "DM-10")
def test_large_values_go_apart_and_bare_checkpoints_and_dynamiqs_are_taken(holdfast: Terminal, letter: str) -> None:
    large = "x" * 100_000
    holdfast.write("large.txt", large)
    orders, dynamiq = holdfast.write("orders.yaml", ORDERS), str(DYNAMIQ / "failed.json")
    _, bare, shown = together(
        lambda: holdfast("fork", letter, "--id", "heavy", "--edit", "draft:output=@large.txt"),
        lambda: holdfast("checkpoint", letter, "--show-secrets").stdout,
        lambda: holdfast("checkpoint", letter).stdout,
    )
    holdfast.write("bare.json", bare)
    holdfast.write("shown.json", shown)
    holdfast("export", "heavy", "heavy.json", "--blobs", "blobs")
    heavy, went_on, no_flow, hidden, theirs, missing, in_clear = together(
        lambda: holdfast.data("import", "heavy.json", "--run"),
        lambda: holdfast.data("import", "bare.json", "--flow", f"{letter}.yaml", "--run"),
        lambda: holdfast("import", "bare.json", check=2).stderr,
        lambda: holdfast("import", "shown.json", "--flow", f"{letter}.yaml", check=2).stderr,
        lambda: holdfast.data("import", dynamiq, "--flow", orders, "--run", "--id", "orders-here"),
        lambda: holdfast("import", "missing.json", check=2).stderr,
        lambda: (
            holdfast(
                "import", "bare.json", "--flow", f"{letter}.yaml", check=2, HOLDFAST_EXPORT_KEY="open sesame"
            ).stderr
        ),
    )

    assert in_clear.startswith("[export/not-locked] a bare checkpoint is not encrypted")
    assert (holdfast.folder / "heavy.json").stat().st_size < len(large)
    assert len(list((holdfast.folder / "blobs").iterdir())) == 1
    assert heavy["output"]["send"]["output"] == large
    assert went_on["output"]["send"]["output"] == "old Ada"
    assert "[run/no-definition]" in no_flow
    assert "take it with --show-secrets" in hidden
    assert theirs["output"]["fetch"]["output"] == {"content": {"total": 12}}
    assert theirs["output"]["ship"]["output"] == {"content": "shipped"}
    assert "[export/cannot-read]" in missing


@pytest.mark.req("RT-1")
def test_runs_that_have_ended_go_and_those_that_wait_stay(holdfast: Terminal) -> None:
    flow = holdfast.write("ask.yaml", ASK)
    together(lambda: holdfast.failed("litter"), lambda: holdfast("run", flow, "--id", "waiting", "--detach"))
    deadline = time.monotonic() + 30
    while len(holdfast.data("runs", "--flow", "litter")) < 2:
        assert time.monotonic() < deadline
    active, refused, looked, young = together(
        lambda: holdfast("resume", "waiting", check=2).stderr,
        lambda: holdfast.data("delete", "waiting", check=2),
        lambda: holdfast.data("gc", "--flow", "litter", "--older-than", "0", "--dry-run"),
        lambda: holdfast("gc", "--flow", "litter", "--older-than", "1").stdout,
    )
    collected = holdfast.data("gc", "--flow", "litter", "--older-than", "0")
    deadline = time.monotonic() + 30
    while (gone := holdfast("delete", "litter", "--json", check=None)).returncode != 4:
        assert time.monotonic() < deadline, gone.stdout
    together(lambda: holdfast("watch", "waiting"), lambda: holdfast("cancel", "waiting"))
    deleted = holdfast.data("delete", "waiting")

    found = {"runs": ["litter"], "orphans": [], "kept_open": 1, "executions": 1, "blobs": 0, "blob_bytes": 0}
    assert "[run/active]" in active
    assert "fork" in active
    assert (refused["exit_code"], "[run/active]" in refused["error"]) == (2, True)
    assert looked == {**found, "dry_run": True}
    assert young == "0 runs and 0 orphans (0 executions) deleted; 1 have not ended and stay\n"
    assert collected == {**found, "dry_run": False}
    assert json.loads(gone.stdout) == {"run_id": "litter", "deleted": False}
    assert deleted == {"run_id": "waiting", "deleted": True}


@pytest.mark.req("RT-1")
def test_what_cannot_be_meant_is_refused_with_what_can(holdfast: Terminal, letter: str) -> None:
    named, number, no_key, none, no_file, no_flow, gone, plan = together(
        lambda: holdfast("show", f"{letter}@3", check=4).stderr,
        lambda: holdfast("checkpoints", letter, "--limit", "0", check=2).stderr,
        lambda: holdfast("fork", letter, "--key", "", check=2).stderr,
        lambda: holdfast("gc", "--keep", "-1", check=2).stderr,
        lambda: holdfast("fork", letter, "--edit", "draft:output=@none.txt", check=2).stderr,
        lambda: holdfast("fork", letter, "--flow", ".", check=2).stderr,
        lambda: holdfast("delete", "nobody", check=4).stderr,
        lambda: holdfast("fork", f"{letter}@3", "--dry-run").stdout,
    )

    assert f"'{letter}@3' is a checkpoint's id; the run's is '{letter}'" in named
    assert number.endswith("argument --limit: not a number from 1 on: '0'\n")
    assert no_key.endswith("argument --key: an empty one, which would be a new run each time\n")
    assert none.endswith("argument --keep: not a number from 0 on: '-1'\n")
    assert no_file == "[cli/cannot-read] none.txt: No such file or directory\n"
    assert no_flow == "[cli/cannot-read] .: Is a directory\n"
    assert gone == "[run/not-found] there is no run 'nobody'; 'holdfast runs' lists what there is\n"
    assert [line.rstrip().split(maxsplit=1) for line in plan.splitlines()[1:4]] == [
        ["fetch", "kept: not executed again"],
        ["draft", "runs for the first time"],
        ["send", "runs for the first time"],
    ]


@pytest.mark.req("RT-1", "DM-10")
def test_an_export_ends_with_the_command_that_imports_it(holdfast: Terminal, letter: str) -> None:
    holdfast.write("the key", "a long passphrase\n")
    locked, elsewhere = together(
        lambda: holdfast("export", letter, "my run.json", "--encrypt", "--key-file", "the key").stdout,
        lambda: holdfast("export", letter, "there.json", "--for", "staging").stdout,
    )
    command = shlex.split(locked.splitlines()[-1])
    paused = holdfast(*command[1:]).stdout
    went_on = holdfast(*command[1:], "--run").stdout

    assert command == ["holdfast", "import", "my run.json", "--key-file", "the key"]
    assert elsewhere.splitlines()[-1] == "holdfast import there.json --namespace staging"
    assert "holdfast continue" in paused
    assert "completed: 3 nodes" in went_on


@pytest.mark.req("RT-1", "DM-10")
def test_what_to_look_out_for_is_said_once_and_marked(holdfast: Terminal, letter: str) -> None:
    changed = holdfast.write("changed.yaml", LETTER.format(id=letter).replace("'old'", "'new'"))
    holdfast("export", letter, "warned.json")
    forked, imported = together(
        lambda: holdfast("fork", letter, "--flow", changed).stdout,
        lambda: holdfast("import", "warned.json", "--flow", changed, "--run").stdout,
    )

    for said in (forked, imported):
        assert [line for line in said.splitlines() if "has changed" in line] == [
            "     ! node 'fetch' has changed (params.code); it runs again"
        ]


def test_a_reader_who_has_seen_enough_ends_the_command_without_a_word(holdfast: Terminal, letter: str) -> None:
    command = [HOLDFAST, "checkpoint", letter]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=holdfast.environment,
        cwd=holdfast.folder,
    )
    assert process.stdout is not None
    process.stdout.close()
    _, said = process.communicate(timeout=60)

    assert (process.returncode, said) == (141, "")


def test_the_page_of_a_run_inside_another_is_found(holdfast: Terminal) -> None:
    flow = holdfast.write("outer.yaml", OUTER)
    holdfast("run", flow, "--id", "outer")

    assert holdfast("show", "outer/inner").stdout.endswith("/workflows/outer%2Finner\n")
