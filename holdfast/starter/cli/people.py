"""`holdfast inbox`, `approve`, `reject`, `answer`, `pause`, `continue`: what people decide, from a terminal."""

import argparse
import getpass
import json
from typing import Any

from holdfast.contracts.people import AnswerReceipt, HumanAnswer
from holdfast.starter.cli.looking import console, table, time_of
from holdfast.starter.cli.outcomes import FINISHED, UsageError, print_json
from holdfast.starter.cli.session import Session, with_session
from holdfast.starter.people import OpenRequest
from holdfast.starter.showing import redact


def inbox_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        requests = await session.client.inbox(options.run, options.to, options.limit)
        if options.json:
            print_json([redact(request.model_dump(mode="json")) for request in requests])
            return FINISHED
        if not requests:
            console().print("nobody waits for an answer")
            return FINISHED
        listing = table("run", "node", "kind", "for", "asked", "due", "question")
        for request in requests:
            asked, due = time_of(request.created_at), time_of(request.deadline)
            listing.add_row(request.run_id, request.path, request.kind, request.to or "", asked, due, request.prompt)
        console().print(listing)
        console().print(f"\n{_hint(requests[0])}", soft_wrap=True, markup=False)
        return FINISHED

    return with_session(options, work)


def _hint(request: OpenRequest) -> str:
    where = f"'{request.run_id}' {request.id}"
    match request.kind:
        case "approval":
            return f"holdfast approve {where}\nholdfast reject {where} --feedback 'why not'"
        case "choice":
            return f"holdfast answer {where} --choice '{request.choices[0]}'"
        case "form":
            return f"holdfast answer {where} --data '{{…}}'"
        case "text":
            return f"holdfast answer {where} --feedback 'your words'"


def approve_command(options: argparse.Namespace) -> int:
    return _send(options, HumanAnswer(is_approved=True, feedback=options.feedback, data=_data(options.data)))


def reject_command(options: argparse.Namespace) -> int:
    return _send(options, HumanAnswer(is_approved=False, feedback=options.feedback))


def answer_command(options: argparse.Namespace) -> int:
    if options.feedback is None and options.choice is None and options.data is None:
        raise UsageError("[cli/no-answer] give the answer: --feedback TEXT, --choice NAME or --data JSON")
    answer = HumanAnswer(feedback=options.feedback, choice=options.choice, data=_data(options.data))
    return _send(options, answer)


def _data(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise UsageError(f"[cli/bad-data] --data is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"[cli/bad-data] --data is a JSON object, not {text!r}")
    return found  # pyright: ignore[reportUnknownVariableType] (JSON)


def _send(options: argparse.Namespace, answer: HumanAnswer) -> int:
    async def work(session: Session) -> int:
        client, by = session.client, options.by or getpass.getuser()
        run_id, request_id = options.run, options.request
        if request_id is None:
            # The run that people know may have its questions in a flow inside it.
            run_id, request_id = _only(await client.inbox(options.run), options.run)
        receipt = await client.send_input(run_id, answer, request_id=request_id, by=by)
        _report(options, receipt)
        return FINISHED

    return with_session(options, work)


def _only(requests: list[OpenRequest], run: str) -> tuple[str, str | None]:
    """The one question of a run that is open; the run itself decides when the list has none yet."""
    if len(requests) > 1:
        open_ = "\n".join(f"  {request.id}  {request.path}: {request.prompt}" for request in requests)
        raise UsageError(f"[cli/which-request] run {run!r} asks several questions; name one:\n{open_}")
    return (requests[0].run_id, requests[0].id) if requests else (run, None)


def _report(options: argparse.Namespace, receipt: AnswerReceipt) -> None:
    if options.json:
        print_json(receipt.model_dump(mode="json"))
    elif receipt.status == "accepted":
        print(f"taken: {receipt.path} goes on")
    else:
        print("kept: it is taken when the question is asked, or when a worker is up")


def pause_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        await session.client.pause(options.run, options.by or getpass.getuser())
        return _said(options, "pausing", f"holdfast continue {options.run}")

    return with_session(options, work)


def continue_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        await session.client.continue_run(options.run, options.by or getpass.getuser())
        return _said(options, "going on", f"holdfast show {options.run}")

    return with_session(options, work)


def _said(options: argparse.Namespace, what: str, hint: str) -> int:
    if options.json:
        print_json({"run_id": options.run, "status": what})
    else:
        print(f"{options.run} is {what}\n{hint}")
    return FINISHED
