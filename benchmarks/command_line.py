"""cli: how long a person waits for `holdfast --help`."""

import asyncio
import statistics
import sys
from pathlib import Path

from benchmarks.measuring import Line, alternate, times

_PROGRAM = Path(sys.executable).parent / "holdfast"


async def _help() -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(_PROGRAM, "--help", stdout=pipe, stderr=pipe)
    text, complaint = await process.communicate()
    if process.returncode != 0 or not text:
        raise RuntimeError(f"{_PROGRAM} --help ended with {process.returncode}:\n{complaint.decode()[-1000:]}")


async def cli() -> list[Line]:
    taken = await alternate({"help": _help}, rounds=10)
    return [Line("cli", statistics.median(taken["help"]), "s", "at most", 0.3, times(taken))]
