"""Pure nodes that run together, by the same rules as everywhere else."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from holdfast.checkpoints.models import RunnableStatus
from holdfast.contracts.calls import NodeCall, NodeOutcome, NodeReply, PureBatch, PureOutcome
from holdfast.engine.batch import describe_error, run_batch, run_pure_node
from holdfast.engine.ports import NodeError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DONE = NodeOutcome(status=RunnableStatus.SUCCESS, output={"n": 1})


def clock() -> Callable[[], datetime]:
    ticks = count()
    return lambda: NOON + timedelta(seconds=next(ticks))


async def refuse(call: NodeCall) -> NodeReply:
    raise NodeError({"type": "Refused", "message": f"{call.node_id} is not built in"}, {"half": 1})


async def echo(call: NodeCall) -> NodeReply:
    return NodeReply(output={"got": call.input_data, "key": call.idempotency_key}, internal_state={"seen": 1})


async def outcomes(nodes: list[dict[str, Any]], execute: Any = refuse, **fields: Any) -> dict[str, PureOutcome]:
    batch = PureBatch.model_validate(
        {"nodes": nodes, "flow_input": {"q": "why"}, "run_id": "run", "flow_id": "flow", "key_base": "base", **fields}
    )
    reply = await run_batch(batch, execute, clock())
    assert [outcome.node_id for outcome in reply.outcomes] == [node["id"] for node in nodes]
    return {outcome.node_id: outcome for outcome in reply.outcomes}


def transform(node_id: str, template: Any, **fields: Any) -> dict[str, Any]:
    return {"id": node_id, "type": "transform", "params": {"template": template}, **fields}


def on(*names: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"node": name, **fields} for name in names]


async def test_a_chain_hands_its_results_on() -> None:
    found = await outcomes(
        [
            transform("a", {"text": "{{ q }}"}),
            {"id": "p", "type": "pass", "depends": on("a"), "output_transformer": {"path": "$.text"}},
            transform("b", "{{ p.output }}!", depends=on("p")),
        ]
    )

    assert [found[name].output for name in ("a", "p", "b")] == [{"text": "why"}, "why", "why!"]
    assert found["a"].started_at == NOON
    assert found["a"].completed_at == NOON + timedelta(seconds=1)


async def test_a_failure_skips_what_depends_on_it_and_a_tolerated_one_does_not() -> None:
    nodes = [
        transform("a", "{{ nobody }}"),
        transform("b", "b", depends=on("a")),
        transform("c", "c", depends=on("b")),
        transform("d", "{{ a.error.type }}", depends=on("a", trigger="failure")),
    ]

    found = await outcomes(nodes)
    lenient = await outcomes(nodes, tolerated=["a"])

    assert [(name, outcome.status, outcome.reason) for name, outcome in found.items()] == [
        ("a", "failure", ""),
        ("b", "skip", "'a' failed"),
        ("c", "skip", "'b' was skipped"),
        ("d", "success", ""),
    ]
    assert found["d"].output == "BadTemplateError"
    assert lenient["b"].output == "b"


async def test_a_node_sees_the_same_of_a_skipped_one_as_in_the_ledger() -> None:
    found = await outcomes(
        [
            transform("a", "{{ nobody }}"),
            transform("b", "b", depends=on("a")),
            transform("c", "{{ b.status }}: {{ b.error.message }}", depends=on("b", "done"), join="any"),
        ],
        results={"done": DONE},
    )

    assert found["c"].output == "skip: 'a' failed"


async def test_a_node_that_reads_everything_reads_only_what_is_above_it() -> None:
    nodes = [
        transform("a", "{{ input }}", depends=on("x"), input_transformer={"path": "$..n"}),
        transform("b", "{{ input }}", depends=on("y"), input_transformer={"path": "$..n"}),
    ]
    results = {"x": DONE, "y": DONE.model_copy(update={"output": {"n": 2}})}

    found = await outcomes(nodes, results=results, above={"a": ["x"], "b": ["y"]})

    assert (found["a"].output, found["b"].output) == ("1", "2")


async def test_choices_are_made_inside_a_batch() -> None:
    condition = {"variable": "$.q", "operator": "string-equals", "value": "why"}
    found = await outcomes(
        [
            {"id": "c", "type": "choice", "params": {"options": [{"id": "y", "condition": condition}, {"id": "n"}]}},
            transform("yes", "yes", depends=on("c", option="y")),
            transform("no", "no", depends=on("c", option="n")),
        ]
    )

    assert found["c"].output == {"option": "y", "chosen": ["y"]}
    assert (found["yes"].output, found["no"].reason) == ("yes", "'c' did not take option 'n'")


async def test_a_custom_pure_node_is_executed_with_its_key_and_its_state_is_kept() -> None:
    custom = {"id": "mine", "type": "Mine", "pure": True, "input_transformer": {"path": "$.q"}}

    done = (await outcomes([custom], echo))["mine"]
    failed = (await outcomes([custom], refuse))["mine"]

    assert (done.output, done.internal_state) == ({"got": "why", "key": "base/mine"}, {"seen": 1})
    assert (failed.status, failed.error) == ("failure", {"type": "Refused", "message": "mine is not built in"})
    assert failed.internal_state == {"half": 1}


async def test_a_built_in_node_gets_real_values_and_gives_marked_ones() -> None:
    call = NodeCall(
        node_id="a",
        path="a",
        type="validate-choices",
        params={"choices": [[1, 2]], "on_invalid": "return"},
        input_data={"content": {"__set__": [1]}},
        run_id="run",
        flow_id="flow",
        idempotency_key="run/a",
    )

    reply = await run_pure_node(call, refuse)

    assert reply.output == {"valid": False, "content": {"__set__": [1]}, "complaint": "{1} is none of [[1, 2]]"}


def test_an_error_without_a_message_is_named_by_its_type() -> None:
    assert describe_error(ValueError()) == {"type": "ValueError", "message": "ValueError"}
    assert describe_error(KeyError("x")) == {"type": "KeyError", "message": "'x'"}
    assert str(NodeError({"type": "Odd"})) == "the node failed"
