"""Time travel in a real browser: look back, resume, fork, change, compare, and carry a run elsewhere."""

import contextlib
import os
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Playwright, expect

from tests.e2e.console import CHROMIUM, STEPS, Stack, Visitors, on_every_screen, shot, tab_to, until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")

LETTER = """
id: letter
name: A letter
description: Finds out something and writes it down.
nodes:
  topic: {type: transform, name: Topic, template: "the sea"}
  facts:
    type: python
    name: Facts
    depends: topic
    code: "def run(x): return {'text': 'It is blue', 'api_key': 'k-123', 'depth': {'metres': 3700}}"
  write:
    type: transform
    name: Write
    depends: facts
    template: "{{ facts.output.text }}, {{ facts.output.depth.metres }} m"
"""
# Fails until there is a file with this name where the worker runs.
SHAKY = """
id: shaky
name: A shaky flow
nodes:
  first: {type: transform, name: First, template: "one"}
  second:
    type: python
    name: Second
    depends: first
    code: |
      import pathlib
      def run(x):
          if not pathlib.Path(x["first"]["output"] + ".mended").exists():
              raise ValueError("the second step is broken")
          return "two"
  third: {type: transform, name: Third, depends: second, template: "three"}
"""
EACH = """
id: each
name: Each
nodes:
  all:
    type: map
    name: All of them
    behavior: return
    max_workers: 1
    node:
      type: python
      code: |
        import pathlib
        def run(x):
            if x == 2 and not pathlib.Path("item.mended").exists():
                raise ValueError("no two")
            return x * 10
"""
AGENT = """
id: research
name: Research
nodes:
  agent:
    type: agent
    name: Researcher
    prompt: "How many legs have {{ count }} spiders?"
    llm:
      model: m
      provider: scripted
      replies:
        - {content: "Let me multiply.", tool_calls: [{name: multiply, arguments: {a: 8, b: 3}}]}
        - "They have 24 legs."
    tools:
      - id: multiply
        type: python
        description: multiplies
        code: "def run(input_data): return input_data['a'] * input_data['b']"
        input_schema: {type: object, properties: {a: {type: integer}, b: {type: integer}}}
"""
GRAPH = """
id: graph
name: A graph
nodes:
  plan:
    type: graph-orchestrator
    name: Planner
    context: {topic: spiders}
    states:
      - id: one
        tasks: [{id: a, type: transform, template: "a"}]
        next: [{to: two}]
      - id: two
        tasks: [{id: b, type: transform, template: "about {{ context.topic }}"}]
        next: [{to: end}]
"""
CHOICE = """
id: choice
nodes:
  kind:
    type: choice
    options:
      - {id: small, condition: {variable: $.amount, operator: numeric-less-than, value: 100}}
      - {id: large}
  note: {type: transform, template: "small", depends: [{node: kind, option: small}]}
  report: {type: transform, template: "large", depends: [{node: kind, option: large}]}
"""
FLOWS = {
    "letter": LETTER,
    "shaky": SHAKY,
    "each": EACH,
    "research": AGENT,
    "graph": GRAPH,
    "choice": CHOICE,
    "steps": STEPS,
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    found = Stack(tmp_path_factory.mktemp("travel"), FLOWS)
    with contextlib.closing(found):
        found.start()
        yield found


@pytest.fixture
def visitors(stack: Stack, playwright: Playwright) -> Generator[Visitors]:
    for mended in stack.root.glob("*.mended"):
        mended.unlink()
    found = Visitors(playwright, stack.url)
    with contextlib.closing(found):
        yield found
    stack.cancel_all()
    assert found.abroad == []
    assert found.errors == []


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = Path(os.environ.get("HOLDFAST_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    found.mkdir(parents=True, exist_ok=True)
    return found


def done(stack: Stack, flow: str, data: Any = None) -> str:
    """A run of this flow that has ended."""
    run_id = stack.begin(flow, data)
    stack.ended(run_id)
    return run_id


def moment(page: Page, sentence: str) -> None:
    """Picks the moment of the timeline at which this happened."""
    line = page.locator(".timeline li").filter(has_text=re.compile(f"{re.escape(sentence)}$")).first
    line.get_by_role("link").click()
    expect(banner(page)).to_be_visible()
    expect(banner(page)).not_to_contain_text("reading")


def banner(page: Page) -> Locator:
    return page.get_by_role("region", name="A moment in the past")


def dialog(page: Page) -> Locator:
    return page.get_by_role("dialog")


def arrived(page: Page, old: str) -> str:
    """The id of the run to which starting led."""
    page.wait_for_url(lambda url: "/run/" in url and (old not in url or f"{old}~" in url))
    new = page.url.rpartition("/")[2]
    expect(page.locator("dl.facts dd.id").first).to_have_text(new)
    return new


def status(page: Page) -> Locator:
    return page.locator("dl.facts .badge").first


@pytest.mark.req("RT-6", "RT-7")
def test_a_past_moment_is_picked_and_the_run_is_shown_as_it_was(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "letter")
    page = visitors.page(f"#/run/{run_id}")
    expect(page.locator("[data-node=write].success")).to_be_visible()
    page.locator("[data-node=write]").click()
    expect(page.locator(".side")).to_contain_text("It is blue, 3700 m")
    moment(page, "Facts is done")
    expect(banner(page)).to_contain_text(re.compile(r"You look at checkpoint 5 of 8, \d\d:\d\d:\d\d\."))
    expect(banner(page)).to_contain_text("The run itself is completed.")
    expect(banner(page)).to_be_focused()
    expect(page.locator("[data-node=facts].success")).to_be_visible()
    expect(page.locator("[data-node=write].pending")).to_be_visible()
    expect(page.locator(".side")).not_to_contain_text("It is blue, 3700 m")
    page.locator("[data-node=facts]").click()
    expect(page.locator(".side")).to_contain_text("It is blue")
    banner(page).get_by_role("button", name="Previous").click()
    expect(banner(page)).to_contain_text("checkpoint 4 of 8")
    expect(page.locator("[data-node=facts].running")).to_be_visible()
    page.reload()
    expect(banner(page)).to_contain_text("checkpoint 4 of 8")
    banner(page).get_by_role("button", name="Back to now").click()
    expect(banner(page)).to_have_count(0)
    expect(page.locator("[data-node=write].success")).to_be_visible()


@pytest.mark.req("RT-7")
def test_a_run_that_goes_on_does_not_disturb_who_looks_back(stack: Stack, visitors: Visitors) -> None:
    for step in ("n2", "n7"):
        stack.hold(step)
    run_id = stack.begin("steps")
    page = visitors.page(f"#/run/{run_id}")
    expect(page.locator("[data-node=n1].success")).to_be_visible()
    moment(page, "n0 is done")
    before = page.locator(".graph").inner_html()
    stack.let_go("n2")
    expect(page.locator(".timeline")).to_contain_text("n6 is done")
    expect(banner(page)).to_contain_text("checkpoint 3 of")
    assert page.locator(".graph").inner_html() == before
    expect(page.get_by_text("Resume is for runs that have ended")).to_be_visible()
    expect(page.get_by_role("button", name="Resume")).to_have_count(0)
    page.get_by_role("button", name="Fork…").click()
    expect(dialog(page)).to_contain_text("Kept as it is (not done again)n0")
    dialog(page).get_by_role("button", name="Cancel").click()
    expect(dialog(page)).to_have_count(0)
    banner(page).get_by_role("button", name="Back to now").click()
    stack.let_go("n7")
    expect(page.locator("[data-node=n12].success")).to_be_visible()


@pytest.mark.req("RT-7", "FL-3")
def test_a_failed_run_is_resumed_and_who_comes_second_is_shown_the_winner(
    stack: Stack, visitors: Visitors, shots: Path
) -> None:
    run_id = done(stack, "shaky")
    late = visitors.page(f"#/run/{run_id}")
    page = visitors.page(f"#/run/{run_id}")
    (stack.root / "one.mended").touch()
    for visitor in (page, late):
        visitor.get_by_role("button", name="Resume…").click()
        expect(dialog(visitor)).to_contain_text("what is done is kept, and the rest is done")
        expect(dialog(visitor).locator("dl")).to_contain_text("Kept as it is (not done again)First")
        expect(dialog(visitor).locator("dl")).to_contain_text("Goes on (where it was, or is tried again)Second, Third")
    dialog(page).get_by_role("button", name="Start").click()
    new = arrived(page, run_id)
    expect(status(page)).to_have_text("completed")
    dialog(late).get_by_role("button", name="Start").click()
    expect(dialog(late).get_by_role("alert")).to_contain_text("resumed already; somebody was first")
    expect(dialog(late).get_by_role("button", name="Start")).to_be_disabled()
    shot(late, shots / "travel-resumed-already.png")
    dialog(late).get_by_role("link", name=new).click()
    expect(status(late)).to_have_text("completed")
    late.goto(f"{stack.url}/#/run/{run_id}")
    late.get_by_role("button", name="Resume…").click()
    dialog(late).get_by_role("button", name="Start").click()
    dialog(late).get_by_role("button", name="Fork instead").click()
    expect(dialog(late).get_by_role("heading", name="Fork this run?")).to_be_visible()
    dialog(late).get_by_role("button", name="Start").click()
    fork = arrived(late, run_id)
    expect(status(late)).to_have_text("completed")

    assert new == f"{run_id}~2"
    assert fork.startswith("shaky-")
    assert "~" not in fork
    assert stack.ended(new)["node_states"]["third"]["output_data"] == "three"


@pytest.mark.req("FL-2")
def test_a_fork_with_a_changed_value_has_another_result(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "letter")
    page = visitors.page(f"#/run/{run_id}")
    page.locator("[data-node=facts]").click()
    page.get_by_role("button", name="Change a value…").click()
    expect(banner(page)).to_contain_text("checkpoint 8 of 8")
    page.get_by_role("button", name="Change the output…").click()
    form = page.get_by_role("form", name="Change a value of facts")
    # A hidden field is in it, so the whole of it would lose its secret.
    expect(form).to_contain_text("it cannot be changed as a whole")
    form.get_by_label("What").select_option("depth")
    form.get_by_label("New value").fill('{"metres": 11')
    expect(form.get_by_role("status")).to_contain_text("Not valid JSON yet")
    expect(form.get_by_role("button", name="Take this change")).to_be_disabled()
    form.get_by_label("New value").fill('{"metres": 11}')
    expect(form.get_by_role("status")).to_have_text("Valid.")
    form.get_by_role("button", name="Take this change").click()
    page.get_by_role("button", name="Change the output…").click()
    form.get_by_label("What").select_option("text")
    form.get_by_label("New value").fill("It is <b>green</b>")
    form.get_by_role("button", name="Take this change").click()
    page.get_by_role("button", name="Change the output…").click()
    form.get_by_label("What").select_option("api_key")
    expect(form.get_by_label("New value")).to_have_value("")
    form.get_by_label("New value").fill("other")
    form.get_by_role("button", name="Take this change").click()
    expect(page.locator(".travel .changes > li")).to_have_count(3)
    page.get_by_role("button", name="Remove the change of facts:output.api_key").click()
    expect(page.locator(".travel .changes > li")).to_have_count(2)
    page.get_by_role("button", name="Fork…").click()
    plan = dialog(page)
    expect(plan.locator(".changes > li")).to_have_count(2)
    expect(plan.locator(".changes > li").nth(1)).to_contain_text(
        "facts:output.textbeforeIt is blueafterIt is <b>green</b>"
    )
    expect(plan).to_contain_text("Kept as it is (not done again)Topic, Facts")
    expect(plan).to_contain_text("like sending or paying, happens again)Write")
    expect(plan).to_contain_text("node 'write' runs again: what it is made from changes")
    plan.get_by_role("button", name="Start").click()
    new = arrived(page, run_id)
    expect(status(page)).to_have_text("completed")
    states = stack.ended(new)["node_states"]

    assert states["write"]["output_data"] == "It is <b>green</b>, 11 m"
    assert stack.ended(run_id)["node_states"]["write"]["output_data"] == "It is blue, 3700 m"


@pytest.mark.req("FL-3")
def test_a_failed_step_is_given_a_result_by_hand(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "shaky")
    page = visitors.page(f"#/run/{run_id}")
    page.locator("[data-node=second]").click()
    page.get_by_role("button", name="Change a value…").click()
    page.get_by_role("button", name="Give a result by hand…").click()
    page.get_by_label("New value").fill("by hand")
    page.get_by_role("button", name="Take this change").click()
    page.get_by_role("button", name="Resume…").click()
    dialog(page).get_by_role("button", name="Start").click()
    new = arrived(page, run_id)
    expect(status(page)).to_have_text("completed")

    assert stack.ended(new)["node_states"]["second"]["output_data"] == "by hand"


@pytest.mark.req("FL-2")
def test_what_was_skipped_and_kept_is_shown_as_skipped_in_the_new_run(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "choice", {"amount": 5})
    page = visitors.page(f"#/run/{run_id}")
    page.get_by_role("button", name="Fork…").click()
    expect(dialog(page)).to_contain_text("Nothing is left to do")
    dialog(page).get_by_role("button", name="Start").click()
    arrived(page, run_id)

    expect(page.locator("[data-node=note].success")).to_be_visible()
    expect(page.locator("[data-node=report].skip")).to_be_visible()


@pytest.mark.req("AG-2")
def test_a_message_of_an_unfinished_agent_is_changed(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "research", {"count": 3})
    page = visitors.page(f"#/run/{run_id}")
    page.locator("[data-node=agent]").click()
    page.locator(".timeline li").filter(has_text="loop completed").first.get_by_role("link").click()
    chat = page.get_by_role("list", name="Conversation")
    expect(chat).to_contain_text("Let me multiply.")
    expect(chat).not_to_contain_text("They have 24 legs.")
    page.get_by_role("button", name="Change a message…").click()
    form = page.get_by_role("form", name="Change a value of agent")
    form.get_by_label("What").select_option("1. Request “How many legs have 3 spiders?”")
    form.get_by_label("New value").fill("How many legs has a cat?")
    form.get_by_role("button", name="Take this change").click()
    page.get_by_role("button", name="Fork…").click()
    expect(dialog(page)).to_contain_text("Goes on (where it was, or is tried again)Researcher")
    dialog(page).get_by_role("button", name="Start").click()
    new = arrived(page, run_id)
    expect(status(page)).to_have_text("completed")
    said = stack.ended(new)["node_states"]["agent"]["internal_state"]["prompt_messages"]

    assert said[0]["content"] == "How many legs has a cat?"


@pytest.mark.req("OR-3")
def test_an_item_of_a_map_and_what_an_orchestrator_knows_are_changed(stack: Stack, visitors: Visitors) -> None:
    mapped = done(stack, "each", {"input": [1, 2, 3]})
    page = visitors.page(f"#/run/{mapped}")
    page.locator("[data-node=all]").click()
    page.locator(".timeline li").filter(has_text="iteration completed").last.get_by_role("link").click()
    page.get_by_role("button", name="Change the result of an item…").click()
    page.get_by_label("What", exact=True).select_option("item 2 (failed)")
    page.get_by_label("Written as").select_option("data (JSON)")
    page.get_by_label("New value").fill("21")
    page.get_by_role("button", name="Take this change").click()
    page.get_by_role("button", name="Fork…").click()
    dialog(page).get_by_role("button", name="Start").click()
    other = arrived(page, mapped)
    planned = done(stack, "graph")
    page.goto(f"{stack.url}/#/run/{planned}")
    page.locator("[data-node=plan]").click()
    page.locator(".timeline li").filter(has_text="state completed").first.get_by_role("link").click()
    expect(page.locator(".side")).to_contain_text("What it knows")
    page.get_by_role("button", name="Change it…").click()
    page.get_by_label("What", exact=True).select_option("topic")
    page.get_by_label("New value").fill("cats")
    page.get_by_role("button", name="Take this change").click()
    page.get_by_role("button", name="Fork…").click()
    dialog(page).get_by_role("button", name="Start").click()
    about = arrived(page, planned)

    assert stack.ended(other)["node_states"]["all"]["output_data"]["output"] == [10, 21, 30]
    assert stack.ended(about)["node_states"]["plan"]["output_data"]["content"] == "about cats"


@pytest.mark.req("FL-2", "OR-3")
def test_a_step_is_done_again_and_of_a_map_only_what_failed(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "each", {"input": [1, 2, 3]})
    page = visitors.page(f"#/run/{run_id}")
    page.locator("[data-node=all]").click()
    (stack.root / "item.mended").touch()
    page.get_by_role("button", name="Do this step again…").click()
    expect(dialog(page).get_by_role("heading", name="Do “All of them” again?")).to_be_visible()
    expect(dialog(page).locator("dl")).to_contain_text("like sending or paying, happens again)All of them")
    page.keyboard.press("Escape")
    expect(dialog(page)).to_have_count(0)
    page.get_by_role("button", name="Only the failed items (1)…").click()
    expect(dialog(page)).to_contain_text("tries only the items again that failed")
    dialog(page).get_by_role("button", name="Start").click()
    new = arrived(page, run_id)
    expect(status(page)).to_have_text("completed")
    page.locator("[data-node=all]").click()
    expect(page.get_by_role("button", name="Do this step again…")).to_be_visible()
    expect(page.get_by_role("button", name="Only the failed items")).to_have_count(0)

    assert stack.ended(new)["node_states"]["all"]["output_data"]["output"] == [10, 20, 30]


@pytest.mark.req("FL-2")
def test_two_moments_are_compared_and_runs_of_a_family(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "letter")
    edits = {"facts:output.text": "It is cold"}
    fork = stack.http.post(f"/runs/{run_id}/fork", json={"edits": edits}).json()["run_id"]
    stack.ended(fork)
    until(lambda: fork in stack.http.get(f"/runs/{run_id}/tree").text, "the family")
    page = visitors.page(f"#/run/{run_id}")
    moment(page, "Topic is done")
    page.get_by_role("button", name="Compare…").click()
    page.get_by_role("button", name="Compare", exact=True).click()
    added = page.locator("[data-diff=write]")
    expect(added).to_contain_text("+ added output")
    expect(added).to_contain_text("It is blue, 3700 m")
    expect(page.locator("[data-diff=facts]")).to_contain_text("[redacted]")
    page.get_by_label("Before").select_option("this run, now")
    page.get_by_label("After").select_option(fork)
    page.get_by_role("button", name="Compare", exact=True).click()
    changed = page.locator("[data-diff=write] .difference").last
    expect(changed).to_contain_text("~ changed")
    expect(changed).to_contain_text("beforeIt is blue, 3700 m")
    expect(changed).to_contain_text("afterIt is cold, 3700 m")
    page.get_by_label("After").select_option("this run, now")
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.get_by_text("There is no difference.")).to_be_visible()


@pytest.mark.req("FL-2")
def test_the_family_is_listed_with_links(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "shaky")
    (stack.root / "one.mended").touch()
    resumed = stack.http.post(f"/runs/{run_id}/resume").json()["run_id"]
    stack.ended(resumed)
    again = stack.http.post(f"/runs/{resumed}/fork", json={"rerun": ["third"]}).json()["run_id"]
    stack.ended(again)
    until(lambda: again in stack.http.get(f"/runs/{run_id}/tree").text, "the family")
    page = visitors.page(f"#/run/{resumed}")
    family = page.get_by_role("region", name="Family")
    expect(family.locator("a[aria-current=page]")).to_have_text(resumed)
    expect(family.locator("> ul > li > ul > li > ul > li")).to_contain_text("a part done again from moment @")
    expect(family).to_contain_text("(this one)")
    family.get_by_role("link", name=again).click()
    expect(page.locator("dl.facts dd.id").first).to_have_text(again)
    family.get_by_role("link", name="moment @").first.click()
    expect(banner(page)).to_be_visible()
    expect(page.locator("[data-node=second].failure")).to_be_visible()

    assert page.url.partition("@")[0].endswith(run_id)


@pytest.mark.req("DM-10")
def test_a_downloaded_moment_is_imported_as_a_paused_run(stack: Stack, visitors: Visitors, tmp_path: Path) -> None:
    run_id = done(stack, "letter")
    page = visitors.page(f"#/run/{run_id}")
    moment(page, "Topic is done")
    page.get_by_role("button", name="Download…").click()
    expect(dialog(page)).to_contain_text("Download checkpoint @3")
    expect(dialog(page)).to_contain_text("Without a key, whoever has it can read it.")
    with page.expect_download() as coming:
        dialog(page).get_by_role("button", name="Save the file").click()
    file = tmp_path / coming.value.suggested_filename
    coming.value.save_as(file)
    expect(dialog(page)).to_have_count(0)
    expect(page.get_by_text(f"Saved as {file.name}.")).to_be_visible()
    page.get_by_role("link", name="Runs", exact=True).click()
    expect(page.get_by_role("button", name="Import…")).to_be_visible()
    broken = tmp_path / "broken.json"
    broken.write_text(file.read_text()[:-100])
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import…").click()
    chooser.value.set_files(broken)
    expect(page.get_by_role("alert")).to_contain_text("broken.json was not imported: ")
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (64 * 2**20 + 1))
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import…").click()
    chooser.value.set_files(large)
    expect(page.get_by_role("alert")).to_contain_text("larger than 64 MiB, the most that is taken here")
    with page.expect_file_chooser() as chooser:
        page.get_by_role("button", name="Import…").click()
    chooser.value.set_files(file)
    new = arrived(page, run_id)
    expect(status(page)).to_have_text("paused")
    expect(page.locator("[data-node=topic].success")).to_be_visible()
    page.get_by_role("button", name="Continue").click()
    expect(status(page)).to_have_text("completed")

    assert stack.ended(new)["node_states"]["write"]["output_data"] == "It is blue, 3700 m"


@pytest.mark.req("RT-6")
def test_a_moment_is_picked_and_a_fork_started_with_the_keyboard_alone(stack: Stack, visitors: Visitors) -> None:
    run_id = done(stack, "letter")
    page = visitors.page(f"#/run/{run_id}")
    expect(page.locator("[data-node=write].success")).to_be_visible()
    keys = page.keyboard
    tab_to(page, "Look back")
    keys.press("Enter")
    expect(banner(page)).to_contain_text("checkpoint 8 of 8")
    for _ in range(5):
        keys.press("ArrowLeft")
    expect(banner(page)).to_contain_text("checkpoint 3 of 8")
    keys.press("ArrowLeft")
    keys.press("ArrowRight")
    expect(banner(page)).to_contain_text("checkpoint 3 of 8")
    expect(page.locator("[data-node=facts].pending")).to_be_visible()
    tab_to(page, "Fork…")
    keys.press("Enter")
    expect(dialog(page).locator("dl")).to_contain_text("Comes after that (not begun yet)Facts, Write")
    # In the dialog they do not lead through time.
    keys.press("ArrowLeft")
    tab_to(page, "Cancel")
    keys.press("Enter")
    expect(page.get_by_role("button", name="Fork…")).to_be_focused()
    expect(banner(page)).to_contain_text("checkpoint 3 of 8")
    keys.press("Enter")
    expect(dialog(page).locator("dl")).to_contain_text("Kept as it is")
    tab_to(page, "Start")
    keys.press("Enter")
    new = arrived(page, run_id)
    expect(page.get_by_role("heading", level=1)).to_be_focused()

    assert stack.ended(new)["node_states"]["write"]["output_data"] == "It is blue, 3700 m"


@pytest.mark.req("RT-6")
@on_every_screen
def test_time_travel_fits_the_screen(
    stack: Stack, visitors: Visitors, shots: Path, name: str, context: dict[str, Any]
) -> None:
    run_id = done(stack, "letter")
    fork = stack.http.post(f"/runs/{run_id}/fork", json={"edits": {"facts:output.text": "It is cold " * 40}}).json()
    until(lambda: fork["run_id"] in stack.http.get(f"/runs/{run_id}/tree").text, "the family")
    page = visitors.page(f"#/run/{run_id}", **context)
    expect(page.get_by_role("region", name="Family")).to_be_visible()
    page.locator("[data-node=facts]").press("Enter")
    shot(page, shots / f"travel-now-{name}.png")
    moment(page, "Write started")
    page.get_by_role("button", name="Change the output…").click()
    form = page.get_by_role("form", name="Change a value of facts")
    shot(page, shots / f"travel-hidden-{name}.png")
    form.get_by_label("What").select_option("depth")
    form.get_by_label("New value").fill('{"metres": 11')
    shot(page, shots / f"travel-edit-{name}.png")
    form.get_by_label("New value").fill('{"metres": 11}')
    form.get_by_role("button", name="Take this change").click()
    page.get_by_role("button", name="Fork…").click()
    expect(dialog(page)).to_contain_text("Kept as it is")
    page.screenshot(path=shots / f"travel-plan-{name}.png")
    dialog(page).get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Compare…").click()
    page.get_by_label("After").select_option(fork["run_id"])
    page.get_by_role("button", name="Compare", exact=True).click()
    expect(page.locator("[data-diff=write]")).to_be_visible()
    page.screenshot(path=shots / f"travel-screen-{name}.png")
    shot(page, shots / f"travel-compare-{name}.png")
    page.goto(f"{stack.url}/#/runs")
    expect(page.get_by_role("button", name="Import…")).to_be_visible()
    shot(page, shots / f"travel-runs-{name}.png")
