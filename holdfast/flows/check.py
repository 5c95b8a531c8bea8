"""Checks a whole definition before anything runs, and finds every fault at once.

The same checks serve YAML, Python builders and a run started by somebody else's Temporal client; only what is known
about the place of a fault differs. Reading raw YAML into models is in `reading.py`.
"""

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from pydantic import ValidationError

from holdfast.flows import graph, selectors, templates
from holdfast.flows.asking import check_asking
from holdfast.flows.conditions import Condition
from holdfast.flows.expressions import check_condition, check_selector
from holdfast.flows.faults import Fault, FlowDefinitionError, Locate, ParamsCheck, Place
from holdfast.flows.inside import check_inside
from holdfast.flows.kinds import COMPOSITE, KINDS, is_custom
from holdfast.flows.shapes import is_array, is_object
from holdfast.flows.spec import Dependency, FlowSpec, NodeSpec

_EFFECTFUL = frozenset({"llm", "http", "delay", "activity", "tool"}) | COMPOSITE
_NEVER_CACHED = frozenset({"choice", "pass", "delay", "activity"}) | COMPOSITE
_NODE_ID = re.compile(r"[^\s/@\[\]]+")
_TEMPLATED = {
    "llm": ("prompt", "system", "messages"),
    "http": ("url", "headers", "query", "body"),
    "transform": ("template",),
    "agent": ("system", "prompt"),
    "human": ("prompt",),
}


def _plain_place(node: str | None = None, *_: str | int) -> Place:
    return Place(node=node)


def ensure(flow: FlowSpec) -> FlowSpec:
    """Returns the flow, or raises FlowDefinitionError with everything that is wrong with it."""
    if faults := check(flow):
        raise FlowDefinitionError(faults)
    return flow


def check(
    flow: FlowSpec,
    locate: Locate = _plain_place,
    custom: Mapping[str, ParamsCheck] | None = None,
    unread: Collection[str] = (),
) -> list[Fault]:
    """Every fault of the definition. `custom` holds the known custom node types; without it they are taken on trust.

    `unread` names nodes that are there but could not be read: that they are missing from `flow` is no second fault.
    """
    faults = [*_check_ids(flow, locate, unread)]
    for node in flow.nodes:
        faults += _check_node(node, locate, custom)
    faults += _check_edges(flow, locate, unread)
    faults += _check_excluded(flow, locate, unread)
    cyclic = [*_check_cycles(flow, locate)]
    # What is upstream is undefined in a cycle, and unknown behind a node that was not read; the rest would be noise.
    return faults + (cyclic or ([] if unread else [*_check_references(flow, locate)]))


def _check_node(node: NodeSpec, locate: Locate, custom: Mapping[str, ParamsCheck] | None) -> list[Fault]:
    faults = [*_check_type(node, locate, custom)]
    if not faults and node.type in COMPOSITE:
        faults += check_inside(node, locate, custom, _check_node, check)
    faults += _check_reserved(node, locate)
    faults += _check_transformers(node, locate)
    faults += _check_choice_output(node, locate)
    faults += _check_caching(node, locate)
    faults += _check_templates(node, locate)
    faults += check_asking(node, locate)
    return faults


def nearest(word: str, known: Iterable[str]) -> str:
    """`Did you mean 'x'?`, or the list of what there is."""
    names = sorted(known)
    if close := difflib.get_close_matches(word, names, n=1):
        return f"Did you mean {close[0]!r}?"
    return f"There is: {', '.join(map(repr, names))}." if names else "There is none."


def _check_ids(flow: FlowSpec, locate: Locate, unread: Collection[str]) -> Iterator[Fault]:
    if not flow.id or "@" in flow.id:
        yield Fault("flow/bad-id", f"the flow's id is {flow.id!r}", locate(None, "id"), "Give it an 'id' without '@'.")
    if not flow.nodes and not unread:
        yield Fault(
            "flow/empty", "the flow has no nodes", locate(None, "nodes"), "Add at least one node under 'nodes'."
        )
    seen: set[str] = set()
    for index, node in enumerate(flow.nodes):
        if not _NODE_ID.fullmatch(node.id):
            yield Fault(
                "node/bad-id",
                f"{node.id!r} cannot be a node's id",
                locate(node.id),
                "Use letters, digits, '-', '_' and '.'; spaces and '/', '@', '[', ']' have a meaning elsewhere.",
            )
        if node.id in seen:
            yield Fault(
                "node/duplicate-id",
                f"two nodes have the id {node.id!r}",
                locate(node.id, "#", index),
                "Give each node its own id.",
            )
        seen.add(node.id)


