"""In a real browser: one step through the run, another input for a new run, files with a key, and runs that go."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import FilePayload, Locator, Page, expect

from tests.e2e import test_console_travel
from tests.e2e.console import CHROMIUM, Stack, Visitors, on_every_screen, shot, tab_to, until
from tests.e2e.test_console_travel import arrived, banner, dialog, done, moment, status

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")
stack, visitors, shots = test_console_travel.stack, test_console_travel.visitors, test_console_travel.shots


def through(page: Page, name: str) -> Locator:
    """The list of the moments at which the step that is chosen changed."""
    page.get_by_role("button", name="Through the run…").click()
    found = page.get_by_role("region", name=f"“{name}” through the run")
    expect(found.get_by_role("heading", level=2)).to_be_focused()
    return found


def start(page: Page, run_id: str) -> str:
    dialog(page).get_by_role("button", name="Start").click()
    new = arrived(page, run_id)
    expect(status(page)).to_have_text("completed")
    return new


@pytest.mark.req("RT-6")
def test_a_step_is_followed_through_the_run_and_each_moment_leads_back(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "letter")
    page = visitors.page(f"#/run/{run_id}")
    page.locator("[data-node=facts]").click()
    facts = through(page, "Facts")
    lines = facts.locator(".moments > li")
    expect(facts.get_by_role("status")).to_have_text("It changed at 2 moments.")
    expect(lines.nth(0)).to_contain_text(re.compile(r"\d\d:\d\d:\d\d Started @4"))
    expect(lines.nth(0)).to_contain_text("+ added statusafterrunning")
    expect(lines.nth(1)).to_contain_text("Done @5")
    expect(lines.nth(1)).to_contain_text("~ changed statusbeforerunningafterdone")
    expect(lines.nth(1)).to_contain_text("+ added output")
    expect(lines.nth(1)).to_contain_text("It is blue")
    # What is hidden on the page is hidden here.
    expect(lines.nth(1)).to_contain_text("[redacted]")
    expect(facts).not_to_contain_text("k-123")
    facts.get_by_label("What").select_option("output")
    expect(facts.get_by_role("status")).to_have_text("It changed at one moment.")
    expect(lines).to_have_count(1)
    expect(facts).not_to_contain_text("changed status")
    lines.get_by_role("link").click()
    expect(banner(page)).to_contain_text("checkpoint 5 of 8")
    expect(banner(page)).to_be_focused()
    expect(page.locator("[data-node=write].pending")).to_be_visible()
    expect(facts.locator("li[aria-current=true]")).to_contain_text("(you look at this one)")
    facts.get_by_label("What").select_option("everything")
    lines.nth(0).get_by_role("link").click()
    expect(banner(page)).to_contain_text("checkpoint 4 of 8")
    expect(facts.locator("li[aria-current=true]")).to_contain_text("Started")
    page.locator("[data-node=topic]").click()
    topic = through(page, "Topic")
    expect(topic).to_contain_text("the sea")
    expect(facts).to_have_count(0)
    topic.get_by_role("button", name="Close").click()
    expect(topic).to_have_count(0)


@pytest.mark.req("RT-6", "AG-2")
def test_the_conversation_of_an_agent_is_followed_message_by_message(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "research", {"count": 3})
    page = visitors.page(f"#/run/{run_id}")
    page.locator("[data-node=agent]").click()
    agent = through(page, "Researcher")
    agent.get_by_label("What").select_option("messages")
    lines = agent.locator(".moments > li")
    expect(lines.first).to_contain_text("How many legs have 3 spiders?")
    expect(agent).to_contain_text("Let me multiply.")
    counts = [lines.nth(number).locator(".difference").count() for number in range(lines.count())]

    assert len(counts) > 1
    assert all(counts)


@pytest.mark.req("RT-6")
def test_a_history_grows_with_the_run_and_says_what_has_not_changed(stack: Stack, visitors: Visitors) -> None:
    stack.hold("n4")
    run_id = stack.begin("steps")
    page = visitors.page(f"#/run/{run_id}")
    page.locator("[data-node=n5]").click()
    waiting = through(page, "n5")
    expect(waiting.get_by_role("status")).to_have_text("It has not changed in this run.")
    stack.let_go("n4")
    expect(waiting.get_by_role("status")).to_have_text("It changed at 2 moments.")
    expect(waiting.locator(".moments > li").last).to_contain_text("Done")


@pytest.mark.req("RT-6")
def test_a_history_that_cannot_be_read_says_why_and_comes_with_the_server(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "letter")
    page = visitors.page(f"#/run/{run_id}")
    page.locator("[data-node=facts]").click()
    stack.kill("api")
    try:
        facts = through(page, "Facts")
        expect(facts.get_by_role("alert")).to_have_text("It cannot be shown: the server could not be reached")
    finally:
        stack.start_api()
    expect(facts.get_by_role("status")).to_have_text("It changed at 2 moments.")
    expect(facts.get_by_role("alert")).to_have_text("")


@pytest.mark.req("RT-2", "FL-2")
def test_a_run_is_forked_with_another_input(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "choice", {"amount": 5})
    page = visitors.page(f"#/run/{run_id}")
    plans: list[Any] = []
    page.on("request", lambda request: plans.append(request.post_data_json) if request.url.endswith("/plan") else None)
    page.locator("[data-node=kind]").click()
    page.get_by_role("button", name="Do this step again…").click()
    plan = dialog(page)
    expect(plan.locator("dl")).to_contain_text("happens again)kind, note, report")
    plan.get_by_role("button", name="Change the input…").click()
    form = plan.get_by_role("form", name="Change the input")
    value = form.get_by_label("New value")
    expect(value).to_have_value('{\n  "amount": 5\n}')
    expect(form.get_by_role("status")).to_have_text("It is as it was.")
    # Whoever is writing has not said yet what is to be started.
    expect(plan.get_by_role("button", name="Start")).to_be_disabled()
    value.fill('{"amount": 500')
    expect(form.get_by_role("status")).to_contain_text("Not valid JSON yet")
    expect(form.get_by_role("button", name="Take this change")).to_be_disabled()
    value.fill("null")
    expect(form.get_by_role("status")).to_contain_text("null would be the input it had")
    value.fill('{"amount": 500}')
    expect(form.get_by_role("status")).to_have_text("Valid.")
    form.get_by_role("button", name="Take this change").click()
    expect(plan).to_contain_text("With another input")
    expect(plan.locator(".change-side.after")).to_contain_text('"amount": 500')
    expect(plan.locator("dl")).to_contain_text("happens again)kind, note, report")
    new = start(page, run_id)
    expect(page.locator("[data-node=report].success")).to_be_visible()
    expect(page.locator("[data-node=note].skip")).to_be_visible()

    assert [body.get("input_data") for body in plans] == [None, {"amount": 500}]
    assert stack.ended(new)["original_input"] == {"amount": 500}
    assert stack.ended(run_id)["node_states"]["report"]["status"] == "skip"


@pytest.mark.req("RT-2", "FL-2")
def test_the_input_it_had_can_be_taken_after_all(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "choice", {"amount": 5})
    page = visitors.page(f"#/run/{run_id}")
    moment(page, "The run started")
    page.get_by_role("button", name="Resume…").click()
    plan = dialog(page)
    for text in ('{"amount": 500}', '{"amount": 600}'):
        plan.get_by_role("button", name="Change the input…").click()
        plan.get_by_label("New value").fill(text)
        plan.get_by_role("button", name="Take this change").click()
    plan.get_by_role("button", name="Change the input…").click()
    expect(plan.get_by_label("New value")).to_have_value('{\n  "amount": 600\n}')
    plan.get_by_role("button", name="Leave it").click()
    expect(plan.get_by_role("button", name="Change the input…")).to_be_focused()
    plan.get_by_role("button", name="Take the input it had").click()
    expect(plan).not_to_contain_text("With another input")
    new = start(page, run_id)

    assert new == f"{run_id}~2"
    assert stack.ended(new)["original_input"] == {"amount": 5}
    assert stack.ended(new)["node_states"]["report"]["status"] == "skip"


@pytest.mark.req("RT-2")
def test_a_hidden_part_of_the_input_has_to_be_written_anew(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "choice", {"amount": 5, "api_key": "k-1"})
    page = visitors.page(f"#/run/{run_id}")
    page.get_by_role("button", name="Fork…").click()
    plan = dialog(page)
    plan.get_by_role("button", name="Change the input…").click()
    form = plan.get_by_role("form", name="Change the input")
    value = form.get_by_label("New value")
    expect(value).to_have_value(re.compile(r"\[redacted\]"))
    expect(form.get_by_role("status")).to_contain_text("only the mark of something hidden")
    value.fill('{"amount": 6, "api_key": "[redacted]"}')
    expect(form.get_by_role("button", name="Take this change")).to_be_disabled()
    value.press("Control+Enter")
    expect(form).to_be_visible()
    value.fill('{"amount": 6, "api_key": "k-2"}')
    form.get_by_role("button", name="Take this change").click()
    expect(plan.locator(".change-side.before")).to_contain_text("[redacted]")
    new = start(page, run_id)
    whole = stack.http.get(f"/runs/{new}/export").json()["checkpoint"]

    assert whole["original_input"] == {"amount": 6, "api_key": "k-2"}


@pytest.mark.req("RT-6")
def test_a_run_that_has_ended_is_deleted_after_a_question(stack: Stack, visitors: Visitors) -> None:
    run_id, other = done(stack, "letter"), done(stack, "letter")
    until(lambda: {run_id, other} <= {run["run_id"] for run in listed(stack)}, "the list")
    page = visitors.page(f"#/run/{run_id}")
    page.get_by_role("button", name="Delete…").click()
    expect(dialog(page)).to_contain_text("Delete this run?")
    expect(dialog(page)).to_contain_text("It is gone for good")
    dialog(page).get_by_role("button", name="Keep it").click()
    expect(dialog(page)).to_have_count(0)
    assert stack.http.get(f"/runs/{run_id}").status_code == 200
    tab_to(page, "Delete…")
    page.keyboard.press("Enter")
    dialog(page).get_by_role("button", name="Yes, delete it").press("Enter")
    expect(page.get_by_role("heading", name="Runs")).to_be_focused()
    expect(page.get_by_text(other)).to_be_visible()
    expect(page.get_by_text(run_id)).to_have_count(0)
    until(lambda: stack.http.get(f"/runs/{run_id}").status_code == 404, "the deletion")
    page.go_back()
    expect(page.get_by_role("alert")).to_contain_text("there is no run")


def listed(stack: Stack) -> list[dict[str, Any]]:
    return stack.http.get("/runs").json()["runs"]


@pytest.mark.req("RT-6")
def test_an_open_run_is_not_deleted_and_a_refusal_is_shown(stack: Stack, visitors: Visitors) -> None:
    stack.hold("n1")
    run_id = stack.begin("steps")
    page = visitors.page(f"#/run/{run_id}")
    expect(page.get_by_role("button", name="Cancel…")).to_be_visible()
    expect(page.get_by_role("button", name="Delete…")).to_have_count(0)
    page.get_by_role("button", name="Cancel…").click()
    dialog(page).get_by_role("button", name="Yes, cancel it").click()
    expect(status(page)).to_have_text("cancelled")
    page.get_by_role("button", name="Delete…").click()
    stack.kill("api")
    try:
        dialog(page).get_by_role("button", name="Yes, delete it").click()
        expect(page.get_by_text("Not done: ")).to_be_visible()
    finally:
        stack.start_api()

    assert stack.http.get(f"/runs/{run_id}").json()["status"] == "cancelled"


@pytest.mark.req("DM-10")
def test_the_limit_of_imports_is_set_in_the_environment_of_the_server(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = done(stack, "letter")
    file = stack.http.get(f"/runs/{run_id}/export").content
    monkeypatch.setenv("HOLDFAST_LARGEST_IMPORT", str(len(file) - 1))
    url = stack.start_closed_api()
    try:
        reply = stack.http.post(f"{url}/imports", content=file, headers={"Authorization": "Bearer sesame"})
    finally:
        stack.kill("closed")

    assert reply.status_code == 413
    assert f"larger than {len(file) - 1} bytes" in reply.json()["detail"]
    assert "raise HOLDFAST_LARGEST_IMPORT" in reply.json()["detail"]


def choose(page: Page, file: str | FilePayload) -> None:
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import…").click()
    chooser.value.set_files(file)


@pytest.mark.req("DM-10")
def test_a_file_is_downloaded_with_a_key_and_opened_with_it(stack: Stack, visitors: Visitors, tmp_path: Path) -> None:
    run_id = done(stack, "letter")
    key = "größer als ein Wal 🐋"
    page = visitors.page(f"#/run/{run_id}")
    moment(page, "Topic is done")
    page.get_by_role("button", name="Download…").click()
    dialog(page).get_by_label("Key").fill(key)
    with page.expect_download() as coming:
        dialog(page).get_by_label("Key").press("Enter")
    file = tmp_path / "locked.json"
    coming.value.save_as(file)
    page.get_by_role("link", name="Runs", exact=True).click()
    choose(page, str(file))
    field = page.get_by_label("The key of locked.json")
    expect(field).to_be_focused()
    field.fill("a guess")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("locked.json was not imported: this key does not open")
    field.fill(key)
    page.get_by_role("button", name="Open it").click()
    new = arrived(page, run_id)
    expect(status(page)).to_have_text("paused")
    expect(page.locator("[data-node=topic].success")).to_be_visible()

    assert "the sea" not in file.read_text()
    assert new.startswith(f"{run_id}~i")


@pytest.mark.req("DM-10")
def test_a_file_is_downloaded_for_another_namespace_and_a_refusal_is_shown(
    stack: Stack, visitors: Visitors, tmp_path: Path
) -> None:
    run_id = done(stack, "letter")
    page = visitors.page(f"#/run/{run_id}")
    page.get_by_role("button", name="Download…").click()
    expect(dialog(page)).to_contain_text("Download the run as it is now")
    dialog(page).get_by_label("For the namespace").fill("elsewhere")
    dialog(page).get_by_label("With the files").uncheck()
    stack.kill("api")
    try:
        dialog(page).get_by_role("button", name="Save the file").click()
        expect(dialog(page).get_by_role("alert")).to_have_text("Not saved: the server could not be reached")
    finally:
        stack.start_api()
    with page.expect_request("**/export?**") as asked, page.expect_download() as coming:
        dialog(page).get_by_role("button", name="Save the file").click()
    file = tmp_path / "away.json"
    coming.value.save_as(file)
    page.get_by_role("link", name="Runs", exact=True).click()
    choose(page, str(file))
    expect(page.get_by_role("alert")).to_contain_text("away.json was not imported: ")
    expect(page.get_by_role("alert")).to_contain_text("elsewhere")

    assert asked.value.url.endswith("?for=elsewhere&files=false")


@pytest.mark.req("DM-10")
def test_a_checkpoint_alone_is_imported_with_a_flow_of_the_catalogue(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "letter")
    whole = stack.http.get(f"/runs/{run_id}/export", params={"checkpoint_id": f"{run_id}@3"}).json()["checkpoint"]
    page = visitors.page("#/runs")
    file: FilePayload = {"name": "bare.json", "mimeType": "application/json", "buffer": json.dumps(whole).encode()}
    choose(page, file)
    flow = page.get_by_label("The flow of bare.json")
    expect(flow).to_be_focused()
    flow.select_option("graph")
    page.get_by_role("button", name="Import it").click()
    expect(page.get_by_role("alert")).to_contain_text("bare.json was not imported: ")
    flow.select_option("letter")
    page.get_by_role("button", name="Import it").click()
    new = arrived(page, run_id)
    expect(status(page)).to_have_text("paused")
    page.get_by_role("button", name="Continue").click()
    expect(status(page)).to_have_text("completed")

    assert stack.ended(new)["node_states"]["write"]["output_data"] == "It is blue, 3700 m"


@pytest.mark.req("DM-10", "RT-6")
def test_the_browser_client_imports_a_checkpoint_with_its_flow(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "letter")
    whole = stack.http.get(f"/runs/{run_id}/export", params={"checkpoint_id": f"{run_id}@3"}).json()["checkpoint"]
    page = visitors.page("#/runs")
    reply, refused = page.evaluate(
        """async (whole) => {
            const { Holdfast } = await import("/console/client.js");
            const holdfast = new Holdfast();
            const refused = await holdfast.importCheckpoint(whole, { flow: "nobody" }).catch((error) => error.code);
            const file = new Blob([whole], { type: "application/json" });
            return [await holdfast.importCheckpoint(file, { flow: "letter", go: true }), refused];
        }""",
        json.dumps(whole),
    )

    assert refused == "flow/not-found"
    assert (reply["created"], reply["notes"]) == (True, [])
    assert stack.ended(reply["run_id"])["node_states"]["write"]["output_data"] == "It is blue, 3700 m"


@pytest.mark.req("RT-6")
@on_every_screen
def test_history_input_and_deletion_fit_the_screen(
    stack: Stack, visitors: Visitors, shots: Path, name: str, context: dict[str, Any]
) -> None:
    run_id = done(stack, "letter", {"name": "Ada", "api_key": "k-1"})
    page = visitors.page(f"#/run/{run_id}", **context)
    page.locator("[data-node=facts]").press("Enter")
    facts = through(page, "Facts")
    expect(facts.locator(".moments > li")).to_have_count(2)
    page.screenshot(path=shots / f"history-screen-{name}.png")
    facts.get_by_role("link").first.click()
    expect(facts.locator("li[aria-current=true]")).to_be_visible()
    shot(page, shots / f"history-{name}.png")
    page.get_by_role("button", name="Fork…").click()
    dialog(page).get_by_role("button", name="Change the input…").click()
    expect(dialog(page).get_by_label("Written as")).to_be_focused()
    page.screenshot(path=shots / f"input-form-{name}.png")
    dialog(page).get_by_label("New value").fill('{"name": "Bob"}')
    dialog(page).get_by_role("button", name="Take this change").click()
    expect(dialog(page)).to_contain_text("With another input")
    expect(dialog(page).get_by_role("button", name="Start")).to_be_enabled()
    page.wait_for_timeout(400)
    page.screenshot(path=shots / f"input-taken-{name}.png")
    dialog(page).get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Download…").click()
    page.screenshot(path=shots / f"download-{name}.png")
    dialog(page).get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Delete…").click()
    expect(dialog(page)).to_contain_text("It is gone for good")
    page.screenshot(path=shots / f"delete-{name}.png")
    dialog(page).get_by_role("button", name="Keep it").click()
    page.goto(f"{stack.url}/#/runs")
    file = stack.http.get(f"/runs/{run_id}/export", headers={"Holdfast-Export-Key": "secret"}).content
    choose(page, {"name": "a-file-with-a-rather-long-name.json", "mimeType": "application/json", "buffer": file})
    page.get_by_label("The key of").fill("wrong")
    page.get_by_role("button", name="Open it").click()
    expect(page.get_by_role("alert")).to_be_visible()
    shot(page, shots / f"import-key-{name}.png")
    bare = json.dumps(stack.http.get(f"/runs/{run_id}/export").json()["checkpoint"]).encode()
    choose(page, {"name": "bare.json", "mimeType": "application/json", "buffer": bare})
    expect(page.get_by_label("The flow of bare.json")).to_be_focused()
    shot(page, shots / f"import-flow-{name}.png")
