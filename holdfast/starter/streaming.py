"""Follows a run as events. Long-polls its history, which adds nothing to the run and uses up none of its quotas."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from temporalio.client import Client

from holdfast.checkpoints.ledger import Transition
from holdfast.flows.shapes import is_object
from holdfast.starter.events import StreamEvent, events_of, seq_before
from holdfast.starter.reader import RunReader
from holdfast.starter.rebuild import started_with

_TOKEN_SECONDS = 0.4
_STREAMED = frozenset({"llm.call", "llm.chat"})


class RunStream:
    """One for a client that watches one run. A slow client slows down nobody: nothing is kept for it anywhere."""

    def __init__(self, client: Client, reader: RunReader, run_id: str) -> None:
        self._client = client
        self._reader = reader
        self._run_id = run_id

    async def events(self, after: int = 0, *, tokens: bool = False) -> AsyncGenerator[StreamEvent]:
        """Every event after number `after`, in order, until the run ends; with `tokens`, partial texts in between."""
        config = (await started_with(self._client, self._run_id)).flow.checkpoint
        following = self._reader.follow(self._run_id, seq_before(after))
        source = self._with_tokens(following) if tokens else following
        async with contextlib.aclosing(source) as items:
            async for item in items:
                if isinstance(item, StreamEvent):
                    yield item
                    continue
                for event in events_of(self._run_id, item, config):
                    if event.id is not None and event.id > after:
                        yield event

    async def _with_tokens(self, following: AsyncGenerator[Transition]) -> AsyncGenerator[Transition | StreamEvent]:
        """Looks for partial texts whenever nothing has happened for a moment."""
        shown: dict[str, str] = {}
        async with contextlib.aclosing(following):
            coming = asyncio.ensure_future(anext(following, None))
            try:
                while True:
                    await asyncio.wait({coming}, timeout=_TOKEN_SECONDS)
                    if not coming.done():
                        for event in await self._partial(shown):
                            yield event
                        continue
                    transition = coming.result()
                    if transition is None:
                        return
                    coming = asyncio.ensure_future(anext(following, None))
                    yield transition
            finally:
                coming.cancel()
                with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                    await coming

    async def _partial(self, shown: dict[str, str]) -> list[StreamEvent]:
        """What the models have said so far in calls that are under way, where it is new."""
        description = await self._reader.describe(self._run_id)
        found: list[StreamEvent] = []
        for pending in description.raw_description.pending_activities:
            if pending.activity_type.name not in _STREAMED or len(pending.heartbeat_details.payloads) < 2:
                continue
            details: list[Any] = await self._client.data_converter.decode(pending.heartbeat_details.payloads)
            text = str(details[1].get("partial", "")) if is_object(details[1]) else ""
            path = pending.activity_id
            if text and text != shown.get(path):
                shown[path] = text
                found.append(StreamEvent(event="tokens", path=path, data={"text": text}))
        return found
