"""Connections are resolved on the worker, and whatever is wrong with them is said without saying a secret."""

import asyncio
import base64
import threading
import traceback
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest

from holdfast import NonRetryableError
from holdfast.activities.connections import (
    FILE_VARIABLE,
    SECRETS_VARIABLE,
    Connection,
    Connections,
    learn_configured,
    resolve,
)
from holdfast.activities.failures import ExternalError
from holdfast.activities.registry import load
from holdfast.activities.secrets import KNOWN
from holdfast.activities.threads import NodeThreads
from tests.reference import ROOT, blocks


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    for name in (FILE_VARIABLE, "OPENAI_API_KEY", "OPENAI_BASE_URL", "HOLDFAST_KEYS_FILE"):
        monkeypatch.delenv(name, raising=False)
    KNOWN.forget()
    yield
    KNOWN.forget()


def _file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    path = tmp_path / "connections.yaml"
    path.write_text(text)
    monkeypatch.setenv(FILE_VARIABLE, str(path))


def test_the_environment_wins_over_the_file_and_both_are_read_every_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _file(monkeypatch, tmp_path, "crm: {base_url: 'http://file', api_key: from-file, headers: {X-Team: blue}}")
    before = resolve("crm")
    monkeypatch.setenv("HOLDFAST_CONNECTION_CRM_API_KEY", "from-environment")
    after = resolve("crm")

    assert before.api_key is not None
    assert before.api_key.get_secret_value() == "from-file"
    assert after.api_key is not None
    assert after.api_key.get_secret_value() == "from-environment"
    assert after.base_url == "http://file"
    assert after.headers["X-Team"].get_secret_value() == "blue"
    assert "from-" not in repr(after)


def test_openai_is_known_by_its_own_variables_and_an_empty_one_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "")
    with pytest.raises(NonRetryableError, match="HOLDFAST_CONNECTION_OPENAI_API_KEY"):
        resolve("openai")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    assert resolve("openai").base_url is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("crm: {apikey: sk-secret}", "connection 'crm' has a bad field: apikey"),
        ("crm: {api_key: [sk-secret]}", "connection 'crm' has a bad field: api_key"),
        ("- sk-secret", "it maps names to"),
        ("crm: sk-secret", "it maps names to"),
        ("crm: {api_key: sk-secret", r"is not YAML \(line 1\)"),
        ("other: {base_url: x}", "this worker has no connection 'crm'"),
    ],
)
def test_a_bad_file_is_named_and_nothing_in_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, words: str
) -> None:
    _file(monkeypatch, tmp_path, text)
    with pytest.raises(NonRetryableError, match=words) as caught:
        resolve("crm")

    assert "sk-secret" not in str(caught.value)
    assert caught.value.__cause__ is None or "sk-secret" not in str(caught.value.__cause__)


def test_a_missing_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, "/nowhere/connections.yaml")
    with pytest.raises(NonRetryableError, match="No such file"):
        resolve("crm")


def test_a_value_in_the_file_may_be_in_a_variable_or_in_another_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "key.txt").write_text("from-another-file\n")
    monkeypatch.setenv("TEAM_TOKEN", "from-a-variable")
    _file(monkeypatch, tmp_path, "crm: {api_key: {file: key.txt}, headers: {X-Team-Token: {env: TEAM_TOKEN}}}")
    found = resolve("crm")

    assert found.api_key is not None
    assert found.api_key.get_secret_value() == "from-another-file"
    assert found.headers["X-Team-Token"].get_secret_value() == "from-a-variable"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{env: NOT_SET_ANYWHERE}", "its api_key is to be in the variable NOT_SET_ANYWHERE, which is not set"),
        ("{file: nowhere.txt}", "its api_key is to be in the file nowhere.txt: No such file"),
        ("{env: A, file: B}", "has a bad field: api_key"),
    ],
)
def test_a_value_that_is_not_where_the_file_says_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, words: str
) -> None:
    _file(monkeypatch, tmp_path, f"crm: {{api_key: {value}}}")
    with pytest.raises(NonRetryableError, match=words):
        resolve("crm")


