"""What a model's reply means: a thought, calls of tools, an answer. One reader for each mode, all of them tolerant.

Models wrap JSON in fences, forget a closing tag, or write a sentence before it. What can be understood is; what cannot
is said back to the model in words it can act on, and is never an exception of the run.
"""

import json
import re
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from holdfast.checkpoints import values
from holdfast.contracts.messages import Message, ToolCall, ToolSchema
from holdfast.flows.shapes import is_object


class NotUnderstoodError(ValueError):
    """A reply that says nothing we know. The message is for the model."""


@dataclass(frozen=True)
class Decision:
    """What to do next: calls of tools, or, if there is none, an answer."""

    thought: str = ""
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    answer: Any = None


def read_reply(mode: str, message: Message, loop: int) -> Decision:
    """The decision in a reply; NotUnderstoodError when there is none. `loop` gives calls in text modes their ids."""
    if mode == "function_calling":
        return _native(message)
    text = message.text.strip()
    if not text:
        raise NotUnderstoodError(f"Your reply was empty. {FORMATS[mode]}")
    return _READERS[mode](text, loop)


def with_distinct_ids(message: Message) -> bool:
    """Gives calls that share an id, as some endpoints write them, ids of their own; whether there were any."""
    seen: set[str] = set()
    changed = False
    for number, call in enumerate(message.tool_calls):
        if call.id in seen:
            call.id, changed = f"{call.id}-{number}", True
        seen.add(call.id)
    return changed


def _native(message: Message) -> Decision:
    if message.tool_calls:
        return Decision(thought=message.text or message.reasoning or "", calls=message.tool_calls)
    if not message.text.strip():
        raise NotUnderstoodError("Your reply was empty. Call a tool, or write your final answer.")
    return Decision(thought=message.reasoning or "", answer=message.text)


def _structured(text: str, loop: int) -> Decision:
    body = find_json(text)
    if not is_object(body):
        raise NotUnderstoodError(f"Your reply is not a JSON object. {FORMATS['structured_output']}")
    thought, action = str(body.get("thought") or ""), body.get("action")
    if not isinstance(action, str) or not action:
        raise NotUnderstoodError(f"Your reply has no 'action'. {FORMATS['structured_output']}")
    given = body.get("action_input")
    if action in _FINISH:
        if given is None or given == "":
            raise NotUnderstoodError("Your final answer is empty: put it into 'action_input'.")
        return Decision(thought, answer=given)
    return Decision(thought, [_call(action, given, loop, 0)])


def _xml(text: str, loop: int) -> Decision:
    thought = _tag(text, "thought") or ""
    answer = _tag(text, "answer")
    actions = re.findall(r"<action>(.*?)(?:</action>|(?=<action_input>))", text, re.DOTALL)
    inputs = [_unfenced(found) for found in re.findall(r"<action_input>(.*?)(?:</action_input>|\Z)", text, re.DOTALL)]
    if actions:
        return Decision(thought, _calls([name.strip() for name in actions], inputs, loop))
    if answer is None:
        raise NotUnderstoodError(f"Your reply has neither <action> nor <answer>. {FORMATS['xml']}")
    if not answer:
        raise NotUnderstoodError("Your <answer> is empty.")
    return Decision(thought, answer=answer)


def _react(text: str, loop: int) -> Decision:
    # What follows an observation the model invented itself is not to be believed.
    text = re.split(r"^\s*observation\s*:", text, flags=re.IGNORECASE | re.MULTILINE)[0]
    parts = re.split(r"^\s*(thought|action input|action|final answer|answer)\s*:", text, flags=re.I | re.M)
    found: dict[str, list[str]] = {}
    for label, content in zip(parts[1::2], parts[2::2], strict=True):
        found.setdefault(label.lower(), []).append(content.strip())
    thought = " ".join(found.get("thought", [])) or parts[0].strip()
    if actions := [name.strip("`* ") for name in found.get("action", [])]:
        inputs = [_unfenced(given) for given in found.get("action input", [])]
        return Decision(thought, _calls(actions, inputs, loop))
    answers = found.get("final answer") or found.get("answer")
    if not answers:
        raise NotUnderstoodError(f"Your reply has neither an 'Action:' nor an 'Answer:'. {FORMATS['react']}")
    if not answers[-1]:
        raise NotUnderstoodError("Your answer is empty.")
    return Decision(thought, answer=answers[-1])


