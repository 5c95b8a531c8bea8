"""A flow inside a flow: a run of its own, which the outer one knows by its id, its status and its failure."""

from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus, NodeRecord
from holdfast.checkpoints.validation import validate_checkpoint
from holdfast.engine.simulator import Scripted
from holdfast.flows.spec import FlowSpec
from tests.going_on import Watched, carried, flow, goes_on_from_everywhere

TWO = [
    {"id": "talk", "type": "agent", "params": {"llm": {"model": "m"}}},
    {"id": "save", "type": "Task", "depends": [{"node": "talk"}]},
]
TALK = Scripted(replies=["hello"])
GOOD = {"sub/talk": TALK, "sub/save": Scripted(output="saved")}
BAD = {"sub/talk": TALK, "sub/save": Scripted(error="the disk is full")}


def nested(nodes: list[dict[str, Any]], **fields: Any) -> FlowSpec:
    return flow({"id": "sub", "type": "flow", "params": {"flow": {"id": "inner", "nodes": nodes}}, **fields})


def ran(script: Mapping[str, Scripted], base: CheckpointRecord | None = None, **fields: Any) -> Watched:
    watched = Watched(nested(TWO, **fields), script)
    watched.run({"input": "Hi."}, base=base)
    return watched


def sub(watched: Watched) -> NodeRecord:
    return watched.ledger.state.node_states["sub"]


@pytest.mark.req("FL-7")
def test_the_output_of_a_nested_flow_is_what_became_of_its_nodes() -> None:
    watched = ran(GOOD)

    assert sub(watched).output_data == {
        "talk": {"status": "success", "output": {"content": "hello", "finished": True, "loops": 1}, "error": None},
        "save": {"status": "success", "output": "saved", "error": None},
    }
    assert watched.executed == ["talk/loop[1]/llm", "save"]


@pytest.mark.req("FL-7")
def test_the_outer_run_knows_the_inner_one_while_it_runs_and_afterwards() -> None:
    watched = ran(GOOD)

    begun = watched.events.index("child_started sub") + 2
    assert watched.ledger.at(begun).node_states["sub"].internal_state == {
        "child_run_id": "run/sub",
        "status": "running",
    }
    assert sub(watched).internal_state == {"child_run_id": "run/sub", "status": "completed"}


@pytest.mark.req("FL-7")
def test_the_inner_run_has_checkpoints_of_its_own_and_says_where_it_belongs() -> None:
    watched = ran(GOOD)

    ((run_id, start),) = watched.started
    assert (run_id, start.parent_checkpoint_id, start.key_base) == ("run/sub", "run@3", "run/sub")
    assert (start.flow.id, start.input_data, start.base) == ("inner", {"input": "Hi."}, None)
    inner = watched.children["run/sub"].ledger
    assert inner.state.completed_node_ids == ["talk", "save"]
    assert all(validate_checkpoint(inner.at(seq)) == [] for seq in range(1, inner.seq + 1))
    assert watched.ledger.state.node_states.keys() == {"sub"}


@pytest.mark.req("FL-7")
def test_a_failed_flow_fails_the_node_and_its_checkpoint_is_kept() -> None:
    watched = ran(BAD)

    assert sub(watched).error == {
        "type": "FlowFailed",
        "message": "the flow 'inner' failed in run 'run/sub': the disk is full",
        "child_run_id": "run/sub",
    }
    kept = sub(watched).internal_state
    assert (kept["child_run_id"], kept["status"]) == ("run/sub", "failed")
    inner = CheckpointRecord.model_validate(kept["checkpoint"])
    assert inner.completed_node_ids == ["talk"]
    assert inner.node_states["talk"].output_data["content"] == "hello"
    assert validate_checkpoint(inner) == []


@pytest.mark.req("FL-7")
def test_a_resume_runs_only_what_was_left_in_it_and_counts_what_it_used_once() -> None:
    failed = ran(BAD)
    assert failed.ledger.state.metadata["usage"]["llm_calls"] == 1

    resumed = ran(GOOD, base=carried(failed.ledger.state))

    assert resumed.executed == ["save"]
    assert resumed.ledger.state.status == CheckpointStatus.COMPLETED
    assert sub(resumed).output_data["talk"]["output"]["content"] == "hello"
    assert sub(resumed).internal_state == {"child_run_id": "run/sub", "status": "completed"}
    assert resumed.ledger.state.metadata["usage"]["llm_calls"] == 1
    ((_, start),) = resumed.started
    assert start.resumed_from is not None
    assert start.resumed_from.startswith("run/sub@")


@pytest.mark.req("FL-7")
def test_a_retry_of_the_node_goes_on_in_the_flow_too() -> None:
    watched = ran(BAD, error_handling={"max_retries": 2})

    assert watched.executed == ["talk/loop[1]/llm", "save", "save", "save"]
    assert sub(watched).attempts == 3


@pytest.mark.req("FL-7")
@pytest.mark.parametrize("script", [GOOD, {**GOOD, "sub/talk": TALK.model_copy(update={"seconds": 5})}])
def test_flows_in_flows_go_on_from_everywhere(script: dict[str, Scripted]) -> None:
    twice = flow(
        {"id": "first", "type": "Task"},
        {
            "id": "outer",
            "type": "flow",
            "params": {"flow": nested(TWO).model_dump(mode="json")},
            "depends": [{"node": "first"}],
        },
        {"id": "beside", "type": "Task"},
    )
    inside = {f"outer/{name}": scripted for name, scripted in script.items()}
    beside = {"first": Scripted(output=1), "beside": Scripted(output=2, seconds=3)}

    watched = goes_on_from_everywhere(twice, {**inside, **beside}, {"input": "Hi."})

    assert sorted(watched.executed) == ["beside", "first", "save", "talk/loop[1]/llm"]
    output = watched.ledger.state.node_states["outer"].output_data
    assert output["sub"]["output"]["save"]["output"] == "saved"
    assert list(watched.children["run/outer"].children) == ["run/outer/sub"]


def test_an_error_that_the_inner_flow_handles_is_none_of_the_outer_one() -> None:
    nodes = [{"id": "save", "type": "Task", "error_handling": {"behavior": "return"}}]
    watched = Watched(nested(nodes), {"sub/save": Scripted(error="full")})

    last = watched.run()

    assert last.status == CheckpointStatus.COMPLETED
    assert sub(watched).output_data == {
        "save": {"status": "failure", "output": None, "error": {"type": "Scripted", "message": "full"}}
    }
