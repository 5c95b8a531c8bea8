"""What the API takes and gives, as its OpenAPI document shows it."""

import json
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from holdfast.checkpoints.models import CheckpointSummary
from holdfast.checkpoints.resuming import ResumePlan
from holdfast.contracts.people import HumanAnswer
from holdfast.starter.people import OpenRequest
from holdfast.starter.runs import RunInfo


class Body(BaseModel):
    """JSON that others send. It can hold half a character (`"\\ud800"`), which no store and no header takes."""

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, data: Any) -> Any:
        try:
            # What is no JSON, such as a body that says it is something else, is for the fields to refuse.
            json.dumps(data, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"a text has half a character, {error.object[error.start]!r}, in it") from None
        return data


class NewRun(Body):
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
    plan: ResumePlan | None = Field(default=None, description="From a checkpoint: what becomes of each node.")
    notes: list[str] = Field(default_factory=list[str], description="Of an import: what could not be carried.")


class RunPage(BaseModel):
    runs: list[RunInfo]
    cursor: str | None = Field(default=None, description="For the next page; null on the last one.")


class InputMessage(Body):
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


class Resume(Body):
    """From which checkpoint, and what is to be different."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={"examples": [{"checkpoint_id": "my-run@12", "edits": {"draft:output.text": "Better"}}]},
    )

    checkpoint_id: str | None = Field(default=None, description="null: the latest.")
    input_data: Any = Field(default=None, description="Another input, as a checkpoint shows it; null: the one it had.")
    edits: dict[str, Any] = Field(default_factory=dict[str, Any], description="`node:field` to its new value.")
    definition: dict[str, Any] | None = Field(default=None, description="A changed flow; null: the one it had.")
    keep: list[str] = Field(default_factory=list[str], description="Results to keep though their node has changed.")


class Fork(Resume):
    """The same for a run of its own."""

    run_id: str | None = Field(default=None, pattern=r"^[\w.:-]{1,200}$", description="An id of your own.")
    rerun: list[str] = Field(default_factory=list[str], description="Nodes to do again, with all that follows.")
    only_failed: bool = Field(default=False, description="Of maps among them, only the items that failed.")


class BareCheckpoint(Body):
    """A checkpoint that came without its flow, ours or one that Dynamiq wrote, and the flow."""

    model_config = ConfigDict(extra="forbid")

    checkpoint: dict[str, Any]
    flow: str | None = Field(default=None, description="The name of a flow in the catalogue.")
    definition: dict[str, Any] | None = Field(default=None, description="Or a flow, as in YAML.")


class Collect(Body):
    """Which ended runs may go. With neither limit, each flow's `retention_days` decides."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{"older_than_days": 30}]})

    flow: str | None = Field(default=None, pattern=r"^[^\x00]*$", description="Only this flow's.")
    older_than_days: float | None = Field(default=None, ge=0, le=100_000)
    keep: int | None = Field(default=None, ge=0)
    deep: bool = Field(default=False, description="Look for unneeded blobs in runs that are there, too.")
    dry_run: bool = Field(default=True, description="Only say what would go; false: delete it.")


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
