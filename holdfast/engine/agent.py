"""The agent: a model that works in a loop with tools.

All it knows is in its node's `internal_state`, and every step is decided from there: call the model, run the tools it
chose, put the results before it. So it goes on at any of its steps, in this execution or another, with nothing asked
and nothing run twice. What the model chose is recorded before a tool runs.
"""

from typing import Any

from holdfast.contracts.calls import NodeReply
from holdfast.contracts.file_tools import files_in
from holdfast.contracts.messages import Message, ModelReply, ToolCall
from holdfast.contracts.names import OPEN_AGENT, WRITE_MEMORY
from holdfast.engine.files import AgentFiles, is_file_tool, is_stores_fault, with_file_tools
from holdfast.engine.people import run_inside
from holdfast.engine.ports import NodeError
from holdfast.engine.replies import (
    STRUCTURED_SCHEMA,
    Decision,
    NotUnderstoodError,
    find_json,
    instructions,
    read_reply,
    with_distinct_ids,
)
from holdfast.engine.scope import Job, NodeDriver, Scope
from holdfast.engine.tools import (
    DELEGATE,
    as_meant,
    cache_key,
    complaint,
    observation,
    tool_schemas,
    with_policy,
)
from holdfast.flows import schemas
from holdfast.flows.composites import AgentParams, ToolSpec
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import NodeSpec

_ANSWER_NOW = "You have no more steps. Give your final answer now, with what you know."
_SUMMARISE = (
    "Summarise the conversation so far for yourself: the task, what was found and decided, what is still to do. "
    "Keep names, numbers and ids exactly."
)


async def run_agent(scope: Scope, job: Job) -> NodeReply:
    """From the beginning, or from where its state is."""
    return await _Agent(scope, job).run()


