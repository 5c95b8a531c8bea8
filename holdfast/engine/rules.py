"""When a node runs, when it is skipped, and what it gets: the rules of a flow, as pure functions."""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoints.models import CheckpointRecord, NodeRecord, RunnableStatus
from holdfast.contracts.calls import NodeOutcome
from holdfast.flows import selectors
from holdfast.flows.conditions import holds
from holdfast.flows.params import ChoiceParams
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import Dependency, FlowSpec, NodeSpec

OutcomeOf = Callable[[str], NodeOutcome]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Run it, or skip it and say why."""

    run: bool
    reason: str = ""


def outcome(record: NodeRecord) -> NodeOutcome:
    """A finished node as other nodes see it."""
    return NodeOutcome(
        status=RunnableStatus(record.status), input=record.input_data, output=record.output_data, error=record.error
    )


def tolerant(flow: FlowSpec) -> frozenset[str]:
    """The nodes whose failure is handed on to their dependants like a result."""
    return frozenset(node.id for node in flow.nodes if node.error_handling.behavior == "return")


def verdict(node: NodeSpec, tolerated: Container[str], outcome_of: OutcomeOf) -> Verdict:
    """Whether a node whose dependencies are all finished runs."""
    if not node.depends:
        return Verdict(True)
    complaints = [
        complaint
        for dependency in node.depends
        if (complaint := _complaint(dependency, tolerated, outcome_of(dependency.node)))
    ]
    satisfied = len(node.depends) - len(complaints)
    if satisfied == len(node.depends) or (node.join == "any" and satisfied):
        return Verdict(True)
    return Verdict(False, complaints[0])


def _complaint(edge: Dependency, tolerated: Container[str], result: NodeOutcome) -> str | None:
    if result.status == RunnableStatus.SKIP:
        return f"{edge.node!r} was skipped"
    failed = result.status == RunnableStatus.FAILURE
    if edge.trigger == "failure" and not failed:
        return f"{edge.node!r} did not fail"
    if edge.trigger == "success" and failed and edge.node not in tolerated:
        return f"{edge.node!r} failed"
    if edge.option is not None and edge.option not in _chosen(result):
        return f"{edge.node!r} did not take option {edge.option!r}"
    if edge.condition is not None and not holds(edge.condition, result.model_dump(mode="json"), selectors.find):
        return f"the condition on {edge.node!r} does not hold"
    return None


def _chosen(result: NodeOutcome) -> list[str]:
    return result.output.get("chosen", []) if is_object(result.output) else []


def reads(node: NodeSpec, above: Iterable[str]) -> list[str]:
    """The upstream nodes whose outcome the node's edges and input need, in a stable order."""
    found = [dependency.node for dependency in node.depends]
    above = sorted(above)
    for path in selectors.paths_of(node.input_transformer):
        names = selectors.names(path)
        found += [name for name in above if (names is None or name in names) and name not in found]
    return found


def flow_scope(flow_input: Any) -> dict[str, Any]:
    """The flow's input by name: none is empty, one that is no object is called `input`.

    A marked value (a model, bytes) is one value: with results beside its fields it could not be read again.
    """
    if flow_input is None:
        return {}
    plain = is_object(flow_input) and not any(key.startswith("__") for key in flow_input)
    return dict(flow_input) if plain else {"input": flow_input}


def node_input(node: NodeSpec, flow_input: Any, above: Iterable[str], outcome_of: OutcomeOf) -> Any:
    """The flow's input plus the results of the dependencies; with a transformer, what it makes of it.

    Only dependencies are handed on unasked: everything that has finished so far would differ from run to run, and
    would store a chain's data again at every link.
    """
    scope = flow_scope(flow_input)
    if node.input_transformer is None:
        for dependency in node.depends:
            result = outcome_of(dependency.node)
            scope[dependency.node] = {"status": result.status.value, "output": result.output, "error": result.error}
        return scope
    for name in reads(node, above):
        scope[name] = outcome_of(name).model_dump(mode="json")
    return selectors.transform(node.input_transformer, scope)


def decide(node: NodeSpec, input_data: Any, outcome_of: OutcomeOf) -> Any:
    """The output of a node that the engine decides itself.

    A Pass without a transformer hands on what its dependencies gave, not the envelope it came in: nested in each
    other, envelopes would double at every join.
    """
    if node.type == "choice":
        return choose(node.params, input_data)
    if node.input_transformer is not None or not node.depends:
        return input_data
    ran = {edge.node: outcome_of(edge.node) for edge in node.depends}
    outputs = {name: result.output for name, result in ran.items() if result.status == RunnableStatus.SUCCESS}
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs


def choose(params: dict[str, Any], input_data: Any) -> dict[str, Any]:
    """The options a Choice takes. Without a match it takes the option that has no condition, if there is one."""
    choice = ChoiceParams.model_validate(params)
    matching = [
        option.id
        for option in choice.options
        if option.condition and holds(option.condition, input_data, selectors.find)
    ]
    if choice.hit_policy == "first":
        matching = matching[:1]
    fallback = [option.id for option in choice.options if option.condition is None]
    chosen = matching or fallback[:1]
    return {"option": chosen[0] if chosen else None, "chosen": chosen}


def handles_failure(node: NodeSpec, dependants: Iterable[NodeSpec], result: NodeOutcome) -> bool:
    """Whether the flow goes on when this node has failed with `result`. An error edge may have a condition on it."""
    if node.error_handling.behavior != "raise":
        return True
    return any(
        edge.node == node.id and edge.trigger == "failure" and _complaint(edge, (), result) is None
        for other in dependants
        for edge in other.depends
    )


def unhandled_failures(flow: FlowSpec, state: CheckpointRecord) -> list[NodeRecord]:
    """The nodes because of which the run fails, in the author's order."""
    return [
        record
        for node in flow.nodes
        if (record := state.node_states.get(node.id)) is not None
        and record.status == RunnableStatus.FAILURE
        and node.id not in state.completed_node_ids
    ]
