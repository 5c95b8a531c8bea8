"""Payloads: whatever goes in comes out, equal chunks are stored once, and what is altered is refused, never misread."""

import asyncio
import base64
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from temporalio.api.common.v1 import Payload
from temporalio.converter import ActivitySerializationContext, WorkflowSerializationContext

from holdfast.codecs.blobs import Blob, LocalBlobs, MissingBlobError, delete_prefix, prefix_of, run_of
from holdfast.codecs.codec import ENCODING, HoldfastCodec, Limits, NoStoreError, TooLargeError
from holdfast.codecs.epochs import end_epochs
from holdfast.codecs.keys import (
    BadKeyError,
    KeyRing,
    Keys,
    KeysUnavailableError,
    UnknownKeyError,
    from_environment,
    keys_in,
)
from holdfast.codecs.packing import Packer
from holdfast.codecs.sealing import DamagedError

KEY, OTHER = os.urandom(32), os.urandom(32)
RUN = WorkflowSerializationContext("shop", "order/7")


def codec(
    root: Path, *, keys: dict[str, bytes] | None = None, offload_above: int = 2000, **options: Any
) -> HoldfastCodec:
    return HoldfastCodec(ring(keys), Packer(LocalBlobs(root)), Limits(offload_above=offload_above, **options))


def ring(keys: dict[str, bytes] | None = None) -> Keys:
    return Keys(lambda namespace: {"k1": KEY} if keys is None else keys)


async def stored(root: Path) -> list[Blob]:
    return [blob async for blob in LocalBlobs(root).find("")]


def text(size: int, seed: int = 0) -> bytes:
    words = [base64.b32encode(bytes([n, seed % 256, 7])).lower() for n in range(256)]
    return b" ".join(words[(n * n + seed) % 256] for n in range(size // 9 + 1))[:size]


sizes = st.one_of(st.integers(0, 300), st.integers(1900, 2100), st.integers(10_000, 90_000))


@pytest.mark.req("DM-7")
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(sizes, st.integers(0, 3), st.booleans()), max_size=4), st.booleans())
def test_any_sequence_of_payloads_comes_back(tmp_path: Path, wanted: list[tuple[int, int, bool]], locked: bool) -> None:
    payloads = [
        Payload(metadata={"encoding": b"json/plain"}, data=os.urandom(size) if random else text(size, seed))
        for size, seed, random in wanted
    ]

    async def there_and_back() -> list[Payload]:
        keys: dict[str, bytes] | None = None if locked else {}
        encoded = await codec(tmp_path, keys=keys).with_context(RUN).encode(payloads)
        return await codec(tmp_path, keys=keys).decode(encoded)

    assert asyncio.run(there_and_back()) == payloads


@pytest.mark.req("PR-2")
async def test_nothing_of_a_payload_can_be_read_without_the_key(tmp_path: Path) -> None:
    small, large = Payload(data=b"the secret " * 9), Payload(data=b"the secret " * 9000)
    encoded = await codec(tmp_path).with_context(RUN).encode([small, large])
    written = b"".join([payload.SerializeToString() for payload in encoded])
    written += b"".join((tmp_path / blob.name).read_bytes() for blob in await stored(tmp_path))

    assert b"secret" not in written
    assert [payload.metadata["kind"] for payload in encoded] == [b"inline", b"packed"]
    assert {payload.metadata["key-id"] for payload in encoded} == {b"k1"}


@pytest.mark.req("AG-7")
async def test_what_grows_is_stored_once(tmp_path: Path) -> None:
    worker = codec(tmp_path).with_context(RUN)
    said, history = b"", 0
    for turn in range(40):
        said += text(2000, turn)
        [encoded] = await worker.encode([Payload(data=said)])
        history += encoded.ByteSize()
    kept = sum(blob.size for blob in await stored(tmp_path))

    assert kept + history < 2 * len(said)
    assert history < 40 * 1200
    # Again, and nothing is new.
    await worker.encode([Payload(data=said)])
    assert sum(blob.size for blob in await stored(tmp_path)) == kept


async def test_a_reader_learns_where_chunks_are_and_stores_none_of_them_again(tmp_path: Path) -> None:
    payload = Payload(data=text(60_000))
    encoded = await codec(tmp_path).with_context(RUN).encode([payload])
    before = await stored(tmp_path)
    worker = codec(tmp_path)
    worker.learn()
    another = worker.with_context(RUN)
    await another.decode(encoded)
    await another.encode([payload])

    assert await stored(tmp_path) == before


async def test_runs_share_nothing_and_a_deleted_one_leaves_nothing(tmp_path: Path) -> None:
    payload = Payload(data=text(50_000))
    activity = ActivitySerializationContext("shop", "a", None, None, "order/8", None, is_local=False)
    [first] = await codec(tmp_path).with_context(RUN).encode([payload])
    [second] = await codec(tmp_path).with_context(activity).encode([payload])
    prefixes = {run_of(blob.name) for blob in await stored(tmp_path)}
    deleted = await delete_prefix(LocalBlobs(tmp_path), prefix_of("shop", "order/7"))

    assert prefixes == {("shop", "order/7"), ("shop", "order/8")}
    assert deleted == 2, "a pack and the marker"
    assert await codec(tmp_path).decode([second]) == [payload]
    with pytest.raises(MissingBlobError, match="order%2F7"):
        await codec(tmp_path).decode([first])


