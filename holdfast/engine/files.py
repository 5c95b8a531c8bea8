"""An agent's files in a run: the registry, which is part of the agent's state, and what is asked of the world for it.

A file is registered with the step that records the reply of the tool that has written it. Before that, an object in a
store is nobody's; afterwards no other write touches it.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from holdfast.contracts.calls import NodeReply
from holdfast.contracts.file_tools import READ_LIMIT, files_in, with_words
from holdfast.contracts.files import Entry, FileRefusedError, clean_path, over_quota, references, without_content
from holdfast.contracts.messages import ToolCall
from holdfast.contracts.names import ADOPT_FILES, KEEP_FILES, USE_FILES
from holdfast.engine.ports import NodeError
from holdfast.engine.scope import Job, NodeDriver, Scope
from holdfast.flows.composites import AgentParams, ToolSpec
from holdfast.flows.files import LIST, READ, SEARCH, WRITE, FileStoreParams
from holdfast.flows.kinds import COMPOSITE
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import ErrorHandling, NodeSpec

FILE_RETRIES = ErrorHandling(max_retries=4, backoff_rate=2, max_retry_interval_seconds=60, timeout_seconds=1800)

_PATH = {"type": "string", "description": "Where it is, such as 'notes/plan.md'."}
_GLOB = {"type": "string", "description": "Only paths of this form, such as '*.md'."}


def with_file_tools(params: AgentParams) -> AgentParams:
    """The agent with the tools that come with its file store."""
    if params.file_store is None:
        return params
    tools = [
        _tool(LIST, "Lists your files.", {"glob": _GLOB}, []),
        _tool(
            READ,
            "Reads one of your files. A long text comes in parts.",
            {
                "path": _PATH,
                "offset": {"type": "integer", "minimum": 0, "description": "The first character; 0 if not given."},
                "limit": {"type": "integer", "minimum": 1, "maximum": 5 * READ_LIMIT, "description": "How many."},
            },
            ["path"],
        ),
        _tool(
            WRITE,
            "Writes a text file: a new one, or in place of one that is there.",
            {
                "path": _PATH,
                "content": {"type": "string"},
                "append": {"type": "boolean", "description": "Whether to add to the end of what is there."},
            },
            ["path", "content"],
            side_effects="write",
        ),
        _tool(
            SEARCH,
            "Searches your files: for a text in them, for paths of a form, or for both.",
            {"text": {"type": "string", "description": "Found in any case, line by line."}, "glob": _GLOB},
            [],
        ),
    ]
    return params.model_copy(update={"tools": [*params.tools, *tools]})


def _tool(
    name: str, description: str, properties: dict[str, Any], required: list[str], side_effects: str = "read"
) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolSpec.model_validate(
        {
            "id": name,
            "type": USE_FILES,
            "description": description,
            "input_schema": schema,
            "side_effects": side_effects,
            "reuse": False,
            "error_handling": FILE_RETRIES,
        }
    )


def is_file_tool(tool: ToolSpec) -> bool:
    return tool.type == USE_FILES


def is_stores_fault(tool: ToolSpec, error: NodeError) -> bool:
    """Whether a person has to act, and not the model: what a model does wrong with files is no failure."""
    return is_file_tool(tool) and error.error.get("type") not in ("Rejected", "BadToolInputError", "InputTimeout")


class AgentFiles(NodeDriver):
    """The files of one agent."""

    def __init__(self, scope: Scope, job: Job, store: FileStoreParams) -> None:
        super().__init__(scope, job)
        self._store = store

    @property
    def _registry(self) -> dict[str, Entry]:
        return self._state.get("file_store") or {}

    def _place(self) -> dict[str, Any]:
        where = self._store.model_dump(mode="json", exclude_defaults=True)
        limits = ("max_file_bytes", "max_bytes", "max_files")
        return {"run": self._scope.run_id, "store": {name: where[name] for name in where if name not in limits}}

    def _params(self, registry: Mapping[str, Any]) -> dict[str, Any]:
        return {"store": self._store.model_dump(mode="json", exclude_defaults=True), "files": registry}

    def come_with(self, input_data: Any) -> bool:
        return is_object(input_data) and bool(input_data.get("files"))

    def taking(self, node: NodeSpec) -> NodeSpec:
        """The step that opens the agent, for one that gets files: they are stored there."""
        params = {**node.params, "file_store": self._params({})["store"]}
        return node.model_copy(update={"params": params, "error_handling": FILE_RETRIES})

    def opened(self, reply: NodeReply | None) -> dict[str, Any]:
        """The state that an agent with a store begins with."""
        return {"file_store": self._dated(reply.files if reply else {}), "files_of": self._place()}

    def _dated(self, files: Mapping[str, Entry]) -> dict[str, Entry]:
        at = self._scope.now().isoformat()
        return {path: {**entry, "written_at": at} for path, entry in files.items()}

    async def adopt(self) -> None:
        """In a new run, or with another store: makes the files this run's own, and verifies them.

        So a run can be deleted, files and all, without harm to those that were made from it.
        """
        had, place = self._state.get("files_of"), self._place()
        if had == place:
            return
        files: dict[str, Entry] = self._registry
        in_checkpoint = had is not None and had["store"] == place["store"] == {"type": "memory"}
        if files and had is not None and not in_checkpoint:
            node = NodeSpec(
                id=f"{self._job.node.id}-files",
                name=f"{self._job.node.id}: files",
                type=ADOPT_FILES,
                params={**self._params(files), "from": had["store"]},
                error_handling=FILE_RETRIES,
            )
            files = (await self._scope.leaf(Job(node, f"{self._job.path}/files", self._job.node_id, None))).files
        self._advance("files_adopted", assign={"file_store": files, "files_of": place}, detail={"files": len(files)})

    def ready(self, tool: ToolSpec, call: ToolCall) -> ToolSpec:
        """A file tool with what it has to know. Contents that are in the checkpoint go along where they are needed."""
        if not is_file_tool(tool):
            return tool
        # A person who is asked may change the path.
        needs_all = call.name == SEARCH or tool.approval.enabled
        files = self._registry if needs_all else without_content(self._registry, keep=_path_of(call))
        return tool.model_copy(update={"params": {**self._params(files), "tool": call.name}})

    def storing(self, job: Job) -> Job:
        """A tool's job; what it gives as files is stored where it runs."""
        if job.node.type in COMPOSITE or job.node.type in (USE_FILES, "activity"):
            return job
        return replace(job, files=self._params(without_content(self._registry)))

    async def kept(self, tool: ToolSpec, path: str, reply: NodeReply) -> NodeReply:
        """The reply of a tool that could not store its files itself: an agent inside this one, somebody's activity."""
        if not files_in(reply.output) or (tool.type not in COMPOSITE and tool.type != "activity"):
            return reply
        params = {**self._params(without_content(self._registry)), "by": tool.id}
        node = NodeSpec(
            id=tool.id, name=f"{tool.id}: files", type=KEEP_FILES, params=params, error_handling=FILE_RETRIES
        )
        stored = await self._scope.leaf(Job(node, f"{path}/files", self._job.node_id, reply.output))
        return reply.model_copy(update={"output": stored.output, "files": stored.files})

    def register(self, tool: ToolSpec, reply: NodeReply) -> tuple[dict[str, Any], dict[str, Entry]]:
        """The result for the model, and what is new in the registry. Of tools that ran side by side one may be late."""
        output = reply.output
        if is_file_tool(tool) and is_object(output) and "refused" in output:
            return {"error": output["refused"]}, {}
        known = dict(self._registry)
        new: dict[str, Entry] = {}
        refused: list[str] = []
        for path, entry in self._dated(reply.files).items():
            why = over_quota(self._store, known, path, entry["size"])
            if why is None:
                known[path] = new[path] = entry
            else:
                refused.append(why)
        if refused and is_file_tool(tool):
            return {"error": " ".join(refused)}, {}
        return {"output": with_words(output, refused)}, new

    def written(self) -> dict[str, Entry]:
        """What the agent, or one of its tools, has written: for those who get its output."""
        return references(self._store, self._registry)


def _path_of(call: ToolCall) -> str | None:
    try:
        return clean_path(call.arguments.get("path")) if is_object(call.arguments) else None
    except FileRefusedError:
        return None
