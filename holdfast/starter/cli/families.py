"""`holdfast tree`, `diff`, `history`: where runs come from, and what is different between two moments."""

import argparse

from rich.markup import escape
from rich.tree import Tree

from holdfast.checkpoints.diff import CheckpointDiff, render
from holdfast.starter.cli.looking import coloured, console, time_of
from holdfast.starter.cli.outcomes import FINISHED, print_json
from holdfast.starter.cli.session import Session, with_session
from holdfast.starter.families import Member
from holdfast.starter.showing import redact_changes

_SIGNS = {"+": "green", "-": "red", "~": "yellow"}


def tree_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        found = await session.client.tree(options.run)
        if options.json:
            print_json([member.model_dump(mode="json") for member in found])
            return FINISHED
        for member in found:
            console().print(_drawn(member, options.run), highlight=False)
        return FINISHED

    return with_session(options, work)


def _drawn(member: Member, wanted: str, within: Tree | None = None) -> Tree:
    name = f"[bold]{escape(member.run_id)}[/bold]" if member.run_id == wanted else escape(member.run_id)
    origin = f"  {member.how} of {escape(member.parent_checkpoint_id)}" if member.parent_checkpoint_id else ""
    line = (
        f"{name}  {coloured(member.status)}  {member.done}/{member.total}  {time_of(member.started_at)}[dim]{origin}[/]"
    )
    branch = within.add(line) if within is not None else Tree(line)
    for child in member.children:
        _drawn(child, wanted, branch)
    return branch


def diff_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        found = await session.client.diff(options.left, options.right)
        if not options.show_secrets:
            found = found.model_copy(update={"changes": redact_changes(found.changes)})
        if options.json:
            print_json(found.model_dump(mode="json"))
        else:
            _show_diff(found)
        return FINISHED

    return with_session(options, work)


def _show_diff(found: CheckpointDiff) -> None:
    screen = console()
    screen.print(f"[red]- {escape(found.left)}[/red]  {time_of(found.left_at.at)}", highlight=False)
    screen.print(f"[green]+ {escape(found.right)}[/green]  {time_of(found.right_at.at)}", highlight=False)
    for sign, text in render(found.changes, width=screen.width - 4):
        colour = _SIGNS.get(sign, "bold")
        screen.print(f"[{colour}]{sign} {escape(text)}[/{colour}]" if sign else f"[bold]{escape(text)}[/bold]")
    if not found.changes:
        screen.print("no difference")


def history_command(options: argparse.Namespace) -> int:
    async def work(session: Session) -> int:
        found = await session.client.node_history(options.run, options.node, options.field)
        shown = [
            moment.model_copy(update={"changes": redact_changes(moment.changes)})
            if not options.show_secrets
            else moment
            for moment in found
        ]
        if options.json:
            print_json([moment.model_dump(mode="json") for moment in shown])
            return FINISHED
        screen = console()
        for moment in shown:
            line = f"[bold]{escape(moment.checkpoint_id)}[/bold]  {time_of(moment.at)}  {escape(moment.event)}"
            screen.print(line, highlight=False)
            for sign, text in render(moment.changes, width=screen.width - 6):
                screen.print(f"  {sign} {escape(text)}", highlight=False)
        return FINISHED

    return with_session(options, work)
