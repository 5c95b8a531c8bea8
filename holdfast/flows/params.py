"""What an author writes for each kind of node that is one activity, or one decision of the workflow."""

import ast
import re
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from holdfast.flows.conditions import Condition
from holdfast.flows.spec import LONGEST_SECONDS

_DAY = 24 * 3600.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY, "w": 7 * _DAY}


def seconds_of(text: str | float) -> float:
    """`90`, `"90s"`, `"1h 30m"`, `"30d"` as seconds; ValueError when it is none of these, or longer than a century."""
    seconds = text if isinstance(text, int | float) else _written_seconds(text)
    # "not <=" also refuses what is no number at all.
    if not seconds <= LONGEST_SECONDS:
        raise ValueError(f"{text!r} is longer than a hundred years")
    return float(seconds)


def _written_seconds(text: str) -> float:
    parts = re.findall(r"(\d+(?:\.\d+)?)\s*([smhdw])", text)
    if not parts or re.sub(r"(\d+(?:\.\d+)?)\s*([smhdw])", "", text).strip():
        raise ValueError(f"{text!r} is not a duration; write for example '90s', '1h 30m' or '30d'")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


FUNCTION = r"^[\w.]+:[\w.<>]+$"
"""A function as a worker finds it: `module:name`."""


class Params(BaseModel):
    """What an author writes for a kind. Unknown fields are refused: this is where a misspelling is noticed."""

    model_config = ConfigDict(extra="forbid")


class Prices(Params):
    """US dollars for a million tokens, where the built-in list does not know the model or its price is another."""

    prompt: float = Field(ge=0)
    completion: float = Field(ge=0)


class ModelParams(Params):
    """Which model, and how it is asked. `connection` is the provider's name unless given.

    `openai` is any OpenAI-compatible endpoint; `pydantic-ai` has the providers that the others do not (an extra);
    `scripted` answers from `replies`, one for every call, for demonstrations and tests.
    """

    model: str
    provider: Literal["openai", "anthropic", "pydantic-ai", "scripted"] = "openai"
    connection: str | None = None
    temperature: float | None = None
    max_tokens: int | None = None
    response_format: dict[str, Any] | None = None
    prices: Prices | None = None
    replies: list[Any] | None = None
    fallback: "ModelParams | None" = None
    extra: dict[str, Any] = Field(default_factory=dict[str, Any])

    @model_validator(mode="after")
    def _scripted(self) -> "ModelParams":
        if (self.provider == "scripted") != (self.replies is not None):
            raise ValueError("'replies' belongs to the provider 'scripted', and it needs them")
        return self


class LlmParams(ModelParams):
    """One chat completion. `prompt` and the message contents are templates over the node's input."""

    prompt: str | None = None
    system: str | None = None
    messages: list[dict[str, Any]] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "LlmParams":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give either 'prompt' or 'messages'")
        return self


class HttpParams(Params):
    """One HTTP request. Strings in `url`, `headers`, `query` and `body` are templates over the node's input."""

    url: str
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] = "GET"
    headers: dict[str, str] = Field(default_factory=dict[str, str])
    query: dict[str, Any] = Field(default_factory=dict[str, Any])
    body: Any = None
    connection: str | None = None
    ok_statuses: list[int] | None = None


class PythonParams(Params):
    """Either `code` that defines `run(input_data)`, or `function` as `module:name` on the worker."""

    code: str | None = None
    function: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "PythonParams":
        if (self.code is None) == (self.function is None):
            raise ValueError("give either 'code' or 'function'")
        if self.function is not None and not re.fullmatch(FUNCTION, self.function):
            raise ValueError(f"function {self.function!r} is not of the form 'module:name'")
        return self

    @field_validator("code")
    @classmethod
    def _compiles(cls, code: str | None) -> str | None:
        if code is None:
            return None
        try:
            tree = ast.parse(code)
        except SyntaxError as error:
            raise ValueError(f"the code does not compile: {error.msg} (line {error.lineno} of it)") from error
        except (RecursionError, MemoryError) as error:
            raise ValueError("the code is nested too deeply to compile") from error
        defined = [item.name for item in tree.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]
        if "run" not in defined:
            raise ValueError("the code defines no function 'run(input_data)'")
        return code


class ChoiceOption(Params):
    """An option without a condition is the fallback."""

    id: str
    name: str | None = None
    condition: Condition | None = None


class ChoiceParams(Params):
    options: list[ChoiceOption] = Field(min_length=1)
    hit_policy: Literal["first", "all"] = "first"


class PassParams(Params):
    pass


class DelayParams(Params):
    """A durable timer: `seconds` (a number or `"30d"`), or `until` an ISO time; either may be a JSONPath."""

    seconds: float | str | None = None
    until: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> "DelayParams":
        if (self.seconds is None) == (self.until is None):
            raise ValueError("give either 'seconds' or 'until'")
        if self.seconds is not None and not str(self.seconds).startswith("$"):
            seconds_of(self.seconds)
        return self


class TransformParams(Params):
    """`template`: text, or an object or list of texts, rendered with Jinja over the input."""

    template: Any


class ValidateParams(Params):
    """What to do with content that is not valid: fail the node, or return `{"valid": false}`."""

    field: str = "content"
    on_invalid: Literal["fail", "return"] = "fail"


class ValidateChoicesParams(ValidateParams):
    choices: list[Any] = Field(min_length=1)


class ValidateRegexParams(ValidateParams):
    regex: str
    match: Literal["full", "search"] = "full"

    @field_validator("regex")
    @classmethod
    def _compiles(cls, regex: str) -> str:
        try:
            re.compile(regex)
        except re.error as error:
            raise ValueError(f"{regex!r} is not a regular expression: {error}") from error
        return regex


class ToolParams(Params):
    """A function with typed arguments, as `module:name` on the worker: what `@tool` makes."""

    function: str = Field(pattern=FUNCTION)


class ActivityParams(Params):
    """Any Temporal activity, in any language: it gets the node's input as its one argument."""

    activity: str
    task_queue: str | None = None
    heartbeat_seconds: float | None = Field(default=None, gt=0, le=LONGEST_SECONDS)
