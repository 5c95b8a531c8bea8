"""How a command ends when the world does not play along."""

import argparse
import json

import pytest
from temporalio.service import RPCError, RPCStatusCode

from holdfast.starter.cli.outcomes import UNREACHABLE, USAGE, guarded


@pytest.mark.parametrize(
    ("status", "code"), [(RPCStatusCode.UNAVAILABLE, UNREACHABLE), (RPCStatusCode.INVALID_ARGUMENT, USAGE)]
)
def test_what_temporal_refuses_is_one_line_and_no_traceback(
    capsys: pytest.CaptureFixture[str], status: RPCStatusCode, code: int
) -> None:
    def command(_: argparse.Namespace) -> int:
        raise RPCError("tcp connect error", status, b"")

    ended = [guarded(command, argparse.Namespace(json=json)) for json in (False, True)]
    said = capsys.readouterr()

    assert ended == [code, code]
    assert said.err.endswith("Temporal: tcp connect error\n")
    assert json.loads(said.out)["exit_code"] == code
