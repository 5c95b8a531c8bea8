"""The console in a real browser, on real processes: started here, killed here, answered after everything was killed.

One long file on purpose: every test stands on the same stage of processes, and those take seconds to start.
"""

import contextlib
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Playwright, expect

from tests.e2e.console import CHROMIUM, PATIENCE, STEPS, Stack, Visitors, card, on_every_screen, shot, tab_to, until

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium")

EXPENSE = """
id: expense
name: Expense approval
description: Looks at an expense, asks finance, and pays.
nodes:
  check: {type: transform, name: Check the receipt, template: "checked"}
  pay:
    type: python
    name: Pay
    depends: check
    input_transformer: {path: $}
    code: "def run(input_data): return {'paid': input_data['amount']}"
    approval:
      enabled: true
      prompt: "Pay {{ amount }} € to {{ payee }}?"
      editable: [amount]
      to: finance
      deadline: {after: 30d, effect: fail}
  kind:
    type: choice
    name: How much was it?
    depends: pay
    options:
      - {id: small, condition: {variable: $.pay.output.paid, operator: numeric-less-than, value: 100}}
      - {id: large}
  note: {type: transform, name: Note it, template: "small", depends: [{node: kind, option: small}]}
  report: {type: transform, name: Report it, template: "large", depends: [{node: kind, option: large}]}
"""
KINDS = """
id: kinds
nodes:
  words: {type: human, prompt: "What shall we write?"}
  pick: {type: human, kind: choice, prompt: "Which colour?", choices: [red, green, blue]}
  form:
    type: human
    kind: form
    prompt: "Where does it go?"
    form:
      type: object
      required: [street, floor, size]
      properties:
        street: {type: string, title: Street}
        floor: {type: integer, minimum: 0}
        weight: {type: number}
        express: {type: boolean}
        size: {enum: [S, M, L]}
        tags: {type: array}
  yes: {type: human, kind: approval, prompt: "Shall we send it?"}
"""
AGENT = """
id: research
name: Research
nodes:
  agent:
    type: agent
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
MARKUP = """
id: markup
nodes:
  ask: {type: human, prompt: "{{ text }}"}
"""
NESTED = """
id: nested
nodes:
  inner:
    type: flow
    name: The inner flow
    flow: {id: inside, nodes: {deep: {type: human, prompt: "Deep down?"}}}
"""
MANY = """
id: many
nodes:
  each: {type: map, node: {type: transform, template: "x"}}
