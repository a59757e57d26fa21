"""The dashboard as a person sees it, in a real browser."""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.cli.conftest import Shoal
from tests.dashboard.serving import SECONDS, Dashboard, serving

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
PIPELINE = """\
agents:
  odd:
    adapter: command
    command:
      - sh
      - -c
      - |
        printf '%s\\n' "$HOSTILE"; printf '\\033]0;owned\\007\\342\\200\\256txt.exe\\n'
        printf '%s\\n' "$HOSTILE" > "<img src=x onerror=alert(1)>.txt"
        mkdir -p .github/workflows; echo x > .github/workflows/ci.yml
  slow: {adapter: scripted, script: [{say: "reading the parser"}, {write: {path: same.txt, content: "x"}}, {sleep: 120}]}
  listener: {adapter: scripted, script: [{say: "listening"}, {receive: note.txt}, {say: "got it"}, {sleep: 120}]}
  quick: {adapter: scripted, script: [{write: {path: same.txt, content: "quick\\n"}}, {say: "all done"}]}
pipelines:
  - name: release
    steps:
      - {name: plan, agent: odd, prompt: PROMPT, env: {HOSTILE: PROMPT}}
      - {name: ship, needs: [plan], gate: "Deploy <b>it</b>?"}
      - {name: slow, needs: [ship], agent: slow, prompt: "fix the parser", concurrency: 2, on_failure: best_effort}
      - {name: quick, needs: [ship], agent: quick, prompt: "be quick"}
      - {name: listen, needs: [ship], agent: listener, prompt: "listen"}
"""


@pytest.fixture
def served(repo: Path) -> Iterator[Dashboard]:
    """A dashboard that nobody has opened."""
    (repo / "shoal.yaml").write_text(PIPELINE.replace("PROMPT", json.dumps(HOSTILE)))
    with serving(repo) as dashboard:
        yield dashboard


