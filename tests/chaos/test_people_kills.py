"""A question outlives everything: the worker that asked it, the server that keeps it, and the wait in between."""

import pytest

from holdfast import HoldfastClient
from holdfast.contracts import names
from holdfast.contracts.calls import FlowResult
from holdfast.contracts.people import HumanAnswer
from holdfast.flows.reading import read_flow
from holdfast.starter import embedded
from tests.chaos.harness import Stage, connected, executions, lasting_port, result_of, start_run, until

FLOW = read_flow("""
id: expense
nodes:
  read: {type: Work}
  pay: {type: Work, depends: read, approval: {enabled: true, prompt: "Pay?", editable: [amount]}}
  other: {type: Work, depends: read}
  done: {type: Work, depends: [pay, other]}
""")


@pytest.mark.req("RT-5", "EX-2", "PR-7")
async def test_a_question_survives_the_worker_and_the_server_and_is_answered_once(stage: Stage) -> None:
    state, port = stage.root / "temporal", lasting_port()
    with embedded.server(state, port, 0) as server:
        client = HoldfastClient(await connected(server.address), stage.queue)
        worker = await stage.start_worker(server.address).ready()
        handle = await start_run(client.temporal, stage, FLOW, {"amount": 10}, name="expense")

        async def waits() -> bool:
            # In the checkpoint: a node that has only just finished may not have been heard by the server.
            done = (await client.latest_checkpoint(handle.id)).completed_node_ids
            return bool(await client.inbox(handle.id)) and "other" in done

        await until(waits, "the question, and the branch beside it")
        (request,) = await client.inbox(handle.id)
        worker.kill()
    # The server has ended too; both come back on the same files.
    with embedded.server(state, port, 0) as server:
        client = HoldfastClient(await connected(server.address), stage.queue)
        (again,) = await client.inbox(handle.id)
        message = {"request_id": request.id, "data": {"is_approved": True, "data": {"amount": 7}}, "by": "ada"}
        # Nobody is there to confirm it: the server keeps it, three times over.
        handle = client.temporal.get_workflow_handle(handle.id, result_type=FlowResult)
        for _ in range(3):
            await handle.signal(names.SIGNAL_INPUT, message)
        successor = await stage.start_worker(server.address).ready()
        result = await result_of(handle)
        ran = {node: len(entries) for node, entries in executions(stage.entries(handle.id)).items()}
        record = await client.latest_checkpoint(handle.id)
        with pytest.raises(RuntimeError, match="already answered by ada"):
            await client.send_input(handle.id, HumanAnswer(is_approved=False), request_id=request.id)

    assert again.id == request.id
    assert result.output["pay"].input["amount"] == 7
    assert ran == {"read": 1, "pay": 1, "other": 1, "done": 1}
    assert record.answered_inputs[request.id]["by"] == "ada"
    assert successor.pid != worker.pid