"""
FLOWS = {
    "expense": EXPENSE,
    "kinds": KINDS,
    "research": AGENT,
    "markup": MARKUP,
    "nested": NESTED,
    "many": MANY,
    "steps": STEPS,
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    found = Stack(tmp_path_factory.mktemp("console"), FLOWS)
    with contextlib.closing(found):
        found.start()
        yield found


@pytest.fixture
def visitors(stack: Stack, playwright: Playwright) -> Generator[Visitors]:
    found = Visitors(playwright, stack.url)
    with contextlib.closing(found):
        yield found
    stack.cancel_all()
    # On every page of every test: no request leaves the server, nothing is refused by the policy, nothing is thrown.
    assert found.abroad == []
    assert found.errors == []


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots are kept."""
    found = Path(os.environ.get("HOLDFAST_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    found.mkdir(parents=True, exist_ok=True)
    return found


@pytest.mark.req("RT-5", "EX-2", "RT-6")
def test_a_run_started_in_the_browser_is_answered_after_everything_was_killed(stack: Stack, visitors: Visitors) -> None:
    page = visitors.page("#/start")
    page.get_by_label("Flow").select_option("Expense approval")
    page.get_by_label("Input").fill('{"amount": 120, "payee": "Ada"}')
    page.get_by_role("button", name="Start").click()
    expect(card(page, "Pay 120 € to Ada?")).to_be_visible()
    run_id = page.locator("dd.id").first.inner_text()
    visitors.browsers[0].close()

    stack.kill("worker", "api", "temporal")
    stack.start()

    other = visitors.page("#/inbox")
    question = card(other, "Pay 120 € to Ada?")
    expect(question).to_contain_text("finance")
    expect(question.get_by_label("Amount")).to_have_value("120")
    question.get_by_label("Amount").fill("99.5")
    question.get_by_label("Comment").fill("not that much")
    question.get_by_role("button", name="Approve").click()
    expect(question).to_contain_text("your answer is taken: approved, Amount = 99.5, “not that much”")
    expect(question).to_contain_text("The run now: completed")
    question.get_by_role("link", name="Look at the run").click()
    expect(other.locator("[data-node=pay].success")).to_be_visible()
    expect(other.locator("[data-node=note].success")).to_be_visible()
    expect(other.locator("[data-node=report].skip")).to_be_visible()
    done = stack.ended(run_id)

    assert done["status"] == "completed"
    assert done["node_states"]["pay"]["output_data"] == {"paid": 99.5}
    assert [entry["by"] for entry in done["answered_inputs"].values()] == ["dev"]


@pytest.mark.req("RT-5", "EX-2")
def test_every_kind_of_question_is_answered_with_the_keyboard_alone(stack: Stack, visitors: Visitors) -> None:
    run_id = stack.begin("kinds")
    stack.questions(run_id, 4)
    page = visitors.page("#/inbox")
    expect(page.get_by_role("article")).to_have_count(4)
    keys = page.keyboard

    tab_to(page, "Your answer", "What shall we write?")
    keys.type("A letter")
    tab_to(page, "Send", "What shall we write?")
    keys.press("Enter")
    expect(card(page, "What shall we write?")).to_contain_text("your answer is taken: “A letter”")

    tab_to(page, "green", "Which colour?")
    keys.press("Space")
    expect(card(page, "Which colour?")).to_contain_text("chose “green”")

    tab_to(page, "Street", "Where does it go?")
    keys.type("High Street 1")
    tab_to(page, "Floor", "Where does it go?")
    keys.type("2")
    tab_to(page, "Weight", "Where does it go?")
    keys.type("1.5")
    tab_to(page, "Express", "Where does it go?")
    keys.press("Space")
    tab_to(page, "Size", "Where does it go?")
    keys.type("M")
    tab_to(page, "Tags", "Where does it go?")
    keys.type('["fragile"]')
    tab_to(page, "Send", "Where does it go?")
    keys.press("Enter")
    expect(card(page, "Where does it go?")).to_contain_text("your answer is taken")

    tab_to(page, "Approve", "Shall we send it?")
    keys.press("Enter")
    expect(card(page, "Shall we send it?")).to_contain_text("your answer is taken: approved")
    states = stack.ended(run_id)["node_states"]

    sent = {"street": "High Street 1", "floor": 2, "weight": 1.5, "express": True, "size": "M", "tags": ["fragile"]}
    assert states["words"]["output_data"]["feedback"] == "A letter"
    assert states["pick"]["output_data"]["choice"] == "green"
    assert states["form"]["output_data"]["data"] == sent
    assert states["yes"]["output_data"]["is_approved"] is True


@pytest.mark.req("RT-5")
def test_a_rejection_needs_a_reason_and_the_run_shows_it(stack: Stack, visitors: Visitors) -> None:
    run_id = stack.begin("expense", {"amount": 5000, "payee": "Bob"})
    stack.questions(run_id)
    page = visitors.page(f"#/run/{run_id}")
    question = card(page, "Pay 5000 € to Bob?")
    question.get_by_role("button", name="Reject").click()
    expect(question.get_by_role("alert")).to_have_text("Please say why you reject it.")
    expect(question.get_by_label("Comment")).to_be_focused()
    page.keyboard.type("no receipt")
    question.get_by_role("button", name="Reject").click()
    expect(question).to_contain_text("rejected, “no receipt”")
    expect(page.locator("[data-node=pay].skip")).to_be_visible()
    page.locator("[data-node=pay]").press("Enter")
    expect(page.locator(".side")).to_contain_text("rejected by dev: no receipt")
    expect(page.locator(".timeline")).to_contain_text("rejected, “no receipt” (by dev)")


@pytest.mark.req("EX-2")
def test_who_comes_late_is_told_who_was_first(stack: Stack, visitors: Visitors) -> None:
    run_id = stack.begin("expense", {"amount": 10, "payee": "Eve"})
    (request,) = stack.questions(run_id)
    quick, slow = visitors.page("#/inbox"), visitors.page("#/inbox")
    expect(card(slow, request["prompt"])).to_be_visible()
    # The list of the slow one is not read again: this is about an answer that is on its way already.
    slow.route("**/inbox?*", lambda route: route.abort())
    card(slow, request["prompt"]).get_by_label("Comment").fill("me too")
    card(quick, request["prompt"]).get_by_role("button", name="Approve").click()
    expect(card(quick, request["prompt"])).to_contain_text("your answer is taken")
    card(slow, request["prompt"]).get_by_role("button", name="Approve").click()
    expect(card(slow, request["prompt"])).to_contain_text("Already answered by dev at")

    assert len(stack.ended(run_id)["answered_inputs"]) == 1


def test_what_is_being_typed_stays_when_the_question_is_closed_elsewhere(stack: Stack, visitors: Visitors) -> None:
    run_id = stack.begin("expense", {"amount": 10, "payee": "Kim"})
    (request,) = stack.questions(run_id)
    page = visitors.page("#/inbox")
    card(page, request["prompt"]).get_by_label("Comment").fill("thinking about it")
    stack.http.post(f"/inbox/{request['id']}", json={"is_approved": True, "by": "ada"})

    expect(card(page, request["prompt"])).to_contain_text("Already answered by ada")
    expect(card(page, request["prompt"]).get_by_label("Comment")).to_have_value("thinking about it")
    expect(card(page, request["prompt"]).get_by_role("button", name="Approve")).to_be_disabled()


@pytest.mark.req("RT-5")
def test_an_answer_is_kept_while_no_worker_is_up(stack: Stack, visitors: Visitors) -> None:
    run_id = stack.begin("expense", {"amount": 7, "payee": "Ada"})
    stack.questions(run_id)
    stack.kill("worker")
    try:
        page = visitors.page("#/inbox")
        question = card(page, "Pay 7 € to Ada?")
        question.get_by_label("Amount").press("Enter")
        question.get_by_role("button", name="Approve").click()
        expect(question).to_contain_text("Your answer is kept: approved.", timeout=3 * PATIENCE)
    finally:
        stack.start_worker()

    assert stack.ended(run_id)["node_states"]["pay"]["output_data"] == {"paid": 7}


@pytest.mark.req("RT-5")
def test_an_answer_that_does_not_fit_is_refused_in_words_and_can_be_mended(stack: Stack, visitors: Visitors) -> None:
    run_id = stack.begin("kinds")
    stack.questions(run_id, 4)
    page = visitors.page("#/inbox")
    question = card(page, "Where does it go?")
    question.get_by_label("Street").fill("Low Street 2")
    question.get_by_label("Floor").fill("1")
    question.get_by_label("Size").select_option("L")
    question.get_by_label("Tags").fill("{not json")
    question.get_by_role("button", name="Send").click()
    expect(question.get_by_role("alert")).to_contain_text("Tags is not valid JSON")
    question.get_by_label("Tags").fill('{"a": 1}')
    question.get_by_role("button", name="Send").click()
    expect(question.get_by_role("alert")).to_contain_text("is not of type 'array'")
    question.get_by_label("Tags").fill("")
    question.get_by_role("button", name="Send").click()

    expect(question).to_contain_text("your answer is taken")


@pytest.mark.req("RT-6")
def test_an_agents_conversation_is_shown_with_its_tools(stack: Stack, visitors: Visitors) -> None:
    run_id = stack.begin("research", {"count": 3})
    stack.ended(run_id)
    page = visitors.page(f"#/run/{run_id}")
    tab_to(page, "agent done")
    page.keyboard.press("Enter")
    chat = page.get_by_role("list", name="Conversation")
    expect(chat).to_contain_text("How many legs have 3 spiders?")
    expect(chat).to_contain_text("uses multiply")
    expect(chat.locator(".tool")).to_contain_text("24")

    expect(chat).to_contain_text("They have 24 legs.")


@pytest.mark.req("RT-6")
def test_a_question_inside_a_nested_flow_is_answered_from_the_outer_run(stack: Stack, visitors: Visitors) -> None:
    run_id = stack.begin("nested")
    stack.questions(run_id)
    page = visitors.page(f"#/run/{run_id}")
    expect(page.locator("[data-node=inner].waiting")).to_be_visible()
    page.locator("[data-node=inner]").click()
    link = page.get_by_role("link", name=f"{run_id}/inner")
    expect(link).to_be_visible()
    question = card(page, "Deep down?")
    question.get_by_label("Your answer").fill("yes")
    question.get_by_role("button", name="Send").click()
    expect(page.locator("[data-node=inner].success")).to_be_visible()
    link.click()

    expect(page.locator("[data-node=deep].success")).to_be_visible()


@pytest.mark.req("RT-6")
def test_a_run_is_paused_continued_and_cancelled_and_cancelling_asks_first(stack: Stack, visitors: Visitors) -> None:
    run_id = stack.begin("expense", {"amount": 1, "payee": "Ada"})
    stack.questions(run_id)
    page = visitors.page(f"#/run/{run_id}")
    status = page.locator("dl.facts .badge").first
    page.get_by_role("button", name="Pause").click()
    expect(status).to_have_text("paused")
    page.get_by_role("button", name="Continue").click()
    expect(status).to_have_text("waits for an answer")
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Let it run").click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    page.get_by_role("button", name="Cancel…").click()
    page.get_by_role("button", name="Yes, cancel it").click()
    expect(status).to_have_text("cancelled")
    expect(card(page, "Pay 1 € to Ada?")).to_have_count(0)
    page.get_by_role("button", name="Resume").click()
    page.get_by_role("button", name="Start").click()
    expect(card(page, "Pay 1 € to Ada?")).to_contain_text("again")

    assert page.url.endswith(f"{run_id}~2")


@pytest.mark.req("RT-5")
def test_the_stream_survives_a_restart_of_the_api(stack: Stack, visitors: Visitors) -> None:
    stack.hold("n3")
    run_id = stack.begin("steps")
    page = visitors.page(f"#/run/{run_id}")
    expect(page.locator("[data-node=n2].success")).to_be_visible()
    stack.kill("api")
    stack.let_go("n3")
    expect(page.get_by_text("The connection is lost")).to_be_visible()
    stack.start_api()
    expect(page.locator("[data-node=n12].success")).to_be_visible()
    expect(page.get_by_text("The connection is lost")).to_have_count(0)
    expect(page.locator(".timeline")).to_contain_text("The run is completed")
    shown = [int(entry.get_attribute("data-event") or 0) for entry in page.locator(".timeline li").all()]
    kept = [2 * entry["seq"] for entry in stack.http.get(f"/runs/{run_id}/transitions").json()]

    assert shown == kept


CUT_OFF = """async (runId) => {
    // Every connection but the last is cut after some bytes, mostly in the middle of an event.
    const real = window.fetch;
    let cuts = 0;
    window.fetch = async (...request) => {
        const reply = await real(...request);
        if (cuts >= 20 || !String(request[0]).includes("/stream")) return reply;
        let left = 100 + ((++cuts * 137) % 320);
        const cut = new TransformStream({
            transform(chunk, controller) {
                controller.enqueue(chunk.slice(0, left));
                left -= chunk.length;
                if (left <= 0) controller.error(new TypeError("network error"));
            },
        });
        return new Response(reply.body.pipeThrough(cut), { headers: reply.headers });
    };
    // Nobody wants to wait for the backoff of twenty failures.
    const sleep = window.setTimeout;
    window.setTimeout = (action, pause, ...rest) => sleep(action, pause < 20_000 ? 10 : pause, ...rest);
    const { Holdfast } = await import("/console/client.js");
    const seen = [];
    await new Holdfast().stream(runId, { onEvent: (event) => seen.push(event.id) });
    const missing = await new Holdfast().getRun("nobody").catch((error) => [error.status, error.code, error.detail]);
    return { seen, cuts, missing };
}"""


@pytest.mark.req("RT-6", "RT-3")
def test_the_browser_client_is_cut_off_twenty_times_and_has_every_event_once(stack: Stack, visitors: Visitors) -> None:
    run_id = stack.begin("steps")
    stack.ended(run_id)
    page = visitors.page("#/start")
    found = page.evaluate(CUT_OFF, run_id)
    whole = stack.http.get(f"/runs/{run_id}/stream").text
    ids = [int(line.removeprefix("id: ")) for line in whole.splitlines() if line.startswith("id: ")]

    assert found["cuts"] == 20
    assert found["seen"] == ids
    assert found["missing"][:2] == [404, "run/not-found"]
    assert "nobody" in found["missing"][2]


def test_a_thousand_events_are_drawn_a_hundred_at_a_time(stack: Stack, visitors: Visitors) -> None:
    run_id = stack.begin("many", {"input": list(range(500))})
    stack.ended(run_id)
    page = visitors.page(f"#/run/{run_id}")
    expect(page.locator(".timeline")).to_contain_text("The run is completed")
    expect(page.locator(".timeline li")).to_have_count(100)
    page.get_by_role("button", name="earlier").click()
    page.locator("[data-node=each]").click()

    expect(page.locator(".timeline")).to_contain_text("The run started")
    expect(page.locator(".side")).to_contain_text("500 of 500")


@pytest.mark.req("RT-5")
def test_what_a_run_says_is_text_and_never_markup(stack: Stack, visitors: Visitors) -> None:
    nasty = "<img src=x onerror='document.title=1'><script>document.title=2</script>{{ 7 * 7 }}"
    run_id = stack.begin("markup", {"text": nasty})
    stack.questions(run_id)
    page = visitors.page("#/inbox")
    expect(page.get_by_role("heading", name="<img src=x")).to_have_text(nasty)
    page.goto(f"{stack.url}/#/run/{run_id}")
    expect(page.locator(".timeline")).to_contain_text("<script>")

    assert page.locator("main img, main script").count() == 0
    assert page.title() not in ("1", "2")


def test_a_server_that_wants_a_token_is_given_one_for_this_tab_only(stack: Stack, visitors: Visitors) -> None:
    url = stack.start_closed_api()
    run_id = stack.begin("expense", {"amount": 3, "payee": "Ada"})
    stack.questions(run_id)
    page = visitors.page(url=url)
    page.get_by_label("Your token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_have_text("The server does not know this token.")
    page.get_by_label("Your token").fill("sesame")
    page.keyboard.press("Enter")
    card(page, "Pay 3 € to Ada?").get_by_role("button", name="Approve").click()
    expect(card(page, "Pay 3 € to Ada?")).to_contain_text("your answer is taken")
    answered = stack.ended(run_id)["answered_inputs"]

    assert [entry["by"] for entry in answered.values()] == ["ada"]
    assert page.evaluate("localStorage.length") == 0
    assert page.context.cookies() == []


@pytest.mark.req("RT-6")
def test_runs_are_listed_filtered_and_link_to_temporal(stack: Stack, visitors: Visitors) -> None:
    for number in range(30):
        stack.http.post("/runs", json={"definition": json.loads(_many(f"listed-{number % 2}"))})
    params = {"flow": "listed-0", "status": "completed"}
    until(lambda: len(stack.http.get("/runs", params=params).json()["runs"]) == 15, "the runs in the list")
    page = visitors.page("#/runs")
    expect(page.locator(".row")).to_have_count(25)
    page.get_by_role("button", name="More").click()
    expect(page.locator(".row").nth(29)).to_be_visible()
    page.get_by_label("Flow").fill("listed-0")
    page.keyboard.press("Enter")
    page.get_by_label("Status").select_option("completed")
    expect(page.locator(".row")).to_have_count(15)
    page.locator(".row a").first.click()
    link = page.get_by_role("link", name="Temporal Web UI")
    expect(link).to_be_visible()

    assert str(link.get_attribute("href")).startswith(f"{stack.ui_url}/namespaces/default/workflows/listed-0-")


def _many(flow_id: str) -> str:
    return json.dumps({"id": flow_id, "nodes": {"a": {"type": "transform", "template": "x"}}})


@pytest.mark.req("RT-5", "RT-6")
@on_every_screen
def test_inbox_and_run_fit_the_screen(
    stack: Stack, visitors: Visitors, shots: Path, name: str, context: dict[str, Any]
) -> None:
    items = [{"what": "train to Hamburg", "price": 89.9}, {"what": "hotel", "price": 240}]
    expense = stack.begin("expense", {"amount": 329.9, "payee": "Ada Lovelace", "items": items, "urgent": True})
    stack.begin("kinds")
    agent = stack.begin("research", {"count": 3})
    stack.questions(expense)
    stack.ended(agent)
    page = visitors.page("#/inbox", **context)
    expect(page.get_by_role("article")).to_have_count(5)
    shot(page, shots / f"inbox-{name}.png")
    page.goto(f"{stack.url}/#/run/{expense}")
    page.locator("[data-node=pay]").press("Enter")
    expect(page.locator(".side dt").first).to_be_visible()
    expect(page.locator(".timeline li").nth(3)).to_be_visible()
    shot(page, shots / f"run-{name}.png")
    page.goto(f"{stack.url}/#/run/{agent}")
    page.locator("[data-node=agent]").press("Enter")
    expect(page.get_by_role("list", name="Conversation")).to_be_visible()
    shot(page, shots / f"agent-{name}.png")
    for place in ("runs", "start"):
        page.goto(f"{stack.url}/#/{place}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        shot(page, shots / f"{place}-{name}.png")
