"""JSON schemas that authors write: for tools' inputs and agents' answers."""

from typing import Any

from jsonschema import Draft202012Validator, SchemaError
from jsonschema_specifications import REGISTRY
from referencing.exceptions import Unresolvable

_MOST_FAULTS = 5
_MOST_CHARACTERS = 500


class BadSchemaError(ValueError):
    """A schema that is none."""


def verify(schema: dict[str, Any]) -> None:
    """Raises BadSchemaError with the schema's own fault."""
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        where = ".".join(map(str, error.path))
        raise BadSchemaError(f"{where}: {error.message}" if where else error.message) from error


def faults(schema: dict[str, Any], value: Any) -> list[str]:
    """What is wrong with a value: the first few faults, in a stable order, each with its place."""
    # With a registry of its own it never fetches what a `$ref` names: this runs in workflows.
    validator: Any = Draft202012Validator(schema, registry=REGISTRY)
    try:
        found = sorted(validator.iter_errors(value), key=lambda fault: [str(part) for part in fault.path])
    except Unresolvable as error:
        return [f"it cannot be checked: the schema refers to {error.ref!r}, which is not in it"]
    except RecursionError:
        return ["it cannot be checked: the schema refers to itself without end"]
    return [
        f"{'.'.join(map(str, fault.path)) or 'it'}: {fault.message[:_MOST_CHARACTERS]}"
        for fault in found[:_MOST_FAULTS]
    ]