async def test_a_deleted_run_whose_id_is_taken_again_does_not_refer_to_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.codecs.epochs.LEASE_SECONDS", 0.1)
    payload, store, prefix = Payload(data=text(50_000)), LocalBlobs(tmp_path), prefix_of("shop", "order/7")
    remembers = codec(tmp_path).with_context(RUN)
    [first] = await remembers.encode([payload])
    # Elsewhere: this process is not told.
    await end_epochs(store, [prefix])
    await delete_prefix(store, prefix)
    [second] = await remembers.encode([payload])

    assert await codec(tmp_path).decode([second]) == [payload]
    with pytest.raises(MissingBlobError):
        await codec(tmp_path).decode([first])


@pytest.mark.req("PR-2")
async def test_keys_are_changed_in_the_middle_and_a_lost_one_is_named(tmp_path: Path) -> None:
    payloads = [Payload(data=text(size)) for size in (300, 40_000)]
    old = await codec(tmp_path, keys={"old": KEY}).with_context(RUN).encode(payloads)
    both = codec(tmp_path, keys={"new": OTHER, "old": KEY}).with_context(RUN)
    new = await both.encode(payloads)

    assert {payload.metadata["key-id"] for payload in new} == {b"new"}
    assert await both.decode([*old, *new]) == payloads * 2
    for payload in old:
        with pytest.raises(UnknownKeyError, match=r"'old' is not among .* \(there are: new\)"):
            await codec(tmp_path, keys={"new": OTHER}).decode([payload])


@pytest.mark.req("PR-1")
@pytest.mark.parametrize("keys", [None, {}])
@pytest.mark.parametrize("size", [300, 30_000])
async def test_a_flipped_bit_and_a_cut_are_found_wherever_they_are(
    tmp_path: Path, size: int, keys: dict[str, bytes] | None
) -> None:
    [encoded] = await codec(tmp_path, keys=keys).with_context(RUN).encode([Payload(data=text(size))])
    for spoiled in _spoiled(encoded.data):
        altered = Payload(metadata=encoded.metadata, data=spoiled)
        with pytest.raises(DamagedError):
            await codec(tmp_path, keys=keys).decode([altered])
    for blob in await stored(tmp_path):
        path = tmp_path / blob.name
        if path.name == "epoch":
            continue  # It says nothing about the data: another one makes a process forget, and no more.
        whole = path.read_bytes()
        for spoiled in _spoiled(whole):
            path.write_bytes(spoiled)
            with pytest.raises(DamagedError, match="is not as it was written"):
                await codec(tmp_path, keys=keys).decode([encoded])
        path.write_bytes(whole)
    # A payload of another kind, or with another key's name, is none.
    with pytest.raises((DamagedError, UnknownKeyError)):
        await codec(tmp_path, keys=keys).decode(
            [Payload(metadata={**encoded.metadata, "kind": b"other", "key-id": b"k1"}, data=encoded.data)]
        )


Change = tuple[str, float, bytes]
changes = st.tuples(st.sampled_from(["none", "none", "cut", "other", "twice"]), st.floats(0, 1), st.binary(max_size=4))


def changed(whole: bytes, change: Change) -> bytes:
    how, place, other = change
    at = int(place * len(whole))
    match how:
        case "cut":
            return whole[:at]
        case "other":
            return whole[:at] + other + whole[at + len(other) :]
        case "twice":
            return whole + whole
        case _:
            return whole


@pytest.mark.req("PR-1")
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes, changes, changes, changes, changes, st.booleans(), st.sampled_from([300, 30_000]))
def test_whatever_is_done_to_a_payload_or_its_blobs_it_is_refused_or_what_it_was(
    tmp_path: Path, to_data: Change, to_encoding: Change, to_kind: Change, to_key: Change, to_blob: Change,
    locked: bool, size: int,
) -> None:  # fmt: skip
    keys: dict[str, bytes] | None = None if locked else {}
    payload = Payload(metadata={"encoding": b"json/plain"}, data=text(size))

    async def read_altered(root: Path) -> Payload:
        [encoded] = await codec(root, keys=keys).with_context(RUN).encode([payload])
        altered = Payload(data=changed(encoded.data, to_data))
        for name, change in {"encoding": to_encoding, "kind": to_kind, "key-id": to_key}.items():
            if name in encoded.metadata:
                altered.metadata[name] = changed(encoded.metadata[name], change)
        for blob in await stored(root):
            path = root / blob.name
            path.write_bytes(changed(path.read_bytes(), to_blob))
        return (await codec(root, keys=keys).decode([altered]))[0]

    with tempfile.TemporaryDirectory(dir=tmp_path) as root:
        try:
            read = asyncio.run(read_altered(Path(root)))
        except (DamagedError, UnknownKeyError, MissingBlobError):
            return
    # One that says of itself that it is not ours passes as it is: whoever reads it does not know its encoding.
    assert read == payload or read.metadata["encoding"] not in (b"json/plain", ENCODING)


