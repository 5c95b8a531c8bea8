"""Reads a checkpoint that Dynamiq 0.6x has written, for a flow that has been written down again as one of ours.

What has a counterpart is carried, and everything else is named in a note with its reason: nothing is guessed, and
nothing is dropped in silence. Nodes are matched by id. The text of a conversation is data and stays as it was.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoints.dynamiq.outputs import Import, shaped
from holdfast.checkpoints.dynamiq.schema import (
    Checkpoint,
    NodeState,
    NotCarriedError,
    Reason,
    Waiting,
    converted,
    is_empty,
    read,
)
from holdfast.checkpoints.dynamiq.states import unfinished
from holdfast.checkpoints.models import (
    CheckpointRecord,
    CheckpointStatus,
    NodeRecord,
    PendingInputRecord,
    RunnableStatus,
)
from holdfast.checkpoints.validation import InvalidCheckpointError, ensure_valid
from holdfast.flows import graph, selectors
from holdfast.flows.check import dependencies
from holdfast.flows.composites import AgentParams
from holdfast.flows.conditions import holds
from holdfast.flows.ids import checkpoint_id
from holdfast.flows.kinds import COMPOSITE, is_custom
from holdfast.flows.people import HumanParams
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import FlowSpec, NodeSpec

KINDS: dict[str, str] = {
    "dynamiq.nodes.agents.Agent": "agent",
    "dynamiq.nodes.agents.orchestrators.GraphOrchestrator": "graph-orchestrator",
    "dynamiq.nodes.operators.Choice": "choice",
    "dynamiq.nodes.operators.Delay": "delay",
    "dynamiq.nodes.operators.Map": "map",
    "dynamiq.nodes.operators.Pass": "pass",
    "dynamiq.nodes.operators.SubWorkflow": "flow",
    "dynamiq.nodes.tools.HttpApiCall": "http",
    "dynamiq.nodes.tools.HumanFeedbackTool": "human",
    "dynamiq.nodes.tools.Python": "python",
    "dynamiq.nodes.utils.Input": "pass",
    "dynamiq.nodes.utils.Output": "pass",
    "dynamiq.nodes.validators.RegexMatch": "validate-regex",
    "dynamiq.nodes.validators.ValidChoices": "validate-choices",
    "dynamiq.nodes.validators.ValidJSON": "validate-json",
    "dynamiq.nodes.validators.ValidPython": "validate-python",
}
"""What a type of Dynamiq's is here. All of `dynamiq.nodes.llms` is `llm`."""

_OURS = frozenset({"sequence_number", "checksum", "pending_input_context", "answered_inputs"})
_ORIGIN = {"id", "flow_id", "run_id", "wf_run_id", "workflow_id", "parent_checkpoint_id", "metadata"}


@dataclass(frozen=True)
class Carried:
    """The checkpoint as one of ours, and a sentence for everything that is not in it."""

    checkpoint: CheckpointRecord
    notes: list[str]


def is_dynamiq(data: Mapping[str, Any]) -> bool:
    """Whether this is a checkpoint of Dynamiq's: ours are numbered, and their ids say so."""
    has_shape = is_object(data.get("node_states")) and "flow_id" in data and "run_id" in data
    name = data.get("id")
    return has_shape and isinstance(name, str) and "@" not in name and _OURS.isdisjoint(data)


def from_dynamiq(data: Any, flow: FlowSpec) -> Carried:
    """The checkpoint for a run of `flow`; InvalidCheckpointError says what is wrong with it.

    It is resumed from like any other: only what had not been done, or could not be carried, runs.
    """
    if not is_object(data) or not is_dynamiq(data):
        raise InvalidCheckpointError(["it is not a checkpoint of Dynamiq's"])
    for name, part in data.items():
        converted(part, name, [])  # Refuses what is no JSON value, wherever it is.
    run = Import(read(Checkpoint, data, "it"), flow)
    nodes, states = {node.id: node for node in flow.nodes}, run.found.node_states
    for name in dict.fromkeys([*states, *run.found.completed_node_ids, *run.found.pending_node_ids]):
        if name in states and states[name].node_id != name:
            raise InvalidCheckpointError([f"node_states[{name!r}] describes node {states[name].node_id!r}"])
        if name not in nodes:
            run.note(name, "it is not in the flow; its state was not carried")
    for node_id in graph.topological(dependencies(flow)):
        _carry(run, nodes[node_id], states.get(node_id))
    asked = [_asked(run, nodes.get(name), name, waiting) for name, waiting in run.found.pending_inputs.items()]
    record = _checkpoint(run, [request for request in asked if request is not None])
    ensure_valid(record)
    return Carried(record, list(dict.fromkeys(run.notes)))


def _carry(run: Import, node: NodeSpec, state: NodeState | None) -> None:
    if state is None:
        ready = node.id in run.found.pending_node_ids and all(edge.node in run.done for edge in node.depends)
        if node.id in run.found.completed_node_ids:
            run.note(node.id, "it is said to be completed, and has no state; it runs again")
        elif ready and node.type in COMPOSITE:  # Dynamiq saves them when they end, or where it was told to.
            run.note(node.id, "Dynamiq recorded nothing of its inside; if it had begun, all of it runs again")
        return
    status = RunnableStatus.RUNNING if state.status == "active" else state.status
    try:
        _ensure_same_kind(node, state.node_type)
        fields = _fields(run, node, state)
    except NotCarriedError as error:
        run.note(node.id, f"{error.reason}; it runs again")
        return
    times = {"started_at": state.started_at, "completed_at": state.completed_at}
    run.records[node.id] = NodeRecord(node_id=node.id, node_type=node.type, status=status, **times, **fields)


