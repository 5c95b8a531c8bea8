"""map: a thousand items against a bare fan-out, and ten thousand that lose their worker on the way."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.bare_workflows import BareFanout
from benchmarks.measuring import Line, alternate, ratio, times
from benchmarks.stage import BARE, BARE_UNSANDBOXED, FLOWS, Stage, stage
from benchmarks.steps import JOURNAL, BenchItem
from holdfast.flows.spec import FlowSpec, NodeSpec

_ITEMS = 1000
_MANY = 10_000
_WINDOW = 100
_EARLY = 1000
_KILL_AT = 0.6


def map_of(window: int) -> FlowSpec:
    """Every item is one trivial node."""
    params = {"node": {"id": "item", "type": BenchItem.type}, "max_workers": window}
    return FlowSpec(id="map", nodes=[NodeSpec(id="each", type="map", params=params)])


async def _run_map(on: Stage, flow: FlowSpec, count: int) -> None:
    result = await on.run_flow(flow, input_data={"input": list(range(count))})
    assert result["each"]["output"]["output"] == [{"number": number + 1} for number in range(count)]


async def _run_bare(on: Stage, task_queue: str) -> None:
    assert len(await on.run_bare(BareFanout, _ITEMS, task_queue)) == _ITEMS


async def mapping() -> list[Line]:
    flow = map_of(_ITEMS)
    async with stage() as on:
        async with on.all_workers():
            taken = await alternate(
                {
                    "holdfast": lambda: _run_map(on, flow, _ITEMS),
                    "bare": lambda: _run_bare(on, BARE),
                    "bare_unsandboxed": lambda: _run_bare(on, BARE_UNSANDBOXED),
                },
                rounds=9,
            )
        against = {"unsandboxed": round(ratio(taken, "holdfast", "bare_unsandboxed"), 4)}
        line = Line("map", ratio(taken, "holdfast", "bare"), "x bare", "at most", 1.2, {**against, **times(taken)})
        return [line, await _killed(on)]


async def _killed(on: Stage) -> Line:
    """Ten thousand items; the worker dies when six thousand have run. What had completed must not run again."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-map-") as name:
        journal = Path(name) / "items"
        journal.touch()
        worker = _worker(on, journal)
        running = asyncio.create_task(_run_map(on, map_of(_WINDOW), _MANY))
        try:
            await _until(journal, _EARLY, running)
            memory = {f"rss_mb_at_{_EARLY}": _memory(worker)}
            await _until(journal, round(_MANY * _KILL_AT), running)
            memory[f"rss_mb_at_{round(_MANY * _KILL_AT)}"] = _memory(worker)
            worker.kill()
            worker.wait()
            worker = _worker(on, journal)
            await running
            memory["rss_mb_second_worker"] = _memory(worker)
        finally:
            worker.kill()
            worker.wait()
        counts = Counter(journal.read_text().split())
    again = sum(number - 1 for number in counts.values())
    extra = {"items": _MANY, "executions": counts.total(), "killed_at": _KILL_AT, "window": _WINDOW, **memory}
    assert len(counts) == _MANY
    return Line("map_killed", again, "items run twice", "at most", _WINDOW, extra)


async def _until(journal: Path, items: int, running: asyncio.Task[None]) -> None:
    """Waits until so many items have run, and not for ever: a run that fails before is raised here."""
    while journal.read_bytes().count(b"\n") < items:
        if running.done():
            await running
            raise AssertionError(f"the run ended before {items} items had run")
        await asyncio.sleep(0.05)


def _memory(process: subprocess.Popen[Any]) -> float:
    """What the process holds now (its resident set), in megabytes."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return round(int(kilobytes) / 1024, 1)


def _worker(on: Stage, journal: Path) -> subprocess.Popen[Any]:
    address = on.client.service_client.config.target_host
    arguments = ["--address", address, "--task-queue", FLOWS, "--load", "benchmarks.steps"]
    return subprocess.Popen(
        [sys.executable, "-m", "holdfast.worker", *arguments],
        env={**os.environ, JOURNAL: str(journal)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