class _Agent(NodeDriver):
    def __init__(self, scope: Scope, job: Job) -> None:
        super().__init__(scope, job)
        self._params = with_file_tools(AgentParams.model_validate(job.node.params))
        store = self._params.file_store
        self._files = AgentFiles(scope, job, store) if store is not None else None
        self._tools = {tool.id: tool for tool in self._params.tools}
        self._schemas = tool_schemas(self._params)

    async def run(self) -> NodeReply:
        if "prompt_messages" not in self._state:
            await self._open()
        elif self._files is not None:
            await self._files.adopt()
        while "answer" not in self._state:
            await self._scope.gate.boundary()
            if self._state["pending_calls"]:
                await self._run_tools()
            elif self._state["current_loop"] >= self._params.max_loops:
                await self._at_limit()
            elif self._is_too_long():
                await self._summarise()
            else:
                await self._think()
        if self._params.memory is not None and not self._state.get("remembered"):
            await self._remember()
        return NodeReply(output=self._output(), internal_state=self._state)

    def _output(self) -> dict[str, Any]:
        state = self._state
        output = {"content": state["answer"], "finished": state["finished"], "loops": state["current_loop"]}
        files = self._files.written() if self._files is not None else state.get("files")
        return output | ({"files": files} if files else {})

    def _step(self, loop: int, what: str) -> str:
        return f"{self._job.path}/loop[{loop}]/{what}"

    # The beginning

    async def _open(self) -> None:
        """Renders the prompts, reads the memory, takes the images and files: where templates and disks may be slow."""
        memory, path = self._params.memory, f"{self._job.path}/open"
        extra = instructions(self._params.mode, self._schemas)
        params: dict[str, Any] = {"system": self._params.system, "prompt": self._params.prompt, "instructions": extra}
        if memory is not None:
            params["memory"] = memory.model_dump(mode="json")
        node = NodeSpec(id=path, type=OPEN_AGENT, params=params, name=f"{self._job.node.id}: prompt")
        reply = None
        if self._files is not None and self._files.come_with(self._job.input_data):
            node = self._files.taking(node)
        if memory is None and "file_store" not in node.params:
            opened = await self._opened(node)
        else:
            reply = await self._scope.leaf(Job(node, path, self._job.node_id, self._job.input_data))
            opened = reply.output
        state: dict[str, Any] = {
            "prompt_messages": opened["messages"],
            "history_offset": opened["history_offset"],
            "intermediate_steps": {},
            "tool_cache": {},
            "run_depends": [],
            "current_loop": 0,
            "prompt_variables": opened["prompt_variables"],
            "call_context": opened["call_context"],
            "file_store": {},
            "input_files": opened["input_files"],
            "input_images": opened["input_images"],
            "pending_calls": [],
            "results": {},
            "repairs": 0,
            "is_fallback_run": False,
        }
        if self._files is not None:
            state |= self._files.opened(reply)
        self._advance("agent_opened", assign=state)

    async def _opened(self, node: NodeSpec) -> dict[str, Any]:
        (outcome,) = await self._scope.run_pure([node], {node.id: self._job.input_data})
        if outcome.status != "success":
            raise NodeError(outcome.error or {"type": "AgentNotOpened", "message": "the prompt could not be made"})
        return outcome.output

    # The model

    async def _ask(self, loop: int, what: str, messages: list[dict[str, Any]], **request: Any) -> ModelReply:
        handling = self._params.llm_error_handling
        return await self._scope.ask_model(
            self._job, self._step(loop, what), self._params.llm, handling, messages=messages, **request
        )

    async def _think(self) -> None:
        loop = self._state["current_loop"] + 1
        native = self._params.mode == "function_calling"
        reply = await self._ask(
            loop,
            "llm",
            self._state["prompt_messages"],
            tools=self._schemas if native else [],
            response_format=self._response_format(),
        )
        message = Message.model_validate(reply.message)
        if with_distinct_ids(message):
            reply.message = message.as_data()
        try:
            decision = self._checked(read_reply(self._params.mode, message, loop))
        except NotUnderstoodError as error:
            self._repair(loop, reply, str(error))
            return
        self._take(loop, reply, decision)

    def _response_format(self) -> dict[str, Any] | None:
        schema = self._params.output_schema
        if self._params.mode == "structured_output":
            return STRUCTURED_SCHEMA
        if self._params.mode == "function_calling" and schema is not None:
            return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
        return None

    def _checked(self, decision: Decision) -> Decision:
        """The answer in the form the author wants; NotUnderstoodError when it does not have it."""
        schema = self._params.output_schema
        if decision.calls or schema is None:
            return decision
        answer = find_json(decision.answer) if isinstance(decision.answer, str) else decision.answer
        if faults := schemas.faults(schema, answer):
            raise NotUnderstoodError(f"Your answer does not fit the schema: {'; '.join(faults)}")
        return Decision(decision.thought, answer=answer)

    def _repair(self, loop: int, reply: ModelReply, why: str) -> None:
        repairs = self._state["repairs"] + 1
        if repairs > self._params.max_repairs:
            message = f"the model's reply could not be used {repairs} times in a row: {why}"
            self._advance("repair_failed", usage=reply.usage.model_dump(), detail=self._position(loop))
            raise NodeError({"type": "AgentNotUnderstood", "message": message})
        said = [reply.message] if reply.message.get("content") else []
        self._advance(
            "repair_asked",
            assign={"current_loop": loop, "repairs": repairs},
            extend={"prompt_messages": [*said, {"role": "user", "content": why}]},
            usage=reply.usage.model_dump(),
            detail=self._position(loop) | {"reason": why},
        )

    def _position(self, loop: int) -> dict[str, Any]:
        return {"loop": loop, "max_loops": self._params.max_loops}

    def _take(self, loop: int, reply: ModelReply, decision: Decision) -> None:
        meant = decision.calls
        if self._params.mode != "function_calling":
            meant = [as_meant(call, self._params) for call in meant]
        calls = [call.model_dump(mode="json", exclude_none=True) for call in meant]
        names = [call["name"] for call in calls]
        inputs = [call.get("arguments") for call in calls]
        thought = decision.thought or Message.model_validate(reply.message).text
        step = {
            "input_data": self._job.input_data if loop == 1 else None,
            "model_observation": {
                "initial": thought,
                "tool_using": names[0] if len(names) == 1 else names or None,
                "tool_input": inputs[0] if len(inputs) == 1 else inputs or None,
                "tool_output": None,
                "updated": None,
            },
            "final_answer": None if calls else decision.answer,
        }
        assign: dict[str, Any] = {"current_loop": loop, "pending_calls": calls, "results": {}, "repairs": 0}
        assign["prompt_tokens"] = reply.usage.prompt_tokens + reply.usage.completion_tokens
        assign["run_depends"] = [{"node": {"id": self._job.node_id, "path": self._step(loop, "llm")}}]
        said: dict[str, Any] = {"thought": thought, "tools": names}
        if not calls:
            assign |= {"answer": decision.answer, "finished": True}
            said = {"answer": decision.answer}
        self._advance(
            "model_replied" if calls else "answered",
            assign=assign,
            extend={"prompt_messages": [reply.message]},
            merge={"intermediate_steps": {str(loop): step}},
            usage=reply.usage.model_dump(),
            detail=self._position(loop) | said,
        )

    # The tools

    async def _run_tools(self) -> None:
        loop = self._state["current_loop"]
        calls = [ToolCall.model_validate(call) for call in self._state["pending_calls"]]
        left = [(number, call) for number, call in enumerate(calls) if call.id not in self._state["results"]]
        if self._params.parallel_tool_calls:
            # Files are used in the order the model has written: a file that it writes and reads, or appends to twice.
            free = [(number, call) for number, call in left if not self._is_in_order(call)]
            await self._scope.gate.gather([self._run_tool(loop, number, call) for number, call in self._distinct(free)])
            left = [(number, call) for number, call in left if call.id not in self._state["results"]]
        for number, call in left:
            await self._run_tool(loop, number, call)
        self._observe(loop, calls)

    def _is_in_order(self, call: ToolCall) -> bool:
        return self._files is not None and call.name in self._tools and is_file_tool(self._tools[call.name])

    def _distinct(self, calls: list[tuple[int, ToolCall]]) -> list[tuple[int, ToolCall]]:
        """Of calls that are the same only the first: the others find its result."""
        seen: dict[str, tuple[int, ToolCall]] = {}
        for number, call in calls:
            seen.setdefault(cache_key(call.name, call.arguments), (number, call))
        return list(seen.values())

    async def _run_tool(self, loop: int, number: int, call: ToolCall) -> None:
        await self._scope.gate.boundary()
        key, path = cache_key(call.name, call.arguments), self._step(loop, f"{call.name}[{number}]")
        detail = self._position(loop) | {"tool": call.name, "call": call.id}
        fault = complaint(call, self._params)
        if fault is not None:
            self._result(call, {"error": fault}, detail)
            return
        tool = self._tools[call.name]
        if tool.reuse and key in self._state["tool_cache"]:
            self._result(call, {"output": self._state["tool_cache"][key], "cached": True}, detail)
            return
        try:
            reply = await self._call_tool(tool, call, path)
        except NodeError as error:
            if tool.on_error == "fail" or is_stores_fault(tool, error):
                raise
            message = error.error.get("message", "it failed")
            self._result(call, {"error": message}, detail | {"error": error.error}, forget=path)
            return
        # What was run with other arguments than the model gave is not the result of this call.
        cached = {"tool_cache": {key: reply.output}} if tool.reuse and not self._was_edited(path) else {}
        depends = [{"node": {"id": f"{self._job.node_id}/{tool.id}", "path": path}}]
        result, merge = self._taken(tool, reply)
        self._result(
            call,
            result,
            detail | ({"files": list(merge["file_store"])} if "file_store" in merge else {}),
            forget=path,
            merge=cached | merge,
            assign={"run_depends": depends},
            usage=reply.usage,
        )

    async def _call_tool(self, tool: ToolSpec, call: ToolCall, path: str) -> NodeReply:
        allowed = with_policy(tool, call, self._params)
        if self._files is not None:
            allowed = self._files.ready(allowed, call)
        asked = self._job.inside(allowed, path, self._arguments(tool, call))
        if self._files is not None:
            asked = self._files.storing(asked)
        reply = await run_inside(self._scope, asked, lambda job: self._check_edit(tool, asked, job))
        return reply if self._files is None else await self._files.kept(tool, path, reply)

    def _taken(self, tool: ToolSpec, reply: NodeReply) -> tuple[dict[str, Any], dict[str, Any]]:
        """A tool's result, and what of it becomes part of the state besides: the files."""
        if self._files is None:
            files = dict(files_in(reply.output))
            return {"output": reply.output}, {"files": files} if files else {}
        result, registered = self._files.register(tool, reply)
        return result, {"file_store": registered} if registered else {}

    def _was_edited(self, path: str) -> bool:
        approvals: dict[str, dict[str, Any]] = self._scope.ledger.state.metadata.get("approvals") or {}
        return bool(approvals.get(path, {}).get("data"))

    def _check_edit(self, tool: ToolSpec, asked: Job, job: Job) -> None:
        """What a person has changed has to fit the tool as well; without a transformer in between it can be checked."""
        if job.input_data == asked.input_data or tool.input_transformer is not None or tool.input_schema is None:
            return
        if unfit := schemas.faults(tool.input_schema, job.input_data):
            message = f"the arguments as they were edited do not fit: {'; '.join(unfit)}"
            raise NodeError({"type": "BadToolInputError", "message": message})

    def _result(self, call: ToolCall, result: dict[str, Any], detail: dict[str, Any], **changes: Any) -> None:
        merge = {"results": {call.id: result}, **changes.pop("merge", {})}
        self._advance("tool_completed", merge=merge, detail=detail | {"observation": _said(result)}, **changes)

    def _arguments(self, tool: ToolSpec, call: ToolCall) -> Any:
        given = {name: value for name, value in call.arguments.items() if name != DELEGATE}
        context = self._state["call_context"]
        # A sub-agent talks to the same user, in the same session.
        return {**given, **context} if tool.type == "agent" and context else given

    def _observe(self, loop: int, calls: list[ToolCall]) -> None:
        results = self._state["results"]
        texts = [_said(results[call.id]) for call in calls]
        step = self._state["intermediate_steps"][str(loop)]
        seen = {**step["model_observation"], "tool_output": texts[0] if len(texts) == 1 else texts}
        final = self._delegated(calls)
        answer = {} if final is None else {"answer": final, "finished": True}
        messages = self._results_as_messages(calls, texts)
        # Where the results are messages of their own, there is no other text that the model sees instead.
        updated = None if self._params.mode == "function_calling" else Message.model_validate(messages[0]).text
        after = {**step, "model_observation": {**seen, "updated": updated}, "final_answer": final}
        self._advance(
            "loop_completed",
            assign={"pending_calls": [], "results": {}, **answer},
            extend={"prompt_messages": messages},
            merge={"intermediate_steps": {str(loop): after}},
            detail=self._position(loop),
        )

    def _results_as_messages(self, calls: list[ToolCall], texts: list[str]) -> list[dict[str, Any]]:
        if self._params.mode == "function_calling":
            return [
                {"role": "tool", "tool_call_id": call.id, "name": call.name, "content": self._shown(text, [call])}
                for call, text in zip(calls, texts, strict=True)
            ]
        words = "\n".join(f"Observation: {text}" for text in texts)
        return [{"role": "user", "content": self._shown(words, calls)}]

    def _shown(self, words: str, calls: list[ToolCall]) -> Any:
        """The words, with the images and documents that were read from the agent's own files."""
        results: list[Any] = [self._state["results"][call.id] for call in calls if self._is_in_order(call)]
        outputs: list[dict[str, Any]] = [result.get("output", {}) for result in results]
        parts = [part for output in outputs for part in output.get("parts", [])]
        return [{"type": "text", "text": words}, *parts] if parts else words

    def _delegated(self, calls: list[ToolCall]) -> Any:
        """The sub-agent's answer, when the model wants it to be the final one and it has one."""
        result = self._state["results"][calls[0].id]
        wanted = self._params.delegate and len(calls) == 1 and "output" in result
        if not wanted or not is_object(calls[0].arguments) or calls[0].arguments.get(DELEGATE) is not True:
            return None
        if self._tools[calls[0].name].type != "agent":
            return None
        output = result["output"]
        # The sub-agent's own output transformer may have taken the answer out already.
        answer = output["content"] if is_object(output) and "content" in output else output
        try:
            return self._checked(Decision(answer=answer)).answer
        except NotUnderstoodError:
            return None

    # Limits

    async def _at_limit(self) -> None:
        limit, loop = self._params.max_loops, self._state["current_loop"]
        if self._params.on_max_loops == "raise":
            message = f"no answer after {limit} loops; raise max_loops, or set on_max_loops to 'answer' or 'return'"
            raise NodeError({"type": "AgentMaxLoops", "message": message})
        if self._params.on_max_loops == "return":
            said = [entry for entry in self._state["prompt_messages"] if entry["role"] == "assistant"]
            last = Message.model_validate(said[-1]).text if said else ""
            self._advance("limit_reached", assign={"answer": last, "finished": False}, detail=self._position(loop))
            return
        asked = {"role": "user", "content": _ANSWER_NOW}
        # Providers want to know the tools that a conversation mentions, even where none may be called.
        tools = self._schemas if self._params.mode == "function_calling" else []
        messages = [*self._state["prompt_messages"], asked]
        reply = await self._ask(loop, "answer", messages, tools=tools, tool_choice="none")
        self._advance(
            "limit_reached",
            assign={"answer": self._last_words(loop, reply), "finished": False},
            extend={"prompt_messages": [asked, reply.message]},
            usage=reply.usage.model_dump(),
            detail=self._position(loop),
        )

    def _last_words(self, loop: int, reply: ModelReply) -> Any:
        """The answer in the reply, if it has one in the right form; otherwise all it says."""
        message = Message.model_validate(reply.message)
        try:
            decision = self._checked(read_reply(self._params.mode, message, loop))
        except NotUnderstoodError:
            return message.text
        return message.text if decision.calls else decision.answer

    def _is_too_long(self) -> bool:
        wanted = self._params.summarise
        if wanted is None or self._state.get("prompt_tokens", 0) <= wanted.after_tokens:
            return False
        head, tail = self._cut(wanted.keep_last)
        return tail - head > 1

    def _cut(self, keep: int) -> tuple[int, int]:
        """The part of the conversation that may go: after the system's words, before the last messages.

        A tool's result is never parted from the call it answers.
        """
        messages = self._state["prompt_messages"]
        head = 1 if messages[0]["role"] == "system" else 0
        tail = max(head, len(messages) - keep)
        while tail > head and tail < len(messages) and messages[tail]["role"] == "tool":
            tail -= 1
        return head, tail

    async def _summarise(self) -> None:
        wanted = self._params.summarise
        assert wanted is not None
        loop, messages = self._state["current_loop"], self._state["prompt_messages"]
        head, tail = self._cut(wanted.keep_last)
        gone = messages[head:tail]
        told = "\n\n".join(_as_text(entry) for entry in gone)
        reply = await self._scope.ask_model(
            self._job,
            self._step(loop, "summary"),
            wanted.llm or self._params.llm,
            self._params.llm_error_handling,
            messages=[{"role": "system", "content": _SUMMARISE}, {"role": "user", "content": told}],
        )
        said = Message.model_validate(reply.message).text
        if not said.strip():
            # It goes on with what it has, and tries again when the next reply says how long the prompt is.
            self._advance("summary_failed", assign={"prompt_tokens": 0}, usage=reply.usage.model_dump())
            return
        # What the memory is to keep of this conversation is what it began with.
        asked = {} if "asked" in self._state else {"asked": messages[self._state["history_offset"]]}
        summary = {"role": "user", "content": f"Summary of the conversation so far:\n{said}"}
        self._advance(
            "summarised",
            assign={"prompt_messages": [*messages[:head], summary, *messages[tail:]], "prompt_tokens": 0, **asked},
            extend={"archive": gone},
            usage=reply.usage.model_dump(),
            detail=self._position(loop) | {"messages": len(gone)},
        )

    # The end

    async def _remember(self) -> None:
        """What was asked and answered. The key makes a second write of the same a no-op."""
        memory = self._params.memory
        assert memory is not None
        state = self._state
        asked = state.get("asked") or state["prompt_messages"][state["history_offset"]]
        answer = {"role": "assistant", "content": observation(state["answer"])}
        node = NodeSpec(id=f"{self._job.node.id}-memory", type=WRITE_MEMORY, params=memory.model_dump(mode="json"))
        data = {"context": state["call_context"], "messages": [asked, answer]}
        await self._scope.leaf(Job(node, f"{self._job.path}/memory", self._job.node_id, data))
        self._advance("remembered", assign={"remembered": True})


def _said(result: dict[str, Any]) -> str:
    return f"Error: {result['error']}" if "error" in result else observation(result["output"])


def _as_text(entry: dict[str, Any]) -> str:
    message = Message.model_validate(entry)
    calls = "".join(f"\n[calls {call.name} with {call.arguments}]" for call in message.tool_calls)
    return f"{message.role}: {message.text}{calls}"
