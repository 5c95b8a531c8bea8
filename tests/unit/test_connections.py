"""Connections are resolved on the worker, and whatever is wrong with them is said without saying a secret."""

from pathlib import Path

import pytest

from holdfast import NonRetryableError
from holdfast.activities.connections import FILE_VARIABLE, resolve


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (FILE_VARIABLE, "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


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
