"""What went wrong at a provider, told apart by who must act: the same kinds for every provider.

The OpenAI and Anthropic SDKs come from one generator, so their exceptions have the same names.
"""

from collections.abc import Generator
from contextlib import contextmanager
from json import JSONDecodeError
from typing import Any

import httpx2

from holdfast.activities.failures import ExternalError
from holdfast.activities.http import retry_after

# By status and not by class: one SDK has a class for a status where the other has none.
_KINDS = {
    400: "BadRequestError",
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    409: "ConflictError",
    422: "UnprocessableEntityError",
}


@contextmanager
def told_apart(sdk: Any, model: str) -> Generator[None]:
    """Around a request: what the SDK raises becomes an ExternalError."""
    try:
        yield
    except sdk.APIStatusError as error:
        raise refused(model, error.status_code, error.message, retry_after(error.response.headers)) from error
    except (sdk.APIConnectionError, httpx2.HTTPError) as error:
        raise unreachable(model, error) from error
    except (sdk.APIError, JSONDecodeError) as error:
        # A success whose body cannot be read: a proxy's page, or half an answer.
        raise empty(model, f"answered something that is no completion: {error}") from error


@contextmanager
def cut_short(sdk: Any, model: str) -> Generator[None]:
    """Around the reading of a stream: whatever breaks it, nothing of it can be used."""
    try:
        yield
    except (sdk.APIError, httpx2.HTTPError, JSONDecodeError) as error:
        raise stream_cut(model, str(error) or type(error).__name__) from error


def refused(model: str, status: int, message: str, after: float | None) -> ExternalError:
    """An answer that is no success."""
    if status == 429:
        message = f"model {model!r} is rate limited: {message}"
        return ExternalError(message, kind="RateLimited", retryable=True, retry_after=after)
    return ExternalError(
        f"model {model!r}: {message}",
        kind="InternalServerError" if status >= 500 else _KINDS.get(status, "APIStatusError"),
        retryable=status >= 500 or status in (408, 409),
        # 503 and 529 may say when to come back, too.
        retry_after=after,
        details={"status_code": status},
    )


def unreachable(model: str, error: Exception) -> ExternalError:
    # The SDKs say only "Connection error."; what it was is in the cause.
    cause = f" ({error.__cause__})" if error.__cause__ and str(error.__cause__) else ""
    message = f"model {model!r}: {error}{cause}"
    return ExternalError(message, kind="LlmUnreachable", retryable=True)


def empty(model: str, what: str = "answered without any content") -> ExternalError:
    return ExternalError(f"model {model!r} {what}", kind="LlmEmpty", retryable=True)


def stream_cut(model: str, what: str) -> ExternalError:
    return ExternalError(f"model {model!r}: its stream broke off: {what}", kind="LlmStreamCut", retryable=True)
