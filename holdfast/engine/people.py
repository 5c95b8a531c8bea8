"""Asking people: questions and approvals, with reminders, deadlines and what these lead to.

A question is a transition and nothing else: it waits in the ledger, not in memory. The first answer closes it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from holdfast.checkpoints.ledger import InputReceived, InputReminded, InputRequested
from holdfast.contracts.calls import NodeReply
from holdfast.contracts.people import HumanAnswer, HumanRequest, complete, faults
from holdfast.engine.ports import NodeError
from holdfast.engine.scope import Job, Scope
from holdfast.flows.params import seconds_of
from holdfast.flows.people import HumanParams
from holdfast.flows.shapes import is_object
from holdfast.flows.spec import Approval, Deadline, NodeSpec

_DEADLINE = "deadline"


class RejectedError(Exception):
    """A person does not want it to be done."""

    def __init__(self, answer: HumanAnswer) -> None:
        self.answer = answer
        by = f" by {answer.by}" if answer.by else ""
        super().__init__(f"rejected{by}" + (f": {answer.feedback}" if answer.feedback else ""))


async def run_human(scope: Scope, job: Job) -> NodeReply:
    """A question as a node, or as a tool. Its output is the answer, with what was said as `content`."""
    params = HumanParams.model_validate(job.node.params)
    fields: dict[str, Any] = {"kind": params.kind, "choices": params.choices or [], "form": params.form}
    answer = await _ask(scope, job, params, params.prompt, fields)
    said = {"choice": answer.choice, "form": answer.data}.get(params.kind, answer.feedback)
    if answer.is_approved is not None:
        said = ("approved" if answer.is_approved else "rejected") + (f": {said}" if said else "")
    return NodeReply(
        output={"content": said, **answer.model_dump(mode="json", exclude_none=True)},
        internal_state=scope.state(job.path),
    )


async def run_inside(scope: Scope, job: Job, check: Callable[[Job], None] = lambda _: None) -> NodeReply:
    """A node inside another one, approved if it has to be, and checked again then. A rejection is its failure."""
    if job.node.approval.enabled:
        try:
            job = await approved(scope, job)
            check(job)
        except RejectedError as error:
            raise NodeError({"type": "Rejected", "message": str(error)}) from error
    return await scope.run_inside(job)


async def approved(scope: Scope, job: Job) -> Job:
    """The job as it was approved, edits included; RejectedError when it was not. Who has approved is asked no more."""
    wanted = job.node.approval
    given = already_approved(scope, job)
    if given is not None:
        return replace(job, input_data=_edited(job.input_data, given))
    fields: dict[str, Any] = {
        "kind": "approval",
        "data": job.input_data,
        "editable": wanted.editable,
        "accept_pattern": wanted.accept_pattern,
    }
    answer = await _ask(scope, job, wanted, wanted.prompt or f"May {job.node.name or job.node.id} run?", fields)
    if not answer.is_approved:
        raise RejectedError(answer)
    # The run may have been paused while the answer was awaited.
    await scope.gate.boundary()
    return replace(job, input_data=_edited(job.input_data, answer))


def already_approved(scope: Scope, job: Job) -> HumanAnswer | None:
    """The approval of this very thing: what is asked about something else is asked again."""
    given = scope.ledger.state.metadata.get("approvals", {}).get(job.path)
    same = given is not None and given.get("about") == job.input_data
    return HumanAnswer.model_validate(given) if same else None


def _edited(data: Any, answer: HumanAnswer) -> Any:
    return {**data, **answer.data} if answer.data and is_object(data) else data


async def _ask(
    scope: Scope, job: Job, asking: HumanParams | Approval, template: str, fields: dict[str, Any]
) -> HumanAnswer:
    """Asks, and waits for the answer or for what the deadline makes of it."""
    steps = _steps(asking.to, asking.deadline)
    request = _open(scope, job.path)
    prompt = request.prompt if request is not None else await _rendered(scope, job, template)
    while True:
        step = request.step if request is not None else 0
        if request is None:
            request = _request(scope, job, prompt, asking.reminders, steps, step, fields)
        answer = await _answer(scope, request)
        if answer is not None:
            _close(scope, request, answer)
            return answer
        deadline = steps[step][1]
        assert deadline is not None
        if deadline.effect == "fail":
            _close(scope, request, HumanAnswer(by=_DEADLINE))
            raise NodeError({"type": "InputTimeout", "message": f"nobody answered within {deadline.after}: {prompt}"})
        if deadline.effect == "default":
            answer = complete(request, HumanAnswer.model_validate({**(deadline.answer or {}), "by": _DEADLINE}))
            _close(scope, request, answer)
            if unfit := faults(request, answer):
                message = f"the deadline's own answer does not fit the question: {'; '.join(unfit)}"
                raise NodeError({"type": "BadAnswer", "message": message})
            return answer
        _close(scope, request, HumanAnswer(by=_DEADLINE, feedback=f"handed on to {deadline.to}"))
        request = _request(scope, job, prompt, asking.reminders, steps, step + 1, fields)


def _steps(to: str | None, deadline: Deadline | None) -> list[tuple[str | None, Deadline | None]]:
    """Who is asked, one after the other, each with the deadline they have."""
    steps = [(to, deadline)]
    while deadline is not None and deadline.effect == "escalate":
        steps.append((deadline.to, deadline.then))
        deadline = deadline.then
    return steps


def _open(scope: Scope, path: str) -> HumanRequest | None:
    """The question of this node that is open already, from an execution before this one."""
    for request in scope.ledger.state.pending_inputs.values():
        if request["path"] == path:
            return HumanRequest.model_validate(request)
    return None


def _request(
    scope: Scope,
    job: Job,
    prompt: str,
    reminders: Iterable[float | str],
    steps: list[tuple[str | None, Deadline | None]],
    step: int,
    fields: dict[str, Any],
) -> HumanRequest:
    now, (to, deadline) = scope.now(), steps[step]
    request = HumanRequest(
        id=scope.ports.new_id(),
        path=job.path,
        prompt=prompt,
        to=to,
        step=step,
        created_at=now,
        deadline=_after(now, deadline.after) if deadline is not None else None,
        effect=deadline.effect if deadline is not None else None,
        reminders=sorted(_after(now, reminder) for reminder in reminders),
        is_resumed=job.path in scope.ledger.state.metadata.get("asked_before", []),
        **fields,
    )
    wire = request.model_dump(mode="json", exclude_defaults=True)
    scope.record(InputRequested(at=now, path=job.path, request=wire))
    if job.node.type == "human":
        asked = {"prompt": prompt, "requested_at": now.isoformat(), "request_id": request.id}
        scope.advance(job.path, "asked", assign=asked)
    return request


def _after(now: datetime, duration: float | str) -> datetime:
    return now + timedelta(seconds=seconds_of(duration))


async def _answer(scope: Scope, request: HumanRequest) -> HumanAnswer | None:
    """The answer; None when the deadline has passed and means something."""
    reminded, overdue = request.reminded, request.overdue
    while True:
        moments = request.reminders[reminded : reminded + 1]
        if request.deadline is not None and not overdue:
            moments = [*moments, request.deadline]
        until = min(moments, default=None)
        async with scope.gate.rest():
            answer = await scope.ports.wait_answer(request, until)
        if answer is not None or until is None:
            return answer
        if until == request.deadline and not overdue:
            if request.effect != "wait":
                return None
            overdue = True
        else:
            reminded += 1
        scope.record(
            InputReminded(at=scope.now(), path=request.path, request_id=request.id, number=reminded, overdue=overdue)
        )


def _close(scope: Scope, request: HumanRequest, answer: HumanAnswer) -> None:
    said = answer.model_dump(mode="json", exclude_none=True)
    scope.record(InputReceived(at=scope.now(), path=request.path, request_id=request.id, answer=said))


async def _rendered(scope: Scope, job: Job, template: str) -> str:
    """A template is the author's, so it runs where all of them do: not in the workflow."""
    if "{" not in template:
        return template
    node = NodeSpec(id=f"{job.path}/prompt", type="transform", params={"template": template})
    (outcome,) = await scope.run_pure([node], {node.id: job.input_data})
    if outcome.status != "success":
        raise NodeError(outcome.error or {"type": "BadTemplate", "message": "the question could not be written"})
    return str(outcome.output)
