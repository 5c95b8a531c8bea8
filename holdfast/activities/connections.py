"""Connections by name, resolved on the worker when they are used: nothing secret is in a definition or a history."""

import asyncio
import base64
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from holdfast.activities.failures import ExternalError
from holdfast.activities.secrets import KNOWN
from holdfast.activities.threads import NodeThreads
from holdfast.flows.connections import variables
from holdfast.flows.nodes import NonRetryableError
from holdfast.flows.shapes import is_object

FILE_VARIABLE = "HOLDFAST_CONNECTIONS"
SECRETS_VARIABLE = "HOLDFAST_SECRETS"
"""Names further variables that hold secrets, those that nodes read by themselves: `STRIPE_KEY,DB_PASSWORD`."""
# Known by the variables of their own SDKs, too: OPENAI_API_KEY, ANTHROPIC_BASE_URL.
_OWN_VARIABLES = frozenset({"openai", "anthropic"})
_SECRET_VARIABLES = re.compile(
    r"HOLDFAST_CONNECTION_.+_API_KEY|OPENAI_API_KEY|ANTHROPIC_API_KEY|TEMPORAL_API_KEY|HOLDFAST_EXPORT_KEY"
)
_KEYS_VARIABLE, _KEYS_FILE_VARIABLE = "HOLDFAST_KEYS", "HOLDFAST_KEYS_FILE"
# Headers that are no secret, and whose values are in many texts.
_PLAIN_HEADERS = re.compile(r"accept(-.*)?|content-.*|user-agent|host|origin|referer|cache-control|(.*-)?version", re.I)


class Connection(BaseModel):
    """Where a service is and how to be let in."""

    model_config = ConfigDict(extra="forbid")

    base_url: str | None = None
    api_key: SecretStr | None = None
    headers: dict[str, SecretStr] = Field(default_factory=dict[str, SecretStr])

    def secrets(self) -> Iterator[str]:
        """What must not be seen anywhere."""
        if self.api_key:
            yield self.api_key.get_secret_value()
        for name, value in self.headers.items():
            if not _PLAIN_HEADERS.fullmatch(name):
                yield from _in_header(value.get_secret_value())
        with suppress(ValueError):
            yield unquote(urlsplit(self.base_url or "").password or "")


def _in_header(value: str) -> Iterator[str]:
    """The value; of `Bearer x` the x, and of `Basic x` the password in it too."""
    scheme, _, rest = value.partition(" ")
    if not rest:
        yield value
        return
    yield rest
    if scheme.lower() == "basic":
        with suppress(ValueError):
            yield base64.b64decode(rest).decode().partition(":")[2]


class Connections:
    """What a worker can connect to. Asked at every use and never kept: keys change."""

    def __init__(
        self, functions: Mapping[str, Callable[[], Any]] | None = None, threads: NodeThreads | None = None
    ) -> None:
        self._functions = functions or {}
        self._threads = threads or NodeThreads()

    async def resolve(self, name: str) -> Connection:
        """From the environment, the author's function, or the file, whichever has a field first."""
        given = await self._ask(name) if name in self._functions else None
        # In a thread: a file may be on a slow disk.
        return await asyncio.to_thread(resolve, name, given)

    async def _ask(self, name: str) -> Any:
        try:
            return await self._threads.call(self._functions[name])
        except Exception as error:
            # Its text stays here: nobody knows yet which values in it are secret.
            frame = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{Path(frame.filename).name}, line {frame.lineno}"
            message = f"the function for connection {name!r} raised {type(error).__name__} ({place})"
            retryable = not isinstance(error, NonRetryableError)
        raise ExternalError(f"[connection/failed] {message}", kind="ConnectionFailed", retryable=retryable)


