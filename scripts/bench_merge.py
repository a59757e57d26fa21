"""Merging the work of a hundred agents outside the checkout, compared with `git merge` in a worktree, in one run.

Ten of the branches conflict with another; both ways merge the same ones in the same order, with the same result.
"""

import asyncio
import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.bench_fleet import repository
from shoal.git.repository import inspect
from shoal.merge.merge import merge
from shoal.merge.request import MergeContext, MergeRequest
from shoal.model.merge import MergeReport, MergeStatus, Strategy
from shoal.model.results import RunReport, StepResult, WorkerResult
from shoal.model.status import Status
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import store_at

FILES = int(os.environ.get("SHOAL_BENCH_FILES", "5000"))
BRANCHES = int(os.environ.get("SHOAL_BENCH_BRANCHES", "100"))
CONFLICTING = BRANCHES // 10
WANTED = 4.0
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    **{f"GIT_{who}_{what}": "bench@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    """How many branches each way tried per second, and whether both got the same files."""

    merged: int
    conflicts: int
    ours: float
    theirs: float
    is_same: bool

    def __str__(self) -> str:
        files = "the same files" if self.is_same else "DIFFERENT FILES"
        return (
            f"{self.merged} branches merged and {self.conflicts} in conflict, {FILES} files: {self.ours:.0f} merges/s"
            f" beside the checkout, {self.theirs:.0f} by `git merge` in a worktree: {self.ours / self.theirs:.1f}x"
            f" ({WANTED:g}x wanted), {files}"
        )


def main() -> None:
    """Measure, and print one line."""
    with tempfile.TemporaryDirectory(prefix="shoal-merge-bench-", ignore_cleanup_errors=True) as folder:
        race = asyncio.run(raced(repository(Path(folder, "repo"), FILES), BRANCHES))
    print(race)
    assert race.is_same, "both ways have to come to the same files"


async def raced(repo: Path, branches: int) -> Race:
    """Merge *branches* both ways, ours first, and time them."""
    report = _report(repo, branched(repo, branches))
    began = time.monotonic()
    done = await _merged(repo, report)
    ours = time.monotonic() - began
    place = repo.parent / "worktree"
    git(repo, "worktree", "add", "-q", "--detach", str(place), report.base)
    began = time.monotonic()
    for one in done.results:
        if subprocess.run(_merging(str(one.source)), cwd=place, env=ENVIRONMENT, capture_output=True).returncode:
            git(place, "merge", "--abort")
    theirs = time.monotonic() - began
    return Race(
        merged=_count(done, MergeStatus.MERGED),
        conflicts=_count(done, MergeStatus.CONFLICTS),
        ours=branches / ours,
        theirs=branches / theirs,
        is_same=git(repo, "rev-parse", f"{done.commit}^{{tree}}") == git(place, "rev-parse", "HEAD^{tree}"),
    )


def branched(repo: Path, branches: int) -> list[str]:
    """Make the branches of agents that each changed a few files; the last tenth also changes files of others."""
    names = sorted(git(repo, "ls-tree", "-r", "--name-only", "HEAD").splitlines())
    text = "".join(_told(number, names, branches, git(repo, "rev-parse", "HEAD")) for number in range(branches))
    subprocess.run(["git", "fast-import", "--quiet"], cwd=repo, env=ENVIRONMENT, input=text.encode(), check=True)
    listed = git(repo, "for-each-ref", "--sort=refname", "--format=%(objectname)", "refs/heads/agent/bench")
    return listed.splitlines()


def _told(number: int, names: list[str], branches: int, base: str) -> str:
    """Write the `git fast-import` commands for one agent: three files changed and one added."""
    lines = [f"commit refs/heads/agent/bench/{number:04d}", "committer bench <bench@example.org> 1700000000 +0000"]
    lines += ["data 4", "work", f"from {base}"]
    own = number if number < branches - branches // 10 else number - (branches - branches // 10)
    for path in (*names[own * 3 : own * 3 + 3], f"new/{number}.txt"):
        content = f"agent {number} was here\n" * 20
        lines += [f"M 100644 inline {path}", f"data {len(content)}", content]
    return "\n".join(lines) + "\n"


async def _merged(repo: Path, report: RunReport) -> MergeReport:
    found = await inspect(repo, ENVIRONMENT)
    paths = StatePaths.of(repo)
    async with open_ledger(store_at(paths)) as book:
        context = MergeContext(repository=found, paths=paths, ledger=book, report=report)
        return await merge(context, MergeRequest(strategy=Strategy.AUTO))


def _report(repo: Path, commits: list[str]) -> RunReport:
    workers = tuple(_workers(commits))
    step = StepResult(step="bench", on_failure="best_effort", status=Status.SUCCEEDED, worker_results=workers)
    return RunReport(
        run="bench",
        status=Status.SUCCEEDED,
        base=git(repo, "rev-parse", "HEAD"),
        duration_seconds=0.0,
        steps=(step,),
        wall="",
        workspace="",
    )


def _workers(commits: list[str]) -> Iterator[WorkerResult]:
    for index, commit in enumerate(commits):
        yield WorkerResult(index=index, session=f"bench-{index:04d}", status=Status.SUCCEEDED, commit=commit)


def _count(done: MergeReport, status: MergeStatus) -> int:
    return sum(one.status is status for one in done.results)


def _merging(commit: str) -> list[str]:
    return ["git", "merge", "-q", "--no-ff", "--no-edit", commit]


def git(repo: Path, *words: str) -> str:
    """Run git like a user."""
    done = subprocess.run(["git", *words], cwd=repo, env=ENVIRONMENT, capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
