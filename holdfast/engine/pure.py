"""The pure built-in nodes: functions of their parameters and input, and nothing else."""

import ast
import json
import re
from collections.abc import Callable
from typing import Any

from holdfast.flows.nodes import NonRetryableError
from holdfast.flows.params import TransformParams, ValidateChoicesParams, ValidateParams, ValidateRegexParams
from holdfast.flows.shapes import is_object
from holdfast.flows.templates import render


class NotValidError(NonRetryableError, ValueError):
    """The content is not what the validator wants."""


def _content(params: ValidateParams, input_data: Any) -> Any:
    if not is_object(input_data) or params.field not in input_data:
        raise NotValidError(f"the input has no field {params.field!r}; select it with an input_transformer")
    return input_data[params.field]


def _verdict(params: ValidateParams, content: Any, complaint: str | None) -> dict[str, Any]:
    if complaint is None:
        return {"valid": True, "content": content}
    if params.on_invalid == "return":
        return {"valid": False, "content": content, "complaint": complaint}
    raise NotValidError(complaint)


def _transform(params: dict[str, Any], input_data: Any) -> Any:
    return render(TransformParams.model_validate(params).template, input_data)


def _json(params: dict[str, Any], input_data: Any) -> Any:
    wanted = ValidateParams.model_validate(params)
    content = _content(wanted, input_data)
    try:
        json.loads(content) if isinstance(content, str | bytes) else json.dumps(content)
    except (ValueError, TypeError, RecursionError) as error:
        return _verdict(wanted, content, f"not JSON: {error}")
    return _verdict(wanted, content, None)


def _python(params: dict[str, Any], input_data: Any) -> Any:
    wanted = ValidateParams.model_validate(params)
    content = _content(wanted, input_data)
    try:
        ast.parse(content)
    except (SyntaxError, TypeError, ValueError) as error:
        return _verdict(wanted, content, f"not Python: {error}")
    except (RecursionError, MemoryError):
        # What the parser says of code that is nested too deeply for it.
        return _verdict(wanted, content, "not Python that can be parsed: it is nested too deeply")
    return _verdict(wanted, content, None)


def _choices(params: dict[str, Any], input_data: Any) -> Any:
    wanted = ValidateChoicesParams.model_validate(params)
    content = _content(wanted, input_data)
    allowed = content in wanted.choices
    return _verdict(wanted, content, None if allowed else f"{content!r} is none of {wanted.choices!r}")


def _regex(params: dict[str, Any], input_data: Any) -> Any:
    wanted = ValidateRegexParams.model_validate(params)
    content = _content(wanted, input_data)
    match = re.fullmatch if wanted.match == "full" else re.search
    fits = isinstance(content, str) and match(wanted.regex, content) is not None
    return _verdict(wanted, content, None if fits else f"{content!r} does not match {wanted.regex!r}")


PURE_NODES: dict[str, Callable[[dict[str, Any], Any], Any]] = {
    "transform": _transform,
    "validate-json": _json,
    "validate-python": _python,
    "validate-choices": _choices,
    "validate-regex": _regex,
}
