"""The definition as data: small on the wire, the same again when it is read, strict about numbers that cannot be."""

from typing import Any

import pytest
from pydantic import ValidationError

from holdfast.flows.spec import CheckpointConfig, ErrorHandling, FlowSpec, NodeSpec

WHOLE: dict[str, Any] = {
    "id": "flow",
    "name": "A flow",
    "description": "with everything",
    "metadata": {"team": "x"},
    "checkpoint": {"max_checkpoints": 3, "exclude_nodes": ["a"]},
    "nodes": [
        {"id": "a", "type": "pass"},
        {
            "id": "b",
            "type": "Task",
            "name": "B",
            "group": "g",
            "depends": [
                {
                    "node": "a",
                    "trigger": "failure",
                    "condition": {"operator": "string-equals", "variable": "$.status", "value": "failure"},
                }
            ],
            "join": "any",
            "input_transformer": {"path": "$.a", "selector": {"x": "$.y"}},
            "error_handling": {"behavior": "skip", "max_retries": 2},
            "caching": {"enabled": True},
            "pure": False,
            "params": {"deep": {"list": [1, None]}},
        },
    ],
}


@pytest.mark.req("FL-1")
def test_a_definition_is_the_same_again_after_json() -> None:
    flow = FlowSpec.model_validate(WHOLE)

    assert FlowSpec.model_validate_json(flow.model_dump_json()) == flow


def test_a_definition_travels_without_what_equals_its_default() -> None:
    flow = FlowSpec.model_validate({"id": "f", "nodes": [{"id": "a", "type": "pass", "join": "all", "depends": []}]})

    assert flow.model_dump() == {"id": "f", "nodes": [{"id": "a", "type": "pass"}]}


def test_what_a_newer_version_added_is_ignored() -> None:
    assert FlowSpec.model_validate({"id": "f", "colour": "red"}) == FlowSpec(id="f")


def test_an_extra_of_streaming_is_kept_as_it_was_written() -> None:
    node = NodeSpec.model_validate({"id": "a", "type": "pass", "streaming": {"event": "x"}})

    assert node.model_dump()["streaming"] == {"event": "x"}


def test_a_node_is_found_by_its_id() -> None:
    flow = FlowSpec.model_validate(WHOLE)

    assert flow.node("b").name == "B"
    with pytest.raises(KeyError, match="nobody"):
        flow.node("nobody")


def test_default_lists_are_not_shared() -> None:
    NodeSpec(id="a", type="pass").params["x"] = 1

    assert NodeSpec(id="b", type="pass").params == {}


@pytest.mark.req("FL-4")
@pytest.mark.parametrize(
    "handling",
    [
        {"timeout_seconds": 0},
        {"timeout_seconds": float("inf")},
        {"timeout_seconds": 1e12},
        {"max_retries": -1},
        {"max_retries": 2**31},
        {"retry_interval_seconds": 0},
        {"retry_interval_seconds": float("nan")},
        {"backoff_rate": 0.5},
        {"backoff_rate": float("inf")},
        {"max_retry_interval_seconds": float("inf")},
        {"behavior": "shrug"},
    ],
)
def test_error_handling_that_could_only_fail_in_the_run_is_refused(handling: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ErrorHandling.model_validate(handling)


@pytest.mark.req("DM-6")
@pytest.mark.parametrize("config", [{"max_checkpoints": 0}, {"retention_days": 0}])
def test_a_retention_that_keeps_nothing_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        CheckpointConfig.model_validate(config)
