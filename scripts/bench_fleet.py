"""The cost of many agents at once: efficiency, throughput compared with a shell, 1,000 idle agents, 100 databases.

The ratios count; everything is measured on one machine in one go, and other load makes every number worse.
"""

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal import AgentCoordinator, Task
from shoal.limits.polling import list_descendants, proportional_bytes
from shoal.model.results import WorkerResult

FLEET = int(os.environ.get("SHOAL_BENCH_FLEET", "200"))
STREAM = int(os.environ.get("SHOAL_BENCH_STREAM", "1000"))
SHELL = int(os.environ.get("SHOAL_BENCH_SHELL", "40"))
HELD = int(os.environ.get("SHOAL_BENCH_HELD", "1000"))
WRITERS = int(os.environ.get("SHOAL_BENCH_WRITERS", "100"))
SECONDS = float(os.environ.get("SHOAL_BENCH_SECONDS", "10"))

NAP, WIDTH, FILES, AT_ONCE, STARTED_AT_ONCE = 5.0, 50, 5000, 8, 100
MB = 2**20
IDENTITY = {f"GIT_{who}_{what}": "bench@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

# What a person would write around `xargs -P`: one worktree, one bubblewrap, the command, one removal.
SHELL_WAY = """
git worktree add -q --detach "$0/w$1" HEAD 2>/dev/null
bwrap --unshare-all --die-with-parent --ro-bind / / --dev /dev --proc /proc --bind "$0/w$1" "$0/w$1" --chdir "$0/w$1" true
git worktree remove --force "$0/w$1"
"""

# Writes its database for some seconds; prints how many rows, the longest wait for one, and the errors.
WRITER = """
import json, os, sqlite3, sys, time
path, seconds = sys.argv[1].removeprefix("sqlite:///"), float(sys.argv[2])
db = sqlite3.connect(path, timeout=0.1, isolation_level=None)
rows, errors, longest, last = 0, 0, 0.0, time.monotonic()
end = last + seconds
while time.monotonic() < end:
    try:
        db.execute("create table if not exists said (at real, line text)")
        db.execute("insert into said values (?, ?)", (time.time(), "x" * 100))
        rows += 1
    except sqlite3.OperationalError:
        errors += 1
    else:
        longest, last = max(longest, time.monotonic() - last), time.monotonic()
    if rows % 10 == 0:
        print("event", rows, flush=True)
    time.sleep(0.01)
print(json.dumps({"rows": rows, "errors": errors, "longest": longest}))
"""


def main() -> None:
    """Measure everything, and print a line for each claim."""
    with tempfile.TemporaryDirectory(prefix="shoal-fleet-", ignore_cleanup_errors=True) as folder:
        small, large = repository(Path(folder, "small"), 200), repository(Path(folder, "large"), FILES)
        asyncio.run(table(small))
        asyncio.run(fleet(small))
        ours, shell = asyncio.run(streamed(large)), xargs(large)
        print(
            f"{STREAM} commands through stream: {ours:.1f}/s; xargs -P and a shell: {shell:.1f}/s: {ours / shell:.1f}x"
        )
        print(asyncio.run(held(small, HELD)))
        print(asyncio.run(own_databases(small, WRITERS, SECONDS)))
        print(shared_database(Path(folder, "shared.db"), WRITERS, SECONDS))


def repository(path: Path, files: int) -> Path:
    """Make a repository of so many small files."""
    path.mkdir()
    for number in range(files):
        place = path / f"d{number // 200}"
        place.mkdir(exist_ok=True)
        (place / f"f{number}.txt").write_text(f"line {number}\n" * 20)
    for argv in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "base"]):
        subprocess.run(["git", *argv], cwd=path, check=True, env={**os.environ, **IDENTITY})
    return path


def coordinator(repo: Path, most: int, *command: str) -> AgentCoordinator:
    """Make one whose agents run *command*."""
    return AgentCoordinator(repo, most, agent={"adapter": "command", "command": list(command or ("true",))}, grace=1.0)


async def table(repo: Path) -> None:
    """Print seed 002's table: disk, memory and time at 1, 3 and 5 agents, and the efficiency of each."""
    print(f"{'agents that sleep 5 s':<24} {'disk MB':>8} {'memory MB':>10} {'seconds':>8} {'efficiency':>11}")
    for count in (1, 3, 5):
        async with coordinator(repo, 5, "sleep", str(NAP)) as task_run:
            began = time.monotonic()
            async with asyncio.TaskGroup() as group:
                work = group.create_task(task_run.run_agents(["nap"] * count))
                await asyncio.sleep(NAP / 2)
                disk, memory = disk_mb(repo / ".shoal"), memory_mb()
            took = time.monotonic() - began
        assert all(result.status.is_good for result in work.result())
        print(f"{count:<24} {disk:>8.1f} {memory:>10.1f} {took:>8.2f} {NAP / took:>11.3f}  (0.97 wanted)")