def _ensure_same_kind(node: NodeSpec, node_type: str) -> None:
    kind = "llm" if node_type.startswith("dynamiq.nodes.llms.") else KINDS.get(node_type)
    # A class or a function of the author's own has kept its name.
    own = node.type if is_custom(node.type) else str(node.params.get("function")).rpartition(":")[2]
    if kind is None and (node_type.startswith("dynamiq.") or node_type.rpartition(".")[2] != own):
        raise NotCarriedError(f"a {node_type} has no counterpart here")
    if kind is not None and kind != node.type:
        raise NotCarriedError(f"a {node_type} is a node of type {kind!r}, and it is {node.type!r} here")


def _fields(run: Import, node: NodeSpec, state: NodeState) -> dict[str, Any]:
    where, known = f"node {node.id!r}", state.error or Reason()
    given = {"input_data": run.value(state.input_data, where)}
    error = {"type": known.type, "message": known.message}
    run.leave(node, known.model_extra or {}, (), "error")
    match state.status:
        case "success":
            fields = {"output_data": shaped(run, node, run.value(state.output_data, where), state)}
        case "skip":
            fields = {"error": {"type": "skipped", "message": known.message}}
        case "failure" if _is_handled(run, node, {"status": "failure", "error": error, "input": given["input_data"]}):
            fields = {"error": error}
        case "failure":
            return given | {"error": error} | unfinished(run, node, state)
        case "active":
            return given | unfinished(run, node, state)
        case _:
            raise NotCarriedError(f"Dynamiq says {state.status!r} of it and nothing more")
    run.done.add(node.id)
    return given | fields


def _is_handled(run: Import, node: NodeSpec, outcome: Mapping[str, Any]) -> bool:
    edges = [edge for other in run.flow.nodes for edge in other.depends if edge.node == node.id]
    handling = [edge for edge in edges if edge.trigger == "failure" and edge.option is None]
    return node.error_handling.behavior != "raise" or any(
        edge.condition is None or holds(edge.condition, outcome, selectors.find) for edge in handling
    )


def _asked(run: Import, node: NodeSpec | None, name: str, waiting: Waiting) -> dict[str, Any] | None:
    """A question that was open is asked anew; who resumes learns from the checkpoint that it was asked before."""
    known, path, asks = run.records.get(name), name, node
    if node is None or known is None or name in run.done:
        run.note(name, "what it was waiting for was not carried, as the node itself was not")
        return None
    if calls := known.internal_state.get("pending_calls"):
        path = f"{name}/loop[{known.internal_state['current_loop']}]/{calls[0]['name']}[0]"
        asks = next(tool for tool in AgentParams.model_validate(node.params).tools if tool.id == calls[0]["name"])
    elif node.type == "delay":
        return None  # It has its end in its own state.
    if waiting.resume_at is not None or asks is None or not (asks.type == "human" or asks.approval.enabled):
        run.note(path, "what it was waiting for was not carried; it runs as the flow says")
        return None
    kind = HumanParams.model_validate(asks.params).kind if asks.type == "human" else "approval"
    request = {"id": f"{run.found.id}/{path}", "path": path, "kind": kind, "prompt": waiting.prompt}
    return request | {"created_at": waiting.timestamp.isoformat()}


def _checkpoint(run: Import, asked: list[dict[str, Any]]) -> CheckpointRecord:
    found, left = run.found, [node.id for node in run.flow.nodes if node.id not in run.done]
    for name, value in (found.original_config or {}).items():
        if name != "run_id" and not is_empty(value):
            run.notes.append(f"the setting {name!r} of the run was not carried")
    status = {"canceled": "failed", "pending_input": "active"}.get(found.status, found.status)
    if status == "completed" and left:
        run.notes.append(f"the run had completed, and goes on here with: {', '.join(left)}")
        status = "active"
    errors = [known.error | {"node_id": name} for name, known in run.records.items() if known.error and name in left]
    if found.status == "canceled":
        errors = [{"type": "cancelled", "message": "the run was cancelled"}]
    origin = run.value(found.model_dump(include=_ORIGIN), "metadata")
    metadata = {"imported_from": f"dynamiq {found.dynamiq_version or '(version not recorded)'}", "dynamiq": origin}
    record = CheckpointRecord(
        id=checkpoint_id(found.run_id, 0),
        flow_id=run.flow.id,
        run_id=found.run_id,
        status=CheckpointStatus(status),
        node_states=run.records,
        completed_node_ids=[name for name in run.records if name in run.done],
        pending_node_ids=left,
        original_input=run.value(found.original_input, "original_input"),
        created_at=found.created_at,
        updated_at=found.updated_at,
        metadata=metadata | ({"error": errors[0]} if status == "failed" and errors and not asked else {}),
    )
    for request in asked[::-1]:
        record.pending_inputs = {request["id"]: request} | record.pending_inputs
        context = {"node_id": request["path"], "prompt": request["prompt"], "timestamp": request["created_at"]}
        record.pending_input_context = PendingInputRecord(**context, metadata={"request": request})
        record.status = CheckpointStatus.PENDING_INPUT
    return record
