"""Exports: nothing is lost on the way, nothing damaged is believed, and a kill leaves a whole file."""

import base64
import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoints import values
from holdfast.checkpoints.models import CheckpointRecord, FlowCheckpoint, NodeCheckpointState, NodeRecord
from holdfast.checkpoints.serial import checksum, seal
from holdfast.contracts.calls import InnerRun, RunConfig
from holdfast.flows.spec import FlowSpec, NodeSpec
from holdfast.starter.bundles import (
    Bundle,
    ExportKey,
    InvalidExportError,
    Source,
    bundle_from_text,
    check_tenant,
    read_bundle,
    write_bundle,
)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEY = ExportKey.from_text("base64:" + base64.b64encode(bytes(range(32))).decode())
OTHER = ExportKey.from_text("base64:" + base64.b64encode(bytes(32)).decode())
PASSPHRASE = ExportKey.from_text("correct horse battery staple")
LARGE = 70_000


def record(run_id: str, original_input: Any = None) -> CheckpointRecord:
    """A checkpoint as a run has it: values in their marked form."""
    node = NodeRecord(node_id="a", node_type="pass", status="success", output_data=original_input)
    return CheckpointRecord(
        flow_id="f",
        run_id=run_id,
        sequence_number=3,
        node_states={"a": node},
        completed_node_ids=["a"],
        original_input=original_input,
        created_at=NOON,
        updated_at=NOON,
    )


FLOW = {"id": "g", "nodes": [{"id": "a", "type": "pass"}]}


def inner(checkpoint: CheckpointRecord) -> InnerRun:
    return InnerRun.model_construct(flow=FlowSpec.model_validate(FLOW), checkpoint=checkpoint)


def bundle(original_input: Any = None, params: dict[str, Any] | None = None, **changes: Any) -> Bundle:
    fields: dict[str, Any] = {
        "exported_at": NOON,
        "source": Source(namespace="here", run_id="r", checkpoint_id="r@3"),
        "made_for": "there",
        "flow": FlowSpec(id="f", nodes=[NodeSpec(id="a", type="pass")], metadata=params or {}),
        "config": RunConfig(heartbeat_seconds=2.5),
        "checkpoint": record("r", original_input),
    }
    return Bundle(**{**fields, **changes})


def content(read: Bundle) -> Any:
    """All but the checksums, which are there only once it is written."""
    data = read.model_dump(mode="json", exclude={"checksum": True, "checkpoint": {"checksum"}, "children": True})
    return data, {path: child.model_dump(exclude={"checkpoint": {"checksum"}}) for path, child in read.children.items()}


@contextmanager
def folder() -> Generator[Path]:
    # A folder for each example: pytest's own is one for all of them.
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def there_and_back(written: Bundle, name: str, key: ExportKey | None = None, blobs: bool = False) -> Bundle:
    with folder() as place:
        write_bundle(written, place / name, key=key, blobs=place / "blobs" if blobs else None)
        return read_bundle(place / name, key=key)


def refusal(read: Callable[..., object], *arguments: Any, **options: Any) -> InvalidExportError:
    with pytest.raises(InvalidExportError) as refused:
        read(*arguments, **options)
    assert str(refused.value).startswith(f"[{refused.value.code}] ")
    return refused.value


def text_of(written: Bundle, name: str = "x.json", key: ExportKey | None = None) -> bytes:
    with folder() as place:
        write_bundle(written, place / name, key=key)
        return (place / name).read_bytes()


def forged(**changes: Any) -> str:
    """An export that says of itself that all is well."""
    data = {**json.loads(text_of(bundle())), **changes}
    return json.dumps({**data, "checksum": checksum(data)})


FORMS: list[tuple[str, ExportKey | None, bool]] = [
    (name, key, blobs) for name in ("x.json", "x.yaml") for key in (None, KEY) for blobs in (False, True)
]

LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.binary(max_size=12),
    st.sampled_from(
        ["yes", "null", "1e5", "2026-01-01", "<<", "\x85\u2028\ufeff\uffff\x7f\x1f", "g" * LARGE, b"g" * LARGE]
    ),
)
KEYS = st.one_of(st.text(max_size=6), st.sampled_from(["__blob__", "size", "__bytes__", "on", "k" * 2000, "\x85", "1"]))
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3))
# What other clients give to a run is not encoded, and may look like anything of ours.
RAW = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=5), st.just("h" * LARGE)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
)


