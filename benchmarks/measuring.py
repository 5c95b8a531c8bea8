"""Rounds that alternate between the sides, the median of the rounds' ratios, and a line for each figure.

Other programs share the machine, so an absolute time means little: the same chain has taken 0.8 and 1.8 s within one
minute. The sides take turns within the same seconds, in an order that changes (the same in every run), so that what
slows one down slows down the others, and none is always the one that comes after another; and a round is compared
with itself, not with what the machine did a minute later.
"""

import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Limit = Literal["at most", "at least"]
Work = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Line:
    """One figure and its bar: at most or at least so much."""

    name: str
    value: float
    unit: str
    limit: Limit
    bar: float
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def ok(self) -> bool:
        return self.value <= self.bar if self.limit == "at most" else self.value >= self.bar

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "bar": self.bar,
            "ok": self.ok,
            "limit": self.limit,
            **self.extra,
        }


@contextlib.contextmanager
def compiled() -> Generator[None]:
    """Keeps compiled modules, here and in child processes, as on any machine where a package is installed.

    Where Python is told to keep none, it compiles a workflow's module again for every run and a program's at every
    start, and that would be measured instead.
    """
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-pyc-") as directory:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix = directory
        sys.dont_write_bytecode = False
        yield


async def timed(work: Work) -> float:
    """Seconds of wall time."""
    begun = time.perf_counter()
    await work()
    return time.perf_counter() - begun


async def alternate(sides: Mapping[str, Work], rounds: int = 5) -> dict[str, list[float]]:
    """The times of every side, after a round that does not count."""
    for work in sides.values():
        await work()
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in random.Random(number).sample(list(sides), len(sides)):
            taken[name].append(await timed(sides[name]))
            print(f"  {name} {number + 1}/{rounds}: {taken[name][-1]:.3f} s", file=sys.stderr, flush=True)
    return taken


def times(taken: Mapping[str, list[float]]) -> dict[str, Any]:
    """The raw figures behind a ratio, for the extra fields of a line."""
    medians = {f"{name}_seconds": round(statistics.median(found), 4) for name, found in taken.items()}
    rounds = {name: [round(seconds, 4) for seconds in found] for name, found in taken.items()}
    return {**medians, "rounds": rounds}


def ratio(taken: Mapping[str, list[float]], above: str, below: str) -> float:
    """The median of the rounds' own ratios."""
    return statistics.median(over / under for over, under in zip(taken[above], taken[below], strict=True))
