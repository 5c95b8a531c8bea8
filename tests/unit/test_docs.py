"""The reference says what the code does: examples are read, fields, defaults and codes are compared with the code.

What it says of the command line and of the HTTP API is in `test_reference_docs.py`.
"""

import ast
import re
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from holdfast.checkpoints import ledger, models, values
from holdfast.checkpoints.migrations import MIGRATIONS
from holdfast.checkpoints.serial import deserialize_checkpoint, serialize_checkpoint
from holdfast.contracts import messages, names
from holdfast.contracts import people as questions
from holdfast.engine.simulator import Scripted, Simulation
from holdfast.flows import composites, conditions, files, kinds, params, people, spec
from holdfast.flows.reading import read_flow
from tests.reference import REFERENCE, ROOT, blocks, named, section, tables

FLOWS = (REFERENCE / "flows.md").read_text()
CHECKPOINTS = (REFERENCE / "checkpoints.md").read_text()
ERRORS = (REFERENCE / "errors.md").read_text()
SOURCES = {path: path.read_text() for path in sorted((ROOT / "holdfast").rglob("*.py"))}
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

REQUIRED = object()
MIME = ("application", "audio", "binary", "image", "json", "multipart", "text", "video")
CODE = re.compile(r"[\"'\[]([a-z]+)/([a-z][a-z-]*)[\"'\]]")
# An error's type is a name like a class's, or has its message beside it; `"type": "object"` is a JSON schema's.
ERROR_TYPE = re.compile(r"(?:kind=\"(?=[A-Z])|\"type\": \"(?=[A-Z]|\w+\", \"message\"))(\w+)\"")

Fields = dict[str, Any]


def documented(text: str) -> list[dict[str, Any]]:
    """Every table of fields with defaults: field -> default."""
    found: list[dict[str, Any]] = []
    for rows in tables(text, "field"):
        fields = {row[0].strip("`"): row[1] for row in rows if len(row) == 3}
        found.append(
            {
                name: REQUIRED if cell == "*required*" else yaml.safe_load(cell.strip("`"))
                for name, cell in fields.items()
            }
        )
    return found


def defined(model: type[BaseModel]) -> dict[str, Any]:
    """The fields of a model as the reference should have them."""
    return {
        name: REQUIRED if field.is_required() else plain(field.get_default(call_default_factory=True))
        for name, field in model.model_fields.items()
    }


def plain(default: Any) -> Any:
    # A part of a definition that has only defaults is written as nothing at all.
    return to_jsonable_python(default)


def own(model: type[BaseModel]) -> Fields:
    """What a model has that the one it is made from has not, or has otherwise: the rest is described there."""
    [base] = model.__bases__
    assert issubclass(base, BaseModel)
    missing = object()
    return {name: default for name, default in defined(model).items() if defined(base).get(name, missing) != default}


def codes_in_code() -> set[str]:
    return {
        f"{family}/{name}" for text in SOURCES.values() for family, name in CODE.findall(text) if family not in MIME
    }


def codes_in_docs() -> set[str]:
    return {row[0].strip("`") for rows in tables(ERRORS, "code") for row in rows}


@pytest.mark.parametrize("example", blocks(FLOWS, "yaml"), ids=lambda text: text.split("\n", 1)[0].removeprefix("id: "))
def test_every_example_of_a_flow_is_one(example: str) -> None:
    assert example.startswith("id: ")
    assert read_flow(example).nodes


def test_the_examples_use_every_kind() -> None:
    used = {node.type for example in blocks(FLOWS, "yaml") for node in read_flow(example).nodes}

    assert kinds.KINDS.keys() - used == set()


@pytest.mark.parametrize(
    "example", blocks(FLOWS, "python"), ids=lambda text: re.findall(r"^flow = Flow\(id=\"(\w+)", text, re.MULTILINE)[0]
)
def test_every_example_in_python_is_a_flow(example: str) -> None:
    # Functions are named by their module; nothing is run here.
    module: dict[str, Any] = {"__name__": "documented"}
    exec(compile(example, "flows.md", "exec"), module)

    assert read_flow(module["flow"].to_yaml()) == module["flow"].spec()