@pytest.mark.req("DM-10")
@pytest.mark.parametrize(("name", "key", "blobs"), FORMS)
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(value=VALUES, raw=RAW)
def test_any_value_survives_the_journey_in_every_form(
    name: str, key: ExportKey | None, blobs: bool, value: Any, raw: Any
) -> None:
    written = bundle(values.encode(value), {"raw": raw}, children={"a[0]": inner(record("r/a[0]", raw))})

    read = there_and_back(written, name, key, blobs)

    assert content(read) == content(written)
    assert repr(values.decode(read.checkpoint.original_input)) == repr(value)


@pytest.mark.req("DM-10")
@pytest.mark.parametrize("name", ["x.json", "x.yaml", "x.YML", "x"])
def test_a_checkpoint_with_real_values_can_be_exported_too(name: str) -> None:
    node = NodeCheckpointState(node_id="a", node_type="pass", status="success", output_data={"scan": b"\x00\xff"})
    real = FlowCheckpoint(flow_id="f", run_id="r", node_states={"a": node}, original_input={1, 2})

    read = there_and_back(bundle(checkpoint=real, children={"a": inner(real)}), name).checkpoint

    assert type(read) is CheckpointRecord
    assert seal(read) == seal(real)
    assert read.node_states["a"].output_data == {"scan": {"__bytes__": "AP8="}}


@pytest.mark.req("DM-10")
def test_the_name_of_the_file_decides_between_json_and_yaml() -> None:
    as_json, as_yaml = text_of(bundle(), "x"), text_of(bundle(), "x.yml")

    assert json.loads(as_json) == yaml.safe_load(as_yaml)
    assert as_json.startswith(b"{")
    assert as_yaml.startswith(b'format: "holdfast-export"\nversion: 1\n')


@pytest.mark.req("DM-10")
def test_a_json_export_may_be_written_anew_by_another_program() -> None:
    written = bundle({"größe": [1.5e300, 1e22, 5e-324, "\x1f\\u00AB"]})
    data = json.loads(text_of(written))

    for text in (json.dumps(data), json.dumps(data, sort_keys=True, indent=1), "\ufeff" + json.dumps(data) + "\r\n"):
        assert content(bundle_from_text(text)) == content(written)
    assert content(bundle_from_text(text_of(written, "x.yaml").replace(b"\n", b"\r\n") + b"\n")) == content(written)


@pytest.mark.req("DM-10")
def test_an_old_checkpoint_inside_is_brought_up_to_date() -> None:
    old = {"flow_id": "f", "run_id": "r", "node_states": [{"node_id": "a", "node_type": "pass", "status": "success"}]}

    read = bundle_from_text(forged(checkpoint=old, children={"a": {"flow": FLOW, "checkpoint": old}}))

    assert read.checkpoint.version == read.children["a"].checkpoint.version == "1.0"
    assert read.checkpoint.node_states["a"].status == "success"


# With what can be written in two ways that one bit divides.
SMALL = bundle(
    checkpoint=CheckpointRecord(
        flow_id="f", run_id="r", original_input=[5e-324, 1e22, "\x1f", True, [[]]], created_at=NOON, updated_at=NOON
    )
)


@pytest.mark.req("PR-1")
@pytest.mark.parametrize("key", [None, KEY])
def test_a_flipped_bit_in_json_is_found_wherever_it_is(key: ExportKey | None) -> None:
    whole = text_of(SMALL, key=key)

    assert content(bundle_from_text(whole, key=key)) == content(SMALL)
    for position in range(len(whole)):
        for bit in range(8):
            refusal(bundle_from_text, flipped(whole, position, bit), key=key)


@pytest.mark.req("PR-1")
def test_a_flipped_bit_in_yaml_is_found_wherever_it_is() -> None:
    whole = text_of(SMALL, "x.yaml")

    assert content(bundle_from_text(whole)) == content(SMALL)
    for position in range(len(whole)):
        # Of a letter the case, with which YAML is generous; of the rest one after another.
        bit = 5 if whole[position : position + 1].isalpha() else position % 8
        refusal(bundle_from_text, flipped(whole, position, bit))


def flipped(whole: bytes, position: int, bit: int) -> bytes:
    damaged = bytearray(whole)
    damaged[position] ^= 1 << bit
    return bytes(damaged)


BIG = {
    (name, key is None): text_of(bundle([{"n": n, "t": "é\n" * n} for n in range(150)]), name, key)
    for name in ("x.json", "x.yaml")
    for key in (None, KEY)
}


