"""`holdfast check` and `simulate`: no server is touched."""

import argparse
from typing import Any

import yaml
from pydantic import ValidationError

from holdfast.checkpoints.models import CheckpointStatus
from holdfast.engine.simulator import Scripted, Simulation
from holdfast.flows.faults import FlowDefinitionError
from holdfast.flows.shapes import is_object
from holdfast.starter.cli.outcomes import FAILED, FINISHED, USAGE, UsageError, faults_data, print_json
from holdfast.starter.cli.reading import flow_from, input_from, read_text


def check_command(options: argparse.Namespace) -> int:
    try:
        flow = flow_from(options.flow, options.load)
    except FlowDefinitionError as error:
        if not options.json:
            raise
        print_json({"ok": False, "faults": faults_data(error)})
        return USAGE
    if options.json:
        print_json({"ok": True, "faults": [], "flow": flow.id, "nodes": len(flow.nodes)})
    else:
        print(f"flow {flow.id!r} is sound: {len(flow.nodes)} nodes")
    return FINISHED


def _script(path: str | None) -> dict[str, Scripted]:
    if path is None:
        return {}
    try:
        data: Any = yaml.safe_load(read_text(path)) or {}
    except yaml.YAMLError as error:
        raise UsageError(f"[simulate/bad-script] {path} is not YAML: {error}") from error
    if not is_object(data):
        raise UsageError(f"[simulate/bad-script] {path}: a script maps node ids to {{output, error, seconds}}")
    try:
        return {str(node_id): Scripted.model_validate(entry or {}) for node_id, entry in data.items()}
    except ValidationError as error:
        raise UsageError(
            f"[simulate/bad-script] {path}: {error.errors()[0]['msg']} at {error.errors()[0]['loc']}"
        ) from error


def simulate_command(options: argparse.Namespace) -> int:
    flow = flow_from(options.flow)
    script = _script(options.script)
    unknown = sorted(script.keys() - {node.id for node in flow.nodes})
    if unknown:
        raise UsageError(f"[simulate/bad-script] the flow has no node {unknown[0]!r}")
    simulation = Simulation(flow, script)
    state = simulation.run(input_from(options.input))
    start = simulation.started_at
    steps: list[dict[str, Any]] = [
        {
            "seq": step.seq,
            "seconds": (step.at - start).total_seconds(),
            "event": step.kind,
            "node_id": step.path or None,
        }
        for step in simulation.ledger.since(0)
    ]
    if options.json:
        outputs = {node_id: node.output_data for node_id, node in state.node_states.items()}
        print_json({"status": state.status, "executed": simulation.executed, "output": outputs, "transitions": steps})
    else:
        for step in steps:
            print(f"{step['seq']:>4}  {step['seconds']:>12.2f} s  {step['event']:<15} {step['node_id'] or ''}")
        print(f"{state.status}: executed {', '.join(simulation.executed) or 'nothing that touches the world'}")
    return FINISHED if state.status == CheckpointStatus.COMPLETED else FAILED
