"""parked: ten thousand runs that wait for people cost a worker nothing, and none is lost.

A worker keeps the workflows it has seen last; the others are in the server, and so are their questions.
"""

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.measuring import Line
from benchmarks.stage import FLOWS
from holdfast.contracts.people import HumanAnswer
from holdfast.flows.spec import FlowSpec, NodeSpec
from holdfast.starter import embedded
from holdfast.starter.client import HoldfastClient

_MANY = int(os.environ.get("BENCH_PARKED", "10000"))
_FEW = 100
_ANSWERED = 100
_AT_ONCE = 40
_PAGE = 50
FLOW = FlowSpec(
    id="parked",
    nodes=[
        NodeSpec(id="ask", type="human", params={"prompt": "May we?", "kind": "approval"}),
        NodeSpec.model_validate({"id": "end", "type": "pass", "depends": [{"node": "ask"}]}),
    ],
)


class _Machine:
    """A server on files of its own and a worker beside it, to be killed together and put up again."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._ports = (embedded.free_port(), embedded.free_port())

    async def up(self) -> HoldfastClient:
        self.server, running = embedded.start(self._directory, *self._ports)
        client = await HoldfastClient.connect(running.address, task_queue=FLOWS)
        arguments = ["--address", running.address, "--task-queue", FLOWS]
        self.worker = subprocess.Popen(
            [sys.executable, "-m", "holdfast.worker", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        return client

    def kill(self) -> None:
        for process in (self.worker, self.server):
            process.kill()
            process.wait()

    def memory(self) -> float:
        """What the worker holds, in megabytes."""
        pages = int(Path(f"/proc/{self.worker.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def _park(client: HoldfastClient, first: int, last: int) -> None:
    """Starts runs until there are `last`, and waits until all of them wait."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def start(number: int) -> None:
        async with turn:
            await client.start(FLOW, {}, run_id=f"parked-{number}")

    await asyncio.gather(*(start(number) for number in range(first, last)))
    query = "HoldfastStatus = 'pending_input' AND ExecutionStatus = 'Running'"
    while (await client.temporal.count_workflows(query)).count < last:
        await asyncio.sleep(1)
    print(f"  {last} runs wait", file=sys.stderr, flush=True)
    await asyncio.sleep(3)


async def _timed_inbox(client: HoldfastClient) -> float:
    taken: list[float] = []
    for _ in range(5):
        begun = time.perf_counter()
        assert len(await client.inbox(limit=_PAGE)) == _PAGE
        taken.append(time.perf_counter() - begun)
    return sorted(taken)[2]


async def parked() -> list[Line]:
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-parked-") as name:
        machine = _Machine(Path(name))
        client = await machine.up()
        try:
            return await _measure(machine, client)
        finally:
            machine.kill()


async def _measure(machine: _Machine, client: HoldfastClient) -> list[Line]:
    await _park(client, 0, _FEW)
    few = machine.memory()
    await _park(client, _FEW, _MANY)
    many = machine.memory()
    inbox = await _timed_inbox(client)
    machine.kill()
    client = await machine.up()
    chosen = [f"parked-{number}" for number in random.Random(7).sample(range(_MANY), _ANSWERED)]
    completed = await asyncio.gather(*(_answer(client, run_id) for run_id in chosen))
    left = await client.temporal.count_workflows("HoldfastStatus = 'pending_input' AND ExecutionStatus = 'Running'")
    memory = {"few_mb": round(few, 1), "many_mb": round(many, 1), "few": _FEW, "many": _MANY}
    counts: dict[str, Any] = {"answered": _ANSWERED, "still_waiting": left.count}
    return [
        Line("parked_memory", many / few, f"x {_FEW} parked", "at most", 1.5, memory),
        Line("parked_inbox", inbox, "s for a page", "at most", 1.0, {"page": _PAGE, "waiting": _MANY}),
        Line("parked_answered", sum(completed), "of 100 complete", "at least", _ANSWERED, counts),
    ]


async def _answer(client: HoldfastClient, run_id: str) -> bool:
    await client.send_input(run_id, HumanAnswer(is_approved=True), entity_id="ask", by="bench")
    return (await client.result(run_id)).output["end"]["status"] == "success"
