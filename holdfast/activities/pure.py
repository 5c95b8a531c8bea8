"""Pure nodes: a batch of them as one local activity, or one alone where it needs retries or a timeout."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

from temporalio import activity

from holdfast.activities.execution import Body, execute
from holdfast.contracts.calls import NodeCall, NodeReply, PureBatch, PureReply
from holdfast.contracts.names import RUN_PURE

_LONGEST = 60.0

RunBatch = Callable[
    [PureBatch, Callable[[NodeCall], Awaitable[NodeReply]], Callable[[], datetime]], Awaitable[PureReply]
]


class PureNodes:
    """`run_batch` is the engine's: activities know the contracts, not the engine."""

    def __init__(
        self, run_batch: RunBatch, bodies: Callable[[str], Body], fail: Callable[[dict[str, Any]], Exception]
    ) -> None:
        self._run_batch = run_batch
        self._bodies = bodies
        self._fail = fail

    @activity.defn(name=RUN_PURE)
    async def run(self, batch: PureBatch) -> PureReply:
        return await self._run_batch(batch, self._execute, lambda: datetime.now(UTC))

    async def _execute(self, call: NodeCall) -> NodeReply:
        try:
            async with asyncio.timeout(_LONGEST):
                return await execute(call, self._bodies(call.type))
        except TimeoutError as error:
            message = f"a pure node must be quick, and this took over {_LONGEST:g} s: remove 'pure' from it"
            raise self._fail({"type": "Timeout", "message": message}) from error
        except Exception as error:
            cause = getattr(error, "error", error)
            raise self._fail({"type": type(cause).__name__, "message": str(cause) or type(cause).__name__}) from error
