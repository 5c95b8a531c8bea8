"""The map: the same node for every item of a list, in a window of `max_workers`.

Up to a limit the items run in this execution. Beyond it batches of them are runs of their own, so that the history of
none grows without bound; the map then keeps only their results.
"""

from collections import deque
from typing import Any

from holdfast.checkpoints.items import carry_items
from holdfast.checkpoints.ledger import NodeCompleted, NodeFailed, NodeStarted
from holdfast.checkpoints.models import CheckpointRecord, NodeRecord, RunnableStatus, RunStatus
from holdfast.contracts.calls import FlowResult, FlowStart, NodeReply
from holdfast.contracts.results import unpack
from holdfast.engine.people import run_inside
from holdfast.engine.ports import NodeError
from holdfast.engine.scope import Job, NodeDriver, Scope
from holdfast.flows import selectors
from holdfast.flows.composites import MapParams
from holdfast.flows.ids import checkpoint_id, item_of
from holdfast.flows.kinds import is_fusable
from holdfast.flows.shapes import is_array, is_object
from holdfast.flows.spec import FlowSpec, NodeSpec

_PURE_CHUNK = 100
_MOST_CHILDREN = 4


async def run_map(scope: Scope, job: Job) -> NodeReply:
    """From the beginning, or with the items that are not done yet."""
    return await _Map(scope, job).run()


