"""What had begun and not ended: the state in which an agent, a graph or a delay goes on."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasPath, BaseModel, BeforeValidator, Field

from holdfast.checkpoints import values
from holdfast.checkpoints.dynamiq.outputs import Import
from holdfast.checkpoints.dynamiq.schema import IN_LOOP, Call, NodeState, NotCarriedError, read
from holdfast.checkpoints.models import Time
from holdfast.flows import graph, selectors
from holdfast.flows.check import dependencies
from holdfast.flows.composites import END, AgentParams, GraphParams
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import LONGEST_SECONDS, NodeSpec

_READ = frozenset({
    "iteration", "completed_iterations", "iteration_data", "agent_state", "current_loop", "max_loops",
    "prompt_messages", "history_offset", "pending_action", "pending_action_input", "pending_thought",
    "pending_tool_run_id", "pending_tool_run_ids", "chat_history", "context", "current_state_id",
    "resume_at", "wait_started_at",
})  # fmt: skip
_CONTEXT = ("user_id", "session_id", "metadata")
# The checkpoint does not say in which mode a model was talked to; its last decision does.
_MODES = {
    "xml": re.compile(r"<(output|action|answer)>"),
    "structured_output": re.compile(r'\A\s*\{.*"action"\s*:', re.DOTALL),
    "react": re.compile(r"^[ \t]*(action|answer)[ \t]*:", re.IGNORECASE | re.MULTILINE),
}


class _Message(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    def ours(self) -> dict[str, Any]:
        # The thought was an argument there, beside a filler as the text.
        thoughts = [str(call.arguments.pop("thought", "")) for call in self.tool_calls or []]
        return self.model_dump(exclude_none=True) | {"content": "\n".join(filter(None, thoughts)) or self.content}


def _in_loop(name: str) -> Any:
    return Field(default=None, validation_alias=AliasPath(*IN_LOOP, name))


class _State(BaseModel):
    done: int = Field(default=0, ge=0, validation_alias=AliasPath("iteration", "completed_iterations"))
    messages: list[_Message] | None = _in_loop("prompt_messages")
    action: str | None = _in_loop("pending_action")
    action_input: Any = _in_loop("pending_action_input")
    thought: str | None = _in_loop("pending_thought")
    chat_history: list[_Message] | None = _in_loop("chat_history")
    context: dict[str, Any] | None = _in_loop("context")
    current_state: str | None = _in_loop("current_state_id")
    resume_at: Annotated[Time | None, BeforeValidator(values.decode)] = None


def unfinished(run: Import, node: NodeSpec, state: NodeState) -> dict[str, Any]:
    """The fields of a node that goes on where it was: its state, and the input that this state is about."""
    inside = part = run.value(state.internal_state, f"node {node.id!r}")
    try:
        kept = _STATES[node.type](run, node, read(_State, inside, "its state")) if node.type in _STATES else {}
        fields = {"input_data": _input_of(run, node), "internal_state": kept} if kept else {}
    except NotCarriedError as error:
        run.note(node.id, f"{error.reason}; it begins anew")
        return {}
    for name in ("iteration", "iteration_data", "agent_state", ""):
        if is_object(part):
            run.leave(node, part, _READ, "internal state")
            part = part.get(name)
    return fields


def _input_of(run: Import, node: NodeSpec) -> Any:
    """What the engine is going to give to the node: a state is given back only together with the same input."""
    above = graph.upstream(dependencies(run.flow), node.id)
    if not above <= run.done:
        raise NotCarriedError("its state is not carried, because something that it depends on runs again")
    flow_input = run.value(run.found.original_input, "original_input")
    plain = is_object(flow_input) and not any(name.startswith("__") for name in flow_input)
    scope: dict[str, Any] = dict(flow_input) if plain else {} if flow_input is None else {"input": flow_input}
    direct, transformer = [edge.node for edge in node.depends], node.input_transformer
    for name in direct if transformer is None else [*direct, *sorted(above.difference(direct))]:
        known = run.records[name]
        given = {} if transformer is None else {"input": known.input_data}
        scope[name] = {"status": known.status, **given, "output": known.output_data, "error": known.error}
    return selectors.transform(transformer, scope)


def _delay(run: Import, node: NodeSpec, found: _State) -> dict[str, Any]:
    until = found.resume_at
    if until is not None and (until - run.found.updated_at).total_seconds() > LONGEST_SECONDS:
        raise NotCarriedError("it was to wait for more than a hundred years")
    return {"wake_at": until.isoformat()} if until is not None else {}


def _graph(run: Import, node: NodeSpec, found: _State) -> dict[str, Any]:
    params, history = GraphParams.model_validate(node.params), found.chat_history or []
    if found.current_state is None:
        return {}
    special = {"END": END, "START": params.start or params.states[0].id}
    current = special.get(found.current_state, found.current_state)
    if current not in {END, *(state.id for state in params.states)}:
        raise NotCarriedError(f"the state {current!r} that it was in is not in the flow")
    run.note(node.id, "which states it went through was not recorded; 'max_steps' counts anew")
    nothing: dict[str, Any] = {"run_depends": [], "completed_states": [], "results": {}}
    return nothing | {
        "chat_history": [entry.ours() for entry in history],
        "context": found.context or {},
        "current_state_id": current,
        "result": history[-1].content if history and history[-1].role == "assistant" else None,
    }


def _agent(run: Import, node: NodeSpec, found: _State) -> dict[str, Any]:
    params, loop = AgentParams.model_validate(node.params), found.done
    if not found.messages or not (found.done or found.action):
        return {}
    messages = [message.ours() for message in found.messages]
    mode = next(filter(None, map(_mode, reversed(messages))), None)
    if mode != params.mode:
        said = "in a form that is not known here" if mode is None else f"of the mode {mode!r}"
        raise NotCarriedError(f"its conversation is {said}, and its mode is {params.mode!r}")
    given = _input_of(run, node)
    fields: dict[str, Any] = dict(given) if is_object(given) else {"input": given}
    call = _pending_call(found, params, messages)
    if call is None:
        _cut_unanswered(messages)
    asked = [number for number, message in enumerate(messages) if message["role"] == "user"]
    if not asked:
        raise NotCarriedError("its conversation has no question")
    if found.action is not None and call is None:
        run.note(node.id, f"the call {found.action!r} that it was in was not carried; its model is asked again")
    if messages[0]["role"] == "system":
        run.note(node.id, "it goes on with the system message that Dynamiq wrote, not with its own")
    # What a memory has put before the question is told from it by the words of the input.
    question = next((at for at in reversed(asked) if messages[at]["content"] == fields.get("input")), asked[0])
    nothing: dict[str, Any] = {"tool_cache": {}, "run_depends": [], "file_store": {}, "results": {}, "repairs": 0}
    nothing |= {"input_files": [], "input_images": [], "is_fallback_run": False}
    return nothing | {
        "prompt_messages": messages,
        "history_offset": question,
        "intermediate_steps": {} if call is None else {str(loop + 1): _step(call, found.thought)},
        "current_loop": loop if call is None else loop + 1,
        "prompt_variables": {name: fields[name] for name in fields if name not in ("images", "files", *_CONTEXT)},
        "call_context": {name: fields[name] for name in _CONTEXT if fields.get(name) is not None},
        "pending_calls": [] if call is None else [call],
    }


def _mode(message: Mapping[str, Any]) -> str | None:
    if message["role"] != "assistant":
        return None
    if message.get("tool_calls"):
        return "function_calling"
    return next((mode for mode, mark in _MODES.items() if mark.search(message["content"] or "")), None)


def _pending_call(found: _State, params: AgentParams, messages: list[dict[str, Any]]) -> dict[str, Any] | None:
    """What the model had chosen and its tool had not answered yet. It runs; the model is not asked again."""
    if found.action is None or messages[-1]["role"] != "assistant":
        return None
    written = {"id": f"call-{found.done + 1}", "name": found.action, "arguments": found.action_input}
    call, *others = messages[-1].get("tool_calls") or [written]
    tool, given = next((tool for tool in params.tools if tool.id == call["name"]), None), call["arguments"]
    # A tool without a schema was given all of its arguments in one, as text.
    if others or tool is None or not is_object(given) or "action_input" in given:
        return None
    asks = tool.type == "human" and tool.input_schema is None and "input" in given
    return {**call, "arguments": {"question": given["input"]} if asks else given}


def _cut_unanswered(messages: list[dict[str, Any]]) -> None:
    """A reply that led to nothing is taken out: the model is asked again, and no call stays without its result."""
    last = max(number for number, message in enumerate(messages) if message["role"] == "assistant")
    answered = {message.get("tool_call_id") for message in messages[last + 1 :]}
    if not answered or any(call["id"] not in answered for call in messages[last].get("tool_calls", [])):
        del messages[last:]


def _step(call: Mapping[str, Any], thought: str | None) -> dict[str, Any]:
    seen = {"initial": thought or "", "tool_using": call["name"], "tool_input": call["arguments"]}
    seen |= {"tool_output": None, "updated": None}
    return {"input_data": None, "model_observation": seen, "final_answer": None}


_STATES = {"agent": _agent, "delay": _delay, "graph-orchestrator": _graph}
