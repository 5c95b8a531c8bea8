"""The README's first screen works, word for word."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import read_flow

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def _block(language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)[number]


def _run(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("TEMPORAL_", "OPENAI_", "ANTHROPIC_"))
    }
    return subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**environment, "HOLDFAST_HOME": str(home)},
        timeout=200,
    )


def test_the_flow_it_shows_is_sound() -> None:
    assert [node.id for node in read_flow(_block("yaml")).nodes] == ["greet", "count"]


def test_the_python_it_shows_is_the_example_and_runs(tmp_path: Path) -> None:
    example = (ROOT / "examples" / "library.py").read_text()
    assert example.endswith(_block("python"))

    ran = _run("-m", "examples.library", home=tmp_path)

    assert ran.stdout == "3 pages\n", ran.stderr


def test_the_agent_it_shows_is_the_example_and_runs(tmp_path: Path) -> None:
    assert _block("python", 1) in (ROOT / "examples" / "short_agent.py").read_text()

    ran = _run("-m", "examples.short_agent", home=tmp_path)

    assert ran.stdout == "Take an umbrella.\n", ran.stderr


def test_every_file_it_points_to_exists() -> None:
    for target in re.findall(r"\]\((?!http|#)([^)]+)\)", README):
        assert (ROOT / target.partition("#")[0]).exists(), target


@pytest.mark.req("FL-2", "PR-7")
def test_the_demo_survives_its_kill(tmp_path: Path) -> None:
    ran = _run("-m", "examples.demo", home=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "kill -9" in ran.stdout
    assert "Nothing lost, nothing twice" in ran.stdout
    assert re.search(r"read\s+Read\s+done\s+1\s+1\s+1", ran.stdout)
    assert re.search(r"legal\s+Assess\s+in flight\s+2\s+2\s+1", ran.stdout)
    assert "8 calls of the model were paid, tool call 8 was running" in ran.stdout
    assert re.search(r"LLM calls: 15, paid once\s+15\s+0", ran.stdout)
    assert re.search(r"tool calls: 14\s+15\s+in flight, same key", ran.stdout)
    assert list(tmp_path.glob("demo-*")) == []


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ("research_agent", "Kelp survives a storm by its holdfast"),
        ("document_map", "lease.txt: 900 a month\nloan.txt: 120 a month\nlicence.txt: nothing"),
        ("essay_graph", "(draft > count > review > draft > count > review)"),
    ],
)
def test_the_examples_of_agents_run_offline(example: str, said: str, tmp_path: Path) -> None:
    ran = _run("-m", f"examples.{example}", home=tmp_path)

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert said in ran.stdout
