"""`make demo`: a flow and an agent whose workers are killed with -9 in the middle, and what became of every step.

Real server, real worker processes, a real SIGKILL. The executions are counted outside, in a journal of the nodes' own.
"""

import asyncio
import contextlib
import json
import os
import signal
import sqlite3
import sys
import time
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples import survey_agent
from holdfast import HoldfastClient, read_flow
from holdfast.checkpoints.ledger import NodeCompleted
from holdfast.flows.spec import FlowSpec
from holdfast.starter import embedded
from holdfast.starter.cli.session import start_worker

EXAMPLES = Path(__file__).parent
NODES = str(EXAMPLES / "contract_nodes.py")
TOOLS = "examples.survey_tools"
COMMAND = os.path.relpath(Path(sys.executable).parent / "holdfast")
console = Console(highlight=False, width=max(Console().width, 110))


class Journal:
    """What the nodes themselves wrote down."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def rows(self) -> list[tuple[str, str, str]]:
        if not self._path.exists():
            return []
        with contextlib.closing(sqlite3.connect(self._path, timeout=30)) as journal:
            try:
                return journal.execute("SELECT node, event, key FROM events ORDER BY rowid").fetchall()
            except sqlite3.OperationalError:
                return []

    def executions(self) -> Counter[str]:
        return Counter(node for node, event, _ in self.rows() if event == "started")

    def in_flight(self) -> list[str]:
        finished = [node for node, event, _ in self.rows() if event == "finished"]
        return [node for node, event, _ in self.rows() if event == "started" and node not in finished]

    def keys(self, node: str) -> set[str]:
        return {key for name, _, key in self.rows() if name == node}


async def until_both_branches_run(journal: Journal) -> None:
    """`read` is done, both branches are in the middle of their clauses."""
    while not {"legal", "finance"} <= set(journal.in_flight()):
        await asyncio.sleep(0.05)
    await asyncio.sleep(1.5)


async def show(client: HoldfastClient, run_id: str, began: float) -> None:
    async for transition in client.follow(run_id):
        if isinstance(transition, NodeCompleted):
            again = f"   [yellow]attempt {transition.attempts}[/]" if transition.attempts > 1 else ""
            console.print(f"  {time.monotonic() - began:5.1f} s  [green]✓[/] {transition.path}{again}")


async def demo(server: embedded.Running, state: Path, flow: FlowSpec) -> int:
    journal = Journal(Path(os.environ["DEMO_JOURNAL"]))
    client = await HoldfastClient.connect(server.address, task_queue="demo")
    worker = start_worker(server, state, [NODES], "demo")
    began = time.monotonic()
    run_id = await client.start(flow, {"contract": "nda.pdf"})
    console.print(f"[bold]{flow.name}[/]: {len(flow.nodes)} nodes, two branches\n  run     {run_id}")
    console.print(f"  watch   {server.ui_url}/namespaces/default/workflows/{run_id}\n")
    following = asyncio.create_task(show(client, run_id, began))
    await until_both_branches_run(journal)
    before, at_kill = journal.executions(), journal.in_flight()
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    killed = time.monotonic()
    console.print(f"  {killed - began:5.1f} s  [bold red]kill -9 {worker.pid}[/]: {' and '.join(at_kill)} were running")
    successor = start_worker(server, state, [NODES], "demo")
    console.print(
        f"  {time.monotonic() - began:5.1f} s  a new worker, process {successor.pid}, and nothing else is done"
    )
    try:
        result = await client.result(run_id)
        await following
    finally:
        embedded.stop(successor)
    console.print(f"\n[bold]{result.output['report']['output']}[/]\n")
    return await report(client, run_id, flow, journal, before, at_kill)


async def report(
    client: HoldfastClient, run_id: str, flow: FlowSpec, journal: Journal, before: Counter[str], at_kill: list[str]
) -> int:
    """The table, and the truth of it: anything executed twice that should not have been is an error."""
    checkpoint = await client.latest_checkpoint(run_id)
    executions = journal.executions()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("node", "type", "when the worker died", "attempts", "executions", "idempotency keys"):
        table.add_column(column)
    wrong: list[str] = []
    for node in flow.nodes:
        state = checkpoint.node_states[node.id]
        where = "in flight" if node.id in at_kill else "done" if before[node.id] else "not started"
        expected = 0 if state.status == "skip" or not executions[node.id] else 2 if node.id in at_kill else 1
        counted = executions[node.id]
        if counted != expected or len(journal.keys(node.id)) > 1:
            wrong.append(node.id)
        pure = "pure" if state.status != "skip" else "skipped"
        table.add_row(
            node.id,
            node.type,
            where,
            str(state.attempts or "–"),
            str(counted) if counted else pure,
            str(len(journal.keys(node.id)) or "–"),
        )
    console.print(table)
    console.print("\n[bold]checkpoints[/] (each can be read and resumed from)")
    for summary in reversed(await client.list_checkpoints(run_id)):
        console.print(
            f"  @{summary.sequence_number:<3} {summary.event:<15} {summary.node_id or '':<16} "
            f"{summary.completed}/{summary.total}"
        )
    console.print(
        f"\nLook at it:  {COMMAND} show {run_id}\n"
        f"             {COMMAND} checkpoint {run_id}@{checkpoint.sequence_number - 3}\n"
        f"             {COMMAND} dev   (and the link above, for the Temporal Web UI)",
        soft_wrap=True,
    )
    if wrong:
        console.print(f"[bold red]executed more often than they should have been: {', '.join(wrong)}[/]")
        return 1
    console.print(
        "\n[bold green]Nothing lost, nothing twice:[/] what was done stayed done; "
        "what was in flight ran again, with the same key."
    )
    return 0


def paid_calls(journal: Path) -> list[str]:
    """The keys of the model's calls, as the model counted them."""
    return [json.loads(line)["key"] for line in journal.read_text().splitlines()] if journal.exists() else []


