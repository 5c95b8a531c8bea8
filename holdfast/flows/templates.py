"""Jinja templates over a node's input, sandboxed: a template comes with a definition and is not to be trusted.

A name that does not exist is an error, not an empty string: a prompt with a hole in it costs money and says nothing.
"""

from functools import lru_cache
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from holdfast.flows.shapes import is_array, is_object


class BadTemplateError(ValueError):
    """A template that does not parse, or cannot be rendered with the data it got."""

    def __init__(self, template: str, complaint: str) -> None:
        shown = template if len(template) <= 80 else template[:77] + "..."
        super().__init__(f"template {shown!r}: {complaint}")


_ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False, keep_trailing_newline=True)


@lru_cache(maxsize=1024)
def _compile(template: str) -> Template:
    try:
        return _ENVIRONMENT.from_string(template)
    except TemplateError as error:
        raise BadTemplateError(template, str(error)) from error
    except RecursionError as error:
        raise BadTemplateError(template, "it is nested too deeply") from error


def verify(template: Any) -> None:
    """Raises BadTemplateError for the first text in `template` that does not parse."""
    if isinstance(template, str):
        _compile(template)
    elif is_object(template):
        for value in template.values():
            verify(value)
    elif is_array(template):
        for value in template:
            verify(value)


def render(template: Any, data: Any) -> Any:
    """Texts are rendered wherever they are in `template`; anything else stays as it is."""
    if isinstance(template, str):
        if "{" not in template:
            return template
        compiled = _compile(template)
        scope = dict(data) if is_object(data) else dict[str, Any]()
        try:
            return compiled.render({"input": data, **scope})
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError) as error:
            raise BadTemplateError(template, str(error)) from error
    if is_object(template):
        return {key: render(value, data) for key, value in template.items()}
    if is_array(template):
        return [render(value, data) for value in template]
    return template
