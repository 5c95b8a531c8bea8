"""The people's side: which questions are open anywhere, and how an answer gets to the run that asked."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any, cast
from uuid import uuid4

from temporalio.client import (
    Client,
    WorkflowExecution,
    WorkflowExecutionStatus,
    WorkflowHandle,
    WorkflowUpdateFailedError,
    WorkflowUpdateRPCTimeoutOrCancelledError,
)
from temporalio.common import SearchAttributeKey
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from holdfast.contracts import names
from holdfast.contracts.calls import PauseMessage
from holdfast.contracts.people import AnswerMessage, AnswerReceipt, HumanAnswer, HumanRequest, already
from holdfast.starter import cursors
from holdfast.starter.errors import AnswerRefusedError, RequestNotFoundError, RunEndedError
from holdfast.starter.reader import RunReader

_FLOW = SearchAttributeKey.for_keyword(names.ATTRIBUTE_FLOW)
_UPDATE_SECONDS = 10.0
_LAG_SECONDS = 2.0
_BUSY_PAUSES = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
# No worker to confirm it, or no run to take it.
_UNCONFIRMED = frozenset({RPCStatusCode.NOT_FOUND, RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED})


class OpenRequest(HumanRequest):
    """A question that somebody can answer now. `root_run_id` is the run that people know, where the question is in a
    flow inside it; `data_omitted`: what it is about is too large for a list, and in the checkpoint."""

    run_id: str
    root_run_id: str
    flow_id: str | None = None
    data_omitted: bool = False


class People:
    """Reads questions from Temporal's visibility store, without a worker. Answers by update: a worker confirms it."""

    def __init__(self, client: Client, reader: RunReader) -> None:
        self._client = client
        self._reader = reader

    async def inbox(self, run_id: str | None = None, to: str | None = None, limit: int = 50) -> list[OpenRequest]:
        """Open questions, those of the newest runs first; of one run and the flows inside it, or for one person."""
        found: list[OpenRequest] = []
        cursor: str | None = None
        while len(found) < limit:
            page, cursor = await self.page(run_id, to, limit, cursor)
            found += page
            if cursor is None:
                break
        return found[:limit]

    async def page(
        self, run_id: str | None = None, to: str | None = None, limit: int = 50, cursor: str | None = None
    ) -> tuple[list[OpenRequest], str | None]:
        """The questions of so many runs, and the cursor of the next. ValueError when the cursor is none of ours."""
        conditions = [
            f"WorkflowType = '{names.FLOW_RUN}'",
            "ExecutionStatus = 'Running'",
            f"{names.ATTRIBUTE_REQUESTS} IS NOT NULL",
        ]
        if run_id is not None:
            conditions.append(f"(RootWorkflowId = '{quoted(run_id)}' OR WorkflowId = '{quoted(run_id)}')")
        token = cursors.read(cursor)
        pages = self._client.list_workflows(" AND ".join(conditions), page_size=limit, next_page_token=token)
        await pages.fetch_next_page()
        listed = [request for execution in pages.current_page or [] for request in await _requests(execution)]
        return [request for request in listed if to is None or request.to == to], cursors.write(pages.next_page_token)

    async def find(self, request_id: str) -> OpenRequest:
        """The question, wherever it is asked. The store lags a moment behind the runs, and is given it."""
        deadline = asyncio.get_running_loop().time() + _LAG_SECONDS
        query = f"{names.ATTRIBUTE_REQUESTS} = '{quoted(request_id)}' AND ExecutionStatus = 'Running'"
        while True:
            async for execution in self._client.list_workflows(query, limit=1):
                for request in await _requests(execution):
                    if request.id == request_id:
                        return request
            if asyncio.get_running_loop().time() > deadline:
                raise RequestNotFoundError(request_id)
            await asyncio.sleep(0.2)

    async def answer(self, run_id: str, message: AnswerMessage, *, key: str | None = None) -> AnswerReceipt:
        """Answers a question of this run. AnswerRefusedError says why an answer is not taken, and who was first.

        The same `key` again is the same answer. Where no worker is up to confirm it, the answer is left with the
        server, and its receipt says `kept`.
        """
        handle: WorkflowHandle[Any, Any] = self._client.get_workflow_handle(run_id)
        wire = message.model_dump(mode="json", exclude_none=True)
        try:
            return await self._update(handle, wire, key or uuid4().hex)
        except WorkflowUpdateFailedError as error:
            refusal = _refusal(run_id, error.cause)
            elsewhere = await self._inside(run_id, message, refusal)
            if elsewhere is None:
                raise refusal from error
            return await self.answer(elsewhere, message, key=key)
        except (WorkflowUpdateRPCTimeoutOrCancelledError, RPCError) as error:
            if isinstance(error, RPCError) and error.status not in _UNCONFIRMED:
                raise
            await self._raise_if_ended(run_id, message)
        await handle.signal(names.SIGNAL_INPUT, wire)
        return AnswerReceipt(status="kept", request_id=message.request_id, path=message.entity_id)

    async def _inside(self, run_id: str, message: AnswerMessage, refusal: AnswerRefusedError) -> str | None:
        """The run inside this one that asks the question, when this one does not know it."""
        if refusal.code != "answer/unknown-request" or message.request_id is None:
            return None
        try:
            request = await self.find(message.request_id)
        except RequestNotFoundError:
            return None
        return request.run_id if request.run_id != run_id and request.root_run_id == run_id else None

    async def _update(self, handle: WorkflowHandle[Any, Any], wire: dict[str, Any], key: str) -> AnswerReceipt:
        """By the same key as often as needed: a run takes only so many updates at once."""
        update = cast(Callable[..., Awaitable[AnswerReceipt]], handle.execute_update)  # pyright: ignore[reportUnknownMemberType]
        limit = timedelta(seconds=_UPDATE_SECONDS)
        for pause in _BUSY_PAUSES:
            try:
                return await update(names.UPDATE_ANSWER, wire, id=key, result_type=AnswerReceipt, rpc_timeout=limit)
            except RPCError as error:
                if error.status != RPCStatusCode.RESOURCE_EXHAUSTED:
                    raise
                await asyncio.sleep(pause)
        return await update(names.UPDATE_ANSWER, wire, id=key, result_type=AnswerReceipt, rpc_timeout=limit)

    async def _raise_if_ended(self, run_id: str, message: AnswerMessage) -> None:
        """A run that has ended takes no answers; whoever comes late is told who was first."""
        if (await self._reader.describe(run_id)).status == WorkflowExecutionStatus.RUNNING:
            return
        answered: dict[str, Any] = (await self._reader.latest(run_id)).get("answered_inputs") or {}
        for request_id, closed in answered.items():
            if message.request_id == request_id or message.entity_id == closed["path"]:
                text = already(request_id, closed)
                raise AnswerRefusedError(run_id, f"[answer/already] {text}", "answer/already")
        raise AnswerRefusedError(run_id, "[answer/ended] the run has ended and asks nothing any more", "answer/ended")

    async def answer_request(self, request_id: str, answer: HumanAnswer, *, by: str | None = None) -> AnswerReceipt:
        """Answers a question by its id alone, at whatever depth it is asked."""
        request = await self.find(request_id)
        return await self.answer(request.run_id, AnswerMessage(request_id=request_id, data=answer, by=by))

    async def pause(self, run_id: str, by: str | None = None) -> None:
        await self._signal(run_id, names.SIGNAL_PAUSE, by)

    async def go_on(self, run_id: str, by: str | None = None) -> None:
        await self._signal(run_id, names.SIGNAL_CONTINUE, by)

    async def _signal(self, run_id: str, name: str, by: str | None) -> None:
        try:
            await self._client.get_workflow_handle(run_id).signal(name, PauseMessage(by=by))
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:
                raise
            await self._reader.describe(run_id)
            raise RunEndedError(run_id) from error


def quoted(text: str) -> str:
    """For a text between quotes in a visibility query."""
    return text.replace("\\", "\\\\").replace("'", "\\'")


def can_be_quoted(text: str) -> bool:
    """Whether such a query finds it. Temporal's server takes quotes at the ends away, and leaves escapes in."""
    return text == text.strip("'") and not any(letter in text for letter in '\\"\b\n\r\t')


async def _requests(execution: WorkflowExecution) -> list[OpenRequest]:
    memo = await execution.memo()
    listed: list[dict[str, Any]] = memo.get(names.MEMO_REQUESTS) or []
    where = {
        "run_id": execution.id,
        "root_run_id": execution.root_id or execution.id,
        "flow_id": execution.typed_search_attributes.get(_FLOW),
    }
    return [OpenRequest.model_validate({**request, **where}) for request in listed]


def _refusal(run_id: str, cause: BaseException) -> AnswerRefusedError:
    if isinstance(cause, ApplicationError) and cause.type == names.ANSWER_REFUSED:
        code = re.match(r"\[([\w/-]+)\]", cause.message)
        return AnswerRefusedError(run_id, cause.message, code.group(1) if code else "answer/refused")
    return AnswerRefusedError(run_id, f"[answer/refused] {cause}", "answer/refused")
