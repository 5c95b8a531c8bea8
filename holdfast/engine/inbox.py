"""The answers a run has got: taken once, kept when they come before their question, refused when they do not fit."""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from holdfast.checkpoints.ledger import Ledger
from holdfast.contracts.people import (
    AnswerMessage,
    AnswerReceipt,
    HumanAnswer,
    HumanRequest,
    already,
    complete,
    faults,
)
from holdfast.flows.ids import root_of

_MOST_KEPT = 1000


class RefusedError(Exception):
    """An answer that is not taken; `code` says which of the reasons it is."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"[{code}] {message}")
        self.code = code


class Inbox:
    """Judges answers against the questions in the ledger. The first that fits is the one that counts."""

    def __init__(self, ledger: Ledger, kept: list[dict[str, Any]], now: Callable[[], datetime]) -> None:
        self._ledger = ledger
        self._now = now
        self._taken: dict[str, HumanAnswer] = {}
        self.kept = kept

    def judge(self, message: AnswerMessage) -> HumanRequest | None:
        """The question the answer is for; None when that is still to come. RefusedError when it cannot be taken."""
        request = self._find(message)
        if request is None:
            return None
        taken = self._taken.get(request.id)
        if taken is not None:
            raise _answered(request.id, {"by": taken.by, "at": taken.at and taken.at.isoformat()})
        if unfit := faults(request, complete(request, message.data)):
            raise RefusedError("answer/unfit", "; ".join(unfit))
        return request

    def take(self, message: AnswerMessage) -> AnswerReceipt:
        """Takes the answer, or keeps it for its question."""
        request = self.judge(message)
        if request is None:
            if len(self.kept) >= _MOST_KEPT:
                raise RefusedError("answer/too-many", f"{_MOST_KEPT} answers wait for their question already")
            self.kept.append(message.model_dump(mode="json", exclude_none=True))
            return AnswerReceipt(status="kept", path=message.entity_id)
        self._take(request, message)
        return AnswerReceipt(status="accepted", request_id=request.id, path=request.path)

    def _take(self, request: HumanRequest, message: AnswerMessage) -> None:
        answer = complete(request, message.data)
        signed = {"by": answer.by or message.by, "at": self._now()}
        self._taken[request.id] = answer.model_copy(update=signed)

    def answer_to(self, request: HumanRequest) -> HumanAnswer | None:
        return self._taken.get(request.id)

    def carried(self) -> list[dict[str, Any]]:
        """What the next execution has to know: answers before their question, and those that were taken in the very
        moment the run was carried over, whose givers have been told so."""
        pending = self._ledger.state.pending_inputs.values()
        taken = [
            {"entity_id": request["path"], "data": answer.model_dump(mode="json", exclude_none=True)}
            for request in pending
            if (answer := self._taken.get(request["id"])) is not None
        ]
        return [*taken, *self.kept]

    def look_for_early(self, request: HumanRequest) -> None:
        """Takes what was kept for this question. What does not fit it is no answer to it, and is dropped."""
        mine = [entry for entry in self.kept if entry.get("entity_id") == request.path]
        self.kept[:] = [entry for entry in self.kept if entry not in mine]
        for entry in mine:
            message = AnswerMessage.model_validate(entry)
            if request.id not in self._taken and not faults(request, complete(request, message.data)):
                self._take(request, message)

    def _find(self, message: AnswerMessage) -> HumanRequest | None:
        state = self._ledger.state
        pending = state.pending_inputs
        if message.request_id is not None:
            if message.request_id in pending:
                return HumanRequest.model_validate(pending[message.request_id])
            if message.request_id in state.answered_inputs:
                raise _answered(message.request_id, state.answered_inputs[message.request_id])
            known = ", ".join(pending) or "none"
            raise RefusedError("answer/unknown-request", f"there is no question {message.request_id!r}; open: {known}")
        if message.entity_id is not None:
            here = [request for request in pending.values() if request["path"] == message.entity_id]
            if here:
                return HumanRequest.model_validate(here[0])
            closed = [entry for entry in state.answered_inputs.items() if entry[1]["path"] == message.entity_id]
            if closed:
                raise _answered(*closed[-1])
            if root_of(message.entity_id) not in {*state.pending_node_ids, *state.node_states}:
                raise RefusedError("answer/unknown-node", f"there is no node {message.entity_id!r} in this run")
            return None
        if len(pending) != 1:
            open_ = ", ".join(request["path"] for request in pending.values()) or "none"
            raise RefusedError("answer/which", f"say which question is answered: 'request_id' or 'entity_id' ({open_})")
        return HumanRequest.model_validate(next(iter(pending.values())))


def _answered(request_id: str, closed: dict[str, Any]) -> RefusedError:
    return RefusedError("answer/already", already(request_id, closed))
