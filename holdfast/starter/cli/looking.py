"""`holdfast runs`, `show`, `checkpoints`, `checkpoint`, `cancel`: what there is, without a worker where possible."""

import argparse
import json
from collections.abc import Iterator
from datetime import datetime

from rich.console import Console
from rich.table import Table

from holdfast.checkpoints.models import FlowCheckpoint, RunStatus
from holdfast.checkpoints.serial import serialize_checkpoint, to_yaml
from holdfast.contracts.files import described
from holdfast.flows.shapes import is_object
from holdfast.starter.cli.outcomes import FINISHED, UsageError, print_json
from holdfast.starter.cli.session import Session, with_session
from holdfast.starter.showing import redact, redact_checkpoint

_MOST_FILES = 20
_COLOURS = {
    "success": "green",
    "completed": "green",
    "failure": "red",
    "failed": "red",
    "running": "cyan",
    "skip": "dim",
}


def console() -> Console:
    """Ids are there to be copied: a narrow terminal wraps lines, it does not cut them into pieces."""
    return Console(width=max(Console().width, 160))


def table(*columns: str) -> Table:
    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, no_wrap=True)
    return made


def coloured(status: str) -> str:
    """A status in its colour."""
    colour = _COLOURS.get(status)
    return f"[{colour}]{status}[/{colour}]" if colour else status


def time_of(moment: datetime | None) -> str:
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S") if moment else ""


def runs_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        status = RunStatus(options.status) if options.status else None
        runs = await session.client.list_runs(options.flow, status, options.limit)
        if options.json:
            print_json([run.model_dump(mode="json") for run in runs])
            return FINISHED
        listing = table("run", "flow", "status", "done", "started", "ended")
        for run in runs:
            done = f"{run.done}/{run.total}"
            listing.add_row(
                run.run_id, run.flow_id, coloured(run.status), done, time_of(run.started_at), time_of(run.closed_at)
            )
        console().print(listing if runs else "no runs; start one with 'holdfast run FLOW'")
        return FINISHED

    return with_session(options, work)


def show_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        run = await session.client.get_run(options.run)
        checkpoint = await session.client.latest_checkpoint(options.run)
        if options.json:
            nodes = {
                node_id: {"status": state.status, "attempts": state.attempts, "error": redact(state.error)}
                for node_id, state in checkpoint.node_states.items()
            }
            for node_id in checkpoint.pending_node_ids:
                nodes.setdefault(node_id, {"status": "pending", "attempts": 0, "error": None})
            print_json({**run.model_dump(mode="json"), "checkpoint_id": checkpoint.id, "nodes": nodes})
            return FINISHED
        screen = console()
        counts = f"{len(checkpoint.completed_node_ids)} of {run.total or len(checkpoint.node_states)} nodes done"
        screen.print(f"run {run.run_id} of flow {run.flow_id}: {coloured(run.status)}, {counts}")
        listing = table("node", "type", "status", "attempts", "started", "seconds", "")
        for node_id in [
            *checkpoint.node_states,
            *(n for n in checkpoint.pending_node_ids if n not in checkpoint.node_states),
        ]:
            state = checkpoint.node_states.get(node_id)
            if state is None:
                listing.add_row(node_id, "", "pending")
                continue
            span = (state.completed_at - state.started_at) if state.completed_at and state.started_at else None
            seconds = f"{span.total_seconds():.2f}" if span is not None else ""
            error = str((state.error or {}).get("message", ""))
            tries = str(state.attempts or "")
            listing.add_row(
                node_id, state.node_type, coloured(state.status), tries, time_of(state.started_at), seconds, error
            )
        screen.print(listing)
        for line in _files(checkpoint):
            screen.print(line, highlight=False, markup=False)
        for pending in run.pending:
            failure = f": {pending.last_failure}" if pending.last_failure else ""
            screen.print(f"now: {pending.node_id} {pending.state}, attempt {pending.attempt}{failure}", highlight=False)
        link = session.link(run.run_id)
        screen.print(
            f"\nlatest checkpoint {checkpoint.id}" + (f"\n{link}" if link else ""), highlight=False, soft_wrap=True
        )
        return FINISHED

    return with_session(options, work)


def _files(checkpoint: FlowCheckpoint) -> Iterator[str]:
    """What the agents of a run have in their file stores, the first of each."""
    for node_id, state in checkpoint.node_states.items():
        kept = state.internal_state.get("file_store") if state.node_type == "agent" else None
        files = list(kept.items()) if is_object(kept) else []
        yield from (f"file of {node_id}: {described(path, entry)}" for path, entry in files[:_MOST_FILES])
        if len(files) > _MOST_FILES:
            yield f"file of {node_id}: … and {len(files) - _MOST_FILES} more"


def checkpoints_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        await session.client.get_run(options.run)
        found = await session.client.list_checkpoints(options.run, options.limit)
        if options.json:
            print_json([summary.model_dump(mode="json") for summary in found])
            return FINISHED
        listing = table("checkpoint", "after", "node", "status", "done", "time")
        for entry in found:
            done = f"{entry.completed}/{entry.total}"
            listing.add_row(
                entry.id, entry.event, entry.node_id or "", coloured(entry.status), done, time_of(entry.created_at)
            )
        console().print(listing)
        return FINISHED

    return with_session(options, work)


def checkpoint_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        checkpoint = await session.client.get_checkpoint(options.id or await _newest(session))
        if not options.show_secrets:
            checkpoint = redact_checkpoint(checkpoint)
        if options.json:
            print_json(json.loads(serialize_checkpoint(checkpoint)))
        else:
            print(to_yaml(checkpoint) if options.format == "yaml" else serialize_checkpoint(checkpoint), end="")
            print(end="" if options.format == "yaml" else "\n")
        return FINISHED

    return with_session(options, work)


async def _newest(session: Session) -> str:
    runs = await session.client.list_runs(limit=1)
    if not runs:
        raise UsageError("[cli/no-runs] there are no runs yet; start one with 'holdfast run FLOW'")
    return runs[0].run_id


def cancel_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        await session.client.cancel(options.run)
        if options.json:
            print_json({"run_id": options.run, "status": "cancelling"})
        else:
            print(f"run {options.run} is asked to end; 'holdfast show {options.run}' tells when it has")
        return FINISHED

    # A run can only end with a worker at hand to end it.
    return with_session(options, work)
