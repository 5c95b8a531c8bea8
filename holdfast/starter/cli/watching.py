"""`holdfast watch`: a run as a live tree on a terminal, as lines of text or as JSON events elsewhere."""

import argparse
import asyncio
import contextlib
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text
from rich.tree import Tree

from holdfast.checkpoints.ledger import (
    InputReceived,
    InputRequested,
    NodeAdvanced,
    NodeCompleted,
    NodeFailed,
    NodeSkipped,
    NodeStarted,
    RunCancelled,
    RunCompleted,
    RunContinued,
    RunFailed,
    RunPaused,
    RunResumed,
    Transition,
)
from holdfast.checkpoints.models import RunStatus
from holdfast.flows.ids import is_nested, is_within, root_of
from holdfast.flows.spec import FlowSpec
from holdfast.starter.cli.outcomes import FINISHED
from holdfast.starter.cli.running import lines
from holdfast.starter.cli.session import Session, with_session

_SHOWN = 8
_TICK = 0.25
_LONGEST = 300

_RUNNING, _DONE, _FAILED, _SKIPPED, _WAITS, _TO_COME = "…", "✓", "✗", "–", "?", "·"
_COLOURS = {
    _RUNNING: "cyan",
    _DONE: "green",
    _FAILED: "red",
    _SKIPPED: "dim",
    _WAITS: "yellow",
    _TO_COME: "dim",
    RunStatus.RUNNING: "cyan",
    RunStatus.COMPLETED: "green",
    RunStatus.FAILED: "red",
    RunStatus.PENDING_INPUT: "yellow",
}


def watch_command(options: argparse.Namespace) -> int:
    """Follows a run that somebody else has started. Watching costs it nothing."""

    async def work(session: Session) -> int:
        run = await session.client.get_run(options.run)
        screen = Console()
        if options.json:
            async for event in session.client.stream(options.run, options.after):
                print(event.model_dump_json(), flush=True)
        elif options.after or not _can_draw(screen):
            # A tree of what came after some event would say of all before it that it is still to come.
            await _print_lines(session, options)
        else:
            await _draw(session, options.run, screen, has_ended=run.closed_at is not None)
        return FINISHED

    return with_session(options, work)


def _can_draw(screen: Console) -> bool:
    """Not into a file, and not where the cursor cannot be moved; rich alone would go by FORCE_COLOR too."""
    return sys.stdout.isatty() and screen.is_terminal and not screen.is_dumb_terminal


