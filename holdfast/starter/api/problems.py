"""Errors as `application/problem+json`, with the same codes as everywhere else."""

import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from temporalio.service import RPCError, RPCStatusCode

from holdfast.checkpoints.editing import EditError
from holdfast.checkpoints.validation import InvalidCheckpointError
from holdfast.checkpoints.values import UnserialisableError
from holdfast.codecs import faults as codec_faults
from holdfast.flows.faults import FlowDefinitionError
from holdfast.starter.bundles import InvalidExportError
from holdfast.starter.connecting import NotReachableError
from holdfast.starter.errors import (
    AlreadyResumedError,
    AnswerRefusedError,
    BadRunIdError,
    InnerRunError,
    NoCheckpointError,
    NoDefinitionError,
    NoSuchNodeError,
    NotAFlowError,
    OtherFlowError,
    PartOfRunError,
    RequestNotFoundError,
    RunActiveError,
    RunEndedError,
    RunExistsError,
    RunNotFoundError,
)

_STATUS: dict[type[Exception], int] = {
    RunNotFoundError: 404,
    RequestNotFoundError: 404,
    NoSuchNodeError: 404,
    NoCheckpointError: 404,
    BadRunIdError: 422,
    RunExistsError: 409,
    AlreadyResumedError: 409,
    InnerRunError: 409,
    RunActiveError: 409,
    RunEndedError: 409,
    AnswerRefusedError: 409,
    FlowDefinitionError: 422,
    UnserialisableError: 422,
    InvalidCheckpointError: 422,
    InvalidExportError: 422,
    EditError: 422,
    PartOfRunError: 422,
    NoDefinitionError: 422,
    NotAFlowError: 422,
    OtherFlowError: 422,
    NotReachableError: 503,
    **dict.fromkeys(codec_faults.REFUSED, 413),
    **dict.fromkeys(codec_faults.WORTH_WAITING, 503),
    **dict.fromkeys(codec_faults.DAMAGED, 500),
}
_CALLERS_FAULT = frozenset({RPCStatusCode.INVALID_ARGUMENT, RPCStatusCode.FAILED_PRECONDITION})
_CODE = re.compile(r"\[([\w-]+/[\w-]+)\]\s*")


class ProblemError(Exception):
    """A problem of the request itself."""

    def __init__(self, status: int, code: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.headers = headers or {}


def problem(status: int, code: str, detail: str, headers: dict[str, str] | None = None, **more: Any) -> JSONResponse:
    body = {"type": f"urn:holdfast:error:{code}", "title": code, "status": status, "detail": detail, **more}
    return JSONResponse(body, status, media_type="application/problem+json", headers=headers)


def _message(fault: Any, request: Request) -> str:
    """The framework's words; what it makes of a body that it did not read as JSON, or could not, says too little."""
    if fault["type"] == "json_invalid":
        return f"{fault['msg']}: {fault['ctx']['error']}"
    kind = request.headers.get("content-type", "")
    if tuple(fault["loc"]) == ("body",) and isinstance(fault.get("input"), bytes) and "json" not in kind:
        return f"the body came as {kind or 'something'!r}: send it with 'Content-Type: application/json'"
    return fault["msg"]


def install(app: FastAPI) -> None:
    """Every error that a caller can do something about becomes a problem; any other is a 500 without details."""

    async def known(_: Request, error: Exception) -> JSONResponse:
        status = next(number for kind, number in _STATUS.items() if isinstance(error, kind))
        found = _CODE.search(str(error))
        code = found.group(1) if found else "request/failed"
        if isinstance(error, FlowDefinitionError):
            faults = [{"code": fault.code, "message": fault.message, "remedy": fault.remedy} for fault in error.faults]
            return problem(status, "flow/faulty", str(error), faults=faults)
        if isinstance(error, AlreadyResumedError):
            return problem(status, code, _CODE.sub("", str(error)), winner=error.winner)
        # An answer that does not fit is the caller's to mend; one that came too late is not.
        status = 422 if code == "answer/unfit" else status
        return problem(status, code, _CODE.sub("", str(error)))

    async def own(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, ProblemError)
        return problem(error.status, error.code, str(error), error.headers)

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        faults = [
            {"where": ".".join(map(str, fault["loc"])), "message": _message(fault, request)} for fault in error.errors()
        ]
        said = "; ".join(f"{fault['where']}: {fault['message']}" for fault in faults[:5])
        return problem(422, "request/invalid", said, faults=faults)

    async def plain(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        if error.status_code == 400:
            # What the framework says of a body that its reader gives up on; to a caller it is as unfit as any other.
            return problem(422, "request/invalid", str(error.detail))
        return problem(error.status_code, f"http/{error.status_code}", str(error.detail), dict(error.headers or {}))

    async def temporal(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RPCError)
        if error.status == RPCStatusCode.NOT_FOUND:
            return problem(404, "run/not-found", str(error))
        if error.status in _CALLERS_FAULT:
            return problem(422, "request/invalid", str(error))
        return problem(503, "temporal/not-reachable", f"Temporal: {error}", {"Retry-After": "5"})

    async def deep(_: Request, __: Exception) -> JSONResponse:
        # Reading JSON takes less of the stack than making something of it.
        return problem(422, "request/invalid", "the request is nested too deeply")

    app.add_exception_handler(RPCError, temporal)
    app.add_exception_handler(RecursionError, deep)
    for kind in _STATUS:
        app.add_exception_handler(kind, known)
    app.add_exception_handler(ProblemError, own)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, plain)
