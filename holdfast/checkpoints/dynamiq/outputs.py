"""What is carried so far, and what it gave: Dynamiq's outputs in the shapes that outputs have here."""

import re
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from holdfast.checkpoints.dynamiq.schema import Call, Checkpoint, NodeState, NotCarriedError, converted, is_empty, read
from holdfast.checkpoints.models import NodeRecord
from holdfast.flows import selectors
from holdfast.flows.composites import MapParams
from holdfast.flows.params import ChoiceParams
from holdfast.flows.people import HumanParams
from holdfast.flows.shapes import is_array, is_object
from holdfast.flows.spec import FlowSpec, NodeSpec


@dataclass
class Import:
    """What is carried so far. What is kept of a node rests on the nodes before it."""

    found: Checkpoint
    flow: FlowSpec
    notes: list[str] = field(default_factory=list[str])
    records: dict[str, NodeRecord] = field(default_factory=dict[str, NodeRecord])
    done: set[str] = field(default_factory=set[str])

    def note(self, node_id: str, reason: str) -> None:
        self.notes.append(f"node {node_id!r}: {reason}")

    def value(self, value: Any, where: str) -> Any:
        return converted(value, where, self.notes)

    def leave(self, node: NodeSpec, fields: Mapping[str, Any], known: Container[str], of: str) -> None:
        for name, value in fields.items():
            if name not in known and not is_empty(value):
                self.note(node.id, f"the field {name!r} of its {of} was not carried")


class _Output(BaseModel):
    content: Any
    tool_calls: list[Call] | None = None
    status_code: Any = None
    context: dict[str, Any] | None = None


def shaped(run: Import, node: NodeSpec, output: Any, state: NodeState) -> Any:
    """The output as it would be here; NotCarriedError where it has no counterpart."""
    if node.output_transformer is not None:
        run.note(node.id, "its output is kept as it was recorded, after Dynamiq's own output transformer")
        return output
    match node.type:
        case "flow":
            raise NotCarriedError("how each of the nodes inside it ended was not recorded")
        case "pass" if node.input_transformer is None and node.depends:
            raise NotCarriedError("it was given results in envelopes, and hands on the results themselves here")
        case "choice":
            return _choice(node, output)
        case "map":
            return _map(run, node, output, state)
        case "python" if state.node_type.startswith("dynamiq."):
            return _python(run, node, output)
        case "delay" if is_object(output) and isinstance(output.get("waited_until"), str):
            return {"wake_at": output["waited_until"]}
        case "delay":
            raise NotCarriedError("until when it waited was not recorded")
        case "agent" | "graph-orchestrator" | "http" | "human" | "llm" | "python" | "tool":
            return _said(run, node, output, state)
        case _:
            return output


def _said(run: Import, node: NodeSpec, output: Any, state: NodeState) -> Any:
    said = read(_Output, output, "its output")
    run.leave(node, output, _Output.model_fields, "output")
    match node.type:
        case "agent":
            return {"content": said.content, "finished": True, "loops": state.loops or 0}
        case "graph-orchestrator":
            run.note(node.id, "which states it went through was not recorded")
            context = {name: value for name, value in (said.context or {}).items() if name != "history"}
            return {"content": said.content, "context": context, "states": []}
        case "http":
            run.note(node.id, "the headers of the response were not recorded")
            return {"status_code": said.status_code, "headers": {}, "body": said.content}
        case "llm":
            calls = {"tool_calls": [call.model_dump() for call in said.tool_calls]} if said.tool_calls else {}
            return {"content": said.content, "finish_reason": None, "model": None, "usage": None, **calls}
        case "human":
            return _answer(HumanParams.model_validate(node.params), said.content, state.input_data)
        case _:  # A function of the author's own, whose result is always wrapped.
            return said.content


def _answer(params: HumanParams, words: Any, given: Any) -> Any:
    if is_object(given) and given.get("action") == "info":
        raise NotCarriedError("it was a message to a person, and is a question here")
    if params.kind == "text" and isinstance(words, str):
        return {"content": words, "feedback": words}
    if params.kind == "choice" and words in (params.choices or []):
        return {"content": words, "choice": words}
    raise NotCarriedError(f"its answer {words!r:.60} does not say what a question of kind {params.kind!r} wants")


def _choice(node: NodeSpec, output: Any) -> Any:
    known = [option.id for option in ChoiceParams.model_validate(node.params).options]
    results: Mapping[str, Any] = output if is_object(output) else {}
    taken = [name for name, result in results.items() if is_object(result) and result.get("status") == "success"]
    if unknown := [name for name in taken if name not in known]:
        raise NotCarriedError(f"the option {unknown[0]!r} that it took is not one of its options")
    return {"option": taken[0] if taken else None, "chosen": taken}


def _map(run: Import, node: NodeSpec, output: Any, state: NodeState) -> Any:
    results = output.get("output") if is_object(output) else None
    # None is an item that failed, or one that gave nothing.
    if not is_array(results) or None in results:
        raise NotCarriedError("the results of its items were not all recorded")
    inner = MapParams.model_validate(node.params).node
    # Named as nothing in the flow is: how the map is read does not say how its items are.
    inner = inner.model_copy(update={"id": f"{node.id}/{inner.id}"})
    state = state.model_copy(update={"input_data": None, "loops": 0})
    return {"output": [shaped(run, inner, result, state) for result in results], "failed_iterations": []}


def _python(run: Import, node: NodeSpec, output: Any) -> Any:
    """There a result is wrapped as `content` unless it is an object that has one; here it is itself.

    Which of the two a lone `content` was, is not recorded. How the flow reads the node tells what it expects.
    """
    if not is_object(output) or set(output) != {"content"}:
        return output
    result, inner = output["content"], re.escape(node.id)
    if is_object(result) and "content" in result:
        return output
    read_at = re.compile(rf"\$(?:\.{inner}|\[['\"]{inner}['\"]\])\.output(\.content)?\b")
    paths = [path for other in run.flow.nodes for path in selectors.all_paths_of(other.input_transformer)]
    reads = {match.group(1) for path in paths for match in read_at.finditer(path)}
    if reads == {None}:
        return result
    if reads != {".content"}:
        run.note(node.id, "its output is kept as Dynamiq wrapped it, {'content': …}; the flow does not tell why")
    return output