@pytest.mark.req("PR-1")
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(form=st.sampled_from(sorted(BIG)), data=st.data())
def test_a_big_export_is_refused_with_any_bit_flipped_and_at_any_other_length(
    form: tuple[str, bool], data: st.DataObject
) -> None:
    whole, key = BIG[form], None if form[1] else KEY
    position = data.draw(st.integers(0, len(whole) - 1))

    refusal(bundle_from_text, flipped(whole, position, data.draw(st.integers(0, 7))), key=key)
    refusal(bundle_from_text, whole[:position], key=key)


@pytest.mark.req("PR-1")
@pytest.mark.parametrize(("name", "key"), [("x.json", None), ("x.json", KEY), ("x.yaml", KEY), ("x.yaml", None)])
def test_a_truncated_export_is_refused_wherever_it_ends(name: str, key: ExportKey | None) -> None:
    whole = text_of(SMALL, name, key)

    for length in range(len(whole)):
        code = refusal(bundle_from_text, whole[:length], key=key).code
        assert code in ("export/damaged", "export/not-one")


@pytest.mark.req("PR-1")
@pytest.mark.parametrize("key", [None, KEY])
def test_a_blob_that_is_damaged_cut_swapped_or_missing_is_named(tmp_path: Path, key: ExportKey | None) -> None:
    path, blobs = tmp_path / "x.json", tmp_path / "deep" / "blobs"
    write_bundle(
        bundle(["g" * LARGE, "g" * LARGE, {"__bytes__": base64.b64encode(b"h" * LARGE).decode()}]),
        path,
        key=key,
        blobs=blobs,
    )
    one, other = sorted(blobs.iterdir())
    whole = one.read_bytes()

    for damaged in (
        *(flipped(whole, n, n % 8) for n in range(0, len(whole), 997)),
        b"",
        whole[:-1],
        other.read_bytes(),
    ):
        one.write_bytes(damaged)
        fault = refusal(read_bundle, path, key=key)
        assert fault.code == "export/blob-damaged"
        assert one.name in str(fault)
    one.unlink()
    assert refusal(read_bundle, path, key=key).code == "export/blob-missing"


@pytest.mark.req("DM-10")
def test_blobs_travel_with_the_file_and_bytes_are_files_as_they_were(tmp_path: Path) -> None:
    scan = b"%PDF" * LARGE
    written = bundle({"scan": values.encode(scan), "again": values.encode(scan)})
    (tmp_path / "old").mkdir()
    write_bundle(written, tmp_path / "old" / "x.yaml", blobs=tmp_path / "old" / "blobs")
    (tmp_path / "old").rename(tmp_path / "new")
    [blob] = (tmp_path / "new" / "blobs").iterdir()

    assert blob.read_bytes() == scan
    assert (tmp_path / "new" / "x.yaml").stat().st_size < 10_000
    assert content(read_bundle(tmp_path / "new" / "x.yaml")) == content(written)


@pytest.mark.req("DM-10")
def test_a_text_without_its_folder_is_refused_only_if_it_needs_one(tmp_path: Path) -> None:
    write_bundle(bundle("small"), tmp_path / "small.json", blobs=tmp_path / "blobs")
    write_bundle(bundle("g" * LARGE), tmp_path / "large.json", blobs=tmp_path / "blobs")

    assert bundle_from_text((tmp_path / "small.json").read_text()).checkpoint.original_input == "small"
    fault = refusal(bundle_from_text, (tmp_path / "large.json").read_text())
    assert str(fault) == (
        "[export/blob-missing] its large values are in a folder that did not come along; export without blobs"
    )


def test_a_blobs_name_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    text = forged(blobs="blobs", config={"heartbeat_seconds": {"__blob__": "../secret", "size": 1}})
    (tmp_path / "x.json").write_text(text)

    assert refusal(read_bundle, tmp_path / "x.json").code == "export/damaged"


def test_an_encrypted_export_shows_where_it_is_from_and_for_whom_and_nothing_else(tmp_path: Path) -> None:
    path, blobs = tmp_path / "x.json", tmp_path / "blobs"
    secret = "g" * LARGE
    write_bundle(bundle(["the secret", secret]), path, key=PASSPHRASE, blobs=blobs)
    data = json.loads(path.read_text())
    [blob] = blobs.iterdir()
    write_bundle(bundle(secret), tmp_path / "open.json", blobs=tmp_path / "open")

    assert data.keys() == {"format", "version", "source", "made_for", "encrypted", "checksum"}
    assert data["encrypted"].keys() == {"kdf", "salt", "nonce", "data"}
    assert secret.encode() not in blob.read_bytes()
    assert [blob.name] != [file.name for file in (tmp_path / "open").iterdir()]
    assert read_bundle(path, key=PASSPHRASE).checkpoint.original_input == ["the secret", secret]


