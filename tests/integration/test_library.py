"""The library as people use it in a script or a notebook: no server configured, no worker started by hand."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast import (
    AlreadyResumedError,
    CheckpointConfig,
    CheckpointMixin,
    CheckpointStatus,
    Delay,
    Flow,
    FlowDefinitionError,
    FlowFailedError,
    Node,
    Pass,
    Python,
    RunExistsError,
    RunnableStatus,
    Transform,
    Workflow,
    read_flow,
)
from holdfast.library import _engine  # pyright: ignore[reportPrivateUsage]


@pytest.fixture(autouse=True, scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOLDFAST_HOME", str(tmp_path_factory.mktemp("home")))
        patch.delenv("TEMPORAL_ADDRESS", raising=False)
        yield
        _engine.close()


class FailOnce(Node):
    _calls: int = 0

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        self._calls += 1
        if self._calls == 1:
            raise RuntimeError("Simulated failure")
        return {"result": "success"}


class Counting(Node):
    execution_count: int = 0

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        Counting.execution_count += 1
        return {"count": Counting.execution_count}


@pytest.mark.req("FL-5", "FL-3")
def test_a_failed_flow_is_resumed_from_its_checkpoint_without_repeating_a_node() -> None:
    Counting.execution_count = 0
    first, second = Counting(id="node-1"), FailOnce(id="node-2")
    second.depends = [{"node": first}]
    flow = Flow(nodes=[first, second], checkpoint_config=CheckpointConfig(enabled=True, backend=object()))
    with pytest.raises(RuntimeError, match="node 'node-2' failed: Simulated failure") as caught:
        flow.run_sync(input_data={"query": "test"})
    checkpoint = flow.get_latest_checkpoint()
    assert checkpoint is not None
    Counting.execution_count = 0
    result = flow.run_sync(input_data=None, resume_from=checkpoint.id)

    assert isinstance(caught.value, FlowFailedError)
    assert checkpoint.status == CheckpointStatus.FAILED
    assert checkpoint.completed_node_ids == ["node-1"]
    assert result.status == RunnableStatus.SUCCESS
    assert result.output["node-2"]["output"] == {"result": "success"}
    assert Counting.execution_count == 0


@pytest.mark.req("FL-5", "FL-2")
def test_resuming_a_completed_flow_executes_nothing() -> None:
    flow = Flow(nodes=[Counting(id="a")])
    flow.run_sync({"q": 1})
    Counting.execution_count = 0
    result = Workflow(flow).resume()

    assert result.status == RunnableStatus.SUCCESS
    assert Counting.execution_count == 0


def failed_once() -> tuple[Flow, str]:
    """A flow whose run has failed in its second node, which does not fail again."""
    first, second = Counting(id="first"), FailOnce(id="second")
    flow = Flow(nodes=[first, second.depends_on(first)])
    with pytest.raises(FlowFailedError) as caught:
        flow.run_sync({"q": 1})
    Counting.execution_count = 0
    return flow, caught.value.run_id


@pytest.mark.req("FL-5", "FL-2")
def test_a_run_is_forked_as_often_as_one_likes_and_under_any_name() -> None:
    flow, run_id = failed_once()
    forks = [flow.run_sync(fork_from=run_id), flow.run_sync(fork_from=run_id, run_id=f"{run_id}-mine")]
    checkpoint = flow.get_latest_checkpoint()
    assert checkpoint is not None
    third = flow.run_sync({"q": 2}, fork_from=checkpoint)
    with pytest.raises(RunExistsError, match=f"{run_id}-mine"):
        flow.run_sync(fork_from=run_id, run_id=f"{run_id}-mine")

    assert [fork.output["second"]["output"] for fork in forks] == [{"result": "success"}] * 2
    assert forks[1].run_id == checkpoint.run_id == f"{run_id}-mine"
    assert len({run_id, third.run_id, *(fork.run_id for fork in forks)}) == 4
    assert Counting.execution_count == 0


@pytest.mark.req("RT-7", "FL-5")
async def test_a_run_is_resumed_once_and_the_second_time_names_the_winner() -> None:
    flow, run_id = await asyncio.to_thread(failed_once)
    resumed = await flow.run_async(resume_from=run_id)
    with pytest.raises(AlreadyResumedError, match=f"as '{run_id}~2'") as caught:
        await flow.run_async(resume_from=run_id)

    assert caught.value.winner == resumed.run_id == f"{run_id}~2"
    assert Counting.execution_count == 0


def test_a_run_that_is_resumed_takes_no_other_name() -> None:
    flow, run_id = failed_once()
    with pytest.raises(ValueError, match="a run that is resumed has its own id"):
        flow.run_sync(resume_from=run_id, run_id="mine")
    with pytest.raises(ValueError, match="a run that is resumed has its own id"):
        flow.run_sync(resume_from=run_id, fork_from=run_id)

    assert flow.run_sync(resume_from=run_id).run_id == f"{run_id}~2"


@pytest.mark.req("FL-9")
def test_max_checkpoints_limits_what_is_listed() -> None:
    flow = Flow(nodes=[Counting(id="a")], checkpoint_config=CheckpointConfig(max_checkpoints=3))
    runs = [flow.run_sync({"run": number}).run_id for number in range(3)]
    listed = flow.list_checkpoints()

    assert len(listed) == 3
    assert [checkpoint.run_id for checkpoint in listed] == [runs[2], runs[2], runs[1]]
    assert listed[0].original_input == {"run": 2}


@pytest.mark.req("FL-5")
async def test_flows_run_from_async_code_side_by_side() -> None:
    flows = [Flow(nodes=[Transform(id="t", template="{{ n }}")]) for _ in range(3)]
    results = await asyncio.gather(*(flow.run_async({"n": number}) for number, flow in enumerate(flows)))

    assert [result.output["t"]["output"] for result in results] == ["0", "1", "2"]


@pytest.mark.req("FL-5", "FL-1")
def test_depends_on_and_depends_say_the_same() -> None:
    a = Transform(id="a", template="x")
    b = Pass(id="b").depends_on(a)
    c = Pass(id="c", depends=[{"node": a}])
    spec = Flow(id="f", nodes=[a, b, c]).spec()

    assert spec.node("b").depends == spec.node("c").depends
    assert spec.node("b").depends[0].node == "a"


def test_a_local_function_is_a_node() -> None:
    def double(input_data: Any) -> int:
        return int(input_data["n"]) * 2

    result = Flow(nodes=[Python(id="double", function=double)]).run_sync({"n": 21})

    assert result.output["double"]["output"] == 42


class Stateful(Node, CheckpointMixin):
    threshold: int = 2
    _results: list[int] = []

    def get_checkpoint_state(self) -> dict[str, Any]:
        return {"results": self._results}

    def restore_from_checkpoint(self, state: dict[str, Any]) -> None:
        self._results = state["results"]

    def execute(self, input_data: Any, **kwargs: Any) -> Any:
        self._results.append(self.threshold)
        return {"results": self._results}


@pytest.mark.req("FL-8", "DM-1")
def test_a_custom_nodes_state_is_in_the_checkpoint_and_not_shared_with_others() -> None:
    flow = Flow(nodes=[Stateful(id="one", threshold=1), Stateful(id="two")])
    flow.run_sync()
    checkpoint = flow.get_latest_checkpoint()

    assert checkpoint is not None
    assert checkpoint.node_states["one"].internal_state == {"results": [1]}
    assert checkpoint.node_states["two"].internal_state == {"results": [2]}


def test_mistakes_in_a_definition_are_all_named_before_anything_runs() -> None:
    flow = Flow(nodes=[Delay(id="d", seconds="soon"), Pass(id="p", depends=[{"node": "nobody"}])])
    with pytest.raises(FlowDefinitionError) as caught:
        flow.run_sync()

    assert {fault.code for fault in caught.value.faults} == {"node/bad-field", "flow/unknown-node"}


@pytest.mark.req("FL-5")
def test_a_new_process_finds_the_checkpoints_of_a_flow_with_an_id() -> None:
    Flow(id="remembered", nodes=[Counting(id="a")]).run_sync({"q": 1})
    again = Flow(id="remembered", nodes=[Counting(id="a")])
    listed = again.list_checkpoints()
    while not listed:  # The visibility store lags a little.
        listed = again.list_checkpoints()

    assert listed[0].status == CheckpointStatus.COMPLETED
    assert listed[0].original_input == {"q": 1}


def test_a_flow_built_in_python_is_the_same_in_yaml() -> None:
    a = Transform(id="a", template="{{ n }}")
    flow = Flow(id="both", nodes=[a, Stateful(id="b", threshold=5).depends_on(a), Delay(id="d", seconds="1h")])

    assert read_flow(flow.to_yaml()) == flow.spec()


def test_a_flow_in_a_file_runs_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "hello.yaml"
    path.write_text("id: hello\nnodes:\n  t: {type: transform, template: 'hello {{ name }}'}")

    assert Flow.from_yaml(path).run_sync({"name": "you"}).output["t"]["output"] == "hello you"
