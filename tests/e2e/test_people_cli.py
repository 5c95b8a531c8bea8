"""The expense claim, approved from a terminal."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def holdfast(tmp_path: Path) -> Generator[Command]:
    elsewhere = ("TEMPORAL_", "OPENAI_", "ANTHROPIC_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(elsewhere)}

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "holdfast.starter.cli", *arguments],
            capture_output=True,
            text=True,
            cwd=ROOT,
            env={**environment, "HOLDFAST_HOME": str(tmp_path)},
            timeout=120,
        )

    try:
        yield command
    finally:
        command("stop")


def _asked(holdfast: Command, run: str) -> dict[str, Any]:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = json.loads(holdfast("inbox", "--run", run, "--json").stdout)
        if found:
            return found[0]
        time.sleep(0.2)
    raise AssertionError("nobody was asked")


@pytest.mark.req("RT-4", "EX-2", "RT-1")
def test_a_claim_is_approved_with_an_edit_and_only_once(holdfast: Command) -> None:
    started = holdfast(
        "run", "examples/expense.yaml", "--load", "examples.expense_tools",
        "--input", "claim=Lunch with Ada, 48 euros", "--id", "lunch", "--detach",
    )  # fmt: skip
    request = _asked(holdfast, "lunch")
    listed = holdfast("inbox")
    unfit = holdfast("approve", "lunch", "--data", '{"what": "dinner"}')
    paused = holdfast("pause", "lunch", "--by", "bob")
    continued = holdfast("continue", "lunch", "--by", "bob")
    approved = holdfast("approve", "lunch", "--data", '{"amount": 40}', "--by", "ada", "--json")
    watched = holdfast("watch", "lunch")
    again = holdfast("reject", "lunch", request["id"], "--by", "eve")
    shown = json.loads(holdfast("checkpoint", "lunch").stdout)

    assert started.returncode == 0, started.stderr
    assert request["prompt"] == "Pay 48 euros for lunch?"
    assert request["to"] == "finance"
    assert "holdfast approve 'lunch'" in listed.stdout
    assert unfit.returncode == 1
    assert "'what' may not be edited; what may is: amount" in unfit.stderr
    assert (paused.returncode, continued.returncode) == (0, 0)
    assert json.loads(approved.stdout)["status"] == "accepted"
    assert "answered by ada" in watched.stdout
    assert watched.stdout.endswith("completed\n")
    assert again.returncode == 1
    assert "already answered by ada" in again.stderr
    assert shown["node_states"]["pay"]["output_data"]["paid"] == 40
    assert shown["node_states"]["pay"]["output_data"]["key"] == "lunch/pay"


def test_the_openapi_document_is_printed_without_a_server(holdfast: Command) -> None:
    document = json.loads(holdfast("openapi").stdout)

    assert document["info"]["title"] == "Holdfast"
    assert "/runs/{run_id}/resume" in document["paths"]


def test_a_server_that_others_can_reach_wants_tokens(holdfast: Command) -> None:
    refused = holdfast("serve", "--host", "0.0.0.0")

    assert refused.returncode == 2
    assert "[cli/no-tokens]" in refused.stderr
