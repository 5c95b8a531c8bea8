"""What went wrong in an activity, in the form a workflow understands: kept in the checkpoint, retried or not."""

from datetime import timedelta
from typing import Any

from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from holdfast.checkpoints.values import UnserialisableError
from holdfast.contracts.calls import NodeFailure
from holdfast.contracts.names import NODE_FAILED
from holdfast.flows.nodes import NonRetryableError
from holdfast.flows.templates import BadTemplateError


class ExternalError(Exception):
    """The world misbehaved in a way we know: says whether another attempt can help, and when."""

    def __init__(
        self, message: str, *, kind: str, retryable: bool, retry_after: float | None = None, details: Any = None
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.retry_after = retry_after
        self.details = details


_FINAL = (NonRetryableError, UnserialisableError, BadTemplateError)


def failure_of(error: Exception, state: dict[str, Any], attempt: int) -> ApplicationError:
    """The error as an activity's failure. An error nobody knows is retried as the node's policy says."""
    described: dict[str, Any] = {"type": type(error).__name__, "message": str(error) or type(error).__name__}
    retryable, delay = not isinstance(error, _FINAL), None
    if isinstance(error, ExternalError):
        described["type"] = error.kind
        if error.details is not None:
            described["details"] = error.details
        retryable = error.retryable
        # The other side said when to come back; the retry policy could only guess.
        delay = timedelta(seconds=error.retry_after) if error.retry_after is not None else None
    details = NodeFailure(error=described, internal_state=state, attempt=attempt)
    return ApplicationError(
        described["message"],
        details,
        type=NODE_FAILED,
        non_retryable=not retryable,
        next_retry_delay=delay,
        category=ApplicationErrorCategory.BENIGN,
    )
