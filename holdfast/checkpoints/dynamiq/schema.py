"""Dynamiq's checkpoint, as far as it is read, and its values with our marks."""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AliasPath, BaseModel, BeforeValidator, Field, ValidationError
from pydantic_core import from_json

from holdfast.checkpoints import values
from holdfast.checkpoints.models import Time
from holdfast.checkpoints.validation import InvalidCheckpointError
from holdfast.flows.shapes import is_array, is_object

IN_LOOP = ("iteration", "iteration_data")
_DEEPEST = 90
_SAME = ("__bytesio__", "__bytes__", "__datetime__", "__date__", "__uuid__", "__decimal__", "__float__")
_MARKS = {mark: mark for mark in (*_SAME, "__set__", "__tuple__")} | {"__dict_items__": "__dict__"}
_M = TypeVar("_M", bound=BaseModel)


class NotCarriedError(InvalidCheckpointError):
    """Why a part has no counterpart. The rest does without it; where there is no rest, the whole is refused."""

    def __init__(self, reason: str) -> None:
        super().__init__([reason])
        self.reason = reason


class Reason(BaseModel, extra="allow"):
    type: str = "Unknown"
    message: str = "Dynamiq recorded no message"


class NodeState(BaseModel):
    node_id: str
    node_type: str
    # `active` is a node that was saved in the middle; `canceled` and `undefined` have nothing to show.
    status: Literal["active", "undefined", "success", "failure", "skip", "canceled"]
    input_data: Any = None
    output_data: Any = None
    error: Reason | None = None
    internal_state: dict[str, Any] = Field(default_factory=dict[str, Any])
    loops: int | None = Field(
        None, validation_alias=AliasPath("internal_state", *IN_LOOP, "agent_state", "current_loop")
    )
    started_at: Time | None = None
    completed_at: Time | None = None


class Waiting(BaseModel):
    prompt: str = ""
    timestamp: Time
    resume_at: Time | None = None


class Checkpoint(BaseModel, extra="allow"):
    id: str
    run_id: str = Field(min_length=1)
    status: Literal["active", "paused", "completed", "failed", "canceled", "pending_input"]
    node_states: dict[str, NodeState]
    completed_node_ids: list[str] = Field(default_factory=list[str])
    pending_node_ids: list[str] = Field(default_factory=list[str])
    original_input: Any = None
    original_config: dict[str, Any] | None = None
    pending_inputs: dict[str, Waiting] = Field(default_factory=dict[str, Waiting])
    created_at: Time
    updated_at: Time
    version: Literal["1.0"]
    dynamiq_version: str | None = None


def _arguments(written: Any) -> Any:
    return converted(from_json(written), "arguments", []) if isinstance(written, str) else written


class Call(BaseModel):
    """What a model wants to be called; as it is dumped, it is one of our calls."""

    id: str
    name: str = Field(validation_alias=AliasPath("function", "name"))
    arguments: Annotated[dict[str, Any], BeforeValidator(_arguments)] = Field(
        validation_alias=AliasPath("function", "arguments")
    )


def read(model: type[_M], data: Any, what: str) -> _M:
    try:
        return model.model_validate(data)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(map(str, fault["loc"]))
        raise NotCarriedError(f"{what} has a form that is not known here ({where}: {fault['msg']})") from error


def converted(value: Any, where: str, notes: list[str]) -> Any:
    """A value of Dynamiq's with our marks. Its own may stand beside other keys, the name of a file: these are noted."""

    def convert(value: Any, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"it is nested more than {_DEEPEST} levels deep")
        if is_array(value):
            return [convert(item, depth + 1) for item in value]
        if not is_object(value):
            return values.encode(value)
        if "__int__" in value:
            return int(value["__int__"])
        for mark in filter(value.__contains__, _MARKS):
            notes.extend(f"{where}: the field {name!r} of a value was not carried" for name in value if name != mark)
            return {_MARKS[mark]: convert(value[mark], depth + 1)}
        plain = all(type(key) is str and not key.startswith("__") for key in value)
        inside = depth + (1 if plain else 3)
        items = [(convert(key, inside), convert(item, inside)) for key, item in value.items()]
        return dict(items) if plain else {"__dict__": [list(item) for item in items]}

    try:
        return convert(value, 0)
    except (ValueError, TypeError, OverflowError) as error:
        raise InvalidCheckpointError([f"{where}: {error}"]) from error


def is_empty(value: Any) -> bool:
    """Whether there is nothing in it. An agent that never ran still has an offset."""
    if is_object(value):
        return all(name == "history_offset" or is_empty(item) for name, item in value.items())
    return not value
