"""`shoal top` on real runs: driven by textual's pilot, and once in a real terminal."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Label, RichLog

from shoal.cli.live.top_app import QuestionScreen, TopApp
from shoal.dashboard.feed import SiteFeed
from shoal.store.paths import StatePaths
from tests.cli.conftest import SHOAL, Shoal, environment
from tests.cli.pty_terminal import open_pty
from tests.cli.test_live_run import WORK, live_environment, scripted, write
from tests.conftest import git

BOUND_SECONDS = 40.0


@asynccontextmanager
async def open_top(repo: Path) -> AsyncIterator[Pilot[None]]:
    """Open the screen on a repository, without a terminal."""
    app = TopApp(SiteFeed(repo.name, repo, StatePaths.of(repo)), repo)
    async with app.run_test(size=(120, 40)) as pilot:
        yield pilot


@contextmanager
def running(repo: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Run `shoal` beside the test, and end it."""
    command = [str(SHOAL), *words]
    with subprocess.Popen(command, cwd=repo, env=environment(), stdout=subprocess.DEVNULL, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(timeout=60)


async def until(pilot: Pilot[None], is_so: Callable[[], bool]) -> None:
    """Let the screen work until *is_so*."""
    async with asyncio.timeout(BOUND_SECONDS):
        while not is_so():
            await pilot.pause(0.05)


def rows(pilot: Pilot[None], name: str) -> list[str]:
    table = pilot.app.query_one(f"#{name}", DataTable)
    return [" ".join(cell.plain for cell in table.get_row(key)) for key in table.rows]


def pane(pilot: Pilot[None]) -> str:
    return "\n".join(line.text for line in pilot.app.query_one("#pane", RichLog).lines)


def is_asking(pilot: Pilot[None]) -> bool:
    return isinstance(pilot.app.screen, QuestionScreen)


def steps(repo: Path, shoal: Shoal) -> dict[str, str]:
    report = json.loads(shoal("status", "--json").out)
    return {step["step"]: step["status"] for step in report["steps"]}


async def test_past_runs_are_listed_filtered_and_read(repo: Path, shoal: Shoal, pipelines: Path) -> None:
    assert shoal("run", "both").code == 0
    assert shoal("run", "broken").code == 1

    async with open_top(repo) as pilot:
        await until(pilot, lambda: len(rows(pilot, "runs")) == 2)
        newest, oldest = rows(pilot, "runs")
        assert ("broken-" in newest, "0/1" in newest) == (True, True)
        assert ("both-" in oldest, "2/2" in oldest) == (True, True)
        assert "it broke" in rows(pilot, "agents")[0]

        await pilot.press("slash", *"two", "enter")
        await until(pilot, lambda: len(rows(pilot, "runs")) == 1 and len(rows(pilot, "agents")) == 1)
        assert rows(pilot, "agents")[0].startswith("two-")

        await pilot.press("enter", "enter")
        await until(pilot, lambda: "I am two" in pane(pilot))
        await pilot.press("d")
        await until(pilot, lambda: "+two" in pane(pilot))
        await pilot.press("p")
        await until(pilot, lambda: "same.txt" in pane(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: len(rows(pilot, "runs")) == 2)


async def test_a_live_run_is_followed_and_one_agent_stopped(repo: Path, shoal: Shoal) -> None:
    script = [{"say": "first words"}, *WORK, {"sleep": 600}]
    step = {"name": "s", "agent": "w", "prompt": "go", "concurrency": 2, "on_failure": "best_effort"}
    write(repo, {"w": scripted(*script)}, [step])
    async with open_top(repo) as pilot:
        with running(repo, "run", "p.yaml"):
            await until(pilot, lambda: sum("running the tests" in row for row in rows(pilot, "agents")) == 2)
            await pilot.press("enter", "l")
            await until(pilot, lambda: "first words" in pane(pilot) and "running the tests" in pane(pilot))
            await pilot.press("d")
            await until(pilot, lambda: "+x" in pane(pilot))
            await pilot.press("x")
            await until(pilot, lambda: is_asking(pilot))
            await pilot.press("y")
            await until(pilot, lambda: [row.split()[1] for row in rows(pilot, "agents")] == ["cancelled", "running"])
            await until(pilot, lambda: "stopped by" in rows(pilot, "agents")[0])


async def test_a_gate_is_answered_and_the_work_merged(repo: Path, shoal: Shoal) -> None:
    agents = {"one": scripted({"write": {"path": "new.txt", "content": "hello there\n"}})}
    gate = {"name": "gate", "gate": {"type": "approval", "message": "Ship [b]it[/b]?"}, "needs": ["one"]}
    write(repo, agents, [{"name": "one", "agent": "one", "prompt": "go"}, gate])
    async with open_top(repo) as pilot:
        with running(repo, "run", "p.yaml") as process:
            await until(pilot, lambda: any("needs you" in row for row in rows(pilot, "runs")))
            note = pilot.app.query_one("#note", Label)
            await until(pilot, lambda: 'gate asks: "Ship [b]it[/b]?" · a answers' in str(note.content))
            await pilot.press("a")
            await until(pilot, lambda: is_asking(pilot))
            await pilot.press("y")
            await until(pilot, lambda: process.poll() == 0)
        await until(pilot, lambda: any("ready to merge" in row for row in rows(pilot, "runs")))
        await pilot.press("m")
        await until(pilot, lambda: is_asking(pilot))
        pilot.app.screen.query_one(Input).value = "main"
        await pilot.press("enter")
        await until(pilot, lambda: "delivered" in pane(pilot))

    assert git(repo, "show", "main:new.txt") == "hello there"
    assert steps(repo, shoal)["gate"] == "succeeded"


async def test_a_message_reaches_the_run(repo: Path, shoal: Shoal) -> None:
    write(repo, {"w": scripted(*WORK, {"sleep": 600})}, [{"name": "s", "agent": "w", "prompt": "go"}])
    async with open_top(repo) as pilot:
        with running(repo, "run", "p.yaml"):
            await until(pilot, lambda: any("running the tests" in row for row in rows(pilot, "agents")))
            await pilot.press("s")
            await until(pilot, lambda: is_asking(pilot))
            await pilot.press(*"hi", "enter")
            # a scripted agent takes none: the refusal of the command is shown
            await until(pilot, lambda: any("message" in note.message for note in pilot.app._notifications))


async def test_hostile_text_is_shown_as_text(repo: Path, shoal: Shoal) -> None:
    said = "\x1b[2J[red]not red[/red] [link=http://x]"
    write(repo, {"w": scripted({"say": said}, {"fail": said})}, [{"name": "s", "agent": "w", "prompt": said}])
    assert shoal("run", "p.yaml").code == 1

    async with open_top(repo) as pilot:
        await until(pilot, lambda: any("[red]not red[/red]" in row for row in rows(pilot, "agents")))
        await pilot.press("l")
        await until(pilot, lambda: "[red]not red[/red]" in pane(pilot))
        assert "\x1b" not in pane(pilot) + "".join(rows(pilot, "agents"))


@pytest.mark.parametrize("columns", [60, 80, 160])
def test_it_draws_in_a_terminal_and_leaves_it_as_it_was(repo: Path, ran_in: Path, columns: int) -> None:
    with open_pty(str(SHOAL), "top", cwd=ran_in, env=live_environment(), columns=columns) as terminal:
        terminal.until(lambda: "both-" in terminal.shown and "1 file, " in terminal.shown)
        assert "succeeded" in terminal.shown
        terminal.press(b"q")

        assert terminal.end() == 0
        assert terminal.is_as_before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_terminal_as_it_was(ran_in: Path, number: signal.Signals) -> None:
    with open_pty(str(SHOAL), "top", cwd=ran_in, env=live_environment()) as terminal:
        terminal.until(lambda: "both-" in terminal.shown)
        terminal.process.send_signal(number)
        terminal.end()

        assert terminal.is_as_before
        assert terminal.raw.rindex(b"\x1b[?1049l") > terminal.raw.rindex(b"\x1b[?1049h")


def test_without_textual_the_extra_is_named(repo: Path, tmp_path: Path) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError(\"No module named 'textual'\", name='textual')\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "shoal", "top"]
    said = subprocess.run(command, cwd=repo, env=environ, capture_output=True, text=True, check=False)

    assert said.returncode == 5
    assert "textual is not installed; run: pip install 'shoal[top]'" in said.stderr


def test_without_a_terminal_other_commands_are_named(shoal: Shoal) -> None:
    said = shoal("top")

    assert said.code == 2
    assert "needs a terminal; `shoal runs`" in said.err
