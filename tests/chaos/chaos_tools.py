"""A tool that leaves traces: every execution in the journal, and its effect once for every idempotency key."""

import os
from pathlib import Path

from holdfast import tool
from tests.chaos.chaos_nodes import hold, note


@tool
def step(number: int, run_id: str, idempotency_key: str, attempt: int) -> str:
    """Does one step."""
    context = {"run_id": run_id, "node_id": f"step-{number}", "idempotency_key": idempotency_key, "attempt": attempt}
    note("started", context)
    hold("started", context)
    effects = Path(os.environ["CHAOS_CONTROL"]).with_name("effects")
    effects.mkdir(exist_ok=True)
    (effects / idempotency_key.replace("/", "~")).touch()
    note("finished", context)
    hold("finished", context)
    return f"step {number} is done"
