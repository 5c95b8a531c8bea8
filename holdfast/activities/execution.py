"""What all node activities share: values in, values out, the cache, and failures a workflow understands."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity
from temporalio.exceptions import ApplicationError

from holdfast.activities.cache import OutputCache, cache_key
from holdfast.activities.failures import failure_of
from holdfast.activities.heartbeat import saved
from holdfast.activities.secrets import KNOWN
from holdfast.checkpoints import values
from holdfast.contracts.calls import NodeCall, NodeReply


@dataclass
class Execution:
    """What a node gave, with its real values."""

    output: Any
    internal_state: dict[str, Any] = field(default_factory=dict[str, Any])
    warnings: list[str] = field(default_factory=list[str])
    usage: dict[str, Any] | None = None
    files: dict[str, Any] = field(default_factory=dict[str, Any])


class FailedNodeError(Exception):
    """A node's own error, together with the state it had by then."""

    def __init__(self, error: Exception, internal_state: dict[str, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.internal_state = internal_state


Body = Callable[[NodeCall, Any], Awaitable[Execution]]
KeepFiles = Callable[[NodeCall, NodeReply], Awaitable[None]]
"""Stores the files in a reply, if the node is a tool of an agent with a file store."""


async def execute(call: NodeCall, body: Body) -> NodeReply:
    """Runs `body` with decoded input; raises what it raised, or UnserialisableError naming the field."""
    execution = await body(call, values.decode(call.input_data))
    return NodeReply(
        output=values.encode(execution.output, f"the output of node {call.node_id!r}: output"),
        internal_state=values.encode(execution.internal_state, f"the state of node {call.node_id!r}: state"),
        warnings=execution.warnings,
        usage=execution.usage,
        files=values.encode(execution.files, f"the files of node {call.node_id!r}: files"),
    )


class NodeActivity:
    """One activity type. The cache is asked before and told after; a failed execution is never cached."""

    def __init__(self, body: Body, cache: OutputCache, keep_files: KeepFiles | None = None) -> None:
        self._body = body
        self._cache = cache
        self._keep_files = keep_files

    async def __call__(self, call: NodeCall) -> NodeReply:
        attempt = activity.info().attempt
        try:
            reply = await (self._cached(call) if call.cache else execute(call, self._body))
            if self._keep_files is not None and call.files is not None:
                # Secrets are hidden where the activity ends; what is stored or cached is outside before that.
                reply = KNOWN.mask(reply)
                await self._keep_files(call, reply)
        except FailedNodeError as fault:
            raise failed(f"node {call.node_id!r}", fault.error, fault.internal_state, attempt) from fault.error
        except Exception as error:
            raise failed(f"node {call.node_id!r}", error, saved().state, attempt) from error
        reply.attempt = attempt
        for warning in reply.warnings:
            activity.logger.warning(warning)
        return reply

    async def _cached(self, call: NodeCall) -> NodeReply:
        key = cache_key(call)
        found = await asyncio.to_thread(self._cache.get, key)
        if found is not None:
            return NodeReply(output=found[0], cached=True)
        reply = await execute(call, self._body)
        await asyncio.to_thread(self._cache.put, key, KNOWN.mask(reply.output))
        return reply


def failed(what: str, error: Exception, state: dict[str, Any], attempt: int) -> ApplicationError:
    """The error as the activity's failure, logged."""
    # Said once, with the author's own traceback; the SDK's log of the same would add its own frames around it.
    activity.logger.warning("%s failed on attempt %d: %s", what, attempt, error, exc_info=error)
    return failure_of(error, state, attempt)


def named(name: str, run: Callable[[NodeCall], Awaitable[NodeReply]]) -> Callable[[NodeCall], Awaitable[NodeReply]]:
    """An activity with this type name. Types are data here, so the decorator cannot be written on a function."""

    async def run_node(call: NodeCall) -> NodeReply:
        return await run(call)

    return activity.defn(name=name)(run_node)