async def _print_lines(session: Session, options: argparse.Namespace) -> None:
    started: dict[str, Any] = {}
    async for transition in session.client.follow(options.run, options.after // 2):
        for line in lines(transition, started):
            print(line, flush=True)
    print((await session.client.get_run(options.run)).status.value)


async def _draw(session: Session, run_id: str, screen: Console, *, has_ended: bool) -> None:
    tree = RunTree(run_id, await session.client.definition(run_id))

    async def feed() -> None:
        async for transition in session.client.follow(run_id):
            tree.note(transition)
        tree.end((await session.client.get_run(run_id)).status)

    if has_ended:
        await feed()
        screen.print(tree.render())
        return
    # Drawn from this thread: one of rich's own would read the tree while it changes.
    with Live(console=screen, get_renderable=lambda: tree.render(screen.height), auto_refresh=False) as live:
        ticking = asyncio.create_task(_tick(live))
        try:
            await feed()
        finally:
            ticking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await ticking


async def _tick(live: Live) -> None:
    while True:
        live.refresh()
        await asyncio.sleep(_TICK)


@dataclass(eq=False)
class _Branch:
    """One node, or something inside one, as far as the transitions have told."""

    path: str
    state: str = _TO_COME
    begun: datetime | None = None
    ended: datetime | None = None
    attempts: int = 1
    progress: str = ""
    answered: str = ""
    said: str = ""
    failed_items: int = 0
    questions: dict[str, str] = field(default_factory=dict[str, str])
    waiting_runs: set[str] = field(default_factory=set[str])
    inside: "dict[str, _Branch]" = field(default_factory=dict[str, "_Branch"])

    @property
    def mark(self) -> str:
        return _WAITS if self.state == _RUNNING and (self.questions or self.waiting_runs) else self.state

    @property
    def is_open(self) -> bool:
        return self.state == _RUNNING


class RunTree:
    """A run as a tree, folded from its transitions. Knows no server, and the time only through `clock`."""

    def __init__(self, run_id: str, flow: FlowSpec, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._run_id = run_id
        self._flow_id = flow.id
        self._clock = clock
        self._nodes = {str(node.id): _Branch(node.id) for node in flow.nodes}
        self._last: datetime | None = None
        self._paused = False
        self._end: RunStatus | None = None

    def note(self, transition: Transition) -> None:
        """Moves the tree one transition on."""
        self._last = transition.at
        match transition:
            case NodeStarted():
                self._begin(transition)
            case NodeCompleted():
                cached = ["cached"] if transition.cached else []
                said = "; ".join([*cached, *(f"! {warning}" for warning in transition.warnings)])
                self._settle(transition, _DONE, said, transition.attempts)
            case NodeFailed():
                self._settle(transition, _FAILED, str(transition.error.get("message") or ""), transition.attempts)
            case NodeSkipped():
                self._settle(transition, _SKIPPED, transition.reason)
            case NodeAdvanced():
                self._advance(transition)
            case InputRequested() | InputReceived():
                self._ask(transition)
            case RunPaused() | RunContinued():
                self._paused = isinstance(transition, RunPaused)
            case RunResumed():
                for node_id in transition.kept:
                    kept = self._at(node_id)
                    kept.state, kept.said = _DONE, "kept"
            case RunCompleted():
                self.end(RunStatus.COMPLETED)
            case RunFailed():
                self.end(RunStatus.FAILED)
            case RunCancelled():
                self.end(RunStatus.CANCELLED)
            case _:
                pass

    def end(self, status: RunStatus) -> None:
        """The run has ended, perhaps without a word of its own: a run that is terminated records nothing."""
        self._end = status
        for branch in self._nodes.values():
            if branch.is_open:
                branch.state, branch.said, branch.ended = _SKIPPED, "stopped", self._last
                _drop_open(branch)

    def render(self, height: int | None = None) -> Tree:
        """The tree as it is now. While the run goes on, what is done makes room where it would be higher than `height`.

        A terminal shows the top of what is too high, and what goes on is at the bottom.
        """
        status = self._status()
        tree = Tree(Text.assemble((self._run_id, "bold"), f"  {self._flow_id}  ", (status, _COLOURS.get(status, ""))))
        hidden = self._in_the_way(height) if height is not None and self._end is None else set[str]()
        if hidden:
            tree.add(Text(f"{_DONE} {len(hidden)} more", "dim"))
        for branch in self._nodes.values():
            if branch.path not in hidden:
                self._grow(tree, branch, branch.path)
        return tree

    def _in_the_way(self, height: int) -> set[str]:
        """The first nodes that are done or skipped, as many as have to go."""
        excess = 1 + sum(map(_rows, self._nodes.values())) - height
        hidden: set[str] = set()
        for branch in self._nodes.values():
            # The line that stands for them takes one row too.
            if excess + bool(hidden) <= 0:
                break
            if branch.state in (_DONE, _SKIPPED):
                hidden.add(branch.path)
                excess -= _rows(branch)
        return hidden

    def _status(self) -> RunStatus:
        if self._end is not None:
            return self._end
        if self._paused:
            return RunStatus.PAUSED
        if any(_waits(branch) for branch in self._nodes.values()):
            return RunStatus.PENDING_INPUT
        return RunStatus.RUNNING if self._last is not None else RunStatus.PENDING

    # Folding

    def _home(self, path: str) -> dict[str, _Branch]:
        """Where a path belongs: beneath the innermost branch that it is inside of."""
        if not is_nested(path):
            return self._nodes
        root = root_of(path)
        level = self._nodes.setdefault(root, _Branch(root)).inside
        while outer := next((known for known in level.values() if _is_inside(path, known)), None):
            level = outer.inside
        return level

    def _at(self, path: str) -> _Branch:
        return self._home(path).setdefault(path, _Branch(path))

    def _begin(self, started: NodeStarted) -> None:
        branch = _Branch(started.path, state=_RUNNING, begun=started.at)
        state = started.internal_state
        if "total_iterations" in state:
            # A map that goes on where another run has left it.
            done = len(state.get("completed_iterations") or {}) + len(state.get("failed_iterations") or {})
            branch.progress = f"{done} of {state['total_iterations']}"
        self._home(started.path)[started.path] = branch

    def _settle(
        self, step: NodeCompleted | NodeFailed | NodeSkipped | NodeAdvanced, state: str, said: str, attempts: int = 1
    ) -> None:
        branch = self._at(step.path)
        branch.state, branch.said, branch.ended, branch.attempts = state, said, step.at, attempts
        branch.questions.clear()
        branch.waiting_runs.clear()
        _drop_open(branch)

    def _advance(self, step: NodeAdvanced) -> None:
        branch, detail = self._at(step.path), step.detail
        failed: dict[str, Any] = step.merge.get("failed_iterations") or {}
        branch.failed_items += len(failed)
        branch.progress = _progress(branch, step)
        match step.event:
            case "iteration_completed" | "iteration_failed":
                index = str(detail["index"])
                self._finish_inside(branch, f"{step.path}[{index}]", step, failed.get(index))
            case "retry_planned":
                branch.attempts, branch.said = detail["retry"]["attempt"], str(detail["error"].get("message") or "")
            case "child_waiting" | "batch_completed":
                children: dict[str, dict[str, Any]] = step.merge.get("children") or {step.path: step.assign}
                for run_id, child in children.items():
                    waits = child.get("status") == RunStatus.PENDING_INPUT
                    (branch.waiting_runs.add if waits else branch.waiting_runs.discard)(run_id)
            case _ if step.forget is not None and step.forget in self._home(step.forget):
                self._finish_inside(branch, step.forget, step, detail.get("error"))
            case _:
                pass

    def _finish_inside(self, branch: _Branch, path: str, step: NodeAdvanced, error: dict[str, Any] | None) -> None:
        """The outer node has taken the result; how it came about no longer matters, nor do results of long ago."""
        known = self._at(path)
        known.state, known.ended = _DONE if error is None else _FAILED, step.at
        known.said = str((error or {}).get("message") or "")
        known.questions.clear()
        known.inside.clear()
        settled = [inner for inner in branch.inside.values() if not inner.is_open]
        for old in sorted(settled, key=_when)[:-_SHOWN]:
            del branch.inside[old.path]

    def _ask(self, step: InputRequested | InputReceived) -> None:
        # A tool that has to be approved says nothing else of itself: its question is how one hears of it.
        branch = self._at(step.path)
        if isinstance(step, InputReceived):
            branch.questions.pop(step.request_id, None)
            branch.answered = f"answered by {step.answer.get('by') or 'somebody'}"
            return
        if not branch.is_open:
            branch.state, branch.begun = _RUNNING, step.at
        to = f"  (for {step.request['to']})" if step.request.get("to") else ""
        branch.questions[step.request["id"]] = f"{_one_line(step.request['prompt'])}{to}"

    # Drawing

    def _grow(self, tree: Tree, branch: _Branch, label: str) -> None:
        twig = tree.add(self._line(branch, label))
        for question in branch.questions.values():
            twig.add(Text(question, _COLOURS[_WAITS]))
        if branch.mark == _WAITS:
            twig.add(Text(f"holdfast inbox --run {shlex.quote(self._run_id)}", "bold"))
        shown = _chosen(branch)
        for inner in shown:
            self._grow(twig, inner, _label(inner.path, branch.path))
        hidden = sum(inner.is_open for inner in branch.inside.values()) - sum(inner.is_open for inner in shown)
        if hidden:
            twig.add(Text(f"and {hidden} more", "dim"))

    def _line(self, branch: _Branch, label: str) -> Text:
        mark = branch.mark
        attempt = f"attempt {branch.attempts}" if branch.attempts > 1 else ""
        facts = [self._seconds(branch), attempt, branch.progress, branch.answered]
        told = ", ".join(_one_line(fact) for fact in facts if fact)
        line = Text.assemble((f"{mark} {label}", _COLOURS[mark]))
        if told:
            line.append(f"  {told}")
        if branch.said:
            line.append(f"  {_one_line(branch.said)}", "red" if branch.state == _FAILED else "dim")
        return line

    def _seconds(self, branch: _Branch) -> str:
        if branch.begun is None:
            return ""
        # The clock here may be behind the server's.
        until = branch.ended or max(self._clock(), branch.begun)
        return f"{(until - branch.begun).total_seconds():.{2 if branch.ended else 0}f} s"


def _is_inside(path: str, branch: _Branch) -> bool:
    return path != branch.path and is_within(path, branch.path)


def _waits(branch: _Branch) -> bool:
    return branch.mark == _WAITS or any(_waits(inner) for inner in branch.inside.values())


def _rows(branch: _Branch) -> int:
    """How many lines it takes, if none of them is too long."""
    return 1 + len(branch.questions) + (branch.mark == _WAITS) + sum(map(_rows, _chosen(branch)))


def _drop_open(branch: _Branch) -> None:
    """Nothing goes on inside a node that has ended."""
    branch.inside = {path: inner for path, inner in branch.inside.items() if not inner.is_open}


def _when(branch: _Branch) -> datetime:
    return branch.ended or branch.begun or datetime.min.replace(tzinfo=UTC)


def _chosen(branch: _Branch) -> list[_Branch]:
    """Of many only some: those that wait for a person, those that run, and of the rest the last."""
    newest = sorted(branch.inside.values(), key=_when, reverse=True)
    chosen = sorted(newest, key=lambda inner: 0 if _waits(inner) else 1 if inner.is_open else 2)[:_SHOWN]
    return [inner for inner in branch.inside.values() if inner in chosen]


def _label(path: str, outer: str) -> str:
    """`agent/loop[1]/ask[0]` is `loop[1]/ask[0]` beneath its agent; an item keeps the name of its map."""
    own = path.removeprefix(f"{outer}/")
    return own if own != path else path[outer.rfind("/") + 1 :]


def _progress(branch: _Branch, step: NodeAdvanced) -> str:
    """How far it is: an agent's loop and its tools, a map's items, an orchestrator's tasks or states."""
    detail = step.detail
    if step.event == "map_opened":
        return f"0 of {step.assign['total_iterations']}"
    if step.event == "fallback":
        return "goes on with its fallback model"
    if step.event == "state_completed":
        return f"{detail['state']} > {detail['next']}"
    if "total" in detail:
        failed = f", {branch.failed_items} failed" if branch.failed_items else ""
        return f"{detail.get('done', 0)} of {detail['total']}{failed}"
    if "max_loops" not in detail or step.event == "tool_completed":
        return branch.progress
    loop = f"loop {detail['loop']} of {detail['max_loops']}"
    if step.event == "model_replied":
        return f"{loop}: {', '.join(detail['tools'])}"
    return f"{loop}: asked again" if step.event == "repair_asked" else loop


def _one_line(text: str) -> str:
    """What others have written, without anything that could move the cursor."""
    plain = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return plain if len(plain) <= _LONGEST else f"{plain[: _LONGEST - 1]}…"
