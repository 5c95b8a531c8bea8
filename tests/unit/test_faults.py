"""A fault says what, where and what to do."""

import pytest

from holdfast.flows.faults import Fault, FlowDefinitionError, Place


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Place(), "the flow"),
        (Place(node="a"), "node 'a'"),
        (Place("f.yaml"), "f.yaml"),
        (Place("f.yaml", 3), "f.yaml:3"),
        (Place("f.yaml", 3, "a"), "f.yaml:3, node 'a'"),
        (Place(line=3), "the flow"),
    ],
)
def test_a_place_is_as_exact_as_what_is_known(place: Place, text: str) -> None:
    assert str(place) == text


def test_an_error_carries_every_fault() -> None:
    first = Fault("flow/empty", "the flow has no nodes", Place("f.yaml", 1), "Add one.")
    second = Fault("node/bad-id", "'' cannot be a node's id", Place(node=""), "Give it one.")

    assert str(FlowDefinitionError([first])) == (
        "the flow has a fault:\n[flow/empty] the flow has no nodes\n  in f.yaml:1\n  Add one."
    )
    assert FlowDefinitionError([first, second]).faults == (first, second)
    assert str(FlowDefinitionError([first, second])).startswith("2 faults in the flow:\n[flow/empty]")
