"""No known secret leaves an activity: not in its result, its failure, its heartbeats, or the log."""

import logging
import traceback
from collections.abc import Iterator
from typing import Any

from temporalio.exceptions import ApplicationError, FailureError
from temporalio.worker import (
    ActivityInboundInterceptor,
    ActivityOutboundInterceptor,
    ExecuteActivityInput,
    Interceptor,
)

from holdfast.activities.secrets import KNOWN

_FORMAT = logging.Formatter()
_OWN = frozenset({"msg", "args", "exc_info", "exc_text", "stack_info"})


class MaskingInterceptor(Interceptor):
    """Inside the one that beats, which makes payloads of what it gets. Heartbeats go through it too."""

    def intercept_activity(self, next: ActivityInboundInterceptor) -> ActivityInboundInterceptor:  # noqa: A002
        return _Inbound(next)


class _Inbound(ActivityInboundInterceptor):
    def init(self, outbound: ActivityOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))

    async def execute_activity(self, input: ExecuteActivityInput) -> Any:  # noqa: A002
        try:
            result = await super().execute_activity(input)
        except Exception as error:
            failure = masked_failure(error)
            if failure is error:
                raise
        else:
            return KNOWN.mask(result)
        # Outside of the handler: the error that has the secret must not become its context.
        raise failure


class _Outbound(ActivityOutboundInterceptor):
    def heartbeat(self, *details: Any) -> None:
        super().heartbeat(*KNOWN.mask(details))


def masked_failure(error: Exception) -> Exception:
    """The error as it may be written down with all that is behind it; itself, where no secret is in it."""
    if not KNOWN or (isinstance(error, FailureError) and not isinstance(error, ApplicationError)):
        return error
    chain = list(_chain(error))
    if not any(KNOWN.found(_written(each)) for each in chain):
        return error
    cause: BaseException | None = None
    for each in reversed(chain):
        copy = _masked(each)
        copy.__cause__ = cause
        cause = copy
    assert isinstance(cause, Exception)
    return cause


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what is behind it, as a failure is made of them."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _written(error: BaseException) -> list[Any]:
    details = error.details if isinstance(error, ApplicationError) else ()
    return [str(error), traceback.format_tb(error.__traceback__), *details]


def _masked(error: BaseException) -> ApplicationError:
    """What a failure says of any error is its message and the name of its class: so does this one."""
    if isinstance(error, ApplicationError):
        copy = ApplicationError(
            KNOWN.mask(error.message),
            *KNOWN.mask(tuple(error.details)),
            type=error.type,
            non_retryable=error.non_retryable,
            next_retry_delay=error.next_retry_delay,
            category=error.category,
        )
    else:
        copy = ApplicationError(KNOWN.mask(str(error)), type=type(error).__name__)
    # A traceback shows lines of code; one with a secret in it is left out.
    frames = error.__traceback__
    return copy.with_traceback(None if KNOWN.found(traceback.format_tb(frames)) else frames)


class SecretsFilter(logging.Filter):
    """Hides secrets in a record's text, its traceback, and whatever else was given with it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not KNOWN:
            return True
        try:
            text = record.getMessage()
        except Exception:
            # Wrong arguments for its text: the handler complains, and shows both.
            record.msg, record.args = KNOWN.mask(str(record.msg)), KNOWN.mask(record.args)
        else:
            if KNOWN.found(text):
                record.msg, record.args = KNOWN.mask(text), None
        if record.exc_info and not record.exc_text:
            shown = _FORMAT.formatException(record.exc_info)
            if KNOWN.found(shown):
                # The exception itself goes: other formatters would write it again.
                record.exc_text, record.exc_info = KNOWN.mask(shown), None
        for name in ("exc_text", "stack_info"):
            setattr(record, name, KNOWN.mask(getattr(record, name)))
        extra = {name: value for name, value in record.__dict__.items() if name not in _OWN}
        if KNOWN.found(extra):
            record.__dict__.update(KNOWN.mask(extra))
        return True


_FILTER = SecretsFilter()


def guard_logs() -> None:
    """Puts the filter on every handler there is: a logger's own filter would not see what its children log."""
    loggers = [logging.getLogger(), *logging.getLogger().manager.loggerDict.values()]
    handlers = [handler for logger in loggers if isinstance(logger, logging.Logger) for handler in logger.handlers]
    for handler in [*handlers, logging.lastResort]:
        if handler is not None:
            handler.addFilter(_FILTER)
