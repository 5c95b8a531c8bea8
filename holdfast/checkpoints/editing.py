"""Changes to a checkpoint on the way into a new run: `node:field = value`.

    draft:output.text          what a node gave (a node that had not run yet, or had failed, is done then)
    research:messages[3]       an agent's conversation         plan:context.topic   an orchestrator's context
    each:iterations[17]        the result of one item          node:state.x         anything inside an unfinished node

The checkpoint that is edited stays as it is; what cannot be changed is refused by name.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoints import values
from holdfast.checkpoints.addresses import INSIDE, Key, keys_of
from holdfast.checkpoints.models import CheckpointRecord, NodeRecord, RunnableStatus
from holdfast.flows.ids import is_nested, is_within
from holdfast.flows.shapes import is_array, is_object
from holdfast.flows.spec import FlowSpec


class EditError(ValueError):
    """An edit that cannot be made. Names the address and what there is instead."""

    code = "edit/impossible"

    def __init__(self, address: str, why: str) -> None:
        self.address = address
        super().__init__(f"[{self.code}] {address!r}: {why}")


def apply_edits(flow: FlowSpec, record: CheckpointRecord, edits: Mapping[str, Any]) -> CheckpointRecord:
    """The checkpoint with the edits made, in their order; `record` is left as it was."""
    edited = record.fork()
    for address, value in edits.items():
        node, colon, field = address.partition(":")
        if not (node and colon and field):
            raise EditError(address, "an edit is 'node:field', for example 'draft:output.text'")
        _edit(flow, edited, address, node, _steps(address, field), values.encode(value, address))
    return edited


def _steps(address: str, field: str) -> list[Key]:
    try:
        return keys_of(field)
    except ValueError as error:
        raise EditError(address, str(error)) from error


def _edit(flow: FlowSpec, record: CheckpointRecord, address: str, path: str, steps: Sequence[Key], value: Any) -> None:
    name, *rest = steps
    if name == "output":
        _edit_output(flow, record, address, path, rest, value)
        return
    if name == "state":
        if not rest:
            raise EditError(address, "say which part of the state, for example 'node:state.counter'")
    elif name in INSIDE:
        rest = [INSIDE[name], *rest]
    else:
        known = ", ".join(["output", *INSIDE, "state"])
        raise EditError(address, f"there is no field {name!r}; a node has: {known}")
    state = record.node_states.get(path)
    if state is None:
        known = ", ".join(record.node_states) or "none"
        raise EditError(address, f"the checkpoint has no state of {path!r}; it has those of: {known}")
    if path in record.completed_node_ids or state.status == RunnableStatus.SUCCESS:
        why = f"{path!r} is done at this checkpoint; choose an earlier one, or edit '{path}:output'"
        raise EditError(address, why)
    if rest[0] not in state.internal_state:
        known = ", ".join(state.internal_state) or "nothing"
        raise EditError(address, f"{path!r} has no {rest[0]!r} at this checkpoint; inside it has: {known}")
    inside = _set(address, state.internal_state, _keys(rest), value)
    if why := _misshapen(rest[0], inside):
        raise EditError(address, why)
    if rest[0] == "completed_iterations":
        inside = _no_longer_failed(inside)
    record.node_states[path] = state.model_copy(update={"internal_state": inside})


def _keys(steps: Sequence[Key]) -> list[Key]:
    # Items of a map are kept by their number as text.
    if steps[0] == "completed_iterations":
        return [steps[0], *(str(step) for step in steps[1:2]), *steps[2:]]
    return list(steps)


def _misshapen(name: Key, inside: dict[str, Any]) -> str | None:
    """What is wrong with a field that an engine could not go on with: it would stand still for ever."""
    value = inside[str(name)]
    if name in (INSIDE["messages"], INSIDE["chat_history"]):
        fits = is_array(value) and all(map(is_object, value))
        return None if fits else "it has to be a list of messages, each with 'role' and 'content'"
    if name == INSIDE["context"]:
        return None if is_object(value) else "it has to be an object"
    if name == INSIDE["iterations"]:
        items = range(inside.get("total_iterations", 0))
        fits = is_object(value) and all(index.isdecimal() and int(index) in items for index in value)
        return None if fits else f"it has to be an object with results by the numbers of the {len(items)} items"
    return None


def _no_longer_failed(inside: dict[str, Any]) -> dict[str, Any]:
    failed, done = inside.get("failed_iterations", {}), inside["completed_iterations"]
    return {**inside, "failed_iterations": {index: error for index, error in failed.items() if index not in done}}


def _edit_output(
    flow: FlowSpec, record: CheckpointRecord, address: str, path: str, steps: Sequence[Key], value: Any
) -> None:
    types = {node.id: node.type for node in flow.nodes}
    if is_nested(path) or path not in types:
        raise EditError(address, f"there is no node {path!r} in the flow; it has: {', '.join(types)}")
    known = record.node_states.get(path)
    if steps and (known is None or known.status != RunnableStatus.SUCCESS):
        raise EditError(address, f"{path!r} has no output at this checkpoint; give the whole of it: '{path}:output'")
    output = _set(address, known.output_data if known is not None else None, steps, value)
    moment = record.updated_at
    state = known or NodeRecord(node_id=path, node_type=types[path], status=RunnableStatus.SUCCESS, started_at=moment)
    done: dict[str, Any] = {"status": RunnableStatus.SUCCESS, "output_data": output, "error": None}
    done |= {"internal_state": {}, "node_type": types[path], "completed_at": state.completed_at or moment}
    record.node_states[path] = state.model_copy(update=done)
    for inner in [inner for inner in record.node_states if inner != path and is_within(inner, path)]:
        del record.node_states[inner]
    if path not in record.completed_node_ids:
        record.completed_node_ids.append(path)
    record.pending_node_ids[:] = [name for name in record.pending_node_ids if name != path]


def _set(address: str, value: Any, steps: Sequence[Key], new: Any) -> Any:
    """`value` with `new` at the end of `steps`; what leads there is copied, what is beside it is shared."""
    if not steps:
        return new
    step, *rest = steps
    if is_array(value) and isinstance(step, int):
        if step > len(value) or (rest and step == len(value)):
            raise EditError(address, f"there is no [{step}]: the list has {len(value)} entries")
        items = [*value, None] if step == len(value) else list(value)
        items[step] = _set(address, items[step], rest, new)
        return items
    if is_object(value) and isinstance(step, str):
        if any(key.startswith("__") for key in value):
            raise EditError(address, f"{next(iter(value))} cannot be looked into; give the whole value")
        if rest and step not in value:
            raise EditError(address, f"there is no {step!r}; there is: {', '.join(value) or 'nothing'}")
        return {**value, step: _set(address, value.get(step), rest, new)}
    kind = "a list" if is_array(value) else "an object" if is_object(value) else f"{value!r:.40}"
    raise EditError(address, f"{step!r} cannot be found in {kind}")


def retry_failed(record: CheckpointRecord, path: str) -> CheckpointRecord:
    """The checkpoint with a finished map as it was before its failed items had failed: only they are to be run."""
    state = record.node_states.get(path)
    if state is None or state.node_type != "map":
        raise EditError(path, "is no map of this checkpoint; only of a map the failed items can be done again")
    inside = state.internal_state
    failed: dict[str, Any] = inside.get("failed_iterations") or {}
    if not failed:
        raise EditError(path, "none of its items has failed")
    done = inside.get("completed_iterations")
    if done is None:
        # A finished map has its results in its output alone.
        output = state.output_data["output"]
        done = {str(index): item for index, item in enumerate(output) if str(index) not in failed}
    again = {**inside, "completed_iterations": done, "failed_iterations": {}}
    undone = {"status": RunnableStatus.UNDEFINED, "output_data": None, "error": None, "completed_at": None}
    edited = record.fork()
    edited.node_states[path] = state.model_copy(update={**undone, "internal_state": again})
    edited.completed_node_ids = [name for name in edited.completed_node_ids if name != path]
    if path not in edited.pending_node_ids:
        edited.pending_node_ids.append(path)
    return edited
