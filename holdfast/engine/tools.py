"""An agent's tools as the model sees them, and its calls as the tools get them."""

import json
from typing import Any

from holdfast.contracts.messages import ToolCall, ToolSchema
from holdfast.flows import schemas, selectors
from holdfast.flows.composites import AgentParams, ToolSpec
from holdfast.flows.conditions import holds
from holdfast.flows.people import ApprovalRule
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import Approval

DELEGATE = "delegate_final"
_TEXT_INPUT: dict[str, Any] = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "What it is to do."}},
    "required": ["input"],
}

_QUESTION: dict[str, Any] = {
    "type": "object",
    "properties": {"question": {"type": "string", "description": "What the person is asked."}},
    "required": ["question"],
}


def tool_schemas(params: AgentParams) -> list[ToolSchema]:
    """What the model is told. A tool without a schema takes one text."""
    return [
        ToolSchema(name=tool.id, description=tool.description or _known(tool), parameters=input_schema(tool, params))
        for tool in params.tools
    ]


def _known(tool: ToolSpec) -> str:
    return "Asks a person, and waits for the answer." if tool.type == "human" else ""


def input_schema(tool: ToolSpec, params: AgentParams) -> dict[str, Any]:
    """The tool's own, and for a sub-agent that may give the final answer the field that says so."""
    schema = tool.input_schema or (_QUESTION if tool.type == "human" else _TEXT_INPUT)
    if not (params.delegate and tool.type == "agent"):
        return schema
    flag = {"type": "boolean", "description": "Whether its answer is the final answer, to be given as it is."}
    return {**schema, "properties": {**schema.get("properties", {}), DELEGATE: flag}}


def cache_key(tool: str, arguments: Any) -> str:
    """The same call of the same tool."""
    return f"{tool}::{json.dumps(arguments, sort_keys=True)}"


def as_meant(call: ToolCall, params: AgentParams) -> ToolCall:
    """A model that writes a bare text for a tool with one argument means that argument."""
    tool = next((tool for tool in params.tools if tool.id == call.name), None)
    names = list(input_schema(tool, params).get("properties", {})) if tool is not None else []
    if call.fault is None or not isinstance(call.arguments, str) or len(names) != 1:
        return call
    return ToolCall(id=call.id, name=call.name, arguments={names[0]: call.arguments})


def complaint(call: ToolCall, params: AgentParams) -> str | None:
    """What is wrong with a call, in words for the model; None when the tool can be run."""
    tool = next((tool for tool in params.tools if tool.id == call.name), None)
    if tool is None:
        known = ", ".join(tool.id for tool in params.tools) or "none"
        return f"There is no tool {call.name!r}. The tools are: {known}."
    if call.fault is not None or not is_object(call.arguments):
        return f"The input of {call.name!r} cannot be used: {call.fault or 'it is not a JSON object'}."
    if faults := schemas.faults(input_schema(tool, params), call.arguments):
        return f"The input of {call.name!r} does not fit its schema: {'; '.join(faults)}"
    return None


def with_policy(tool: ToolSpec, call: ToolCall, params: AgentParams) -> ToolSpec:
    """The tool as the agent's policy lets it be called: with an approval where the policy asks for one.

    What the tool itself says of approvals counts first. A question to a person is no effect to be approved.
    """
    if tool.approval.enabled or tool.type == "human" or not _needs_approval(tool, call, params):
        return tool
    words = f"{tool.name or tool.id} is to be called with {json.dumps(call.arguments, ensure_ascii=False)}. May it?"
    asking = Approval(enabled=True, prompt=_literal(words), editable=tuple(call.arguments))
    return tool.model_copy(update={"approval": asking})


def _literal(words: str) -> str:
    """Words that may have come from a model, in a place where a template could be: as a constant of the template."""
    return "{{ " + json.dumps(words, ensure_ascii=False) + " }}" if "{" in words else words


def _needs_approval(tool: ToolSpec, call: ToolCall, params: AgentParams) -> bool:
    match params.ask_before:
        case "always":
            return True
        case "never":
            return False
        case "write":
            return tool.side_effects == "write"
        case rules:
            return any(_applies(rule, tool, call) for rule in rules)


def _applies(rule: ApprovalRule, tool: ToolSpec, call: ToolCall) -> bool:
    named = rule.tools is None or tool.id in rule.tools
    declared = rule.side_effects is None or tool.side_effects == rule.side_effects
    return named and declared and (rule.when is None or holds(rule.when, call.arguments, selectors.find))


def observation(output: Any) -> str:
    """A tool's output as the model reads it. Files are named; their bytes are kept with the run, not sent."""
    if isinstance(output, str):
        return output
    if is_object(output) and "content" in output:
        files = output.get("files")
        names = f"\nFiles: {', '.join(map(str, files))}" if is_object(files) and files else ""
        return observation(output["content"]) + names
    return json.dumps(output, ensure_ascii=False)
