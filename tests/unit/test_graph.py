"""Order, what is upstream, and cycles."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.flows.graph import find_cycle, topological, upstream


def test_a_cycle_is_named_from_its_first_node_back_to_it() -> None:
    assert find_cycle({"a": ["c"], "b": ["a"], "c": ["b"], "d": []}) == ["a", "b", "c", "a"]
    assert find_cycle({"a": ["a"]}) == ["a", "a"]
    assert find_cycle({"x": ["a"], "a": ["b"], "b": ["a"]}) == ["a", "b", "a"]


def test_a_diamond_is_no_cycle_and_an_unknown_node_is_not_followed() -> None:
    assert find_cycle({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}) is None
    assert find_cycle({"a": ["unknown"]}) is None
    assert find_cycle({}) is None


def test_dependencies_come_first_and_ties_keep_the_order_given() -> None:
    assert topological({"d": ["c", "b"], "b": ["a"], "c": ["a"], "a": [], "e": []}) == ["a", "c", "b", "d", "e"]
    assert topological({"z": [], "y": [], "x": []}) == ["z", "y", "x"]


def test_upstream_reaches_all_the_way_up() -> None:
    depends = {"a": [], "b": ["a"], "c": ["b", "a"], "d": ["unknown"]}

    assert {node: upstream(depends, node) for node in depends} == {
        "a": set(),
        "b": {"a"},
        "c": {"a", "b"},
        "d": {"unknown"},
    }


def test_a_chain_of_thousands_is_no_problem() -> None:
    chain = {str(n): [str(n - 1)] if n else [] for n in range(5000)}
    backwards = dict(reversed(chain.items()))

    assert find_cycle(backwards) is None
    assert topological(backwards) == list(chain)
    assert find_cycle(backwards | {"0": ["4999"]}) is not None


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.lists(st.lists(st.integers(0, 7), max_size=3), max_size=8))
def test_a_graph_either_has_a_cycle_that_is_one_or_an_order_that_holds(edges: list[list[int]]) -> None:
    depends = {str(n): [str(m) for m in upstream if m < len(edges)] for n, upstream in enumerate(edges)}

    cycle = find_cycle(depends)

    if cycle is None:
        order = topological(depends)
        assert sorted(order) == sorted(depends)
        assert all(order.index(up) < order.index(node) for node, upstream in depends.items() for up in upstream)
    else:
        assert cycle[0] == cycle[-1]
        assert all(before in depends[after] for before, after in pairwise(cycle))
