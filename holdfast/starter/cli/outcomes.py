"""How a command ends: exit codes, and errors said in one place, as text or as JSON."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

from temporalio.service import RPCError, RPCStatusCode

from holdfast.checkpoints.editing import EditError
from holdfast.checkpoints.validation import InvalidCheckpointError
from holdfast.codecs import faults
from holdfast.engine.simulator import NotScriptedError
from holdfast.flows.faults import FlowDefinitionError
from holdfast.loading import LoadError
from holdfast.starter.bundles import InvalidExportError
from holdfast.starter.connecting import NotReachableError
from holdfast.starter.embedded import ServerError
from holdfast.starter.errors import (
    AlreadyResumedError,
    AnswerRefusedError,
    BadRunIdError,
    FlowFailedError,
    InnerRunError,
    NoCheckpointError,
    NoDefinitionError,
    NoSuchNodeError,
    NotAFlowError,
    OtherFlowError,
    PartOfRunError,
    RequestNotFoundError,
    RunActiveError,
    RunCancelledError,
    RunEndedError,
    RunExistsError,
    RunNotFoundError,
)

FINISHED, FAILED, USAGE, UNREACHABLE, NOT_FOUND, INTERRUPTED = 0, 1, 2, 3, 4, 130


class UsageError(Exception):
    """The command cannot be carried out as it was given."""


_CODES: list[tuple[type[Exception], int]] = [
    (FlowFailedError, FAILED),
    (RunCancelledError, FAILED),
    (RunNotFoundError, NOT_FOUND),
    (NoCheckpointError, NOT_FOUND),
    (RequestNotFoundError, NOT_FOUND),
    (AnswerRefusedError, FAILED),
    (NotReachableError, UNREACHABLE),
    (ServerError, UNREACHABLE),
    (FlowDefinitionError, USAGE),
    (InvalidCheckpointError, USAGE),
    (NotScriptedError, USAGE),
    (LoadError, USAGE),
    (RunActiveError, USAGE),
    (AlreadyResumedError, USAGE),
    (InnerRunError, USAGE),
    (PartOfRunError, USAGE),
    (NoSuchNodeError, NOT_FOUND),
    (NoDefinitionError, USAGE),
    (NotAFlowError, USAGE),
    (OtherFlowError, USAGE),
    (EditError, USAGE),
    (InvalidExportError, USAGE),
    (RunEndedError, USAGE),
    (RunExistsError, USAGE),
    (BadRunIdError, USAGE),
    (UsageError, USAGE),
    *((kind, USAGE) for kind in (*faults.BAD_SETTINGS, *faults.REFUSED)),
    *((kind, UNREACHABLE) for kind in faults.WORTH_WAITING),
    *((kind, FAILED) for kind in faults.DAMAGED),
]


def guarded(command: Callable[[argparse.Namespace], int], options: argparse.Namespace) -> int:
    """Runs a command; an error somebody can act on is printed without a traceback, any other is our bug."""
    try:
        return command(options)
    except KeyboardInterrupt:
        print("interrupted; a run that has started goes on by itself", file=sys.stderr)
        return INTERRUPTED
    except RPCError as error:
        if error.status == RPCStatusCode.INVALID_ARGUMENT:
            return _refused(UsageError(f"Temporal: {error}"), options)
        return _refused(NotReachableError(f"[temporal/not-reachable] Temporal: {error}"), options)
    except tuple(kind for kind, _ in _CODES) as error:
        return _refused(error, options)


def _refused(error: Exception, options: argparse.Namespace) -> int:
    code = next(code for kind, code in _CODES if isinstance(error, kind))
    if getattr(options, "json", False):
        print_json({"error": str(error), "exit_code": code, **_fields(error)})
    else:
        print(error, file=sys.stderr)
    return code


def _fields(error: Exception) -> dict[str, Any]:
    if isinstance(error, FlowFailedError):
        return {"run_id": error.run_id, "node_id": error.node_id, "checkpoint_id": error.checkpoint_id}
    if isinstance(error, FlowDefinitionError):
        return {"faults": faults_data(error)}
    if isinstance(error, AlreadyResumedError):
        return {"run_id": error.run_id, "winner": error.winner}
    return {}


def faults_data(error: FlowDefinitionError) -> list[dict[str, Any]]:
    """Faults with stable fields."""
    return [
        {
            "code": fault.code,
            "message": fault.message,
            "file": fault.place.file,
            "line": fault.place.line,
            "node": fault.place.node,
            "remedy": fault.remedy,
        }
        for fault in error.faults
    ]


def print_json(data: Any) -> None:
    print(json.dumps(data, ensure_ascii=False))
