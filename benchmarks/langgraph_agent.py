"""The LangGraph side of `growth`: a graph of a model and its tools, with checkpoints in SQLite.

LangGraph is in the extra `bench`, which nothing else needs: it is imported when it is there, without its types.
"""

import sqlite3
from functools import reduce
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, TypedDict

from benchmarks.growth_texts import TASK, conversation, found, tools

HOW_TO_INSTALL = "LangGraph is not installed: run `pip install 'holdfast[bench]'` to have it beside"


def is_installed() -> bool:
    return find_spec("langgraph") is not None and find_spec("langgraph.checkpoint.sqlite") is not None


def stored_by_langgraph(database: Path, turns: int, *, deltas: bool = False) -> dict[str, int]:
    """Runs the agent to its end; the bytes in its database.

    With `deltas`, its messages are in a `DeltaChannel`: in beta, to be asked for, and no default of anything.
    """
    messages: Any = import_module("langchain_core.messages")
    sqlite: Any = import_module("langgraph.checkpoint.sqlite")
    with sqlite.SqliteSaver.from_conn_string(str(database)) as saver:
        graph = _graph(messages, turns, _delta_state() if deltas else None).compile(checkpointer=saver)
        thread = {"configurable": {"thread_id": "growth"}, "recursion_limit": 10 * turns}
        graph.invoke({"messages": [messages.HumanMessage(TASK)]}, thread)
        kept: list[Any] = graph.get_state(thread).values["messages"]
    assert [message.content for message in kept] == [message["content"] for message in conversation(turns)]
    return _sizes(database)


def _graph(messages: Any, turns: int, state: Any) -> Any:
    graphs: Any = import_module("langgraph.graph")
    prebuilt: Any = import_module("langgraph.prebuilt")
    fakes: Any = import_module("langchain_core.language_models.fake_chat_models")
    said = [
        messages.AIMessage(
            message["content"],
            tool_calls=[
                {"id": call["id"], "name": call["name"], "args": call["arguments"]}
                for call in message.get("tool_calls", [])
            ],
        )
        for message in conversation(turns)
        if message["role"] == "assistant"
    ]
    model = fakes.GenericFakeChatModel(messages=iter(said))

    def ask(state: dict[str, Any]) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    graph = graphs.StateGraph(state or graphs.MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", prebuilt.ToolNode(_tools()))
    graph.add_edge(graphs.START, "model")
    graph.add_conditional_edges("model", prebuilt.tools_condition)
    graph.add_edge("tools", "model")
    return graph


def _tools() -> list[Any]:
    structured: Any = import_module("langchain_core.tools").StructuredTool

    def look_up(turn: int) -> str:
        return found(turn)

    return [
        structured.from_function(look_up, name=tool["function"]["name"], description=tool["function"]["description"])
        for tool in tools()
    ]


def _delta_state() -> Any:
    add: Any = import_module("langgraph.graph.message").add_messages
    channel: Any = import_module("langgraph.channels").DeltaChannel

    def fold(state: list[Any], writes: list[Any]) -> list[Any]:
        return reduce(add, writes, state)

    return TypedDict("_DeltaState", {"messages": Annotated[list[Any], channel(fold)]})


def _sizes(database: Path) -> dict[str, int]:
    log = database.with_name(f"{database.name}-wal")
    files = sum(path.stat().st_size for path in (database, log) if path.exists())
    connection = sqlite3.connect(database)
    try:
        (checkpoints,) = connection.execute("SELECT sum(length(checkpoint) + length(metadata)) FROM checkpoints")
        (writes,) = connection.execute("SELECT sum(length(value)) FROM writes")
    finally:
        connection.close()
    return {"bytes": files, "column_bytes": checkpoints[0] + writes[0]}