@pytest.fixture
def page(browser: Browser, served: Dashboard) -> Iterator[Page]:
    """A page that came by the link; what a script of an agent would do shows in its faults."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    page = context.new_page()
    page.set_default_timeout(SECONDS * 1000)
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    page.on(
        "console",
        lambda message: faults.append(f"{message.text} {message.location}") if message.type == "error" else None,
    )
    page.goto(served.link)
    yield page
    away = re.compile("net::ERR_|status of 403")  # while the server is away, and when it does not know us yet
    assert [fault for fault in faults if not away.search(fault)] == []
    context.close()


def start(page: Page, pipeline: str) -> None:
    page.get_by_role("button", name="New work").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="A pipeline").click()
    dialog.get_by_label("Pipeline").fill(pipeline)
    dialog.get_by_role("button", name="Start").click()


def test_a_person_follows_a_run_and_acts_on_it(page: Page, served: Dashboard, shoal: Shoal) -> None:
    """Start, approve, look, compare, message, stop, merge: each without reloading the page."""
    expect(page.get_by_text("No runs yet")).to_be_visible()
    start(page, "release")
    page.get_by_role("group", name="Gate ship").get_by_label("Comment").fill("go on")
    expect(page.get_by_text("Deploy <b>it</b>?")).to_be_visible()
    page.get_by_role("button", name="Approve").click()
    rows = page.locator("table.agents tr.row")
    expect(rows).to_have_count(5)
    expect(rows.filter(has_text="reading the parser")).to_have_count(2)
    expect(rows.filter(has_text="quick-").locator(".status")).to_have_text("succeeded")
    page.evaluate("window.isSamePage = true")

    rows.filter(has_text="listen-").get_by_role("link").click()
    panel = page.locator("aside.panel")
    expect(panel.locator(".log")).to_contain_text("listening")
    panel.get_by_label("Message to this agent").fill("leave <b>the API</b>")
    panel.get_by_role("button", name="Send").click()
    expect(panel.locator(".entry.message")).to_contain_text("leave <b>the API</b>")
    expect(panel.locator(".log")).to_contain_text("got it")

    page.keyboard.press("Escape")
    rows.filter(has_text="slow-").first.get_by_role("link").click()
    expect(panel.locator(".log")).to_contain_text("reading the parser")
    panel.get_by_role("link", name="diff", exact=True).click()
    expect(panel.locator(".diff")).to_contain_text("same.txt")
    expect(panel.locator("header .status")).to_have_text("running")
    panel.get_by_role("button", name="Stop").click()
    expect(panel.locator("header .status")).to_have_text("cancelled")
    expect(panel.locator(".diff")).to_contain_text("same.txt")

    page.get_by_role("link", name="Close").click()
    page.locator("header.head").get_by_role("button", name="Stop").click()
    expect(page.locator("header.head .status")).to_have_text(re.compile("degraded|cancelled"))
    page.get_by_role("link", name="merge", exact=True).click()
    expect(page.get_by_text("merge cleanly")).to_be_visible()
    page.get_by_label("Also merge files").check()
    page.get_by_role("button", name="Merge", exact=True).click()
    expect(page.get_by_role("heading", name="Last merge")).to_be_visible()
    expect(page.locator("section.merge table").last.locator("tbody tr").first).to_contain_text("merged")
    page.get_by_role("button", name="Undo").click()
    expect(page.get_by_text("Nothing is merged.")).to_be_visible()

    assert page.evaluate("window.isSamePage")


def test_what_agents_wrote_is_text_on_every_view(page: Page, served: Dashboard) -> None:
    start(page, "release")
    page.get_by_role("button", name="Reject").click()
    expect(page.locator("header.head .status")).to_have_text(re.compile("failed|degraded"))
    address = page.url
    page.locator("table.agents tbody a").first.click()
    panel = page.locator("aside.panel")
    expect(panel.locator(".log")).to_contain_text("<img src=x onerror=")
    expect(panel.locator(".log")).to_contain_text("\\u{202e}txt.exe")
    panel.get_by_role("link", name="diff", exact=True).click()
    expect(panel.locator(".diff details").first).to_contain_text("can run code on your machine")
    expect(panel.locator(".diff")).to_contain_text("<img src=x onerror=alert(1)>.txt")
    for tab in ("plan", "timeline", "resources", "overlaps", "diff", "merge", "report"):
        page.goto(f"{address}?tab={tab}")
        expect(page.locator(".tabs a[aria-current]").first).to_have_text(tab)
    page.goto(served.link.partition("/open/")[0])
    expect(page.locator(".card")).to_contain_text("<script>")

    assert page.locator("img:not([src^='/static/'])").count() == 0
    assert page.title() == "Shoal"


def test_a_page_goes_on_when_its_server_was_killed(page: Page, served: Dashboard, shoal: Shoal, repo: Path) -> None:
    """The cookie is void then; when the new link was opened, the page goes on by itself. The run does not notice."""
    start(page, "release")
    expect(page.get_by_role("button", name="Approve")).to_be_visible()
    page.evaluate("window.isSamePage = true")
    served.process.kill()
    expect(page.get_by_text("Not connected")).to_be_visible()
    assert shoal("approve", "release", "ship", "--reject").code == 0
    with serving(repo, "--port", str(served.port)) as again:
        other = page.context.new_page()
        other.goto(again.link)
        expect(page.locator("header.head .status")).to_have_text(re.compile("failed|degraded"))
        expect(page.get_by_text("Not connected")).to_be_hidden()

        assert page.evaluate("window.isSamePage")


def test_a_page_that_was_offline_gets_what_it_missed(page: Page, served: Dashboard, shoal: Shoal, repo: Path) -> None:
    expect(page.get_by_text("No runs yet")).to_be_visible()
    os.kill(served.process.pid, signal.SIGSTOP)
    assert shoal("run", "--task", "x", "--command", "true", "--sandbox", "none").code == 0
    os.kill(served.process.pid, signal.SIGCONT)

    expect(page.locator(".card .status")).to_have_text("succeeded")


def test_a_run_can_be_used_with_the_keyboard_alone(page: Page, served: Dashboard, shoal: Shoal) -> None:
    work = ("--command", "sh -c 'echo $SHOAL_SESSION > a; sleep 0.1'")
    assert shoal("run", "--task", "one", "--task", "two", *work).code == 0
    expect(page.locator(".card")).to_be_visible()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("tr.row")).to_have_count(2)
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("aside.panel h2")).to_contain_text("two-")
    page.keyboard.press("d")
    expect(page.locator("aside.panel .diff")).to_contain_text("+two-")
    page.keyboard.press("Escape")
    for number, shown in (
        ("3", "canvas"),
        ("4", "section.use"),
        ("5", "table.matrix"),
        ("6", ".diff"),
        ("7", ".merge"),
    ):
        page.keyboard.press(number)
        expect(page.locator(shown).first).to_be_visible()
    page.keyboard.press("n")
    expect(page.get_by_role("dialog").get_by_label("Tasks")).to_be_focused()
    page.keyboard.press("Escape")
    page.keyboard.press("g")
    expect(page.locator(".card")).to_be_visible()


def test_the_link_works_from_the_page_of_a_web_terminal(browser: Browser, served: Dashboard, tmp_path: Path) -> None:
    """Such a page is another site's, and no redirect from it carries a strict cookie."""
    (tmp_path / "terminal.html").write_text(f"<a href={served.link}>link</a>")
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"file://{tmp_path}/terminal.html")
    page.get_by_role("link").click()

    expect(page.get_by_text("No runs yet")).to_be_visible()
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1400, 390])
def test_every_view_is_accessible_and_fits(
    browser: Browser, served: Dashboard, shoal: Shoal, scheme: str, width: int, tmp_path: Path
) -> None:
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

    assert shoal("run", "--task", "one", "--task", "two", "--command", "sh -c 'echo $SHOAL_SESSION > a'").code == 0
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.goto(served.link)
    page.locator(".card a").first.click()
    page.locator("table.agents a").first.click()
    address = page.url
    for view in (
        "",
        "?view=diff",
        "?view=details",
        "?tab=plan",
        "?tab=timeline",
        "?tab=resources",
        "?view=resources",
        "?tab=overlaps",
        "?tab=diff",
        "?tab=merge",
        "board",
    ):
        page.goto(served.link.partition("/open/")[0] if view == "board" else address + view)
        expect(page.locator("main")).not_to_contain_text("Loading…")
        found = Axe().run(page).response["violations"]
        page.screenshot(path=tmp_path / f"{scheme}-{width}-{view.strip('?').replace('=', '-') or 'log'}.png")
        assert [
            (rule["id"], rule["nodes"][0]["html"]) for rule in found if rule["impact"] in ("serious", "critical")
        ] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    context.close()
