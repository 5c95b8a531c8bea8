"""`holdfast run`: start a run, and show it as it goes."""

import argparse
import sys
from typing import Any

from holdfast.checkpoints.ledger import (
    InputReceived,
    InputRequested,
    NodeAdvanced,
    NodeCompleted,
    NodeFailed,
    NodeSkipped,
    NodeStarted,
    RunContinued,
    RunPaused,
    RunResumed,
    Transition,
)
from holdfast.starter import embedded
from holdfast.starter.cli.dev import start_detached
from holdfast.starter.cli.outcomes import FINISHED, print_json
from holdfast.starter.cli.reading import flow_from, input_from
from holdfast.starter.cli.session import Session, dev_is_running, with_session
from holdfast.starter.connecting import is_configured
from holdfast.starter.runs import RunnableResult


def run_command(options: argparse.Namespace) -> int:
    own_worker = not is_configured(options.address) and not dev_is_running(embedded.home())
    flow = flow_from(options.flow, options.load, trust=not own_worker)
    given = input_from(options.input)

    async def work(session: Session) -> int:
        run_id = await session.client.start(flow, given, run_id=options.id)
        return await follow(session, run_id, options)

    return with_worker(options, work)


def with_worker(options: argparse.Namespace, work: Any) -> int:
    """Runs `work` with a worker at hand, or with one left behind when the caller does not stay."""
    if options.detach and not is_configured(options.address) and not dev_is_running(embedded.home()):
        start_detached(options.load, options.task_queue)
        options.load = []
        if not options.json:
            print("started the embedded server and a worker in the background; 'holdfast stop' ends them")
    return with_session(options, work, worker=not options.detach)


async def follow(session: Session, run_id: str, options: argparse.Namespace) -> int:
    """Shows a run that was just started until it ends; only its id with `--detach`."""
    link = session.link(run_id)
    if options.detach:
        if options.json:
            print_json({"run_id": run_id, "status": "running", "ui": link})
        else:
            print(f"run {run_id}\n{link or ''}\nholdfast show {run_id}")
        return FINISHED
    if options.json:
        print_json(_result_data(await session.client.result(run_id), link))
        return FINISHED
    print(f"run {run_id}" + (f"\n{link}" if link else ""), flush=True)
    started: dict[str, Any] = {}
    async for transition in session.client.follow(run_id):
        for line in lines(transition, started):
            print(line, flush=True)
    result = await session.client.result(run_id)
    _show_result(result)
    return FINISHED


def _result_data(result: RunnableResult, link: str | None) -> dict[str, Any]:
    data = result.model_dump(mode="json")
    return {"run_id": result.run_id, "status": "completed", "output": data["output"], "ui": link}


def lines(transition: Transition, started: dict[str, Any]) -> list[str]:
    """A transition as lines of text; none for most of them. `started` is the caller's, and kept here between calls."""
    match transition:
        case NodeAdvanced():
            said = _step(transition)
            return [f"     {transition.path}  {said}"] if said else []
        case NodeStarted():
            started[transition.path] = transition.at
            return [f"  …  {transition.path}"] if sys.stdout.isatty() else []
        case NodeCompleted():
            seconds = (transition.at - started.get(transition.path, transition.at)).total_seconds()
            tries = f", attempt {transition.attempts}" if transition.attempts > 1 else ""
            cached = ", cached" if transition.cached else ""
            notes = [f"     ! {warning}" for warning in transition.warnings]
            return [f"  ✓  {transition.path}  ({seconds:.2f} s{tries}{cached})", *notes]
        case NodeFailed():
            return [f"  ✗  {transition.path}: {transition.error.get('message')}"]
        case NodeSkipped():
            return [f"  –  {transition.path}  ({transition.reason})"]
        case InputRequested():
            request = transition.request
            return [f"  ?  {transition.path}: {request['prompt']}", f"     holdfast inbox   (question {request['id']})"]
        case InputReceived():
            return [f"  ←  {transition.path}: answered by {transition.answer.get('by') or 'somebody'}"]
        case RunPaused():
            return [f"  ‖  paused by {transition.by or 'somebody'}"]
        case RunContinued():
            return [f"  ▸  continued by {transition.by or 'somebody'}"]
        case RunResumed():
            kept = ", ".join(transition.kept) or "nothing"
            notes = [f"     ! {warning}" for warning in transition.warnings]
            return [f"  resumed from {transition.checkpoint_id}; kept: {kept}", *notes]
        case _:
            return []


def _step(step: NodeAdvanced) -> str:
    """What a person wants to know of a step inside a node; nothing for most of them."""
    detail = step.detail
    match step.event:
        case "model_replied":
            return f"loop {detail['loop']} of {detail['max_loops']}: {', '.join(detail['tools'])}"
        case "repair_asked":
            return f"loop {detail['loop']} of {detail['max_loops']}: asked again ({detail['reason']})"
        case "fallback":
            return f"goes on with its fallback model: {detail['error'].get('message')}"
        case "state_completed":
            return f"{detail['state']} > {detail['next']}"
        case "iteration_completed" | "iteration_failed" | "batch_completed" | "task_completed":
            done, total = detail["done"], detail["total"]
            # A line for every item of a large map would tell nobody anything.
            return f"{done} of {total}" if done == total or done % max(1, total // 10) == 0 else ""
        case _:
            return ""


def _show_result(result: RunnableResult) -> None:
    done = [node_id for node_id, outcome in result.output.items() if outcome["status"] == "success"]
    print(f"completed: {len(done)} nodes")
    for node_id in done[-1:]:
        print(f"{node_id}: {result.output[node_id]['output']}")