async def agent_demo(server: embedded.Running, state: Path, llm_journal: Path) -> int:
    """The same for an agent: it is killed in its eighth tool call, after eight paid calls of its model."""
    journal = Journal(Path(os.environ["DEMO_JOURNAL"]))
    client = await HoldfastClient.connect(server.address, task_queue="demo")
    worker = start_worker(server, state, [TOOLS], "demo")
    began = time.monotonic()
    flow = survey_agent.flow.spec()
    run_id = await client.start(flow, {"input": "Where is the current strongest?"})
    console.print(f"\n[bold]{flow.name}[/]: an agent, 15 calls of its model\n  run     {run_id}\n")
    half = f"surveyor/measure-{survey_agent.STATIONS // 2 + 1}"
    while half not in journal.in_flight():
        await asyncio.sleep(0.02)
    paid = len(paid_calls(llm_journal))
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    console.print(
        f"  {time.monotonic() - began:5.1f} s  [bold red]kill -9 {worker.pid}[/]: {paid} calls of the model were paid, "
        f"tool call {survey_agent.STATIONS // 2 + 1} was running"
    )
    successor = start_worker(server, state, [TOOLS], "demo")
    try:
        result = await client.result(run_id)
    finally:
        embedded.stop(successor)
    answer = result.output["surveyor"]["output"]["content"]
    console.print(f"  {time.monotonic() - began:5.1f} s  [green]✓[/] {answer}\n")
    return agent_report(run_id, journal, paid_calls(llm_journal), half)


def agent_report(run_id: str, journal: Journal, paid: list[str], half: str) -> int:
    tools = {node: count for node, count in journal.executions().items() if node.startswith("surveyor/")}
    again = [node for node, count in tools.items() if count > 1]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("", "made", "run again"):
        table.add_column(column)
    once = "paid once" if len(paid) == len(set(paid)) else "[red]paid twice[/]"
    table.add_row(f"LLM calls: {len(set(paid))}, {once}", str(len(paid)), str(len(paid) - len(set(paid))))
    table.add_row(f"tool calls: {len(tools)}", str(sum(tools.values())), "in flight, same key" if again else "–")
    console.print(table)
    console.print(f"\nLook at it:  {COMMAND} show {run_id}", soft_wrap=True)
    if len(paid) != survey_agent.STATIONS + 1 or len(set(paid)) != len(paid) or again != [half]:
        console.print("[bold red]an LLM call was paid twice, or a tool ran again that had finished[/]")
        return 1
    return 0


def main() -> int:
    flow = read_flow((EXAMPLES / "contract_review.yaml").read_text(), "examples/contract_review.yaml")
    state = embedded.home()
    state.mkdir(parents=True, exist_ok=True)
    journal, llm_journal = state / f"demo-{os.getpid()}.db", state / f"demo-{os.getpid()}.jsonl"
    os.environ |= {"DEMO_JOURNAL": str(journal), "HOLDFAST_SCRIPTED_JOURNAL": str(llm_journal)}
    try:
        with embedded.server(state) as server:
            return asyncio.run(demo(server, state, flow)) or asyncio.run(agent_demo(server, state, llm_journal))
    finally:
        journal.unlink(missing_ok=True)
        llm_journal.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
