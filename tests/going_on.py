"""The central promise, as a check for any flow: it goes on from every point of a run, ends the same, repeats nothing.

Runs in the simulator, with the real drivers. Every sequence number of an undisturbed run is resumed from, and every
one is where another run is carried over into a new execution.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoints.ledger import Transition
from holdfast.checkpoints.models import CheckpointRecord
from holdfast.checkpoints.validation import validate_checkpoint
from holdfast.contracts.calls import FlowResult, FlowStart, NodeCall, NodeReply
from holdfast.contracts.messages import ModelCall, ModelReply, Usage
from holdfast.engine.ports import NodeError
from holdfast.engine.simulator import Scripted, Simulation
from holdfast.flows.check import ensure
from holdfast.flows.spec import FlowSpec, NodeSpec


def flow(*nodes: dict[str, Any], **fields: Any) -> FlowSpec:
    """A sound flow of these nodes."""
    return ensure(FlowSpec.model_validate({"id": "flow", "nodes": nodes, **fields}))


def calls(*wanted: tuple[str, Any], **fields: Any) -> dict[str, Any]:
    """A scripted reply that calls tools."""
    return {"tool_calls": [{"name": name, "arguments": arguments} for name, arguments in wanted], **fields}


class Watched(Simulation):
    """Notes what was asked, and at every transition which executions had ended by then.

    `tokens` is what each model call is said to have used: a long conversation, for summaries.
    """

    def __init__(
        self,
        flow: FlowSpec,
        script: Mapping[str, Scripted],
        *,
        tokens: Sequence[int] = (),
        run_id: str = "run",
        park_after: int | None = None,
    ) -> None:
        super().__init__(flow, script, run_id=run_id, park_after=park_after)
        self.asked: list[ModelCall] = []
        self.given: dict[str, NodeCall] = {}
        self.ended: list[str] = []
        self.ended_by: dict[int, list[str]] = {}
        self.events: list[str] = []
        self.started: list[tuple[str, FlowStart]] = []
        self.children: dict[str, Watched] = {}
        self._tokens = tokens

    async def call_model(self, node: NodeSpec, call: ModelCall) -> ModelReply:
        self.asked.append(call)
        try:
            reply = await super().call_model(node, call)
        except NodeError:
            self.ended.append(call.path)
            raise
        self.ended.append(call.path)
        if not self._tokens:
            return reply
        number = sum(entry["role"] == "assistant" for entry in call.messages)
        used = self._tokens[min(number, len(self._tokens) - 1)]
        return reply.model_copy(update={"usage": Usage(llm_calls=1, prompt_tokens=used, total_tokens=used)})

    async def run_child(self, node: NodeSpec, start: FlowStart, run_id: str) -> FlowResult:
        self.started.append((run_id, start))
        result = await super().run_child(node, start, run_id)
        # Of what a run inside this one has done, this one knows nothing before it ends.
        self.executed += self.children[run_id].executed
        self.ended += self.children[run_id].executed
        return result

    def inside(self, flow: FlowSpec, script: Mapping[str, Scripted], run_id: str) -> Simulation:
        self.children[run_id] = child = self.like(flow, script, run_id)
        return child

    def like(self, flow: FlowSpec, script: Mapping[str, Scripted], run_id: str) -> "Watched":
        """One of its own kind."""
        return Watched(flow, script, tokens=self._tokens, run_id=run_id)

    async def _perform(self, call: NodeCall) -> NodeReply:
        self.given[call.path] = call
        before = len(self.executed)
        try:
            reply = await super()._perform(call)
        except NodeError:
            self.ended.append(call.path)
            raise
        # Opening an agent is no execution: it may be done again at any time.
        self.ended += [call.path] if call.path in self.executed[before:] else []
        return reply

    def recorded(self, transition: Transition) -> None:
        self.ended_by[transition.seq] = list(self.ended)
        self.events.append(f"{getattr(transition, 'event', transition.kind)} {transition.path}".strip())


def essence(state: CheckpointRecord) -> dict[str, Any]:
    """All that a run leaves behind, without what says when it was and in which execution.

    `run_depends` says who contributed last; of two that run side by side that is a matter of time.
    """
    nodes = {
        path: {
            **known.model_dump(include={"status", "input_data", "output_data", "error"}),
            **{name: value for name, value in known.internal_state.items() if name != "run_depends"},
        }
        for path, known in state.node_states.items()
    }
    return {"status": state.status, "nodes": nodes, "usage": state.metadata.get("usage")}


def carried(state: CheckpointRecord) -> CheckpointRecord:
    """The checkpoint as it comes back from a store."""
    return CheckpointRecord.model_validate_json(state.model_dump_json())


def goes_on_from_everywhere(
    flow: FlowSpec, script: Mapping[str, Scripted], input_data: Any = None, **options: Any
) -> Watched:
    """Fails where a run that was resumed or carried over is not the same; returns the undisturbed run."""
    whole = Watched(flow, script, **options)
    last = whole.run(input_data)
    every = sorted(whole.executed)
    assert len(set(every)) == len(every), "the undisturbed run itself does something twice"
    for seq in range(1, last.sequence_number + 1):
        checkpoint = whole.ledger.at(seq)
        assert validate_checkpoint(checkpoint) == []

        # The same run id: a child's run id, which is in the state, is made of it.
        resumed = Watched(flow, script, **options)
        again = resumed.run(base=carried(checkpoint))

        had_ended = whole.ended_by.get(seq, [])
        assert essence(again) == essence(last), f"resumed from {seq}"
        assert sorted([*had_ended, *resumed.executed]) == every, f"resumed from {seq}"

        parked = Watched(flow, script, park_after=seq, **options)
        moved = parked.run(input_data)

        assert essence(moved) == essence(last), f"carried over at {seq}"
        assert sorted(parked.executed) == every, f"carried over at {seq}"
    return whole
