"""A program whose coordinator was killed is started again: what its tasks came to is taken from the ledger."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from shoal import AgentCoordinator
from shoal.errors import BadInput
from tests.cli.conftest import SHOAL, environment
from tests.conftest import git
from tests.runs.coordinating import SHELL

PROGRAM = """
import asyncio, sys
from shoal import AgentCoordinator

OUTSIDE, WORD = sys.argv[1], sys.argv[2]
WORK = f'''echo $SHOAL_STEP >> {OUTSIDE}/starts; eval "$(head -n 1)"'''
AGENT = {"adapter": "command", "command": ["/bin/sh", "-c", WORK], "network": "host"}
BLOCK = f"echo x >> half; test -e {OUTSIDE}/go || {{ echo blocked; sleep 60; }}"

def tell(recorded):
    print(getattr(recorded.event, "text", ""), flush=True)

async def main():
    resume = sys.argv[3] if len(sys.argv) > 3 else None
    async with AgentCoordinator(agent=AGENT, sandbox="none", listen=tell, resume=resume) as coordinator:
        print("run:", coordinator.report.run, flush=True)
        plan, build = await coordinator.run_agents([("plan", "echo a > a"), ("build", f"cat a > b; : {WORD}", ["plan"])])
        winner = await coordinator.race([("quick", "echo q > q"), ("slow", "sleep 60")])
        parts = await coordinator.settled([("one", "echo 1 > 1"), ("two", "exit 1")])
        parts += await coordinator.settled([("three", BLOCK)])
        last = await coordinator.spawn_agent(AGENT, {"name": "last", "prompt": "ls > seen", "base": parts[2]})
        print("ended:", *(result.status for result in (plan, build, winner, *parts, last)), flush=True)
        print("branch:", last.branch, flush=True)

asyncio.run(main())
"""
SUCCEEDED = "ended: succeeded succeeded succeeded succeeded failed succeeded succeeded"


class Program:
    """The program in a repository, and what its agents left outside."""

    def __init__(self, repo: Path, outside: Path) -> None:
        outside.mkdir()
        self.repo, self.outside = repo, outside

    def killed(self) -> str:
        """Start it, kill it when an agent is in the middle of its task, and name its run."""
        with self._start("same") as running:
            assert running.stdout is not None
            run = next(line for line in running.stdout if line.startswith("run:")).split()[1]
            next(line for line in running.stdout if line.startswith("blocked"))
            running.kill()
            running.stdout.read()
        (self.outside / "go").touch()
        return run

    def resumed(self, run: str, word: str = "same") -> list[str]:
        with self._start(word, run) as running:
            out, _ = running.communicate(timeout=60)
        return [line for line in out.splitlines() if line.startswith(("ended:", "branch:"))]

    def starts(self) -> Counter[str]:
        return Counter((self.outside / "starts").read_text().split())

    def _start(self, *words: str) -> "subprocess.Popen[str]":
        argv = [sys.executable, "-c", PROGRAM, str(self.outside), *words]
        return subprocess.Popen(argv, cwd=self.repo, env=environment(), stdout=subprocess.PIPE, text=True)


@pytest.fixture
def program(repo: Path, tmp_path: Path) -> Program:
    return Program(repo, tmp_path / "outside")


def test_a_program_that_was_killed_goes_on_where_it_was(program: Program) -> None:
    run = program.killed()
    before = program.starts()

    ended, branch = program.resumed(run)

    assert ended == SUCCEEDED
    again = program.starts() - before
    assert again == Counter({"three": 1, "last": 1})
    seen = git(program.repo, "show", f"{branch.split()[1]}:seen").split()
    assert {"half", "seen"} <= set(seen)
    assert git(program.repo, "show", f"{branch.split()[1]}:half").split() == ["x", "x"]
    assert program.resumed(run) == [ended, branch]
    assert program.starts() - before == again


def test_a_task_that_reads_otherwise_now_is_done_again(program: Program) -> None:
    run = program.killed()
    before = program.starts()

    ended, _ = program.resumed(run, "other")

    assert ended == SUCCEEDED
    assert (program.starts() - before)["build"] == 1
    assert (program.starts() - before)["plan"] == 0


async def test_a_run_that_lives_or_does_not_exist_is_refused(repo: Path) -> None:
    async with AgentCoordinator(repo, agent=SHELL) as coordinator:
        run = coordinator.report.run
        with pytest.raises(BadInput, match=r"is still running \(process \d+ on "):
            async with AgentCoordinator(repo, agent=SHELL, resume=run):
                pass
    with pytest.raises(BadInput, match="no run"):
        async with AgentCoordinator(repo, agent=SHELL, resume="nope"):
            pass


def test_resume_names_the_way_to_resume_a_program(program: Program) -> None:
    run = program.killed()

    said = subprocess.run([str(SHOAL), "resume"], cwd=program.repo, env=environment(), capture_output=True, text=True)

    assert said.returncode == 2
    assert f"a program started it: start that again with `AgentCoordinator(resume='{run}')`" in said.stderr
    assert program.resumed(run)[0] == SUCCEEDED
