"""Custom nodes and Python functions: the author's own code, with its state restored before and saved after."""

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any, cast

from temporalio import activity

from holdfast.activities.execution import Execution, FailedNodeError
from holdfast.activities.heartbeat import saved
from holdfast.activities.registry import Registry
from holdfast.activities.threads import NodeThreads
from holdfast.checkpoints import values
from holdfast.checkpoints.protocol import CheckpointableNode, CheckpointMixin
from holdfast.contracts.calls import NodeCall
from holdfast.flows.nodes import Node, NodeCancelledError
from holdfast.flows.params import PythonParams, ToolParams
from holdfast.flows.tools import arguments_for


class CustomNodes:
    """Runs nodes of the registry."""

    def __init__(self, registry: Registry, threads: NodeThreads) -> None:
        self._registry = registry
        self._threads = threads

    async def run(self, call: NodeCall, input_data: Any) -> Execution:
        node = self._registry.node(call)
        held = saved()
        # What a heartbeat saved is newer than what the run had when it scheduled the node.
        state: dict[str, Any] = values.decode(held.state or call.internal_state)
        warnings = self._restore(node, call, state)
        if warnings:
            # Nothing half restored is left in it. (The author's own object, in this process, is the same one again.)
            node = self._registry.node(call)

        def save(new: dict[str, Any]) -> None:
            if held.cancelled:
                raise NodeCancelledError(f"the run was cancelled while node {call.node_id!r} was running")
            held.state = values.encode(new, f"the state of node {call.node_id!r}")
            held.beat()

        node._save = save  # pyright: ignore[reportPrivateUsage]
        extra = {
            **_identity(call),
            "attempt": activity.info().attempt,
            "state": state if not warnings else dict[str, Any](),
        }
        try:
            output = await self._threads.call(node.execute, input_data, **_accepted(node.execute, extra))
        except Exception as error:
            raise FailedNodeError(error, _state_after(node, held.state)) from error
        return Execution(output, _own_state(node), warnings)

    def _restore(self, node: Node, call: NodeCall, state: dict[str, Any]) -> list[str]:
        if not state or not _keeps_state(type(node)):
            return []
        try:
            cast("CheckpointableNode", node).restore_from_checkpoint(state)
        except Exception as error:
            return [f"node {call.node_id!r}: its state could not be restored ({error!r}); it runs from scratch"]
        if isinstance(node, CheckpointMixin):
            node._is_resumed = True  # pyright: ignore[reportPrivateUsage]
        return []


def _own_state(node: Node) -> dict[str, Any]:
    return cast("CheckpointableNode", node).get_checkpoint_state() if _keeps_state(type(node)) else {}


@lru_cache(maxsize=1024)
def _keeps_state(kind: type[Node]) -> bool:
    """Whether nodes of this class have state of their own. Asked for every execution, and slow to find out."""
    return issubclass(kind, CheckpointableNode)


def _state_after(node: Node, kept: dict[str, Any]) -> dict[str, Any]:
    """A failed node's state: its own if it has one to give, otherwise what it last saved."""
    try:
        own = _own_state(node)
        return values.encode(own, "state") if own else kept
    except Exception:
        # The node has failed already; a second failure while asking for its state must not hide the first.
        activity.logger.warning("a failed node's state could not be read", exc_info=True)
        return kept


def _accepted(function: Callable[..., Any], extra: dict[str, Any]) -> dict[str, Any]:
    names = _parameters(getattr(function, "__func__", function))
    return extra if names is None else {name: value for name, value in extra.items() if name in names}


@lru_cache(maxsize=1024)
def _parameters(function: Callable[..., Any]) -> frozenset[str] | None:
    """The names a function takes; None when it takes any. Asked for every execution, and slow to find out."""
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None
    return frozenset(parameter.name for parameter in parameters)


class PythonFunctions:
    """Functions by name, and code that defines `run(input_data)`."""

    def __init__(self, registry: Registry, threads: NodeThreads) -> None:
        self._registry = registry
        self._threads = threads

    async def run(self, call: NodeCall, input_data: Any) -> Execution:
        params = PythonParams.model_validate(call.params)
        function = self._registry.function(params.function) if params.function else _compiled(params.code or "", call)
        return Execution(await self._threads.call(function, input_data, **_accepted(function, _identity(call))))


class FunctionTools:
    """Functions with typed arguments: what `@tool` makes."""

    def __init__(self, registry: Registry, threads: NodeThreads) -> None:
        self._registry = registry
        self._threads = threads

    async def run(self, call: NodeCall, input_data: Any) -> Execution:
        function = self._registry.function(ToolParams.model_validate(call.params).function)
        arguments = arguments_for(function, input_data)
        given = {"attempt": activity.info().attempt, **_identity(call)}
        return Execution(await self._threads.call(function, **arguments, **_accepted(function, given)))


def _identity(call: NodeCall) -> dict[str, Any]:
    return {"run_id": call.run_id, "node_id": call.node_id, "idempotency_key": call.idempotency_key}


def _compiled(code: str, call: NodeCall) -> Callable[..., Any]:
    scope: dict[str, Any] = {"__name__": f"node_{call.node_id}"}
    exec(compile(code, f"<node {call.node_id}>", "exec"), scope)  # noqa: S102
    return scope["run"]
