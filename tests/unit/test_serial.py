"""Checkpoints as JSON, bytes and YAML: nothing is lost, and nothing damaged is believed."""

import hashlib
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints.models import CheckpointRecord, CheckpointStatus, FlowCheckpoint, NodeCheckpointState
from holdfast.checkpoints.serial import (
    checksum,
    deserialize_checkpoint,
    fast_deserialize,
    fast_serialize,
    from_yaml,
    seal,
    serialize_checkpoint,
    to_yaml,
    unseal,
    unseal_record,
)
from holdfast.checkpoints.validation import InvalidCheckpointError

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def sample(original_input: Any = None) -> FlowCheckpoint:
    node = NodeCheckpointState(
        node_id="a",
        node_type="Task",
        status="success",
        input_data={"file": b"\x00\xff", "größe": 1.5e-7},
        output_data={"seen": {1, 2}, "at": NOON, "big": 10**30},
        started_at=NOON,
        completed_at=NOON,
    )
    return FlowCheckpoint(
        flow_id="flow",
        run_id="run",
        sequence_number=3,
        status=CheckpointStatus.ACTIVE,
        node_states={"a": node},
        completed_node_ids=["a"],
        pending_node_ids=["b"],
        original_input=original_input,
        created_at=NOON,
        updated_at=NOON,
    )


@pytest.mark.req("DM-7", "DM-10")
def test_a_checkpoint_comes_back_from_json_bytes_and_yaml_with_real_values() -> None:
    written = sample({"dates": [NOON.date()]})

    for read in (
        deserialize_checkpoint(serialize_checkpoint(written)),
        fast_deserialize(fast_serialize(written)),
        from_yaml(to_yaml(written)),
        unseal(seal(written)),
    ):
        assert read.model_copy(update={"checksum": None}) == written
        assert read.node_states["a"].output_data == {"seen": {1, 2}, "at": NOON, "big": 10**30}
        assert read.checksum == seal(written)["checksum"]


@pytest.mark.req("DM-7")
def test_json_is_for_people_and_bytes_are_for_machines() -> None:
    assert "größe" in serialize_checkpoint(sample())
    assert serialize_checkpoint(sample()).count("\n") > 20
    assert len(fast_serialize(sample())) < len(serialize_checkpoint(sample()))


@pytest.mark.req("DM-10")
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(st.dictionaries(st.text(max_size=6), st.one_of(st.text(max_size=12), st.floats(), st.integers()), max_size=4))
def test_any_text_and_number_survives_yaml(values: dict[str, Any]) -> None:
    written = sample(values)

    assert repr(from_yaml(to_yaml(written)).original_input) == repr(values)


@pytest.mark.req("DM-10")
def test_a_text_that_yaml_would_take_for_something_else_stays_text() -> None:
    odd = [
        "yes",
        "no",
        "null",
        "~",
        "",
        "1:30",
        "2026-01-01",
        "2026-13-45",
        "0x1f",
        "010",
        "1e3",
        "=",
        "<<",
        "a: b",
        "\x85",
    ]

    assert from_yaml(to_yaml(sample(odd))).original_input == odd


def test_a_record_is_read_with_its_values_still_marked() -> None:
    record = unseal_record(seal(sample()))

    assert type(record) is CheckpointRecord
    assert record.node_states["a"].output_data["seen"] == {"__set__": [1, 2]}


ODD = [
    "plain", "Zürich", "\x7f", "\x00\x1f\x0b", "\\u0041", 'a\n\t"b"', "日本 \u2028 \U0001f600", '"\\\\u"',
    "\ue000long 0", "\ue000",
]  # fmt: skip