COMMON: dict[str, type[BaseModel]] = {
    "The flow": spec.FlowSpec,
    "The fields of every node": spec.NodeSpec,
    "Dependencies": spec.Dependency,
    "Transformers": spec.Transformer,
    "Conditions": conditions.Condition,
    "Errors": spec.ErrorHandling,
    "Caching": spec.Caching,
    "Approvals": spec.Approval,
    "Deadlines": spec.Deadline,
    "Checkpoints": spec.CheckpointConfig,
}
# What is described with the kind that has it.
PARTS: dict[str, list[type[BaseModel]]] = {
    "choice": [params.ChoiceOption],
    "llm": [params.ModelParams, params.Prices],
    "agent": [
        composites.ToolSpec,
        people.ApprovalRule,
        composites.MemoryParams,
        composites.SummariseParams,
        files.FileStoreParams,
    ],
    "graph-orchestrator": [composites.GraphState, composites.GraphEdge],
}
INHERITING: set[type[BaseModel]] = {params.LlmParams, composites.ToolSpec, composites.InnerNode}


@pytest.mark.parametrize(("heading", "model"), COMMON.items())
def test_every_field_of_a_definition_is_described_with_its_default(heading: str, model: type[BaseModel]) -> None:
    assert documented(section(FLOWS, heading)) == [defined(model)]


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_parameter_of_a_kind_is_described_with_its_default(kind: str) -> None:
    found = documented(section(FLOWS, f"`{kind}`"))
    described = [kinds.KINDS[kind].params, *PARTS.get(kind, [])]
    wanted = [own(model) if model in INHERITING else defined(model) for model in described]

    assert found == [fields for fields in wanted if fields]


def test_every_field_of_a_node_inside_another_is_described_with_its_default() -> None:
    assert documented(section(FLOWS, "Nodes inside nodes")) == [own(composites.InnerNode)]


def test_no_model_of_a_definition_is_left_out() -> None:
    described = {
        *COMMON.values(),
        *(kind.params for kind in kinds.KINDS.values()),
        *(model for models_of in PARTS.values() for model in models_of),
        composites.InnerNode,
    }
    # The first two have no fields; the last has one, described below the table of a node's fields.
    known = described | {spec.SpecModel, params.Params, spec.Streaming}
    defining = [
        value
        for module in (spec, params, people, composites, kinds, conditions)
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, BaseModel) and value is not BaseModel
    ]

    assert set(defining) - known == set()
    assert {name for model in defining for name in model.model_fields} - named(FLOWS) == set()


def test_every_operator_is_described_and_no_other() -> None:
    cells = [cell for rows in tables(section(FLOWS, "Conditions"), "operator") for cell, _ in rows]

    assert named(" ".join(cells)) == set(get_args(conditions.Operator))


@pytest.mark.parametrize(
    ("heading", "model"),
    [
        ("Fields", models.CheckpointRecord),
        ("A node's state", models.NodeRecord),
        ("What a run waits for", models.PendingInputContext),
        ("A question", questions.HumanRequest),
        ("Transitions", models.CheckpointSummary),
        ("Usage", messages.Usage),
    ],
)
def test_every_field_of_a_checkpoint_is_described(heading: str, model: type[BaseModel]) -> None:
    rows = next(tables(section(CHECKPOINTS, heading), "field"))

    assert {row[0].strip("`") for row in rows} == set(model.model_fields)


def test_the_example_of_a_checkpoint_is_one_with_its_checksum() -> None:
    [example] = blocks(CHECKPOINTS, "json")

    checkpoint = deserialize_checkpoint(example)

    assert checkpoint.checksum is not None
    assert checkpoint.node_states["fetch"].output_data["scan"] == b"PDF"
    assert deserialize_checkpoint(serialize_checkpoint(checkpoint)) == checkpoint


def test_every_mark_of_a_value_is_described_and_no_other() -> None:
    written = set(re.findall(r"\"(__[a-z]+__)\"", Path(values.__file__).read_text()))
    rows = next(tables(section(CHECKPOINTS, "Values"), "mark"))
    marks = {row[0].strip("`") for row in rows}

    assert marks == written


def test_every_transition_is_described_and_whether_it_is_listed() -> None:
    [union] = [part for part in get_args(ledger.Transition) if get_args(part)]
    written = {member.model_fields["kind"].default for member in get_args(union)}
    rows = next(tables(section(CHECKPOINTS, "Transitions"), "transition"))

    assert {row[0].strip("`") for row in rows} == written
    for row in rows:
        name, _, listed = row
        assert ("by its event" if name == "`node_advanced`" else listed_when(name.strip("`"))) == listed