class _Map(NodeDriver):
    def __init__(self, scope: Scope, job: Job) -> None:
        super().__init__(scope, job)
        self._params = MapParams.model_validate(job.node.params)
        self._items = self._list()
        self._indices = self._params.indices or list(range(len(self._items)))
        # A batch only reports its failures: they are for the map it belongs to, which judges all of them.
        self._stops = self._params.behavior == "raise" and self._params.indices is None

    def _list(self) -> list[Any]:
        data = self._job.input_data
        if self._params.items is not None:
            found = selectors.find(self._params.items, data)
        else:
            found = data.get("input") if is_object(data) else data
        if not is_array(found):
            where = self._params.items or "the field 'input'"
            message = f"a map needs a list, and {where} is {found!r:.100}; name the list with 'items'"
            raise NodeError({"type": "NotAList", "message": message})
        return list(found)

    async def run(self) -> NodeReply:
        if "total_iterations" not in self._state:
            self._advance("map_opened", assign=_opened(len(self._items)))
        elif self._job.again and self._stops and self._state["failed_iterations"]:
            self._advance("map_resumed", assign={"failed_iterations": {}})
        self._forget_settled()
        if len(self._items) > self._params.inline_limit:
            await self._run_batches()
        else:
            await self._run_inline()
        failed = self._state["failed_iterations"]
        if failed and self._stops:
            first = min(failed, key=int)
            message = f"{len(failed)} of {len(self._items)} items failed; item {first}: {failed[first].get('message')}"
            indices = sorted(map(int, failed))
            raise NodeError({"type": "MapFailed", "message": message, "failed_iterations": indices[:1000]})
        return self._reply()

    def _reply(self) -> NodeReply:
        done, failed = self._state["completed_iterations"], self._state["failed_iterations"]
        output = {
            "output": [done.get(str(index)) for index in self._indices],
            "failed_iterations": sorted(map(int, failed)),
        }
        # The results are in the output now, if nothing transforms it; kept here as well, they would be stored twice.
        kept = {"total_iterations": len(self._items), "failed_iterations": failed}
        if self._job.node.output_transformer is not None and failed:
            kept["completed_iterations"] = done
        children = self._state.get("children")
        return NodeReply(output=output, internal_state=kept | ({"children": children} if children else {}))

    def _pending(self) -> deque[int]:
        """Positions in the list that are neither done nor settled as failed."""
        settled = self._state["completed_iterations"].keys() | self._state["failed_iterations"].keys()
        return deque(position for position, index in enumerate(self._indices) if str(index) not in settled)

    def _forget_settled(self) -> None:
        """A run may end between the result of an item and its being forgotten, or be given the result by hand."""
        settled = self._state["completed_iterations"]
        items = dict.fromkeys(item_of(path, self._job.path) for path in self._scope.ledger.state.node_states)
        for item in items:
            if item in settled:
                self._advance("item_settled", forget=f"{self._job.path}[{item}]")

    def _may_start(self) -> bool:
        return not (self._stops and self._state["failed_iterations"])

    def _position(self, index: int) -> dict[str, Any]:
        done = len(self._state["completed_iterations"]) + len(self._state["failed_iterations"]) + 1
        return {"index": index, "done": done, "total": len(self._items)}

    async def _run_inline(self) -> None:
        pending = self._pending()
        pure = is_fusable(self._params.node)

        async def work() -> None:
            while pending and self._may_start():
                await self._scope.gate.boundary()
                if not pending:
                    return
                if pure:
                    chunk = [pending.popleft() for _ in range(min(_PURE_CHUNK, len(pending)))]
                    await self._run_pure(chunk)
                else:
                    await self._run_item(pending.popleft())

        window = 1 if pure else min(self._params.max_workers, len(pending))
        await self._scope.gate.gather([work() for _ in range(window)])

    def _path(self, position: int) -> str:
        return f"{self._job.path}[{self._indices[position]}]"

    async def _run_item(self, position: int) -> None:
        path, index = self._path(position), self._indices[position]
        try:
            reply = await run_inside(self._scope, self._job.inside(self._params.node, path, self._items[position]))
        except NodeError as error:
            self._fail(index, path, error.error)
        else:
            self._complete(index, path, reply.output, reply.usage)

    def _complete(self, index: int, path: str, output: Any, usage: dict[str, Any] | None = None) -> None:
        self._advance(
            "iteration_completed",
            merge={"completed_iterations": {str(index): output}},
            forget=path,
            usage=usage,
            detail=self._position(index),
        )

    def _fail(self, index: int, path: str, error: dict[str, Any]) -> None:
        # Where the map is to fail, what the item had done is kept: a resume goes on there.
        forget = path if self._params.behavior == "return" else None
        self._advance(
            "iteration_failed",
            merge={"failed_iterations": {str(index): error}},
            forget=forget,
            detail=self._position(index),
        )

    async def _run_pure(self, positions: list[int]) -> None:
        node = self._params.node
        nodes = [node.model_copy(update={"id": self._path(position), "depends": []}) for position in positions]
        inputs = {
            self._path(position): selectors.transform(node.input_transformer, self._items[position])
            for position in positions
        }
        for position, outcome in zip(positions, await self._scope.run_pure(nodes, inputs), strict=True):
            index, path = self._indices[position], self._path(position)
            if outcome.status == "success":
                self._complete(index, path, outcome.output)
            else:
                self._fail(index, path, outcome.error or {})

    async def _run_batches(self) -> None:
        pending = self._pending()
        size = self._params.batch_size
        batches = deque([list(pending)[start : start + size] for start in range(0, len(pending), size)])
        side_by_side = min(_MOST_CHILDREN, len(batches), self._params.max_workers)
        window = max(1, self._params.max_workers // max(1, side_by_side))

        async def work() -> None:
            while batches and self._may_start():
                await self._scope.gate.boundary()
                if not batches:
                    return
                await self._run_batch(batches.popleft(), window)

        await self._scope.gate.gather([work() for _ in range(side_by_side)])

    async def _run_batch(self, positions: list[int], window: int) -> None:
        scope, indices = self._scope, [self._indices[position] for position in positions]
        run_id = f"{scope.run_id}/{self._job.path}[{indices[0]}-{indices[-1]}]"
        self._advance("batch_started", merge={"children": {run_id: {"status": RunStatus.RUNNING}}})
        inside = {"max_workers": window, "inline_limit": len(positions), "items": None, "indices": indices}
        node = NodeSpec(id=self._job.node.id, type="map", params={**self._job.node.params, **inside})
        start = FlowStart(
            flow=FlowSpec(id=scope.flow_id, nodes=[node]),
            input_data={"input": [self._items[position] for position in positions]},
            key_base=scope.key(self._job.path),
            parent_checkpoint_id=checkpoint_id(scope.run_id, scope.ledger.seq),
        )
        carried = self._carry(start, node.id, run_id, indices)
        shown = self._job.node.model_copy(update={"name": f"{self._job.path}[{indices[0]}-{indices[-1]}]"})
        result = await scope.ports.run_child(shown, start, run_id)
        failed = self._take_batch(run_id, indices, result)
        for path in carried:
            self._advance("item_settled", forget=path)
        if failed and self._params.behavior == "raise":
            self._keep_failed(node.id, result, failed)

    def _carry(self, start: FlowStart, node_id: str, run_id: str, indices: list[int]) -> list[str]:
        """Gives a batch what an earlier run had done of items that it was in the middle of; says which those are."""
        scope, path, now = self._scope, self._job.path, self._scope.now()
        base = CheckpointRecord(
            id=start.parent_checkpoint_id or "",
            flow_id=scope.flow_id,
            run_id=run_id,
            pending_node_ids=[node_id],
            original_input=start.input_data,
            created_at=now,
            updated_at=now,
        )
        known = [*carry_items(scope.ledger.state, path, base, node_id, indices), *base.metadata.get("approvals", {})]
        if not known and not base.metadata:
            return []
        base.node_states[node_id] = NodeRecord(
            node_id=node_id,
            node_type="map",
            status=RunnableStatus.UNDEFINED,
            input_data=start.input_data,
            internal_state=_opened(len(indices)),
        )
        start.base, start.resumed_from = base, base.id
        start.children = {
            f"{node_id}{name.removeprefix(path)}": known
            for name, known in scope.children.items()
            if item_of(name, path) in set(map(str, indices))
        }
        items = dict.fromkeys(item_of(name, node_id) for name in known)
        return [f"{path}[{item}]" for item in items]

    def _keep_failed(self, node_id: str, result: FlowResult, failed: list[int]) -> None:
        """What failed items had done is in this run from now on: a resume goes on there, as with items inside a run."""
        record, scope = CheckpointRecord.model_validate(unpack(result)), self._scope
        kept = record.fork(node_states={})
        for path in carry_items(record, node_id, kept, self._job.path, failed):
            known, at = kept.node_states[path], scope.now()
            state, attempts = known.internal_state, known.attempts
            scope.record(
                NodeStarted(
                    at=at, path=path, node_type=known.node_type, input_data=known.input_data, internal_state=state
                )
            )
            if known.status == RunnableStatus.FAILURE:
                error = known.error or {}
                scope.record(
                    NodeFailed(at=at, path=path, error=error, internal_state=state, attempts=attempts, handled=True)
                )
            elif known.status == RunnableStatus.SUCCESS:
                output = known.output_data
                scope.record(
                    NodeCompleted(at=at, path=path, output_data=output, internal_state=state, attempts=attempts)
                )

    def _take_batch(self, run_id: str, indices: list[int], result: FlowResult) -> list[int]:
        """Takes its results; says which items failed."""
        node_id = self._job.node.id
        outcome = result.output.get(node_id)
        if outcome is None or not is_object(outcome.output):
            error = (outcome.error if outcome is not None else None) or {"message": f"the run {run_id} has no result"}
            raise NodeError({"type": "BatchFailed", **error, "child_run_id": run_id})
        failed: dict[str, Any] = result.checkpoint["node_states"][node_id]["internal_state"]["failed_iterations"]
        done = {
            str(index): output
            for index, output in zip(indices, outcome.output["output"], strict=True)
            if str(index) not in failed
        }
        settled = len(self._state["completed_iterations"]) + len(self._state["failed_iterations"]) + len(indices)
        self._advance(
            "batch_completed",
            merge={
                "completed_iterations": done,
                "failed_iterations": failed,
                "children": {run_id: {"status": result.status}},
            },
            usage=result.checkpoint.get("metadata", {}).get("usage"),
            detail={"done": settled, "total": len(self._items)},
        )
        return list(map(int, failed))


def _opened(total: int) -> dict[str, Any]:
    """The state that a map begins with."""
    return {"total_iterations": total, "completed_iterations": {}, "failed_iterations": {}}