def resolve(name: str, given: Any = None) -> Connection:
    """From HOLDFAST_CONNECTION_<NAME>_BASE_URL and _API_KEY, `given`, or the file HOLDFAST_CONNECTIONS names."""
    if given is not None and not is_object(given):
        raise NonRetryableError(f"[connection/bad-field] the function for connection {name!r} gives no dict")
    prefix = variables(name)
    found: dict[str, Any] = {**_from_file(name), **(given or {})}
    for field in ("base_url", "api_key"):
        if value := os.environ.get(prefix + field.upper()):
            found[field] = value
        elif name in _OWN_VARIABLES and field not in found:
            found[field] = os.environ.get(f"{name.upper()}_{field.upper()}") or None
    try:
        connection = Connection.model_validate(found)
    except ValidationError as error:
        # Fields are named, values are not: this goes into the history.
        fields = ", ".join(sorted({str(fault["loc"][0]) for fault in error.errors()}))
        known = ", ".join(Connection.model_fields)
        raise NonRetryableError(
            f"[connection/bad-field] connection {name!r} has a bad field: {fields}; it may have {known}"
        ) from None
    if connection == Connection():
        raise NonRetryableError(
            f"[connection/unknown] this worker has no connection {name!r}: "
            f"set {prefix}BASE_URL and {prefix}API_KEY, add it to the file that {FILE_VARIABLE} names, "
            "or load a module that provides it"
        )
    KNOWN.learn([*_environment_secrets(), *connection.secrets()])
    return connection


def learn_configured() -> None:
    """What the environment and the file have, before anybody uses it: a node may read it by itself."""
    KNOWN.learn(_environment_secrets())
    with suppress(NonRetryableError):
        for name in _file():
            with suppress(NonRetryableError):
                resolve(name)


def _environment_secrets() -> Iterator[str]:
    further = {name.strip() for name in os.environ.get(SECRETS_VARIABLE, "").split(",")}
    for name, value in os.environ.items():
        if name in further or _SECRET_VARIABLES.fullmatch(name):
            yield value
    for entry in _payload_keys().replace(",", " ").split():
        yield entry.partition(":")[2]


def _payload_keys() -> str:
    with suppress(OSError, UnicodeDecodeError, KeyError):
        return Path(os.environ[_KEYS_FILE_VARIABLE]).read_text()
    return os.environ.get(_KEYS_VARIABLE, "")


def _from_file(name: str) -> dict[str, Any]:
    entry: Mapping[str, Any] = _file().get(name, {})
    found = {field: _value(name, field, value) for field, value in entry.items()}
    headers = found.get("headers")
    if is_object(headers):
        found["headers"] = {header: _value(name, f"header {header}", value) for header, value in headers.items()}
    return found


def _value(name: str, field: str, value: Any) -> Any:
    """The value; of `{env: NAME}` and `{file: PATH}`, what is there. A path is relative to the file it is in."""
    if not is_object(value) or list(value) not in (["env"], ["file"]):
        return value
    [(kind, place)] = value.items()
    where = f"connection {name!r}: its {field} is to be in"
    if kind == "env":
        if not (text := os.environ.get(str(place))):
            raise NonRetryableError(f"[connection/missing-value] {where} the variable {place}, which is not set")
        return text
    try:
        return (Path(os.environ[FILE_VARIABLE]).parent / str(place)).read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is no text"
        raise NonRetryableError(f"[connection/missing-value] {where} the file {place}: {why}") from None


def _file() -> Mapping[str, Any]:
    path = os.environ.get(FILE_VARIABLE)
    if not path:
        return {}
    try:
        data: Any = yaml.safe_load(Path(path).read_text()) or {}
    except OSError as error:
        raise NonRetryableError(f"[connection/bad-file] {FILE_VARIABLE}={path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark else ""
        raise NonRetryableError(f"[connection/bad-file] {FILE_VARIABLE}={path} is not YAML{line}") from None
    if not is_object(data) or not all(is_object(entry) for entry in data.values()):
        raise NonRetryableError(
            f"[connection/bad-file] {FILE_VARIABLE}={path}: it maps names to base_url, api_key, headers"
        )
    return data
