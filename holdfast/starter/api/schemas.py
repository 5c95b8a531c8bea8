"""What the API takes and gives, as its OpenAPI document shows it."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from holdfast.checkpoints.models import CheckpointSummary
from holdfast.contracts.people import HumanAnswer
from holdfast.starter.people import OpenRequest
from holdfast.starter.runs import RunInfo


class NewRun(BaseModel):
    """A run to start: a flow of the catalogue by name, or a definition."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"flow": "hello", "input": {"name": "World"}}]},
    )

    flow: str | None = Field(default=None, description="The name of a flow in the catalogue.")
    definition: dict[str, Any] | None = Field(default=None, description="A flow, as in YAML.")
    input: Any = Field(default=None, description="What the flow gets.")
    run_id: str | None = Field(default=None, pattern=r"^[\w.:-]{1,200}$", description="An id of your own.")


class StartedRun(BaseModel):
    run_id: str
    created: bool = Field(default=True, description="false: the same Idempotency-Key has started it before.")


class RunPage(BaseModel):
    runs: list[RunInfo]
    cursor: str | None = Field(default=None, description="For the next page; null on the last one.")


class InputMessage(BaseModel):
    """An answer. With neither id it is for the one question that is open."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"entity_id": "pay", "data": {"is_approved": True, "feedback": "fine"}, "event": "approval"}]
        }
    )

    entity_id: str | None = Field(default=None, description="The node that asks.")
    request_id: str | None = None
    data: HumanAnswer
    event: str = "approval"


class Resume(BaseModel):
    model_config = ConfigDict(extra="forbid")

    checkpoint_id: str | None = Field(default=None, description="null: the latest.")
    input_data: Any = Field(default=None, description="Another input; null: the one it had.")


class CheckpointList(BaseModel):
    checkpoints: list[CheckpointSummary]


class Inbox(BaseModel):
    requests: list[OpenRequest]
    cursor: str | None = Field(default=None, description="For the next page; null on the last one.")


class FlowEntry(BaseModel):
    """A flow of the catalogue."""

    name: str
    id: str
    title: str | None = None
    description: str | None = None
    nodes: int
    fault: str | None = Field(default=None, description="What is wrong with it; it cannot be started then.")


class Catalogue(BaseModel):
    flows: list[FlowEntry]


class Health(BaseModel):
    status: str
