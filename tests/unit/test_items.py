"""What is known of the insides of items goes along with them."""

from typing import Any

from holdfast.checkpoints.items import asked_by, carry_items
from holdfast.checkpoints.models import CheckpointRecord, NodeRecord, RunnableStatus
from holdfast.flows.ids import item_of


def record(*paths: str, run_id: str = "run", **fields: Any) -> CheckpointRecord:
    states = {path: NodeRecord(node_id=path, node_type="agent", status=RunnableStatus.RUNNING) for path in paths}
    return CheckpointRecord(flow_id="flow", run_id=run_id, node_states=states, **fields)


def test_a_path_says_which_item_it_is_in() -> None:
    assert item_of("each[17]", "each") == "17"
    assert item_of("each[17]/loop[2]/ask[0]", "each") == "17"
    assert item_of("outer[1]/each[3]", "outer[1]/each") == "3"
    assert item_of("each", "each") is None
    assert item_of("each/open", "each") is None
    assert item_of("eachother[1]", "each") is None


def test_states_move_with_their_items_and_take_the_place_of_older_ones() -> None:
    batch = record("each", "each[3]", "each[3]/loop[1]/sub[0]", "each[4]", run_id="run/sub/each[3-4]")
    outer = record("sub/each", "sub/each[3]", "sub/each[3]/stale", "sub/each[5]")

    put = carry_items(batch, "each", outer, "sub/each", [3])

    assert put == ["sub/each[3]", "sub/each[3]/loop[1]/sub[0]"]
    assert list(outer.node_states) == ["sub/each", "sub/each[5]", *put]
    assert [outer.node_states[path].node_id for path in put] == put
    assert batch.node_states["each[3]"].node_id == "each[3]"


def test_approvals_and_questions_move_with_their_items() -> None:
    asked = {"q": {"path": "each[3]/ask", "id": "q"}, "r": {"path": "each[4]/ask", "id": "r"}}
    metadata = {"approvals": {"each[3]/send": {"is_approved": True}, "each[4]/send": {}}}
    batch = record("each[3]", pending_inputs=asked, metadata=metadata)
    outer = record(metadata={"approvals": {"other": {}, "each[3]/old": {}}, "asked_before": ["other", "each[3]/old"]})

    carry_items(batch, "each", outer, "each", [3])

    assert outer.metadata["approvals"] == {"other": {}, "each[3]/send": {"is_approved": True}}
    assert outer.metadata["asked_before"] == ["other", "each[3]/ask"]
    assert asked_by(batch) == ["each[3]/ask", "each[4]/ask"]


def test_where_nothing_is_known_nothing_is_said() -> None:
    outer = record("each")

    assert carry_items(record("each"), "each", outer, "each", [0, 1]) == []
    assert outer.metadata == {}
