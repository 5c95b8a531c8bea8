"""The stage of the tests of the console: real processes that can be killed, and real browsers that are watched."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Locator, Page, Playwright, Request, ViewportSize

from holdfast.starter import embedded
from tests.chaos.harness import lasting_port

CHROMIUM = shutil.which("chromium")
PHONE: ViewportSize = {"width": 390, "height": 844}
DESK: ViewportSize = {"width": 1200, "height": 900}
PATIENCE = 20_000

on_every_screen = pytest.mark.parametrize(
    ("name", "context"),
    [
        ("light", {"color_scheme": "light"}),
        ("dark", {"color_scheme": "dark"}),
        ("phone", {"viewport": PHONE, "is_mobile": True, "has_touch": True}),
    ],
)


def _step(name: str, depends: str | None) -> dict[str, Any]:
    code = f"""
import pathlib, time
def run(x):
    while pathlib.Path("{name}.held").exists(): time.sleep(0.05)
"""
    return {"type": "python", "code": code, **({"depends": depends} if depends else {})}


# Thirteen steps, one after the other; each waits while it is held (`Stack.hold`).
STEPS = json.dumps(
    {
        "id": "steps",
        "nodes": {f"n{number}": _step(f"n{number}", f"n{number - 1}" if number else None) for number in range(13)},
    }
)


class Stack:
    """Temporal, a worker and the API, each a process of its own that can be killed and comes back to its port."""

    def __init__(self, root: Path, flows: Mapping[str, str]) -> None:
        self.root = root
        self._ports = {name: lasting_port() for name in ("temporal", "ui", "api", "closed")}
        self.address = f"127.0.0.1:{self._ports['temporal']}"
        self.url = f"http://127.0.0.1:{self._ports['api']}"
        self.ui_url = f"http://127.0.0.1:{self._ports['ui']}"
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.http = httpx2.Client(base_url=self.url, timeout=30)
        (root / "flows").mkdir()
        for name, text in flows.items():
            (root / "flows" / f"{name}.yaml").write_text(text)

    def start(self) -> None:
        ports = (self._ports["temporal"], self._ports["ui"])
        self._running["temporal"], _ = embedded.start(self.root / "temporal", *ports)
        self.start_worker()
        self.start_api()

    def start_worker(self) -> None:
        log = self._spawn("worker", ["-m", "holdfast.worker", "--address", self.address])
        until(lambda: b"on task queue" in log.read_bytes(), f"the worker, see {log}")

    def start_api(self) -> None:
        port = str(self._ports["api"])
        arguments = ["--address", self.address, "--port", port, "--flows", str(self.root / "flows")]
        self._spawn("api", ["-m", "holdfast.starter.cli", "serve", *arguments, "--ui-url", self.ui_url])
        until(lambda: _answers(f"{self.url}/ready"), "the API")

    def start_closed_api(self) -> str:
        """A second one, that wants a token."""
        (self.root / "tokens.yaml").write_text("[{token: sesame, name: ada}]")
        port = str(self._ports["closed"])
        arguments = ["--address", self.address, "--port", port, "--tokens", str(self.root / "tokens.yaml")]
        self._spawn("closed", ["-m", "holdfast.starter.cli", "serve", *arguments])
        url = f"http://127.0.0.1:{port}"
        until(lambda: _answers(f"{url}/ready"), "the API with tokens")
        return url

    def _spawn(self, name: str, arguments: list[str]) -> Path:
        log = self.root / f"{name}-{time.monotonic_ns()}.log"
        environment = {**os.environ, "HOLDFAST_HOME": str(self.root / "home")}
        with log.open("wb") as output:
            self._running[name] = subprocess.Popen(
                [sys.executable, *arguments], stdout=output, stderr=output, env=environment, cwd=self.root
            )
        return log

    def kill(self, *names: str) -> None:
        """SIGKILL: nothing is handed over."""
        for name in names:
            process = self._running.pop(name)
            process.kill()
            process.wait()

    def close(self) -> None:
        self.http.close()
        self.kill(*self._running)

    def begin(self, flow: str, data: Any = None) -> str:
        reply = self.http.post("/runs", json={"flow": flow, "input": data or {}})
        assert reply.status_code == 201, reply.text
        return reply.json()["run_id"]

    def hold(self, step: str) -> None:
        """The flow `STEPS` waits in this step, until it is let go."""
        (self.root / f"{step}.held").touch()

    def let_go(self, step: str) -> None:
        (self.root / f"{step}.held").unlink()

    def questions(self, run_id: str, count: int = 1) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []

        def asked() -> bool:
            found[:] = self.http.get("/inbox", params={"run": run_id}).json()["requests"]
            return len(found) >= count

        until(asked, f"{count} questions of {run_id}")
        return found

    def ended(self, run_id: str) -> dict[str, Any]:
        """The last checkpoint of a run that ends."""
        ends = {"completed", "failed", "cancelled"}
        until(lambda: self.http.get(f"/runs/{run_id}").json()["status"] in ends, f"the end of {run_id}")
        return self.http.get(f"/runs/{run_id}/checkpoints/latest").json()

    def cancel_all(self) -> None:
        """So that the next test finds an empty inbox."""
        for held in self.root.glob("*.held"):
            held.unlink()
        for status in ("pending_input", "running", "paused"):
            for run in self.http.get("/runs", params={"status": status}).json()["runs"]:
                self.http.post(f"/runs/{run['run_id']}/cancel")
        until(lambda: self.http.get("/inbox").json()["requests"] == [], "an empty inbox")


def until(condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        return httpx2.get(url).status_code == 200
    except httpx2.TransportError:
        return False


@dataclass
class Visitors:
    """Browsers on the console, and everything they did that the policy forbids."""

    playwright: Playwright
    url: str
    browsers: list[Browser] = field(default_factory=list[Browser])
    abroad: list[str] = field(default_factory=list[str])
    errors: list[str] = field(default_factory=list[str])

    def page(self, place: str = "", *, url: str | None = None, **context: Any) -> Page:
        """A page in a browser of its own: nothing is shared with any other."""
        browser = self.playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        self.browsers.append(browser)
        options: dict[str, Any] = {"viewport": DESK, "locale": "en-GB", **context}
        made = browser.new_context(**options)
        made.set_default_timeout(PATIENCE)
        page = made.new_page()
        origin = url or self.url

        def asked(request: Request) -> None:
            if not request.url.startswith((origin, "data:")):
                self.abroad.append(request.url)

        def said(message: ConsoleMessage) -> None:
            # A refused answer is no error of the page, but the browser says it like one.
            if message.type == "error" and not message.text.startswith("Failed to load resource"):
                self.errors.append(message.text)

        page.on("request", asked)
        page.on("console", said)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(f"{origin}/{place}")
        return page

    def close(self) -> None:
        for browser in self.browsers:
            browser.close()


def card(page: Page, prompt: str) -> Locator:
    return page.get_by_role("article", name=prompt)


def tab_to(page: Page, name: str, within: str = "") -> None:
    """Presses Tab until the element with this name, in the card with that question, has the focus."""
    look = """() => { const here = document.activeElement;
        const name = here.getAttribute("aria-label") ?? here.labels?.[0]?.textContent ?? here.textContent;
        return [name, here.closest("article")?.querySelector("h2")?.textContent ?? ""] }"""
    for _ in range(80):
        page.keyboard.press("Tab")
        found, question = page.evaluate(look)
        if found.strip().startswith(name) and within in question:
            return
    raise AssertionError(f"{name!r} cannot be reached with the keyboard")


def shot(page: Page, path: Path) -> None:
    page.wait_for_timeout(400)
    page.screenshot(path=path, full_page=True)
    wide = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide[0] <= wide[1], f"{path.name}: {wide[0]} pixels wide on a screen of {wide[1]}"