_READERS = {"structured_output": _structured, "xml": _xml, "react": _react}
_FINISH = frozenset({"finish", "answer", "final_answer"})
# Each start may be read to the end of the text, and this runs in workflows.
_MOST_STARTS = 100

FORMATS = {
    "structured_output": (
        'Reply with one JSON object {"thought": "…", "action": "<a tool\'s name, or finish>", "action_input": …}; '
        "with finish, action_input is your final answer."
    ),
    "xml": (
        "To use a tool, reply <output><thought>…</thought><action>tool name</action>"
        "<action_input>JSON object</action_input></output>. "
        "To answer, reply <output><thought>…</thought><answer>…</answer></output>."
    ),
    "react": (
        "To use a tool, reply\nThought: …\nAction: tool name\nAction Input: JSON object\n"
        "and wait for the observation. To answer, reply\nThought: …\nAnswer: …"
    ),
}

STRUCTURED_SCHEMA: dict[str, Any] = {
    "type": "json_schema",
    "json_schema": {
        "name": "step",
        "schema": {
            "type": "object",
            "properties": {
                "thought": {"type": "string"},
                "action": {"type": "string"},
                "action_input": {"type": ["object", "string", "array", "number", "boolean"]},
            },
            "required": ["thought", "action", "action_input"],
        },
    },
}


def instructions(mode: str, tools: list[ToolSchema]) -> str:
    """What a model that is not given tools by its provider has to be told."""
    if mode == "function_calling":
        return ""
    listed = [
        f"- {tool.name}: {tool.description or 'no description'} Input: {json.dumps(tool.parameters)}" for tool in tools
    ]
    known = "You have these tools:\n" + "\n".join(listed) if listed else "You have no tools."
    return f"{known}\n\n{FORMATS[mode]}"


def _calls(names: list[str], inputs: list[str], loop: int) -> list[ToolCall]:
    """Names and inputs in their order; an input that is missing is empty."""
    given = [*inputs, *[""] * (len(names) - len(inputs))]
    return [_call(name, given[number], loop, number) for number, name in enumerate(names)]


def _call(name: str, given: Any, loop: int, number: int) -> ToolCall:
    call_id = f"call-{loop}-{number}"
    if is_object(given):
        return ToolCall(id=call_id, name=name, arguments=given)
    text = "" if given is None else str(given).strip()
    if not text:
        return ToolCall(id=call_id, name=name, arguments={})
    arguments = find_json(text)
    if is_object(arguments):
        return ToolCall(id=call_id, name=name, arguments=arguments)
    return ToolCall(id=call_id, name=name, arguments=given, fault="it is not a JSON object")


def _tag(text: str, name: str) -> str | None:
    """What stands between the tags; a missing end tag ends with the text."""
    found = re.search(rf"<{name}>(.*?)(?:</{name}>|</output>|\Z)", text, re.DOTALL)
    return found.group(1).strip() if found else None


def _unfenced(text: str) -> str:
    found = re.search(r"```(?:\w+)?\s*\n?(.*?)```", text, re.DOTALL)
    return (found.group(1) if found else text).strip()


def find_json(text: str) -> Any:
    """The JSON in a text: all of it, what a fence holds, or the first object or array. None when there is none."""
    for candidate in (text, _unfenced(text)):
        try:
            return _kept(json.loads(candidate))
        except (ValueError, TypeError, RecursionError):
            continue
    decoder = json.JSONDecoder()
    for match in islice(re.finditer(r"[{\[]", text), _MOST_STARTS):
        try:
            found: Any = decoder.raw_decode(text, match.start())[0]
        except ValueError:
            continue
        except RecursionError:
            return None
        try:
            return _kept(found)
        except (ValueError, TypeError, RecursionError):
            return None
    return None


def _kept(found: Any) -> Any:
    """Refuses what Python reads as JSON and no checkpoint can keep: NaN, half a character, too many levels."""
    json.dumps(found, allow_nan=False)
    values.encode(found)
    return found