def _spoiled(data: bytes) -> list[bytes]:
    step = max(1, len(data) // 60)
    flipped = [data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :] for at in range(0, len(data), step)]
    return [*flipped, *(data[:at] for at in range(0, len(data), step * 5))]


async def test_what_others_wrote_passes_and_what_is_small_stays_readable_without_keys(tmp_path: Path) -> None:
    foreign = Payload(metadata={"encoding": b"json/plain"}, data=b'"hello"')

    assert await codec(tmp_path).decode([foreign]) == [foreign]
    assert await codec(tmp_path, keys={}).encode([foreign]) == [foreign]


async def test_a_value_that_is_too_large_is_refused_and_so_is_one_without_its_store(tmp_path: Path) -> None:
    with pytest.raises(TooLargeError, match="at most 5000"):
        await codec(tmp_path, largest=5000).encode([Payload(data=bytes(6000))])
    [encoded] = await codec(tmp_path).with_context(RUN).encode([Payload(data=text(9000))])
    with pytest.raises(NoStoreError, match="shop/order%2F7"):
        await HoldfastCodec(ring()).decode([encoded])


@pytest.mark.parametrize(
    ("given_text", "words"),
    [("nothing", "id:base64"), ("k:!!", "id:base64"), ("k:c2hvcnQ=", "has 5 bytes instead of 32")],
)
def test_a_bad_key_is_refused_and_not_shown(given_text: str, words: str) -> None:
    with pytest.raises(BadKeyError, match=words) as caught:
        KeyRing(keys_in(given_text, "default"))

    assert "c2hvcnQ" not in str(caught.value)


B64, OTHER_B64 = (base64.b64encode(key).decode() for key in (KEY, OTHER))


def test_keys_are_read_from_text_and_the_first_is_written_with() -> None:
    ring = KeyRing(keys_in(f"b:{OTHER_B64},\n a:{B64}", "default"))

    assert ring.current == "b"
    assert (ring.get("a"), ring.get("b")) == (KEY, OTHER)
    assert KeyRing(keys_in("", "default")).current is None


def test_a_namespace_with_keys_of_its_own_has_no_others() -> None:
    text = f"b:{OTHER_B64} shop/a:{B64}"

    assert keys_in(text, "shop") == {"a": KEY}
    assert keys_in(text, "other") == {"b": OTHER}


async def own_keys(namespace: str) -> dict[str, bytes]:
    return {f"{namespace}-1": KEY}


async def test_keys_come_from_a_file_or_a_service_and_are_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "keys"
    monkeypatch.delenv("HOLDFAST_KEYS")
    path.write_text(f"a:{B64}\n")
    monkeypatch.setenv("HOLDFAST_KEYS_FILE", str(path))
    keys = from_environment()
    before = await keys.ring("default")
    path.write_text(f"b:{OTHER_B64}\na:{B64}\n")
    monkeypatch.setattr("holdfast.codecs.keys._ASK_AGAIN_SECONDS", 0)
    after = await keys.ring("default", wanted="b")
    path.write_text("")
    with pytest.raises(BadKeyError, match="no key for namespace 'default'"):
        await from_environment().ring("default")
    monkeypatch.setenv("HOLDFAST_KEY_SERVICE", f"{__name__}:own_keys")
    with pytest.raises(BadKeyError, match="not several"):
        from_environment()
    monkeypatch.delenv("HOLDFAST_KEYS_FILE")
    served = await from_environment().ring("shop")

    monkeypatch.delenv("HOLDFAST_KEY_SERVICE")
    monkeypatch.setenv("HOLDFAST_KEYS", f"shop/a:{B64}")
    with pytest.raises(BadKeyError, match="HOLDFAST_KEYS has no key for namespace 'other'"):
        await from_environment().ring("other")

    assert (before.current, after.current, after.get("a"), served.current) == ("a", "b", KEY, "shop-1")


async def test_a_source_of_keys_that_goes_away_takes_none_away_and_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def vault(namespace: str) -> dict[str, bytes]:
        if away:
            raise ConnectionError("the vault is sealed")
        return {"a": KEY}

    away, keys = False, Keys(vault)
    monkeypatch.setattr("holdfast.codecs.keys._FRESH_SECONDS", 0)
    await keys.ring("default")
    away = True
    kept = await keys.ring("default")
    with pytest.raises(KeysUnavailableError, match="the vault is sealed"):
        await keys.ring("another")

    assert kept.current == "a"
    assert "the keys of namespace 'default' cannot be read again" in caplog.text
    assert "the vault is sealed" in caplog.text


@pytest.mark.parametrize("name", ["../up", "a//b", "a/./b", "", "a\\b"])
async def test_a_name_that_leads_elsewhere_is_refused(tmp_path: Path, name: str) -> None:
    store = LocalBlobs(tmp_path)
    for work in (store.put(name, b"x"), store.get(name), store.delete([name])):
        with pytest.raises(ValueError, match="bad-name"):
            await work
