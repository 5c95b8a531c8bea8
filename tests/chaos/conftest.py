"""Fixtures for tests that kill: a stage of their own, and the recovery times told at the end."""

import statistics
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.chaos.harness import RECOVERIES, Stage


@pytest.fixture
def stage(tmp_path: Path) -> Generator[Stage]:
    """Journal, holds and workers of one test."""
    found = Stage(tmp_path / "stage")
    try:
        yield found
    finally:
        found.close()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for what, times in RECOVERIES.items():
        shown = f"min {min(times):.1f} s, median {statistics.median(times):.1f} s, max {max(times):.1f} s"
        terminalreporter.write_line(f"chaos: {what}: {shown} ({len(times)} measured)")
