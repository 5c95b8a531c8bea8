"""A run's result and its last checkpoint, in one payload, without saying anything twice."""

from typing import Any

from holdfast.checkpoints.models import CheckpointRecord
from holdfast.checkpoints.serial import seal
from holdfast.checkpoints.validation import InvalidCheckpointError
from holdfast.contracts.calls import FlowResult

_SHARED = {"input_data": "input", "output_data": "output", "error": "error", "status": "status"}


def pack(record: CheckpointRecord, status: str) -> FlowResult:
    """What a closing run leaves behind. Nodes that never finished are in the checkpoint, not in the output."""
    sealed = seal(record)
    output: dict[str, Any] = {}
    for node_id, state in sealed["node_states"].items():
        if state["status"] in ("success", "failure", "skip"):
            output[node_id] = {short: state.pop(name) for name, short in _SHARED.items()}
    return FlowResult.model_validate(
        {"status": status, "run_id": record.run_id, "output": output, "checkpoint": sealed}
    )


def unpack(result: FlowResult) -> dict[str, Any]:
    """The sealed checkpoint, whole again, so that its checksum can be verified."""
    return unpack_data(result.model_dump(mode="json"))


def unpack_data(result: dict[str, Any]) -> dict[str, Any]:
    """The same from a result as it lies in the history; InvalidCheckpointError when it is damaged beyond that."""
    try:
        outcomes: dict[str, dict[str, Any]] = result["output"]
        sealed: dict[str, Any] = result["checkpoint"]
        states: dict[str, dict[str, Any]] = sealed.get("node_states", {})
        whole = {
            node_id: {**state, **{name: outcomes[node_id][short] for name, short in _SHARED.items()}}
            if node_id in outcomes
            else state
            for node_id, state in states.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidCheckpointError([f"it is not the result of a run: {error!r}"]) from error
    return {**sealed, "node_states": whole}
