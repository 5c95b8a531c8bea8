"""The codec server with what it is made for: Temporal's Web UI in a real browser, and Temporal's command line."""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect

from holdfast.starter import embedded
from holdfast.starter.embedded import answers, binary, free_port
from tests.chaos.harness import lasting_port
from tests.conftest import StartWorker, WorkerProcess
from tests.e2e.console import CHROMIUM, DESK, PATIENCE, until
from tests.servers.codec import codec_server

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")

SONG, ECHO = "whale song", "gnos elahw"
# The result is not in the definition, and too large for the history.
FLOW = """
id: echo
nodes:
  sing:
    type: python
    input_transformer: {path: $}
    code: |
      import hashlib
      def run(input_data):
          noise = "".join(hashlib.sha256(str(n).encode()).hexdigest() for n in range(1600))
          return {"echo": input_data["song"][::-1], "noise": noise}
"""
HOLDFAST = [sys.executable, "-m", "holdfast.starter.cli"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[embedded.Running]:
    ports = [lasting_port() for _ in range(3)]
    with embedded.server(tmp_path_factory.mktemp("temporal"), *ports) as running:
        yield running


@pytest.fixture(scope="module")
def run_id(server: embedded.Running, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A run that is over: whoever reads it needs nothing but the server."""
    root = tmp_path_factory.mktemp("run")
    (root / "flow.yaml").write_text(FLOW)
    worker = WorkerProcess(server.address, "holdfast", [], root / "worker.log", {"HOLDFAST_HOME": str(root)})
    try:
        arguments = ["run", str(root / "flow.yaml"), "--input", f"song={SONG}", "--id", "echo-1"]
        subprocess.run(
            [*HOLDFAST, *arguments, "--address", server.address], check=True, capture_output=True, timeout=60
        )
    finally:
        worker.stop()
    return "echo-1"


@pytest.fixture(scope="module")
def chromium(playwright: Playwright) -> Generator[Browser]:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    yield browser
    browser.close()


@contextlib.contextmanager
def person(chromium: Browser, **options: Any) -> Generator[Page]:
    """Somebody with a browser that has never been here."""
    context: BrowserContext = chromium.new_context(viewport=DESK, locale="en-GB", **options)
    context.set_default_timeout(PATIENCE)
    try:
        yield context.new_page()
    finally:
        context.close()


def look_at(page: Page, ui_url: str, run_id: str) -> None:
    """As a person finds a run: the list, then a click."""
    page.goto(f"{ui_url}/namespaces/default/workflows")
    page.get_by_role("link", name=run_id, exact=True).first.click()
    expect(page.get_by_text("Task Queue").first).to_be_visible()
    expect(page.get_by_role("heading", name="Timeline")).to_be_visible()


def shows(page: Page) -> None:
    """The input, and the result that was stored apart."""
    expect(page.get_by_text(SONG).first).to_be_visible()
    expect(page.get_by_text(ECHO).first).to_be_visible()


def shows_nothing(page: Page) -> None:
    """Nowhere: not in the overview, and not in the events."""
    page.wait_for_load_state("networkidle")
    overview = page.content()
    page.get_by_role("tab", name="Event History").click()
    expect(page.get_by_text("Workflow Execution Started").first).to_be_visible()
    page.get_by_text("Workflow Execution Started").first.click()
    page.wait_for_load_state("networkidle")
    for text in (overview, page.content()):
        assert SONG not in text
        assert ECHO not in text


def tokens_in(folder: Path) -> str:
    path = folder / "tokens.yaml"
    path.write_text("[{token: sesame, namespace: default, name: ada}, {token: acorn, namespace: shop, name: shop}]")
    return str(path)


@pytest.mark.req("PR-2")
def test_the_web_ui_shows_input_and_result_with_a_codec_server_and_not_without(
    chromium: Browser, server: embedded.Running, run_id: str
) -> None:
    with person(chromium) as page:
        look_at(page, server.ui_url, run_id)
        shows_nothing(page)
    with codec_server("--origin", server.ui_url, port=server.codec_port), person(chromium) as page:
        look_at(page, server.ui_url, run_id)
        shows(page)


@pytest.mark.req("PR-2", "PR-3")
def test_with_tokens_the_web_ui_shows_nothing_until_a_person_has_given_theirs(
    chromium: Browser, server: embedded.Running, run_id: str, tmp_path: Path
) -> None:
    arguments = ("--origin", server.ui_url, "--tokens", tokens_in(tmp_path))
    with codec_server(*arguments, port=server.codec_port) as url:
        for token, seen in (("wrong", False), ("acorn", False), ("sesame", True)):
            credentials = {"username": "anybody", "password": token, "origin": url}
            with person(chromium, http_credentials=credentials) as page:
                page.goto(url)
                look_at(page, server.ui_url, run_id)
                _include_credentials(page, url)
                page.reload()
                expect(page.get_by_role("heading", name="Timeline")).to_be_visible()
                if seen:
                    shows(page)
                else:
                    shows_nothing(page)


def _include_credentials(page: Page, url: str) -> None:
    """What `TEMPORAL_CODEC_INCLUDE_CREDENTIALS` does for everybody, by hand."""
    page.get_by_role("button", name="Codec Server").first.click()
    dialog = page.locator("dialog[open]")
    dialog.get_by_text("Use my browser setting").click()
    dialog.get_by_role("textbox").fill(url)
    dialog.get_by_text("Include cross-origin credentials").click()
    dialog.get_by_role("button", name="Apply").click()


def test_the_web_ui_shows_why_a_payload_cannot_be_read(
    chromium: Browser, server: embedded.Running, run_id: str
) -> None:
    others = {"HOLDFAST_KEYS": f"another:{base64.b64encode(os.urandom(32)).decode()}"}
    with (
        codec_server("--origin", server.ui_url, port=server.codec_port, environment=others),
        person(chromium) as page,
    ):
        look_at(page, server.ui_url, run_id)
        expect(page.get_by_text("[codec/unknown-key] the key 'tests'").first).to_be_visible()
        shows_nothing(page)


@pytest.mark.req("PR-2")
def test_what_a_person_sends_in_the_web_ui_is_encrypted_and_understood(
    chromium: Browser, server: embedded.Running, start_worker: StartWorker, tmp_path: Path
) -> None:
    (tmp_path / "ask.yaml").write_text('id: ask\nnodes: {ask: {type: human, prompt: "What?"}}')
    start_worker(server.address, "holdfast")
    begin = ["run", str(tmp_path / "ask.yaml"), "--id", "ask-1", "--detach", "--address", server.address]
    subprocess.run([*HOLDFAST, *begin], check=True, capture_output=True, timeout=60)
    with codec_server("--origin", server.ui_url, port=server.codec_port), person(chromium) as page:
        look_at(page, server.ui_url, "ask-1")
        page.get_by_role("button", name="More Actions").click()
        page.get_by_role("menuitem", name="Send a Signal").last.click()
        dialog = page.locator("dialog[open]")
        dialog.get_by_role("button").nth(1).click()
        page.get_by_role("option", name="provide_input").click()
        dialog.get_by_role("textbox").last.click()
        page.keyboard.insert_text(json.dumps({"feedback": SONG}))
        # The text is set anew when it is left, and what is below it moves.
        dialog.get_by_text("Single JSON payload").click()
        page.wait_for_timeout(500)
        dialog.get_by_role("button", name="Submit").click()
        expect(dialog).to_be_hidden()
        expect(page.get_by_text("Completed", exact=True).first).to_be_visible()
    history = temporal(server, "workflow", "show", "--workflow-id", "ask-1", "--output", "json")
    checkpoint = ["checkpoint", "ask-1", "--address", server.address]
    read = subprocess.run([*HOLDFAST, *checkpoint], check=True, capture_output=True, text=True, timeout=60).stdout

    assert SONG in read
    assert "provide_input" in history
    assert SONG not in history
    # The middle of it, wherever it begins in base64.
    for start in range(3):
        assert base64.b64encode(SONG[start:].encode())[:8].decode() not in history


def test_a_page_of_another_origin_gets_no_answer(chromium: Browser, server: embedded.Running) -> None:
    ask = "url => fetch(url + '/decode', {method: 'POST', body: '{}', headers}).then(r => r.status, e => e.name)"
    as_json = ask.replace("headers", "headers: {'Content-Type': 'application/json'}")
    # A text needs no preflight: it is sent, and refused.
    as_text = ask.replace(", headers", "")
    with codec_server("--origin", server.ui_url) as url, person(chromium) as page:
        page.goto(server.ui_url)
        assert page.evaluate(as_json, url) == 200
        page.goto(server.ui_url.replace("127.0.0.1", "localhost"))
        assert page.evaluate(as_json, url) == "TypeError"
        assert page.evaluate(as_text, url) == "TypeError"


def temporal(server: embedded.Running, *arguments: str) -> str:
    command = [binary(), *arguments, "--address", server.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout + done.stderr


@pytest.mark.req("PR-2")
def test_temporals_command_line_shows_the_result_with_a_codec_server_and_not_without(
    server: embedded.Running, run_id: str, tmp_path: Path
) -> None:
    show = ("workflow", "show", "--workflow-id", run_id)
    with codec_server("--tokens", tokens_in(tmp_path)) as url:
        endpoint = ("--codec-endpoint", url)
        named = ("--codec-endpoint", f"{url}/{{namespace}}")
        assert ECHO not in temporal(server, *show)
        assert ECHO in temporal(server, *show, *endpoint, "--codec-auth", "Bearer sesame")
        assert ECHO in temporal(server, *show, *named, "--codec-auth", "Bearer sesame")
        assert ECHO not in temporal(server, *show, *endpoint, "--codec-auth", "Bearer acorn")


@contextlib.contextmanager
def dev(home: Path, *ports: str) -> Generator[dict[str, Any]]:
    """`holdfast dev` with nothing configured: no keys, no store, no server elsewhere."""
    process = subprocess.Popen(
        [*HOLDFAST, "dev", "--json", *ports], stdout=subprocess.PIPE, text=True, env=_bare(home), cwd=home.parent
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
        process.stdout.close()


def _bare(home: Path) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith(("TEMPORAL_", "HOLDFAST_"))}
    return {**kept, "HOLDFAST_HOME": str(home)}


@pytest.mark.req("PR-2")
def test_dev_shows_payloads_in_its_web_ui_out_of_the_box_and_on_another_port_the_next_time(
    chromium: Browser, tmp_path: Path
) -> None:
    home, flow = tmp_path / "home", tmp_path / "flow.yaml"
    flow.write_text(FLOW)
    ports = ("--port", str(lasting_port()), "--ui-port", str(lasting_port()), "--console-port", str(free_port()))
    with dev(home, *ports) as first:
        run = [*HOLDFAST, "run", str(flow), "--input", f"song={SONG}", "--id", "echo-2"]
        subprocess.run(run, check=True, capture_output=True, timeout=60, env=_bare(home), cwd=tmp_path)
        assert list((home / "blobs").rglob("echo-2"))
        kill_the_codec_server(first["codec"])
        with person(chromium) as page:
            look_at(page, first["ui"], "echo-2")
            shows(page)
    with port_taken(first["codec"]), dev(home, *ports) as second:
        assert second["codec"] != first["codec"]
        with person(chromium) as page:
            look_at(page, second["ui"], "echo-2")
            shows(page)
    assert json.loads((home / "ports.json").read_text())["codec_port"] == int(second["codec"].rpartition(":")[2])


def kill_the_codec_server(url: str) -> None:
    """`dev` puts another one up in its place."""
    port = int(url.rpartition(":")[2])
    until(lambda: answers(port), "the codec server")
    [pid] = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if serves(path, port)]
    os.kill(pid, signal.SIGKILL)
    until(lambda: not answers(port), "its end")
    until(lambda: answers(port), "another codec server")


def serves(command: Path, port: int) -> bool:
    with contextlib.suppress(OSError):
        return f"codec-server\0--port\0{port}\0" in command.read_text()
    return False


@contextlib.contextmanager
def port_taken(url: str) -> Generator[None]:
    """Somebody else has its port."""
    with codec_server(port=int(url.rpartition(":")[2])):
        yield
