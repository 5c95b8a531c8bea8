"""Agents as the unit tests write them: scripted, in simulated time."""

from typing import Any

from holdfast.checkpoints.models import NodeRecord
from holdfast.engine.simulator import Scripted
from holdfast.flows.spec import FlowSpec
from tests.going_on import Watched

QUERY = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
ASKED = {"input": "Who?"}
SAVED = {
    "prompt_messages",
    "history_offset",
    "intermediate_steps",
    "tool_cache",
    "run_depends",
    "current_loop",
    "prompt_variables",
    "call_context",
    "file_store",
    "input_files",
    "input_images",
}


def task(tool_id: str, **fields: Any) -> dict[str, Any]:
    """A tool that is a custom node."""
    return {"id": tool_id, "type": "Task", "input_schema": QUERY, **fields}


def agent(*tools: dict[str, Any], node_id: str = "agent", **fields: Any) -> dict[str, Any]:
    """An agent as a node, or as a tool of another one; `fields` are its parameters."""
    common = {name: fields.pop(name) for name in ("error_handling", "output_transformer") if name in fields}
    return {"id": node_id, "type": "agent", "params": {"llm": {"model": "m"}, "tools": tools, **fields}, **common}


def said(*replies: Any, **fields: Any) -> Scripted:
    return Scripted(replies=list(replies), **fields)


def run(flow: FlowSpec, *replies: Any, input_data: Any = ASKED, **script: Scripted) -> Watched:
    """Runs an agent to its end. Scripts of tools are by their own name."""
    known = {f"agent/{name}": scripted for name, scripted in script.items()}
    watched = Watched(flow, {"agent": said(*replies), **known})
    watched.run(input_data)
    return watched


def record(watched: Watched) -> NodeRecord:
    return watched.ledger.state.node_states["agent"]


def observations(watched: Watched) -> list[str]:
    messages = record(watched).internal_state["prompt_messages"]
    return [entry["content"] for entry in messages if entry["role"] == "tool"]


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [entry["role"] for entry in messages]
