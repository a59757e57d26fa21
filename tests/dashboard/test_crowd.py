"""The page of a run with 200 agents and 100,000 events: fast, small, and no burden on the run."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.dashboard.crowd import AGENTS, RUN, SESSIONS
from tests.dashboard.serving import Dashboard, serving

pytestmark = [pytest.mark.deep, pytest.mark.alone, pytest.mark.browser, pytest.mark.timeout(300)]
MEASURED_SECONDS = 10.0


class Crowd:
    """The process that writes the ledger."""

    def __init__(self, repo: Path) -> None:
        words = [sys.executable, "-m", "tests.dashboard.crowd", str(repo)]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n"

    def cpu_seconds(self) -> float:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def measure_load(self) -> float:
        """Say which share of a core it takes."""
        before, start = self.cpu_seconds(), time.monotonic()
        time.sleep(MEASURED_SECONDS)
        return (self.cpu_seconds() - before) / (time.monotonic() - start)

    def end(self) -> None:
        assert self.process.stdin is not None
        with self.process:  # closes its pipes, and waits
            self.process.stdin.close()


@pytest.fixture
def crowd(repo: Path) -> Iterator[Crowd]:
    """A run at work."""
    crowd = Crowd(repo)
    yield crowd
    crowd.end()


def measure_page(page: Page) -> Mapping[str, float]:
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable")
    session.send("HeapProfiler.collectGarbage")
    found = session.send("Performance.getMetrics")["metrics"]
    return {metric["name"]: metric["value"] for metric in found}


def time_interactive(page: Page, dashboard: Dashboard) -> float:
    """Open the run's page and search in it; the time is that of processors, as others may use this machine."""
    before = processor_seconds(page, dashboard)
    page.goto(f"http://127.0.0.1:{dashboard.port}/run/repo/{RUN}")
    page.get_by_label("Find agents").fill(SESSIONS[-1])
    expect(page.locator("tr.row")).to_have_count(1)
    return processor_seconds(page, dashboard) - before


def processor_seconds(page: Page, dashboard: Dashboard) -> float:
    """Add up what the server and all processes of the browser have used."""
    assert page.context.browser is not None
    session = page.context.browser.new_browser_cdp_session()
    browser = sum(process["cpuTime"] for process in session.send("SystemInfo.getProcessInfo")["processInfo"])
    session.detach()
    fields = Path(f"/proc/{dashboard.process.pid}/stat").read_text().rpartition(")")[2].split()
    return float(browser) + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_a_crowd_is_followed_at_little_cost(crowd: Crowd, repo: Path, browser: Browser) -> None:
    alone = crowd.measure_load()
    with serving(repo) as dashboard:
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.goto(dashboard.link)
        expect(page.locator(".card")).to_be_visible()
        seconds = min(time_interactive(page, dashboard) for _ in range(3))
        page.get_by_label("Find agents").fill("")
        expect(page.get_by_role("button", name=f"All {AGENTS}")).to_be_visible()
        followed = crowd.measure_load()
        drawn = page.locator("tr.row").count()
        row = page.locator("tr.row").last
        before = row.inner_text()
        expect(row).not_to_have_text(before)
        page.goto(f"http://127.0.0.1:{dashboard.port}/run/repo/{RUN}/{SESSIONS[-1]}")
        expect(page.locator("tr.chosen")).to_be_in_viewport()
        megabytes = measure_page(page)["JSHeapUsedSize"] / 2**20
        page.close()

    print(f"interactive in {seconds:.2f} s; {megabytes:.0f} MB; coordinator {alone:.1%} alone, {followed:.1%} followed")
    assert seconds < 2
    assert megabytes < 200
    assert followed - alone < 0.05
    assert drawn < AGENTS / 2
