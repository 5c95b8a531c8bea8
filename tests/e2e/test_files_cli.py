"""An agent's files as a person sees them at the command line: the page's own example, on the embedded server."""

import pytest

from tests.e2e.test_cli import EXAMPLES, Holdfast, environment, holdfast

__all__ = ["environment", "holdfast"]


@pytest.mark.req("FS-1")
def test_the_example_runs_and_its_files_are_shown(holdfast: Holdfast) -> None:
    holdfast("run", str(EXAMPLES / "notes.yaml"), "--id", "notes-1", "--input", "input=When does the tide turn?")
    shown = holdfast("show", "notes-1").stdout
    checkpoint = holdfast("checkpoint", "notes-1").stdout

    assert "file of clerk: notes/sea.md (text/markdown, 46 bytes)" in shown
    assert '"file_store"' in checkpoint
