"""`holdfast resume`, `fork`, `rerun`: a new run from a checkpoint, changed on the way if one likes."""

import argparse
import re
from collections.abc import Sequence
from typing import Any

from holdfast.checkpoints.resuming import ResumePlan
from holdfast.flows.ids import split_checkpoint_id
from holdfast.starter.cli.looking import console, table
from holdfast.starter.cli.outcomes import FINISHED, UsageError, print_json
from holdfast.starter.cli.reading import flow_from, input_from, json_from, value_from
from holdfast.starter.cli.running import follow, with_worker
from holdfast.starter.cli.session import Session, with_session
from holdfast.starter.travel import Changes, NewRun

# A name in quotes may have anything in it.
_EDIT = re.compile(r'((?:[^="]|"(?:[^"\\]|\\.)*")*)=(.*)', re.DOTALL)
_MEANINGS = {
    "kept": "kept: not executed again",
    "forgotten": "goes on from where it was",
    "reset": "runs again from its beginning",
    "fresh": "runs anew",
}


def resume_command(options: argparse.Namespace) -> int:
    changes = _changes(options)

    async def begin(session: Session) -> NewRun:
        return await session.client.travel.resume(options.checkpoint, changes, options.key)

    return _travel(options, changes, begin)


def fork_command(options: argparse.Namespace) -> int:
    changes = _changes(options)

    async def begin(session: Session) -> NewRun:
        return await session.client.travel.fork(options.checkpoint, changes, run_id=options.id, key=options.key)

    return _travel(options, changes, begin)


def rerun_command(options: argparse.Namespace) -> int:
    flow = flow_from(options.flow, options.load) if options.flow else None
    changes = Changes(flow=flow, rerun=options.node, only_failed=options.only_failed)

    async def begin(session: Session) -> NewRun:
        return await session.client.travel.fork(options.checkpoint, changes, run_id=options.id, key=options.key)

    return _travel(options, changes, begin)


def _changes(options: argparse.Namespace) -> Changes:
    return Changes(
        flow=flow_from(options.flow, options.load) if options.flow else None,
        input_data=input_from(options.input),
        edits=_edits(options.edit),
        keep=options.keep,
    )


def _edits(given: Sequence[str]) -> dict[str, Any]:
    """`node:field=value`, where the value is JSON, text, or `@file`."""
    found: dict[str, Any] = {}
    for item in given:
        parts = _EDIT.fullmatch(item)
        if parts is None or ":" not in parts[1]:
            raise UsageError(f"[cli/bad-edit] --edit {item!r} is not 'node:field=value', as in 'draft:output.text=Hi'")
        address, value = parts.groups()
        text = value_from(value)
        found[address] = json_from(text, item) if value.startswith("@") and value.endswith(".json") else text
    return found


def _travel(options: argparse.Namespace, changes: Changes, begin: Any) -> int:
    async def look(session: Session) -> int:
        resume = options.command == "resume"
        plan = await session.client.travel.plan(options.checkpoint, changes, resume=resume)
        flow = changes.flow or await session.client.definition(split_checkpoint_id(options.checkpoint)[0])
        _show_plan(plan, [node.id for node in flow.nodes], options)
        return FINISHED

    async def work(session: Session) -> int:
        new: NewRun = await begin(session)
        if not new.created and not options.json:
            print(f"the same key has started {new.run_id} before")
        return await follow(session, new.run_id, options)

    return with_session(options, look) if options.dry_run else with_worker(options, work)


def _show_plan(plan: ResumePlan, nodes: Sequence[str], options: argparse.Namespace) -> None:
    if options.json:
        print_json(plan.model_dump(mode="json"))
        return
    listing = table("node", "in the new run")
    seen: set[str] = set()
    for name, meaning in _MEANINGS.items():
        for node_id in getattr(plan, name):
            if node_id not in seen:
                seen.add(node_id)
                listing.add_row(node_id, "given by hand" if _is_given(plan, node_id) else meaning)
    for node_id in nodes:
        if seen and node_id not in seen:
            listing.add_row(node_id, "runs for the first time")
    screen = console()
    screen.print(listing if seen else "everything runs from its beginning")
    for warning in plan.warnings:
        screen.print(f"! {warning}", highlight=False, markup=False)
    screen.print("nothing was started: this was --dry-run")


def _is_given(plan: ResumePlan, node_id: str) -> bool:
    return node_id in plan.kept and any(address.startswith(f"{node_id}:output") for address in plan.edited)
