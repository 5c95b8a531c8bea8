"""The tool of the survey: a measurement that takes its time. Every execution is journalled, for the demo to count."""

import time

from examples.contract_nodes import note
from holdfast import tool


@tool(side_effects="read")
def measure(station: int, node_id: str, idempotency_key: str) -> dict[str, float]:
    """Measures the current at a station."""
    note(f"{node_id}-{station}", "started", idempotency_key)
    time.sleep(0.4)
    note(f"{node_id}-{station}", "finished", idempotency_key)
    return {"station": station, "knots": round(1 + station * 7 % 5 / 2, 1)}
