"""What an agent needs of the world beside its model and its tools: its first prompt, and its memory."""

from collections.abc import Mapping
from typing import Any

from holdfast.activities.execution import Execution
from holdfast.activities.files import FileServices
from holdfast.activities.threads import NodeThreads
from holdfast.contracts.calls import NodeCall
from holdfast.contracts.prompts import open_agent
from holdfast.flows.memory import Memory
from holdfast.flows.nodes import NonRetryableError
from holdfast.flows.shapes import is_object

_WHOSE = ("user_id", "session_id")


class AgentServices:
    """Opens agents and writes down their conversations."""

    def __init__(self, memories: Mapping[str, Memory], threads: NodeThreads, files: FileServices) -> None:
        self._memories = memories
        self._threads = threads
        self._files = files

    async def open(self, call: NodeCall, input_data: Any) -> Execution:
        wanted = call.params.get("memory")
        history: list[dict[str, Any]] = []
        if wanted is not None:
            memory = self._memory(wanted["backend"])
            context = {name: input_data.get(name) for name in _WHOSE} if is_object(input_data) else dict[str, Any]()
            history = [dict(entry) for entry in await self._threads.call(memory.read, context, wanted["limit"])]
        stored = await self._files.take_input(call, input_data) if "file_store" in call.params else None
        return Execution(open_agent(call.params, input_data, history, stored), files=stored or {})

    async def remember(self, call: NodeCall, input_data: Any) -> Execution:
        memory = self._memory(call.params["backend"])
        await self._threads.call(memory.write, call.idempotency_key, input_data["context"], input_data["messages"])
        return Execution(None)

    def _memory(self, name: str) -> Memory:
        if name not in self._memories:
            known = ", ".join(sorted(self._memories))
            raise NonRetryableError(
                f"[agent/unknown-memory] this worker has no memory {name!r} (it has: {known}); "
                "load yours with --load MODULE"
            )
        return self._memories[name]