def _check_type(node: NodeSpec, locate: Locate, custom: Mapping[str, ParamsCheck] | None) -> Iterator[Fault]:
    if is_custom(node.type):
        yield from _check_custom(node, locate, custom)
        return
    if node.pure and node.type in _EFFECTFUL:
        yield Fault(
            "node/not-pure",
            f"a {node.type!r} node touches the world and cannot be pure",
            locate(node.id, "pure"),
            "Remove 'pure': a pure node may be run again at any time.",
        )
    try:
        KINDS[node.type].params.model_validate(node.params)
    except ValidationError as error:
        yield from param_faults(error, node, locate, KINDS[node.type].params.model_fields)


def _check_custom(node: NodeSpec, locate: Locate, custom: Mapping[str, ParamsCheck] | None) -> Iterator[Fault]:
    if not node.type[:1].isupper():
        yield Fault(
            "node/unknown-type",
            f"there is no node type {node.type!r}",
            locate(node.id, "type"),
            f"{nearest(node.type, KINDS)} A custom node is named by its class, which starts with a capital.",
        )
    elif custom is not None and node.type not in custom:
        yield Fault(
            "node/unknown-type",
            f"no loaded module has a node class {node.type!r}",
            locate(node.id, "type"),
            f"{nearest(node.type, custom)} Load its module with --load.",
        )
    elif custom is not None:
        for complaint in custom[node.type](node):
            yield Fault("node/bad-field", complaint, locate(node.id), f"See the class {node.type}.")


def param_faults(error: ValidationError, node: NodeSpec, locate: Locate, known: Iterable[str]) -> Iterator[Fault]:
    """A pydantic complaint, said as a fault of the node."""
    for complaint in error.errors():
        where = complaint["loc"]
        dotted = ".".join(map(str, where))
        if complaint["type"] == "extra_forbidden":
            options = [*known, *(NodeSpec.model_fields.keys() - {"params"})]
            yield Fault(
                "node/unknown-field",
                f"a {node.type!r} node has no field {dotted!r}",
                locate(node.id, *where),
                nearest(str(where[-1]), options) if len(where) == 1 else "Remove it, or mend its name.",
            )
        elif complaint["type"] == "missing":
            yield Fault(
                "node/missing-field",
                f"a {node.type!r} node needs {dotted!r}",
                locate(node.id, *where[:-1]),
                f"Add '{dotted}: …' to the node.",
            )
        else:
            message = complaint["msg"].removeprefix("Value error, ")
            shown = f"{dotted}: {message}" if dotted else message
            yield Fault("node/bad-field", shown, locate(node.id, *where), _remedy_for(complaint["type"]))


def _remedy_for(error_type: str) -> str:
    if error_type == "value_error":
        return "Change the value as described."
    return f"See docs/reference/flows.md for the field's form ({error_type})."


def _check_reserved(node: NodeSpec, locate: Locate) -> Iterator[Fault]:
    if node.streaming.enabled and node.type not in ("llm", "agent"):
        yield Fault(
            "node/not-yet",
            f"'streaming' does nothing on a {node.type!r} node",
            locate(node.id, "streaming"),
            "Remove 'streaming', so that nobody relies on it; 'llm' and 'agent' nodes have it.",
        )


def _check_transformers(node: NodeSpec, locate: Locate) -> Iterator[Fault]:
    for name in ("input_transformer", "output_transformer"):
        for path in selectors.all_paths_of(getattr(node, name)):
            yield from check_selector(path, locate(node.id, name))
    for index, dependency in enumerate(node.depends):
        if dependency.condition is not None:
            yield from check_condition(dependency.condition, locate(node.id, "depends", index))
    if node.type == "choice":
        options = node.params.get("options")
        for index, option in enumerate(options if is_array(options) else []):
            condition = option.get("condition") if is_object(option) else None
            try:
                parsed = Condition.model_validate(condition) if condition is not None else None
            except ValidationError:
                continue  # The parameters' own check has said it.
            if parsed is not None:
                yield from check_condition(parsed, locate(node.id, "options", index))


