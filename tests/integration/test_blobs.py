"""Blobs: both stores do the same. The one in S3 is a real server that is killed, the local one has killed writers."""

import asyncio
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pytest

from holdfast.codecs.blobs import (
    BadStoreError,
    Blob,
    BlobStore,
    LocalBlobs,
    MissingBlobError,
    StoreRefusedError,
    StoreUnavailableError,
    delete_prefix,
    open_store,
    prefix_of,
    run_of,
)
from holdfast.codecs.s3 import S3Blobs, S3Settings
from holdfast.starter.embedded import free_port
from tests.servers.s3 import S3Server

MB = 2**20
LARGE = os.urandom(40 * MB)
ODD = [
    "Zürich/日本",
    "../../etc",
    "..",
    ".",
    ".hidden",
    "~a%2F b+c=d&e",
    "a\\b",
    "x" * 200,
    "ü" * 200,
    "-",
    "a\nb",
    "'\"<>|?*",
]


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Generator[S3Server]:
    with S3Server(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server


@pytest.fixture
def s3_store(s3: S3Server, tmp_path: Path) -> S3Blobs:
    """Empty: under a prefix of its own."""
    return S3Blobs(S3Settings.from_url(s3.url(tmp_path.name)), patience=1.0)


@pytest.fixture(params=["local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> BlobStore:
    if request.param == "local":
        return LocalBlobs(tmp_path / "deep" / "blobs")
    return request.getfixturevalue("s3_store")


async def listed(store: BlobStore, prefix: str = "") -> list[Blob]:
    return [blob async for blob in store.find(prefix)]


async def names(store: BlobStore, prefix: str = "") -> list[str]:
    return [blob.name for blob in await listed(store, prefix)]


async def in_the_end(store: BlobStore, name: str, data: bytes) -> None:
    """Put as the callers do it. A server that has just been started may still be busy with itself."""
    for _ in range(30):
        try:
            return await store.put(name, data)
        except StoreUnavailableError:
            await asyncio.sleep(0.1)
    return await store.put(name, data)


async def put_all(store: BlobStore, names: list[str]) -> None:
    slots = asyncio.Semaphore(16)

    async def put(name: str) -> None:
        async with slots:
            await store.put(name, name.encode())

    await asyncio.gather(*(put(name) for name in names))


@pytest.mark.req("FS-3")
async def test_what_was_put_comes_back(store: BlobStore) -> None:
    sizes = [0, 1, MB, 16 * MB, 16 * MB + 1, 40 * MB]
    for size in sizes:
        await store.put(f"n/r/{size:08}", LARGE[:size])

    for size in sizes:
        assert await store.get(f"n/r/{size:08}") == LARGE[:size]
    assert [(blob.name, blob.size) for blob in await listed(store)] == [(f"n/r/{size:08}", size) for size in sizes]


@pytest.mark.req("FS-3")
async def test_a_part_can_be_read_and_less_where_the_blob_ends(store: BlobStore) -> None:
    for size in (0, 1, 1000, 20 * MB):
        data, name = LARGE[:size], f"n/r/{size}"
        await store.put(name, data)
        for start in (0, 1, 10, size // 2, size, size + 1):
            for wanted in (0, 1, 7, size, None):
                assert await store.get(name, start, wanted) == data[start:][:wanted]


async def test_a_missing_blob_is_named(store: BlobStore) -> None:
    await store.put("n/r/a", b"x")

    for name in ("n/r/b", "n/q/a", "n/r", "m", "n/r/a/deeper"):
        for start, size in ((0, None), (0, 0), (0, 5), (3, None)):
            with pytest.raises(MissingBlobError, match=rf"\[blob/missing\] {name} is not in "):
                await store.get(name, start, size)


@pytest.mark.parametrize("size", [10, 20 * MB])
async def test_a_blob_is_never_changed(store: BlobStore, size: int) -> None:
    first = LARGE[:size]
    await store.put("n/r/a", first)
    before = await listed(store)
    await store.put("n/r/a", first)
    await store.put("n/r/a", b"other")
    await store.put("n/r/a", LARGE[: 17 * MB])

    assert await store.get("n/r/a") == first
    assert await listed(store) == before


@pytest.mark.parametrize(("size", "writers"), [(1000, 20), (17 * MB, 4)])
async def test_many_put_the_same_at_once(store: BlobStore, size: int, writers: int) -> None:
    await asyncio.gather(*(store.put("n/r/a", LARGE[:size]) for _ in range(writers)))

    assert await store.get("n/r/a") == LARGE[:size]
    assert len(await listed(store)) == 1
    assert await store.tidy(timedelta(seconds=-60)) == 0


async def test_all_blobs_of_a_prefix_are_found_and_deleted_and_no_others(store: BlobStore) -> None:
    many = [f"a/b/{number:04}" for number in range(1500)]
    others = ["a/b-c/1", "a/b.c/1", "a/bc/1", "a/bc/2", "a/a/1", "ab/c/1", "b/b/1"]
    await put_all(store, many + others)

    assert await names(store, "a/b/") == many
    assert await names(store, "a/b/01") == many[100:200]
    assert await names(store, "a/b/0100") == [many[100]]
    assert await names(store, "a/bc") == ["a/bc/1", "a/bc/2"]
    assert sorted(await names(store, "a/b")) == sorted([*many, *others[:4]])
    assert sorted(await names(store, "a/")) == sorted([*many, *others[:5]])
    assert sorted(await names(store, "a")) == sorted([*many, *others[:6]])
    everything = await names(store)
    assert sorted(everything) == sorted(many + others)
    # Those of one run come together.
    runs = [name.rpartition("/")[0] for name in everything]
    assert sum(run != after for run, after in pairwise(runs)) == len(set(runs)) - 1
    for nothing in ("a/b/2", "a/c", "a/b/0100/", "q/", "z"):
        assert await names(store, nothing) == []

    await store.delete(many[:1200])
    assert await names(store, "a/b/") == many[1200:]
    assert await delete_prefix(store, "a/b") == 300
    assert sorted(await names(store)) == sorted(others)


async def test_odd_ids_have_places_of_their_own(store: BlobStore) -> None:
    prefixes = [prefix_of(namespace, run) for namespace in (ODD[0], "n") for run in ODD]
    for number, prefix in enumerate(prefixes):
        await store.put(f"{prefix}/{'c' * 40}", f"{number}".encode())

    for number, prefix in enumerate(prefixes):
        assert await store.get(f"{prefix}/{'c' * 40}") == f"{number}".encode()
        assert await names(store, f"{prefix}/") == [f"{prefix}/{'c' * 40}"]
    assert await delete_prefix(store, prefixes[0]) == 1
    assert sorted(await names(store)) == sorted(f"{prefix}/{'c' * 40}" for prefix in prefixes[1:])


def test_a_prefix_tells_its_run_unless_the_id_is_too_long() -> None:
    for run in ODD:
        told = run_of(f"{prefix_of('n!', run)}/blob")
        assert told == (None if run == "ü" * 200 else ("n!", run))
    long = [prefix_of("n", "ü" * 999 + end) for end in ("a", "b", "b!")]
    assert len(set(long)) == 3
    assert [run_of(prefix) for prefix in [*long, prefix_of("ü" * 999, "r")]] == [None] * 4
    assert max(len(part) for prefix in long for part in prefix.split("/")) == 200


async def test_what_is_deleted_may_be_missing_and_may_come_back(store: BlobStore) -> None:
    await put_all(store, ["n/r/a", "n/r/b", "n/r2/a", "n/q/a"])
    await store.delete([])
    await store.delete(["n/r/nothing", "x/y/z", "n/r/a", "n/r/a", "n/r2", "n/q/a", "n/q/a/deeper"])

    assert await names(store) == ["n/r/b", "n/r2/a"]
    assert await delete_prefix(store, "n/r") == 1
    assert await delete_prefix(store, "n/r") == 0
    await store.put("n/r/b", b"again")
    assert await store.get("n/r/b") == b"again"


async def test_times_are_recent_and_have_a_zone(store: BlobStore) -> None:
    await store.put("n/r/a", b"x")
    [blob] = await listed(store)

    assert blob.written_at.tzinfo is UTC
    assert abs(datetime.now(UTC) - blob.written_at) < timedelta(seconds=10)


async def test_a_name_that_leads_elsewhere_is_refused(store: BlobStore) -> None:
    for name in ("../up", "a/../../up", "/etc/x", "a//b", "a/./b", "", "a\\b", "a/", ".writing/x", "a\0b"):
        for work in (store.put(name, b"x"), store.get(name), store.delete([name]), listed(store, f"{name}/")):
            with pytest.raises(ValueError, match="bad-name"):
                await work


@pytest.mark.req("PR-6")
async def test_a_good_store_passes_its_check_and_stays_as_it_was(store: BlobStore) -> None:
    await asyncio.gather(*(store.check() for _ in range(5)))

    assert await listed(store) == []
    assert await store.tidy(timedelta(seconds=-60)) == 0


@pytest.mark.req("PR-6")
async def test_a_killed_server_is_unavailable_and_has_everything_when_it_is_back(
    s3: S3Server, s3_store: S3Blobs
) -> None:
    await s3_store.put("n/r/before", b"1")
    await s3_store.put("n/r/large", LARGE)
    s3.kill()
    try:
        begun = time.monotonic()
        requests = [s3_store.put("n/r/lost", b"2"), s3_store.put("n/r/lost", LARGE), s3_store.get("n/r/before")]
        failures = await asyncio.gather(*requests, listed(s3_store), s3_store.check(), return_exceptions=True)
        took = time.monotonic() - begun
    finally:
        s3.start()
    await in_the_end(s3_store, "n/r/after", b"3")

    assert [type(failure) for failure in failures] == [StoreUnavailableError] * 5
    for failure in failures:
        for said in ("[blob/unavailable] s3://blobs/", s3.endpoint, "it is tried again"):
            assert said in str(failure)
    assert 0.4 < took < 4
    assert await names(s3_store) == ["n/r/after", "n/r/before", "n/r/large"]
    assert await s3_store.get("n/r/before") == b"1"
    assert await s3_store.get("n/r/large") == LARGE


@pytest.mark.req("PR-6")
async def test_a_put_goes_on_when_the_server_is_back_in_time(s3: S3Server, tmp_path: Path) -> None:
    patient = open_store(s3.url(tmp_path.name), patience=20)
    s3.kill()
    try:
        putting = asyncio.gather(patient.put("n/r/a", b"1"), patient.put("n/r/large", LARGE))
        await asyncio.sleep(0.5)
    finally:
        await asyncio.to_thread(s3.start)
    await putting

    assert await names(patient) == ["n/r/a", "n/r/large"]
    assert await patient.get("n/r/large") == LARGE


@pytest.mark.req("PR-6")
@pytest.mark.parametrize("after", [0.05, 0.15, 0.25, 0.35])
async def test_a_large_put_that_is_cut_off_leaves_all_or_nothing(s3: S3Server, s3_store: S3Blobs, after: float) -> None:
    putting = asyncio.create_task(s3_store.put("n/r/large", LARGE))
    await asyncio.sleep(after)
    s3.kill()
    outcome = (await asyncio.gather(putting, return_exceptions=True))[0]
    s3.start()
    found = await listed(s3_store)
    if found:
        assert await s3_store.get("n/r/large") == LARGE
    await s3_store.tidy(timedelta(seconds=-60))
    await in_the_end(s3_store, "n/r/large", LARGE)

    assert outcome is None or isinstance(outcome, StoreUnavailableError)
    assert outcome is not None or found
    assert await s3_store.get("n/r/large") == LARGE


class LateAnswers(S3Blobs):
    """Hears late that an upload has begun."""

    async def _ask(self, operation: str, **arguments: Any) -> Any:
        answer = await super()._ask(operation, **arguments)
        if operation == "create_multipart_upload":
            await asyncio.sleep(0.5)
        return answer


@pytest.mark.parametrize("blobs", [S3Blobs, LateAnswers])
async def test_a_put_that_is_cancelled_leaves_no_upload(s3: S3Server, tmp_path: Path, blobs: type[S3Blobs]) -> None:
    store = blobs(S3Settings.from_url(s3.url(tmp_path.name)))
    putting = asyncio.create_task(store.put("n/r/a", LARGE))
    while not s3.uploads(tmp_path.name):
        await asyncio.sleep(0.02)
    putting.cancel()
    await asyncio.wait([putting])

    assert putting.cancelled()
    assert s3.uploads(tmp_path.name) == []


async def test_what_a_killed_process_left_of_an_upload_is_tidied(
    s3: S3Server, s3_store: S3Blobs, tmp_path: Path
) -> None:
    await s3_store.put("n/r/there", b"x")
    for name in ("n/r/half", "n/r/there"):
        s3.client.create_multipart_upload(Bucket=s3.bucket, Key=f"{tmp_path.name}/{name}")

    assert await s3_store.tidy(timedelta(hours=1)) == 0
    assert await s3_store.tidy(timedelta(seconds=-60)) == 1
    # The server may have been killed after it made this one, and before it forgot that it was an upload.
    assert s3.uploads(tmp_path.name) == [f"{tmp_path.name}/n/r/there"]


@pytest.mark.req("PR-6")
async def test_a_server_that_hangs_is_unavailable(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.codecs.s3._READ_SECONDS", 1)
    store = S3Blobs(S3Settings.from_url(s3.url()), patience=0.5)
    s3.pause()
    try:
        begun = time.monotonic()
        with pytest.raises(StoreUnavailableError, match="timeout"):
            await store.get("n/r/a")
        took = time.monotonic() - begun
    finally:
        s3.go_on()

    assert took < 5
    with pytest.raises(MissingBlobError):
        await store.get("n/r/a")


@pytest.mark.req("PR-6")
async def test_wrong_credentials_are_refused_at_once(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hush")
    store = open_store(s3.url())
    for work in (store.put("n/r/a", b"x"), store.put("n/r/a", LARGE), store.get("n/r/a"), listed(store), store.check()):
        begun = time.monotonic()
        with pytest.raises(StoreRefusedError, match=r"\[blob/refused\] s3://blobs/ at http.*check") as refused:
            await work
        assert time.monotonic() - begun < 4
        assert "hush" not in str(refused.value)
    with pytest.raises(StoreRefusedError, match=r"SignatureDoesNotMatch.*check the credentials"):
        await store.delete(["n/r/a"])


@pytest.mark.req("PR-6")
async def test_a_missing_bucket_is_named(s3: S3Server) -> None:
    store = S3Blobs(S3Settings("nowhere", endpoint_url=s3.endpoint))
    for work in (store.put("n/r/a", LARGE), store.get("n/r/a"), listed(store), store.delete(["n/r/a"]), store.check()):
        with pytest.raises(StoreRefusedError, match=r"s3://nowhere/ at http.*NoSuchBucket.*make the bucket"):
            await work


async def test_no_credentials_are_said_to_be_missing(s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
    with pytest.raises(StoreRefusedError, match=r"Unable to locate credentials.*AWS_ACCESS_KEY_ID"):
        await open_store(s3.url()).check()


async def test_nobody_at_the_endpoint_is_unavailable_after_the_patience(s3: S3Server) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    begun = time.monotonic()
    with pytest.raises(StoreUnavailableError, match=nowhere):
        await S3Blobs(S3Settings("b-b", endpoint_url=nowhere, region="eu-north-1"), patience=0).check()

    # Without its usual patience, which is five seconds.
    assert time.monotonic() - begun < 4


async def test_two_prefixes_in_one_bucket_are_two_stores(s3: S3Server, s3_store: S3Blobs, tmp_path: Path) -> None:
    other = open_store(s3.url(f"{tmp_path.name}-2/deep"))
    await s3_store.put("n/r/a", b"1")
    await other.put("n/r/a", b"2")

    assert (await s3_store.get("n/r/a"), await other.get("n/r/a")) == (b"1", b"2")
    assert (await names(s3_store), await names(other)) == (["n/r/a"], ["n/r/a"])


def test_urls_name_stores(tmp_path: Path) -> None:
    url = "s3://my.bucket/some/p%20x/?endpoint=http://127.0.0.1:8333&region=eu-north-1&addressing=virtual"

    assert S3Settings.from_url(url) == S3Settings("my.bucket", "some/p x", "http://127.0.0.1:8333", "eu-north-1", False)
    assert S3Settings.from_url("s3://bucket") == S3Settings("bucket")
    for local in (f"file://{tmp_path}/a%20b", f"{tmp_path}/a b"):
        store = open_store(local)
        assert isinstance(store, LocalBlobs)
        asyncio.run(store.put("n/r/a", b"x"))
    assert (tmp_path / "a b" / "n" / "r" / "a").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "empty"),
        ("gs://bucket/x", "no stores of the kind 'gs'"),
        ("s3://", "name of a bucket"),
        ("s3:///prefix", "name of a bucket"),
        ("s3://hush:hush", "name of a bucket"),
        ("s3://key:hush@bucket/x", "credentials do not belong in a URL"),
        ("s3://bucket/x?endpoint=http://key:hush@host", "credentials do not belong in a URL"),
        ("s3://bucket/x?endpoint=host:8333", "no http:// or https:// URL"),
        ("s3://bucket/x?endpoint=http://host:port", "no http:// or https:// URL"),
        ("s3://bucket/x?endpoint=", "'endpoint' is empty"),
        ("s3://bucket/x?secret=hush", "no option 'secret'; it has endpoint, region, addressing"),
        ("s3://bucket/x?addressing=hush", "'path' or 'virtual'"),
        ("s3://bucket/x#y", "after '#'"),
        ("s3://bucket/a/../b", "no prefix"),
        ("s3://[bucket/x", "cannot be read"),
        ("file://host/x", "three slashes"),
        ("file:///", "an absolute path"),
    ],
)
def test_a_url_that_names_no_store_is_explained_and_no_secret_shown(url: str, said: str) -> None:
    with pytest.raises(BadStoreError) as refused:
        open_store(url)

    assert str(refused.value).startswith("[blob/bad-url] ")
    assert said in str(refused.value)
    assert "hush" not in str(refused.value)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(ImportError, match=r"pip install 'holdfast\[s3\]'"):
        open_store("s3://bucket/x")


WRITER = """
import asyncio, hashlib, os, sys
from pathlib import Path
from holdfast.codecs.blobs import LocalBlobs

async def write(number: int) -> None:
    while True:
        data = os.urandom(300_000)
        await LocalBlobs(Path(sys.argv[1])).put(f"n/r{number}/{hashlib.sha256(data).hexdigest()}", data)

async def main() -> None:
    print("writing", flush=True)
    await asyncio.gather(*(write(number) for number in range(4)))

asyncio.run(main())
"""


@pytest.mark.req("PR-6")
async def test_a_killed_process_leaves_only_whole_blobs(tmp_path: Path) -> None:
    store, leftovers, rounds = LocalBlobs(tmp_path), 0, 0
    # Not every kill hits a write: it is tried until one has.
    while rounds < 4 or (leftovers == 0 and rounds < 40):
        rounds += 1
        lived = 0.05 * rounds
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            await asyncio.sleep(lived)
            writer.send_signal(signal.SIGKILL)
        spared = await store.tidy(timedelta(hours=1))
        leftovers += await store.tidy(timedelta(seconds=-60))
        assert spared == 0
    found = await names(store)

    assert len(found) > 4
    for name in found:
        assert name.endswith(hashlib.sha256(await store.get(name)).hexdigest())
    assert leftovers > 0
    assert list((tmp_path / ".writing").iterdir()) == []


async def test_folders_that_vanish_meanwhile_do_not_matter(tmp_path: Path) -> None:
    store = LocalBlobs(tmp_path)
    deadline = time.monotonic() + 1
    written = 0

    async def write(number: int) -> None:
        nonlocal written
        while time.monotonic() < deadline:
            await store.put(f"n/r/{number}", b"x")
            await store.delete([f"n/r/{number}"])
            written += 1

    await asyncio.gather(*(write(number) for number in range(6)))

    assert written > 100
    assert [path.name for path in tmp_path.iterdir()] == [".writing"]


@pytest.mark.req("PR-6")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux")
async def test_a_full_disk_is_unavailable_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalBlobs(tmp_path)
    await store.put("n/r/a", b"x")
    opened = os.fdopen

    def full(descriptor: int, mode: str) -> IO[Any]:
        os.close(descriptor)
        return opened(os.open("/dev/full", os.O_WRONLY), mode)

    monkeypatch.setattr(os, "fdopen", full)
    with pytest.raises(StoreUnavailableError, match=r"\[blob/unavailable\].*No space left on device.*tried again"):
        await store.put("n/r/b", b"y" * 100)
    monkeypatch.undo()

    assert await names(store) == ["n/r/a"]
    assert await store.tidy(timedelta(seconds=-60)) == 0


@pytest.mark.req("PR-6")
async def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for root in (tmp_path / "file", tmp_path / "file" / "deeper"):
        for work in (LocalBlobs(root).check(), LocalBlobs(root).put("n/r/a", b"x")):
            with pytest.raises(
                StoreRefusedError, match=r"\[blob/refused\] .*file.*a folder which this process may write"
            ):
                await work
