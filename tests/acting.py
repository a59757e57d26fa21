"""Acting as a user of the engine: agents are real shell scripts behind the real wall."""

import asyncio
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from shoal.git.repository import inspect
from shoal.model.agent import AgentSpec
from shoal.model.events import Recorded, Waiting
from shoal.model.plan import Plan, Step
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import RunReport, WorkerResult
from shoal.runs.clean import Cleaning, clean
from shoal.runs.leftovers import CleanRequest
from shoal.runs.request import RunRequest
from shoal.runs.run import run
from shoal.store.ledger import Listener
from shoal.store.paths import StatePaths
from tests.conftest import git


def step(name: str, script: str, workers: int = 1, *, on_failure: str = "best_effort", **task: object) -> Step:
    """One step whose agent is a shell script."""
    agent = AgentSpec(name="script", adapter="command", command=("/bin/sh", "-c", script))
    made = ResolvedTask(name=name, prompt=f"please do {name}", agent=agent, **task)  # type: ignore[arg-type]
    return Step(name=name, workers=workers, task=made, on_failure=on_failure)


class StopAtWait:
    """Stops a run as soon as it waits for something, as a person would who cannot give it."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.reasons: list[str] = []

    def listen(self, recorded: Recorded) -> None:
        if isinstance(recorded.event, Waiting) and recorded.event.reason:
            self.reasons.append(recorded.event.reason)
            self.stop.set()


async def ran(
    repo: Path,
    *steps: Step,
    strategy: str = "auto",
    sandbox: str = "bubblewrap",
    base: str | None = None,
    stop: asyncio.Event | None = None,
    listen: Listener | None = None,
) -> RunReport:
    """Run the steps at once."""
    environ = {**os.environ, "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"}
    request = RunRequest(folder=repo, environ=environ, strategy=strategy, sandbox=sandbox, base=base, grace=0.5)
    return await run(Plan(name="t", steps=steps), request, stop=stop or asyncio.Event(), listen=listen)


async def worked(repo: Path, script: str, **how: object) -> WorkerResult:
    """Run one agent and give its result."""
    report = await ran(repo, step("work", script), **how)  # type: ignore[arg-type]
    return report.steps[0].worker_results[0]


async def cleaned(repo: Path) -> Cleaning:
    """Clean as the command does."""
    found = await inspect(repo, os.environ)
    return await clean(CleanRequest(folder=repo, repository=found, paths=StatePaths.of(repo), environ=os.environ))


def shown(repo: Path, result: WorkerResult, path: str) -> str:
    """What the session's branch holds at *path*."""
    assert result.branch is not None, result
    return git(repo, "show", f"{result.branch}:{path}")


def paths_in(repo: Path, result: WorkerResult) -> set[str]:
    """All paths of the session's branch."""
    assert result.branch is not None, result
    return set(git(repo, "ls-tree", "-r", "--name-only", "-z", result.branch).split("\0")) - {""}


def fingerprint(repo: Path) -> str:
    """Everything of the user's repository that no agent may change, as one digest."""
    digest = hashlib.sha256(git(repo, "status", "--porcelain", GIT_OPTIONAL_LOCKS="0").encode())
    own = [name for name in ("config", "HEAD", "index", "packed-refs", "logs/HEAD") if (repo / ".git" / name).exists()]
    for name in own:
        digest.update((repo / ".git" / name).read_bytes())
    for path in sorted((repo / ".git/hooks").iterdir()):
        digest.update(path.name.encode() + path.read_bytes())
    refs = git(repo, "for-each-ref").splitlines()
    digest.update(
        "\n".join(line for line in refs if "refs/heads/agent/" not in line and "refs/shoal" not in line).encode()
    )
    digest.update(git(repo, "stash", "list").encode())
    for path in sorted(_own_files(repo)):
        digest.update(str(path).encode() + path.read_bytes())
    return digest.hexdigest()


def _own_files(repo: Path) -> Iterator[Path]:
    """The user's files; what agents left below `.shoal` may be deeper than Python goes."""
    for folder, below, names in os.walk(repo):
        below[:] = [name for name in below if name not in (".git", ".shoal")]
        yield from (path for name in names if name != ".git" and (path := Path(folder, name)).is_file())


def _trash(state: Path) -> list[Path]:
    return list((state / "trash").iterdir()) if (state / "trash").exists() else []


def assert_nothing_left(repo: Path) -> None:
    """No workspace, box, mount, worktree, pin or run lock is left, and the repository is sound."""
    state = repo / ".shoal"
    left = [
        *(state / "workspaces").iterdir(),
        *(state / "boxes").iterdir(),
        *(state / "runs").iterdir(),
        *_trash(state),
    ]
    assert left == [], left
    assert str(state) not in Path("/proc/self/mounts").read_text()
    assert git(repo, "for-each-ref", "refs/shoal/base") == ""
    assert not (repo / ".git/worktrees").exists()
    assert git(repo, "fsck", "--full", "--strict", "--no-dangling") == ""
    assert not list((repo / ".git").rglob("*.lock"))
