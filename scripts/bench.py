"""`make bench`: what a session costs, compared with the shell alternative, as ratios measured in one run."""

import asyncio
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable
from pathlib import Path

from shoal.adapters.command import CommandAdapter as CommandAdapter
from shoal.model.agent import AgentSpec
from shoal.model.resolved_task import ResolvedTask
from shoal.runs.context import open_run
from shoal.runs.request import RunRequest
from shoal.sessions.context import RunContext
from shoal.sessions.open_session import open_session
from shoal.sessions.policy import agent_command
from shoal.sessions.sandboxed import open_sandboxed
from shoal.sessions.session import import_work, run_session
from shoal.sessions.worker import WorkerSpec

ROUNDS = int(os.environ.get("SHOAL_BENCH_ROUNDS", "15"))
SIZES = tuple(int(size) for size in os.environ.get("SHOAL_BENCH_SIZES", "100,5000,50000").split(","))
IDENTITY = {f"GIT_{who}_{what}": "bench@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

Times = dict[str, list[float]]
NOTHING = "whole session, nothing changed"
SMALL = "whole session, small change"
ADD = "git worktree add (shell)"
SHELL_WHOLE = "worktree+bwrap+commit+remove (shell)"

# What a person would write: one worktree, one bubblewrap, one commit, one removal.
SHELL = """
set -e
git worktree add -q --no-track -b "$2" "$1/w" HEAD
bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev --proc /proc --bind "$1/w" "$1/w" --chdir "$1/w" sh -c "$3"
git -C "$1/w" add -A
git -C "$1/w" commit -qm work || true
git worktree remove --force "$1/w"
"""


def main() -> None:
    """Measure every size, and print one table."""
    print(f"{'files':>7} {'what':<44} {'median ms':>10} {'min ms':>8}  ratio")
    folder = Path(tempfile.mkdtemp(prefix="shoal-bench-"))
    try:
        for files in SIZES:
            asyncio.run(measured(repository(folder / f"r{files}", files), files))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    version()


def repository(path: Path, files: int) -> Path:
    """Make a repository of so many small files."""
    path.mkdir()
    for number in range(files):
        place = path / f"d{number // 200}"
        place.mkdir(exist_ok=True)
        (place / f"f{number}.txt").write_text(f"line {number}\n" * 20)
    env = {**os.environ, **IDENTITY}
    for argv in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run(["git", *argv], cwd=path, check=True, env=env)
    return path


async def measured(repo: Path, files: int) -> None:
    """Interleave the cases round by round, so that noise hits all alike."""
    request = RunRequest(folder=repo, environ={**os.environ, **IDENTITY}, name="bench")
    rounds = ROUNDS if files <= 5000 else max(3, ROUNDS // 5)
    times: Times = {}
    async with open_run(request) as opened:
        context = opened.context
        await session(context, "true")
        for number in range(rounds):
            change = f"echo {number} > d0/f0.txt"
            await timed(times, NOTHING, session(context, "true"))
            await timed(times, SMALL, session(context, change))
            await spans(times, context, change)
            await timed(times, ADD, worktree_add(repo))
            subprocess.run(["git", "worktree", "remove", "--force", repo.parent / "wt"], cwd=repo, check=True)
            await timed(times, SHELL_WHOLE, shell(repo, number))
    report(files, times)


async def timed(times: Times, name: str, work: Awaitable[None]) -> None:
    """Time one case once."""
    began = time.perf_counter()
    await work
    times.setdefault(name, []).append((time.perf_counter() - began) * 1000)


async def session(context: RunContext, script: str) -> None:
    """Run one whole session."""
    result = await run_session(context, worker(script))
    assert result.status.is_good, result


async def spans(times: Times, context: RunContext, script: str) -> None:
    """Show where a session's time goes: the same steps, one by one."""
    began = time.perf_counter()

    def mark(name: str) -> None:
        nonlocal began
        now = time.perf_counter()
        times.setdefault(name, []).append((now - began) * 1000)
        began = now

    async with open_session(context, worker(script)) as opened:
        mark("  of that: open workspace and gitdir")
        command, policy = agent_command(opened)
        async with open_sandboxed(context.sandbox, command, policy, sink=lambda _stream, _data: None) as box:
            await box.wait()
        mark("  of that: the sandbox, checked, and the agent")
        await import_work(opened)
        mark("  of that: seal, import, branch")
    mark("  of that: close")


def worker(script: str) -> WorkerSpec:
    """One command agent."""
    agent = AgentSpec(name="bench", adapter="command", command=("/bin/sh", "-c", script))
    task = ResolvedTask(name="bench", prompt="", agent=agent)
    return WorkerSpec(step="bench", index=0, count=1, task=task, adapter=CommandAdapter())


async def worktree_add(repo: Path) -> None:
    """What the shell alternative pays for its files alone."""
    subprocess.run(["git", "worktree", "add", "-q", "--detach", repo.parent / "wt"], cwd=repo, check=True)


async def shell(repo: Path, number: int) -> None:
    """The shell alternative, whole."""
    with tempfile.TemporaryDirectory(dir=repo.parent) as folder:
        argv = ["sh", "-c", SHELL, "sh", folder, f"shell-{number}", f"echo {number} > d0/f0.txt"]
        subprocess.run(argv, cwd=repo, check=True, env={**os.environ, **IDENTITY})


def report(files: int, times: Times) -> None:
    """Print a row a case, with its ratio to the shell's whole path; the opening against `git worktree add`."""
    whole = statistics.median(times[SHELL_WHOLE])
    add = statistics.median(times[ADD])
    for name, values in times.items():
        median = statistics.median(values)
        against = f"git worktree add is {add / median:.0f}x" if "open" in name else f"shell is {whole / median:.1f}x"
        print(f"{files:>7} {name:<44} {median:>10.1f} {min(values):>8.1f}  {against}")


def version() -> None:
    """Compare `shoal --version` with a bare interpreter."""
    shoal = Path(sys.executable).with_name("shoal")
    bare = clocked([sys.executable, "-c", "pass"])
    ours = clocked([str(shoal), "--version"])
    print(f"\nshoal --version {ours:.0f} ms, python3 -c pass {bare:.0f} ms: {ours / bare:.1f}x (10x allowed)")


def clocked(argv: list[str]) -> float:
    """The median of some runs, in ms."""
    values = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        values.append((time.perf_counter() - began) * 1000)
    return statistics.median(values)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