@pytest.mark.req("PR-1")
@pytest.mark.parametrize("text", ODD)
@pytest.mark.parametrize("times", [1, 400_000], ids=["short", "long"])
def test_the_checksum_is_of_one_canonical_text_however_it_is_written(text: str, times: int) -> None:
    body = {"b": [text * times, text, {"x": text * times}], "a": 1.5, "ü": [None, True, 1e300, -0.0]}
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)

    assert checksum(body) == hashlib.sha256(canonical.encode()).hexdigest()


@pytest.mark.req("PR-1")
def test_the_checksum_covers_everything_but_itself_and_not_the_order_of_keys() -> None:
    data = seal(sample())

    assert data["checksum"] == checksum(data) == checksum(dict(reversed(data.items())))
    assert checksum({**data, "checksum": "other"}) == data["checksum"]
    assert checksum({**data, "run_id": "other"}) != data["checksum"]


@pytest.mark.req("PR-1")
def test_a_changed_checkpoint_is_refused_and_named() -> None:
    data = seal(sample())
    stated = data["checksum"]
    data["node_states"]["a"]["output_data"]["seen"] = {"__set__": [1, 3]}

    with pytest.raises(InvalidCheckpointError) as refused:
        unseal(data)

    assert str(refused.value) == (
        f"[checkpoint/invalid] checkpoint run@3: its checksum says {stated}, its content {checksum(data)}"
    )


@pytest.mark.req("PR-1")
def test_a_flipped_bit_is_found_wherever_it_is() -> None:
    whole = fast_serialize(sample())
    # Under another name the checksum cannot be found: the data is then like that of a writer that has none.
    named = whole.index(b'"checksum"')
    exempt = range(named, named + len(b'"checksum"'))

    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        if position not in exempt:
            with pytest.raises(InvalidCheckpointError):
                fast_deserialize(bytes(damaged))


@pytest.mark.req("PR-1")
def test_a_truncated_checkpoint_is_refused_wherever_it_ends() -> None:
    whole = serialize_checkpoint(sample())

    for length in range(len(whole)):
        with pytest.raises(InvalidCheckpointError, match="it is not whole JSON"):
            deserialize_checkpoint(whole[:length])


@pytest.mark.req("PR-1", "DM-8")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[1, 2", "it is not whole YAML"),
        ("a: !!int many", "it is not whole YAML"),
        ("just text", "it is not a JSON object"),
        ("", "it is not a JSON object"),
    ],
)
def test_damaged_yaml_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidCheckpointError, match=complaint):
        from_yaml(text)


@pytest.mark.req("DM-8")
@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (None, "it is not a JSON object"),
        ([1], "it is not a JSON object"),
        ({"version": "1.0"}, "flow_id: Field required; run_id: Field required"),
        ({"version": 1.0, "flow_id": "f", "run_id": "r"}, "version: Input should be a valid string"),
        (
            {"version": "1.0", "flow_id": "f", "run_id": "r", "node_states": {"a": 5}},
            "node_states.a: Input should be a valid dictionary",
        ),
        (
            {
                "version": "1.0",
                "flow_id": "f",
                "run_id": "r",
                "node_states": {
                    "a": {"node_id": "a", "node_type": "t", "status": "success", "internal_state": {"__tuple__": []}}
                },
            },
            "node_states.a.internal_state: Input should be an object",
        ),
        ({"version": "1.0", "flow_id": "f", "run_id": "r", "completed_node_ids": ["a"]}, "completed node a missing"),
    ],
)
def test_data_that_is_no_checkpoint_is_refused_with_every_fault(data: Any, complaint: str) -> None:
    with pytest.raises(InvalidCheckpointError, match=complaint):
        unseal(data)


@pytest.mark.req("DM-10")
def test_a_checkpoint_of_another_writer_without_a_checksum_is_read() -> None:
    data = {"version": "1.0", "flow_id": "f", "run_id": "r", "created_at": "2026-01-01T12:00:00", "wf_run_id": "w"}

    read = unseal(json.loads(json.dumps(data)))

    assert read.created_at == NOON
    assert seal(read)["wf_run_id"] == "w"