def events_in_code() -> set[str]:
    """Every step that a driver records: the first text in each call of `advance`."""
    found: set[str] = set()
    for path, text in SOURCES.items():
        if path.parent.name != "engine":
            continue
        calls = [call for call in ast.walk(ast.parse(text)) if isinstance(call, ast.Call)]
        for call in calls:
            if getattr(call.func, "attr", "") in ("advance", "_advance"):
                found |= {name for argument in call.args for name in texts_in(argument)}
    return found


def texts_in(argument: ast.expr) -> list[str]:
    parts = [argument.body, argument.orelse] if isinstance(argument, ast.IfExp) else [argument]
    return [part.value for part in parts if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def test_every_step_inside_a_node_is_described_and_whether_it_is_listed() -> None:
    rows = next(tables(section(CHECKPOINTS, "Steps inside a node"), "event"))

    assert {row[0].strip("`") for row in rows} == events_in_code()
    assert {"loop_completed", "answered", "model_replied", "state_completed"} <= events_in_code()
    for event, _, _, listed in rows:
        assert listed_when("node_advanced", event.strip("`")) == listed, event


def test_every_field_of_a_step_is_described() -> None:
    rows = next(tables(section(CHECKPOINTS, "Steps inside a node"), "field"))

    of_every_transition = {"kind", "at", "seq", "path"}

    assert {row[0].strip("`") for row in rows} == ledger.NodeAdvanced.model_fields.keys() - of_every_transition


def listed_when(kind: str, event: str | None = None) -> str:
    """What the table has to say, found out by switching each setting."""
    transition = next(
        member.model_construct(kind=kind, path="a", **({"event": event} if event else {}))
        for part in get_args(ledger.Transition)
        for member in get_args(part)
        if member.model_fields["kind"].default == kind
    )
    if not ledger.is_checkpoint(transition, spec.CheckpointConfig()):
        more = spec.CheckpointConfig(checkpoint_mid_agent_loop=True)
        return "with `checkpoint_mid_agent_loop`" if ledger.is_checkpoint(transition, more) else "no"
    for setting in ("checkpoint_after_node", "checkpoint_on_failure"):
        if not ledger.is_checkpoint(transition, spec.CheckpointConfig.model_validate({setting: False})):
            return f"with `{setting}`"
    return "yes"


# Each goes through every step of its kind that leaves something behind; what is inside them fails in the second run.
ALL_STEPS = {
    "An agent's state": """
    type: agent
    llm: {provider: scripted, model: m, replies: [{when: nothing}], fallback: {provider: scripted, model: m, replies: [
        {tool_calls: [{name: look, arguments: {input: x}}]}, {tool_calls: [{name: look, arguments: {input: x}}]}, ok]}}
    tools: [{id: look, type: http, url: "https://example.com"}]
    summarise: {after_tokens: 1, keep_last: 0, llm: {provider: scripted, model: m, replies: [short]}}
    max_loops: 3
    on_max_loops: return
    memory: {}
""",
    "A question's state": """
    type: human
    prompt: why
""",
    "A map's state": """
    type: map
    inline_limit: 0
    node: {type: python, function: "m:f"}
""",
    "A nested flow's state": """
    type: flow
    flow: {id: inside, nodes: {a: {type: python, function: "m:f"}}}
""",
    "A graph orchestrator's state": """
    type: graph-orchestrator
    manager: {provider: scripted, model: m, replies: [{when: nothing}], fallback: {provider: scripted, model: m,
        replies: [end]}}
    states: [{id: s, tasks: [{id: w, type: python, function: "m:f"}], next: [{to: s}, {to: end}]}]
""",
    "A linear orchestrator's state": """
    type: linear-orchestrator
    manager: {provider: scripted, model: m, replies: [{when: nothing}], fallback: {provider: scripted, model: m,
        replies: ['[{"description": "d", "agent": "w"}]', all done]}}
    agents: [{id: w, type: python, function: "m:f"}]
""",
}


# What an agent keeps in a file store is not among what it collects otherwise.
WITH_FILES = """
    type: agent
    llm: {provider: scripted, model: m, replies: [{tool_calls: [{name: look, arguments: {input: x}}]}, ok]}
    tools: [{id: look, type: http, url: "https://example.com"}]
    file_store: {type: memory}
"""


class _Counting(Simulation):
    """A simulated model uses no tokens, and a summary is made when some were used."""

    async def call_model(self, node: spec.NodeSpec, call: messages.ModelCall) -> messages.ModelReply:
        reply = await super().call_model(node, call)
        reply.usage.prompt_tokens = 10
        return reply


def state_fields(flow: spec.FlowSpec, inside: Scripted) -> set[str]:
    """Every field that a simulated run has put into the internal state of node `n`."""
    simulation = _Counting(flow, {"n": inside, "n/a": inside})
    simulation.run({"input": ["x"]})
    steps = [step for step in simulation.ledger.since(0) if isinstance(step, ledger.NodeAdvanced) and step.path == "n"]
    written = {name for step in steps for name in (*step.assign, *step.extend, *step.merge)}
    return written | simulation.ledger.state.node_states["n"].internal_state.keys()


@pytest.mark.parametrize("heading", ALL_STEPS)
def test_every_field_of_a_state_inside_is_described_and_no_other(heading: str) -> None:
    flow = read_flow(f"id: f\nnodes:\n  n:{ALL_STEPS[heading]}")
    rows = next(tables(section(CHECKPOINTS, heading), "field"))
    done = Scripted(output={"files": {"a.txt": "x"}, "content": "found"}, answer={"feedback": "because"})

    written = state_fields(flow, done) | state_fields(flow, Scripted(error="no", answer={"feedback": ""}))
    if heading == "An agent's state":
        written |= state_fields(read_flow(f"id: f\nnodes:\n  n:{WITH_FILES}"), done)

    assert {row[0].strip("`") for row in rows} == written


@pytest.mark.parametrize("statuses", [models.CheckpointStatus, models.RunnableStatus, models.RunStatus])
def test_every_status_is_described(statuses: type[StrEnum]) -> None:
    assert set(statuses) - named(section(CHECKPOINTS, "Statuses")) == set()


def test_every_version_that_can_be_read_is_described() -> None:
    rows = next(tables(section(CHECKPOINTS, "Reading"), "version"))

    assert named(" ".join(row[0] for row in rows)) == {models.SCHEMA_VERSION, *MIGRATIONS}


def test_every_error_code_is_explained() -> None:
    assert codes_in_code() - codes_in_docs() == set()


def test_no_error_code_is_explained_that_is_gone() -> None:
    assert codes_in_docs() - codes_in_code() == set()


def test_the_codes_are_found_where_they_are() -> None:
    assert {"flow/cycle", "node/bad-field", "run/not-found", "checkpoint/invalid"} <= codes_in_code()


def test_every_type_of_a_nodes_error_is_explained() -> None:
    written = {name for text in SOURCES.values() for name in ERROR_TYPE.findall(text)}
    rows = next(tables(section(ERRORS, "What a failed node says"), "type"))

    assert written
    assert written - {row[0].strip("`") for row in rows} == set()


def test_every_failure_type_on_the_wire_is_explained() -> None:
    wire = {
        names.FLOW_FAILED,
        names.FLOW_DEFINITION,
        names.NODE_FAILED,
        names.WORKER_SHUTDOWN,
        names.ANSWER_REFUSED,
    }

    assert wire - named(section(ERRORS, "What Temporal shows")) == set()


def test_every_dependency_has_its_reason_and_no_other_is_named() -> None:
    text = (REFERENCE / "dependencies.md").read_text()
    wanted = [
        *PROJECT["dependencies"],
        *(name for extra in PROJECT["optional-dependencies"].values() for name in extra),
    ]
    explained = re.findall(r"^- `([\w-]+)`: \S", text, re.MULTILINE)

    assert sorted(explained) == sorted(re.split(r"[\[<>=~ ]", name)[0] for name in wanted)


def decisions() -> list[Path]:
    return sorted((ROOT / "docs" / "decisions").glob("*.md"))


def test_decisions_are_numbered_without_a_gap() -> None:
    assert [int(path.name[:4]) for path in decisions()] == list(range(1, len(decisions()) + 1))


@pytest.mark.parametrize("path", decisions(), ids=lambda path: path.stem)
def test_a_decision_says_what_was_chosen_and_what_was_given_up(path: Path) -> None:
    text = path.read_text()

    assert text.startswith(f"# {int(path.name[:4])}. ")
    assert re.search(r"^Status: (accepted|overturned by \d{4})$", text, re.MULTILINE)
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Context", "Choice", "What we gave up"]


def pages() -> list[Path]:
    return [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as they are made on GitHub."""
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        page = path.parent / name if name else path
        assert page.exists(), target
        assert not anchor or anchor in anchors(page.read_text()), target
