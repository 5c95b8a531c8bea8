"""Which driver runs which composite kind."""

from holdfast.engine.agent import run_agent
from holdfast.engine.maps import run_map
from holdfast.engine.nested import run_flow
from holdfast.engine.orchestrators import run_graph, run_linear
from holdfast.engine.people import run_human
from holdfast.engine.scope import Driver

DRIVERS: dict[str, Driver] = {
    "human": run_human,
    "agent": run_agent,
    "map": run_map,
    "flow": run_flow,
    "graph-orchestrator": run_graph,
    "linear-orchestrator": run_linear,
}