@pytest.fixture
async def threads() -> AsyncGenerator[NodeThreads]:
    found = NodeThreads()
    yield found
    await found.close()


@pytest.mark.req("PR-2")
async def test_a_module_provides_connections_by_sync_and_async_functions(threads: NodeThreads, tmp_path: Path) -> None:
    module = tmp_path / "provided_connections.py"
    module.write_text("""
from holdfast import connection

@connection("crm")
def crm(): return {"base_url": "http://crm", "api_key": "key-of-the-crm"}

@connection("ledger")
async def ledger(): return {"headers": {"X-Token": "token-of-the-ledger"}}
""")
    connections = Connections(load([str(module)]).connections, threads)
    crm, ledger = await connections.resolve("crm"), await connections.resolve("ledger")

    assert crm.api_key is not None
    assert (crm.base_url, crm.api_key.get_secret_value()) == ("http://crm", "key-of-the-crm")
    assert ledger.headers["X-Token"].get_secret_value() == "token-of-the-ledger"
    assert KNOWN.mask("key-of-the-crm, token-of-the-ledger") == "[secret], [secret]"


async def test_a_function_is_asked_every_time_the_environment_wins_over_it_and_it_over_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: NodeThreads
) -> None:
    _file(monkeypatch, tmp_path, "crm: {base_url: 'http://file', api_key: key-from-file}")
    keys = iter(["key-number-1", "key-number-2", "key-number-3"])
    connections = Connections({"crm": lambda: {"api_key": next(keys)}}, threads)
    found = [await connections.resolve("crm") for _ in range(2)]
    monkeypatch.setenv("HOLDFAST_CONNECTION_CRM_API_KEY", "key-from-environment")
    found.append(await connections.resolve("crm"))

    assert [each.api_key.get_secret_value() for each in found if each.api_key] == [
        "key-number-1",
        "key-number-2",
        "key-from-environment",
    ]
    assert {each.base_url for each in found} == {"http://file"}


async def test_a_function_that_has_nothing_leaves_it_to_the_others(threads: NodeThreads) -> None:
    with pytest.raises(NonRetryableError, match="this worker has no connection 'crm'"):
        await Connections({"crm": lambda: None}, threads).resolve("crm")


async def test_a_function_that_blocks_stops_nobody_else(threads: NodeThreads) -> None:
    release = threading.Event()

    def slow() -> dict[str, str]:
        release.wait(20)
        return {"base_url": "http://slow"}

    asked = asyncio.ensure_future(Connections({"crm": slow}, threads).resolve("crm"))
    await asyncio.sleep(0.01)
    release.set()

    assert (await asked).base_url == "http://slow"


@pytest.mark.req("PR-2")
@pytest.mark.parametrize(("error", "retryable"), [(ValueError, True), (NonRetryableError, False)])
async def test_what_a_function_raises_is_named_with_its_place_and_without_its_words(
    error: type[Exception], retryable: bool, threads: NodeThreads
) -> None:
    def broken() -> None:
        raise error("the vault refuses the token sk-secret")

    with pytest.raises(ExternalError, match=rf"raised {error.__name__} \(test_connections.py, line \d+\)") as caught:
        await Connections({"crm": broken}, threads).resolve("crm")

    assert caught.value.retryable == retryable
    assert "sk-secret" not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("sk-secret", "the function for connection 'crm' gives no dict"),
        ({"apikey": "sk-secret"}, "connection 'crm' has a bad field: apikey"),
    ],
)
async def test_what_a_function_gives_is_checked_and_not_shown(given: Any, words: str, threads: NodeThreads) -> None:
    with pytest.raises(NonRetryableError, match=words) as caught:
        await Connections({"crm": lambda: given}, threads).resolve("crm")

    assert "sk-secret" not in str(caught.value)