def test_two_exports_with_one_passphrase_have_nothing_in_common() -> None:
    one, other = (json.loads(text_of(bundle(), key=PASSPHRASE))["encrypted"] for _ in range(2))

    assert one["salt"] != other["salt"]
    assert one["nonce"] != other["nonce"]


@pytest.mark.parametrize("written", [KEY, PASSPHRASE])
@pytest.mark.parametrize("given", [OTHER, ExportKey.from_text("correct horse")])
def test_another_key_does_not_open_an_export(written: ExportKey, given: ExportKey) -> None:
    fault = refusal(bundle_from_text, text_of(bundle(), key=written), key=given)

    assert fault.code == "export/wrong-key"


def test_without_the_key_an_export_says_that_it_is_locked_or_for_somebody_else() -> None:
    text = text_of(bundle(), key=KEY)

    assert str(refusal(bundle_from_text, text, namespace="there")) == (
        "[export/locked] the export of run 'r' for namespace 'there' is encrypted; give the key it was written with"
    )
    assert refusal(bundle_from_text, text, namespace="elsewhere").code == "export/wrong-tenant"


@pytest.mark.parametrize("field", ["made_for", "source"])
def test_what_an_encrypted_export_says_in_clear_cannot_be_forged(field: str) -> None:
    data = json.loads(text_of(bundle(), key=KEY))
    data[field] = "elsewhere" if field == "made_for" else {**data[field], "run_id": "another"}
    text = json.dumps({**data, "checksum": checksum(data)})

    assert refusal(bundle_from_text, text, key=KEY).code == "export/wrong-key"


def test_who_gives_a_key_is_not_given_what_anyone_could_have_written() -> None:
    assert refusal(bundle_from_text, text_of(bundle()), key=KEY).code == "export/not-locked"


def test_an_export_is_for_one_namespace_or_for_all() -> None:
    check_tenant(bundle(), "there")
    check_tenant(bundle(made_for="*"), "anywhere")

    assert str(refusal(check_tenant, bundle(), "elsewhere")) == (
        "[export/wrong-tenant] it was made for namespace 'there', and this is 'elsewhere'; "
        "export again with '--for elsewhere'"
    )


@pytest.mark.parametrize("text", ["", "\n", "base64:", "base64:AAAA", "base64:!"])
def test_a_key_that_is_none_is_refused_and_not_shown(text: str) -> None:
    assert refusal(ExportKey.from_text, text).code == "export/bad-key"
    assert "staple" not in repr(PASSPHRASE)
    assert ExportKey.from_text("correct horse battery staple\n") == PASSPHRASE


FUTURE = {**seal(record("r")), "version": "2.0", "checksum": None}
BAD = {"version": "1.0", "flow_id": "f", "run_id": "r", "completed_node_ids": ["a", "a"]}


