"""`python -m benchmarks [NAME…] [--json]`: runs benchmarks and says which bars are missed.

Exit codes: 0 all bars are met, 1 one is missed or a benchmark could not run, 2 wrong usage.
"""

import argparse
import asyncio
import json
import logging
import sys
import traceback
from collections.abc import Awaitable, Callable

from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

from benchmarks.command_line import cli
from benchmarks.growth import growth
from benchmarks.mapping import mapping
from benchmarks.measuring import Line, compiled
from benchmarks.parked import parked
from benchmarks.payloads import payloads
from benchmarks.reading import read
from benchmarks.resuming import resume
from benchmarks.stepping import chain, concurrent, fanout

BENCHMARKS: dict[str, Callable[[], Awaitable[list[Line]]]] = {
    "chain": chain,
    "fanout": fanout,
    "concurrent": concurrent,
    "map": mapping,
    "growth": growth,
    "payloads": payloads,
    "parked": parked,
    "read": read,
    "resume": resume,
    "cli": cli,
}


def _show(line: Line) -> str:
    bar = f"{line.limit} {line.bar:g}"
    shown = f"{line.name:<12} {line.value:>8.3f}  {line.unit:<18} {bar:<14} {'ok' if line.ok else 'MISSED'}"
    against = line.extra.get("unsandboxed")
    return shown if against is None else f"{shown:<64} ({against:.3f} against bare without the sandbox)"


async def _run(name: str, *, as_json: bool) -> bool:
    """Whether it ran and every bar was met."""
    print(f"{name} …", file=sys.stderr, flush=True)
    try:
        lines = await BENCHMARKS[name]()
    except Exception as error:
        # One that cannot run must not hide the figures of the others.
        traceback.print_exc()
        failed = {"name": name, "value": None, "unit": "", "bar": None, "ok": False, "error": str(error)}
        print(json.dumps(failed) if as_json else f"{name:<12} could not run: {error}", flush=True)
        return False
    for line in lines:
        print(json.dumps(line.as_json()) if as_json else _show(line), flush=True)
    return all(line.ok for line in lines)


async def _run_all(chosen: list[str], *, as_json: bool) -> bool:
    return all([await _run(name, as_json=as_json) for name in chosen])


def _keep_stdout() -> None:
    """Temporal's core writes its log to stdout, where the figures go."""
    forwarding = LogForwardingConfig(logging.getLogger("temporal"))
    log = LoggingConfig(TelemetryFilter(core_level="WARN", other_level="ERROR"), forwarding)
    Runtime.set_default(Runtime(telemetry=TelemetryConfig(logging=log)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Holdfast against bare Temporal.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which: {', '.join(BENCHMARKS)} (all by default)")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"there is no benchmark {unknown[0]!r}; there are: {', '.join(BENCHMARKS)}")
    _keep_stdout()
    with compiled():
        return 0 if asyncio.run(_run_all(options.names or list(BENCHMARKS), as_json=options.json)) else 1


if __name__ == "__main__":
    sys.exit(main())