@pytest.mark.req("PR-2")
def test_what_is_secret_in_a_connection_is_known_and_what_is_not_is_left_alone() -> None:
    headers = {
        "Authorization": "Bearer the-bearer-token",
        "X-Old": "Basic " + base64.b64encode(b"anna:the-password").decode(),
        "X-Whatever": "the-whatever",
        "Content-Type": "application/json",
        "anthropic-version": "2023-06-01",
        "X-Team": "blue",
    }
    connection = Connection.model_validate(
        {"base_url": "https://anna:p%40ss-in-url@host/", "api_key": "the-api-key", "headers": headers}
    )
    KNOWN.learn(connection.secrets())

    secret = ["the-bearer-token", "the-password", "the-whatever", "p@ss-in-url", "p%40ss-in-url", "the-api-key"]
    assert [KNOWN.mask(text) for text in secret] == ["[secret]"] * len(secret)
    assert KNOWN.mask(headers["X-Old"]) == "Basic [secret]"
    plain = ["application/json", "2023-06-01", "blue", "https://host/"]
    assert [KNOWN.mask(text) for text in plain] == plain


@pytest.mark.req("PR-2")
def test_what_is_configured_is_known_before_it_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text("key-in-a-file-of-its-own")
    _file(monkeypatch, tmp_path, "a: {api_key: {file: key.txt}}\nb: {apikey: wrong}\nc: {api_key: key-in-the-file}")
    monkeypatch.setenv("HOLDFAST_CONNECTION_CRM_API_KEY", "key-in-the-environment")
    monkeypatch.setenv("HOLDFAST_KEYS", "2026:bmV3LWtleS1ieXRlcw==,2025:b2xkLWtleS1ieXRlcw==")
    monkeypatch.setenv("STRIPE_KEY", "key-of-a-node")
    monkeypatch.setenv(SECRETS_VARIABLE, "OTHER, STRIPE_KEY")
    monkeypatch.setenv("HARMLESS", "not-a-secret")
    learn_configured()

    secrets = "key-in-a-file-of-its-own key-in-the-file key-in-the-environment b2xkLWtleS1ieXRlcw== key-of-a-node"
    assert KNOWN.mask(secrets) == " ".join(["[secret]"] * 5)
    assert KNOWN.mask("not-a-secret 2026:") == "not-a-secret 2026:"


def test_a_broken_file_does_not_keep_a_worker_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FILE_VARIABLE, "/nowhere/connections.yaml")
    learn_configured()


async def test_the_examples_of_the_documentation_are_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: NodeThreads
) -> None:
    # They stand in a list.
    text = (ROOT / "docs" / "secrets.md").read_text().replace("\n   ", "\n")
    module = tmp_path / "documented_connections.py"
    module.write_text(blocks(text, "python")[0])
    (tmp_path / "team-token.txt").write_text("the-token-of-the-team")
    monkeypatch.setenv("CRM_TOKEN", "the-token-of-the-crm")
    in_module = await Connections(load([str(module)]).connections, threads).resolve("crm")
    _file(monkeypatch, tmp_path, blocks(text, "yaml")[0])
    in_file = resolve("crm")

    assert in_module.base_url == in_file.base_url == "https://crm.example.com"
    assert in_module.api_key == in_file.api_key
    assert in_file.headers["X-Team-Token"].get_secret_value() == "the-token-of-the-team"


def test_keys_for_payloads_in_a_file_are_known_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("2026:bmV3LWtleS1ieXRlcw==\nother/2025:b2xkLWtleS1ieXRlcw==\n")
    monkeypatch.setenv("HOLDFAST_KEYS_FILE", str(tmp_path / "keys"))
    learn_configured()

    assert KNOWN.mask("bmV3LWtleS1ieXRlcw== b2xkLWtleS1ieXRlcw==") == "[secret] [secret]"