def _check_choice_output(node: NodeSpec, locate: Locate) -> Iterator[Fault]:
    if node.type == "choice" and node.output_transformer is not None:
        yield Fault(
            "node/bad-field",
            "a choice's output says which option it took and cannot be transformed",
            locate(node.id, "output_transformer"),
            "Transform it in a 'pass' node behind it.",
        )


def _check_caching(node: NodeSpec, locate: Locate) -> Iterator[Fault]:
    if node.caching.enabled and node.type in _NEVER_CACHED:
        yield Fault(
            "node/bad-field",
            f"caching does nothing on a {node.type!r} node",
            locate(node.id, "caching"),
            "Remove 'caching': only what a worker of ours executes can be reused.",
        )


def _check_templates(node: NodeSpec, locate: Locate) -> Iterator[Fault]:
    for name in _TEMPLATED.get(node.type, ()):
        try:
            templates.verify(node.params.get(name))
        except templates.BadTemplateError as error:
            yield Fault("node/bad-template", str(error), locate(node.id, name), "Mend the Jinja template.")


def _check_edges(flow: FlowSpec, locate: Locate, unread: Collection[str]) -> Iterator[Fault]:
    by_id = {node.id: node for node in flow.nodes}
    for node in flow.nodes:
        for index, dependency in enumerate(node.depends):
            if dependency.node in unread:
                continue
            place = locate(node.id, "depends", index)
            upstream = by_id.get(dependency.node)
            if upstream is None:
                yield Fault(
                    "flow/unknown-node",
                    f"{node.id!r} depends on {dependency.node!r}, which does not exist",
                    place,
                    nearest(dependency.node, by_id.keys() - {node.id}),
                )
            elif dependency.option is not None:
                yield from _check_option(dependency, upstream, place)


def _check_option(dependency: Dependency, upstream: NodeSpec, place: Place) -> Iterator[Fault]:
    if upstream.type != "choice":
        yield Fault(
            "flow/no-options",
            f"{upstream.id!r} is of type {upstream.type!r} and has no options",
            place,
            "Only a 'choice' node has options; remove 'option' or use 'condition'.",
        )
        return
    options = upstream.params.get("options")
    if not is_array(options) or not all(is_object(option) for option in options):
        return  # The parameters' own check has said it.
    known = [str(option.get("id")) for option in options]
    if dependency.option not in known:
        yield Fault(
            "flow/unknown-option",
            f"choice {upstream.id!r} has no option {dependency.option!r}",
            place,
            nearest(str(dependency.option), known),
        )


def _check_excluded(flow: FlowSpec, locate: Locate, unread: Collection[str]) -> Iterator[Fault]:
    ids = [node.id for node in flow.nodes]
    for index, name in enumerate(flow.checkpoint.exclude_nodes):
        if name not in ids and name not in unread:
            place = locate(None, "checkpoint", "exclude_nodes", index)
            yield Fault("flow/unknown-node", f"exclude_nodes names {name!r}", place, nearest(name, ids))


def dependencies(flow: FlowSpec) -> dict[str, list[str]]:
    """Node id -> ids it waits for, in the author's order."""
    return {node.id: [dependency.node for dependency in node.depends] for node in flow.nodes}


def _check_cycles(flow: FlowSpec, locate: Locate) -> Iterator[Fault]:
    if cycle := graph.find_cycle(dependencies(flow)):
        yield Fault(
            "flow/cycle",
            f"these nodes wait on each other: {' -> '.join(cycle)}",
            locate(cycle[0]),
            "A flow has no cycles. Remove one of these dependencies.",
        )


def _check_references(flow: FlowSpec, locate: Locate) -> Iterator[Fault]:
    depends = dependencies(flow)
    for node in flow.nodes:
        for path in selectors.paths_of(node.input_transformer):
            try:
                read = selectors.names(path) or set[str]()
            except selectors.BadSelectorError:
                continue  # Already a fault of its own.
            read &= depends.keys()
            for name in sorted(read - graph.upstream(depends, node.id)) if read else ():
                yield Fault(
                    "node/not-upstream",
                    f"{path!r} reads node {name!r}, which may not have run by then",
                    locate(node.id, "input_transformer"),
                    f"Add {name!r} to the node's 'depends'.",
                )