async def fleet(repo: Path) -> None:
    """Print how close many agents come to their ideal time."""
    async with coordinator(repo, WIDTH, "sleep", str(NAP)) as task_run:
        began = time.monotonic()
        results = await task_run.run_agents(["nap"] * FLEET)
        took = time.monotonic() - began
    assert all(result.status.is_good for result in results)
    ideal = NAP * -(-FLEET // WIDTH)
    print(
        f"{FLEET} agents that sleep {NAP:g} s, {WIDTH} at once: {took:.1f} s, efficiency {ideal / took:.3f} (0.9 wanted)"
    )


async def streamed(repo: Path) -> float:
    """Return how many commands per second run through the whole sandbox."""
    async with coordinator(repo, AT_ONCE) as task_run:
        await task_run.run_command("true")
        began = time.monotonic()
        async for result in task_run.stream(Task.command("true") for _ in range(STREAM)):
            assert result.status.is_good, result
        return STREAM / (time.monotonic() - began)


def xargs(repo: Path) -> float:
    """Return how many per second the shell alternative runs."""
    numbers = "\n".join(map(str, range(SHELL)))
    with tempfile.TemporaryDirectory(dir=repo.parent) as folder:
        argv = ["xargs", "-P", str(AT_ONCE), "-n", "1", "sh", "-c", SHELL_WAY, folder]
        began = time.monotonic()
        subprocess.run(argv, cwd=repo, input=numbers, text=True, check=False)
        return SHELL / (time.monotonic() - began)


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What idle agents cost the coordinator."""

    agents: int
    started_seconds: float
    idle_mb: float
    """The memory before the first of them."""
    memory_mb: float
    cpu_percent: float
    threads: int
    ended_seconds: float

    def __str__(self) -> str:
        return (
            f"{self.agents} idle agents held: {self.memory_mb:.0f} MB (150 allowed), {self.cpu_percent:.1f} % of a core"
            f" (10 allowed), {self.threads} threads; started in {self.started_seconds:.0f} s,"
            f" ended in {self.ended_seconds:.0f} s"
        )


async def held(repo: Path, agents: int, seconds: float = 20.0, patience: float = 600.0) -> Holding:
    """Hold as many sleeping agents as start within *patience*, and measure their cost."""
    async with coordinator(repo, agents, "/bin/sh", "-c", "echo up; exec sleep 3600") as task_run:
        idle, began = resident_mb(), time.monotonic()
        async with ended(task_run, agents, patience) as count:
            started = time.monotonic() - began
            cpu, since = time.process_time(), time.monotonic()
            await asyncio.sleep(seconds)
            percent = 100 * (time.process_time() - cpu) / (time.monotonic() - since)
            memory, threads = resident_mb(), threading.active_count()
            began = time.monotonic()
        over = time.monotonic() - began
    return Holding(
        agents=count,
        started_seconds=started,
        idle_mb=idle,
        memory_mb=memory,
        cpu_percent=percent,
        threads=threads,
        ended_seconds=over,
    )


@contextlib.asynccontextmanager
async def ended(task_run: AgentCoordinator, agents: int, patience: float) -> AsyncIterator[int]:
    """Start agents, staggered, until there are enough or it takes too long; end them on exit."""
    until = time.monotonic() + patience
    up = 0
    async with asyncio.TaskGroup() as group:
        work = []
        while up < agents and (not up or time.monotonic() < until):
            more = min(STARTED_AT_ONCE, agents - up)
            work.append(group.create_task(task_run.run_agents(["hold"] * more)))
            up += more
            while sum(1 for _ in sleepers()) < up:
                assert not any(one.done() for one in work)
                await asyncio.sleep(0.5)
        yield up
        for one in work:
            one.cancel()


def sleepers() -> Iterator[int]:
    """Find our sleeping agents."""
    for one in list_descendants([os.getpid()]):
        with contextlib.suppress(OSError):
            if b"sleep\x003600" in Path(f"/proc/{one.pid}/cmdline").read_bytes()[:20]:
                yield one.pid


@dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """The result of many writers."""

    what: str
    writers: int
    rows: int
    least: int
    errors: int
    longest_seconds: float

    def __str__(self) -> str:
        return (
            f"{self.writers} writers, {self.what}: {self.rows} rows, {self.least} by the slowest, {self.errors} lock"
            f" errors, longest wait {self.longest_seconds:.2f} s"
        )

    @classmethod
    def of(cls, what: str, outputs: list[str]) -> "Writing":
        """Sum up what each writer said last."""
        said = [json.loads(output.splitlines()[-1]) for output in outputs]
        return cls(
            what=what,
            writers=len(said),
            rows=sum(one["rows"] for one in said),
            least=min(one["rows"] for one in said),
            errors=sum(one["errors"] for one in said),
            longest_seconds=max(one["longest"] for one in said),
        )


async def own_databases(repo: Path, writers: int, seconds: float) -> Writing:
    """Let each agent write its own database, and print output all the while."""
    script = f'exec python3 -c "$(cat)" "$DATABASE_URL" {seconds}'
    async with coordinator(repo, writers, "/bin/sh", "-c", script) as task_run:
        results: list[WorkerResult] = await task_run.run_agents([WRITER] * writers)
    assert all(result.status.is_good for result in results), [one.error for one in results if one.error][:3]
    return Writing.of("a database each", [result.output for result in results])


def shared_database(path: Path, writers: int, seconds: float) -> Writing:
    """Let plain processes write a single database."""
    argv = [shutil.which("python3") or sys.executable, "-c", WRITER, str(path), str(seconds)]
    children = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(writers)]
    return Writing.of("one database for all", [child.communicate()[0] for child in children])


def resident_mb() -> float:
    """Give the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MB


def memory_mb() -> float:
    """Give the memory of this process and all below it, shared pages divided."""
    return sum(proportional_bytes(one.pid) for one in list_descendants([os.getpid()])) / MB


def disk_mb(folder: Path) -> float:
    """Give the disk that all state and workspaces take."""
    done = subprocess.run(["du", "-sxk", str(folder)], capture_output=True, text=True, check=False)
    return int(done.stdout.split()[0]) / 1024


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
