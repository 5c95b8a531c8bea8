"""How large a request may be, and what is said of one that is larger."""

import pytest

from holdfast.starter.api.bodies import LARGEST_IMPORT, Limit, import_limit, largest_import
from holdfast.starter.cli import main


def test_the_limit_of_imports_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    unset = largest_import()
    monkeypatch.setenv("HOLDFAST_LARGEST_IMPORT", "100000000")
    raised = largest_import()
    monkeypatch.setenv("HOLDFAST_LARGEST_IMPORT", "0")

    assert (unset, raised, largest_import()) == (LARGEST_IMPORT, 100_000_000, 0)


def test_a_limit_that_is_no_number_is_said_before_anything_is_served(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LARGEST_IMPORT", "64 MiB")

    assert main(["serve", "--address", "127.0.0.1:1", "--port", "0"]) == 2
    assert "[codec/bad-setting] HOLDFAST_LARGEST_IMPORT='64 MiB' is not a number" in capsys.readouterr().err


def test_a_refusal_has_the_limit_and_the_remedy() -> None:
    assert Limit(2 * 2**20).refusal == (
        "the body is larger than 2 MiB, the most that is taken here; send less: give addresses in place of files"
    )
    assert import_limit(1000).refusal == (
        "the body is larger than 1000 bytes, the most that is taken here; "
        "raise HOLDFAST_LARGEST_IMPORT where the server runs, or use 'holdfast import', which takes any size"
    )