@pytest.mark.req("DM-10", "PR-1")
@pytest.mark.parametrize(
    ("text", "code", "complaint"),
    [
        ("", "export/not-one", "this is not an export of Holdfast"),
        ("[]", "export/not-one", "this is not an export of Holdfast"),
        ("id: my-flow\nnodes: {}", "export/not-one", "give a file from 'holdfast export'"),
        ('{"format": "holdfast-export", "version": 1}', "export/damaged", "does not fit its checksum"),
        ('{"format": "holdfast-export", "version": 2}', "export/newer", "upgrade holdfast"),
        (forged(version="1"), "export/damaged", "not written as Holdfast writes it"),
        (forged(version=True), "export/damaged", "not written as Holdfast writes it"),
        (forged(checkpoint=FUTURE), "export/newer", "its checkpoint has the schema version '2.0'"),
        (
            forged(children={"b": {"flow": FLOW, "checkpoint": FUTURE}}),
            "export/newer",
            "the checkpoint of 'b' has the schema version '2.0'",
        ),
        (forged(checkpoint=BAD), "export/bad-checkpoint", "lists a node twice; completed node a missing"),
        (forged(checkpoint=None), "export/bad-checkpoint", "it is not a JSON object"),
        (
            forged(children={"b": {"flow": FLOW, "checkpoint": BAD}}),
            "export/bad-checkpoint",
            "the checkpoint of 'b' cannot be used",
        ),
        (forged(flow={"nodes": []}), "export/bad-flow", "id: Field required"),
        (forged(flow={"id": "f", "nodes": []}), "export/bad-flow", "[flow/empty] the flow has no nodes"),
        (forged(children=[]), "export/damaged", "its content is not an export's"),
        (forged(source=None), "export/damaged", "its content is not an export's"),
        (forged(encrypted={}), "export/locked", "is encrypted"),
        (forged(made_for=float("nan")), "export/damaged", "its content is not an export's"),
        (forged(blobs=7), "export/blob-missing", "export without blobs"),
        ("[" * 100_000, "export/damaged", "not whole JSON or YAML"),
        ('{"a":' * 100_000, "export/damaged", "not whole JSON or YAML"),
        ('{"format": "\\ud800"', "export/damaged", "not whole JSON or YAML"),
        (b"\xff\xfe%PDF", "export/damaged", "not whole JSON or YAML"),
        ("format: holdfast-export\na: &a [1]\nb: *a", "export/damaged", "it has aliases"),
        ("format: holdfast-export\n? [a]\n: 1", "export/damaged", "not whole JSON or YAML"),
        ("format: holdfast-export\n1: 1\nversion: 1", "export/damaged", "take another copy, or export again"),
        ("format: holdfast-export\na: !!python/object:os.x {}", "export/damaged", "not whole JSON or YAML"),
    ],
)
def test_what_is_no_good_export_is_refused_with_what_to_do(text: str | bytes, code: str, complaint: str) -> None:
    fault = refusal(bundle_from_text, text)

    assert (fault.code, complaint in str(fault)) == (code, True), str(fault)


@pytest.mark.parametrize(
    "lock",
    [
        None,
        7,
        {},
        {"kdf": "other", "salt": "", "nonce": "", "data": ""},
        {"kdf": "none", "salt": "!", "nonce": "", "data": 5},
    ],
)
def test_a_lock_that_is_none_is_refused(lock: Any) -> None:
    refusal(bundle_from_text, forged(encrypted=lock), key=KEY)


def test_a_bad_checkpoints_faults_are_listed() -> None:
    assert refusal(bundle_from_text, forged(checkpoint=BAD)).faults == (
        "completed_node_ids lists a node twice",
        "completed node a missing from node_states",
        "completed node a missing from node_states",
    )


@pytest.mark.parametrize("name", ["nothing.json", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_refused_too(tmp_path: Path, name: str) -> None:
    assert refusal(read_bundle, tmp_path / name).code == "export/cannot-read"


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "x.json").mkdir()

    with pytest.raises(OSError):
        write_bundle(bundle(), tmp_path / "x.json")

    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_the_example_in_the_reference_is_an_export() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "exports.md").read_text()
    [example] = re.findall(r"^```json\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    fields = re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)

    assert bundle_from_text(example, namespace="production").flow.id == "order"
    assert fields == list(Bundle.model_fields)


def test_cryptography_is_imported_only_when_a_key_is_used() -> None:
    program = "import sys, holdfast.starter.bundles; sys.exit('cryptography' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


WRITER = """
import sys
from pathlib import Path
from holdfast.starter.bundles import read_bundle, write_bundle

path, written = Path(sys.argv[1]), read_bundle(Path(sys.argv[2]))
for number in range(10**9):
    written.checkpoint.original_input = [number, str(number % 10) * 70_000, list(range(5000))]
    write_bundle(written, path, blobs=path.parent / "blobs")
    print(number, flush=True)
"""


@pytest.mark.req("DM-10", "PR-1")
def test_a_kill_while_writing_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_bundle(bundle(), tmp_path / "first.json")

    for round_ in range(5):
        command = [sys.executable, "-c", WRITER, str(path), str(tmp_path / "first.json")]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
            assert writer.stdout is not None
            seen = int(writer.stdout.readline())
            time.sleep(0.013 * (round_ + 1))
            writer.send_signal(signal.SIGKILL)
            seen = max([seen, *(int(line) for line in writer.stdout if line.endswith("\n"))])

        number, text, _ = read_bundle(path).checkpoint.original_input
        assert number in (seen, seen + 1)
        assert text == str(number % 10) * LARGE
