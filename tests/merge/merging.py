"""Commits that stand for finished sessions, and real merges of them."""

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path

from shoal.git.repository import inspect
from shoal.merge.merge import merge
from shoal.merge.request import MergeContext, MergeRequest, Verify
from shoal.merge.undo import undo
from shoal.model.merge import MergeReport, Strategy
from shoal.model.results import RunReport, StepResult, WorkerResult
from shoal.model.status import Status
from shoal.store.ledger import open_ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import store_at
from tests.conftest import git

RUN = "t-20260101-abcd"
Files = Mapping[str, str | None]


def side(repo: Path, files: Files, start: str = "main") -> str:
    """Commit *files* (`None` deletes one) on *start*, outside the checkout, like an import from a sandbox."""
    index = {"GIT_INDEX_FILE": str(repo / ".git/side")}
    git(repo, "read-tree", start, **index)
    for name, content in files.items():
        if content is None:
            git(repo, "update-index", "--force-remove", name, **index)
            continue
        blob = repo / ".git/blob"
        blob.write_text(content)
        oid = git(repo, "hash-object", "-w", "--no-filters", str(blob))
        git(repo, "update-index", "--add", "--cacheinfo", f"100644,{oid},{name}", **index)
    tree = git(repo, "write-tree", **index)
    commit = git(repo, "commit-tree", tree, "-p", start, "-m", f"side of {sorted(files)}")
    git(repo, "update-ref", f"refs/heads/agent/t/{commit[:8]}", commit)
    return commit


def worker(
    index: int, commit: str | None, *, executable: Sequence[str] = (), status: str = "succeeded"
) -> WorkerResult:
    return WorkerResult(
        index=index,
        session=f"s{index}",
        status=Status(status),
        commit=commit,
        executable=tuple(executable),
        prompt=f"do {index}",
    )


def report(repo: Path, workers: Sequence[WorkerResult], base: str = "main", selected: int | None = None) -> RunReport:
    step = StepResult(
        step="t",
        on_failure="best_effort",
        status=Status.SUCCEEDED,
        worker_results=tuple(workers),
        selected=selected,
    )
    commit = git(repo, "rev-parse", base)
    return RunReport(
        run=RUN, status=Status.SUCCEEDED, base=commit, duration_seconds=0.0, steps=(step,), wall="", workspace=""
    )


@contextlib.asynccontextmanager
async def open_merge_context(repo: Path, run: RunReport) -> AsyncIterator[MergeContext]:
    repository = await inspect(repo, {"GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org"})
    paths = StatePaths.of(repo)
    exclude = repository.git / "info/exclude"
    exclude.parent.mkdir(exist_ok=True)
    exclude.write_text(".shoal\n")
    async with open_ledger(store_at(paths)) as book:
        yield MergeContext(repository=repository, paths=paths, ledger=book, report=run)


async def merged(
    repo: Path,
    run: RunReport,
    *sessions: str,
    strategy: str = "auto",
    into: str | None = None,
    allow: bool = False,
    verify: Verify | None = None,
) -> MergeReport:
    """Merge, as the command does."""
    request = MergeRequest(
        sessions=sessions, strategy=Strategy(strategy), into=into, allow_executable=allow, verify=verify
    )
    async with open_merge_context(repo, run) as context:
        return await merge(context, request)


async def undone(repo: Path, run: RunReport, *sessions: str) -> MergeReport:
    async with open_merge_context(repo, run) as context:
        return await undo(context, sessions)


def run_of(repo: Path, *changes: Files, base: str = "main") -> RunReport:
    """A run of sessions that each changed something on *base*."""
    start = git(repo, "rev-parse", base)
    return report(repo, [worker(number, side(repo, files, start)) for number, files in enumerate(changes)], base)


def statuses(done: MergeReport) -> dict[str, str]:
    return {one.session: one.status.value for one in done.results}


def tree(repo: Path, ref: str) -> str:
    return git(repo, "rev-parse", f"{ref}^{{tree}}")


def canary(repo: Path, tmp_path: Path) -> Callable[[], bool]:
    """Set every trap that a repository can hold, and give the question whether one was sprung."""
    sprung = tmp_path / "sprung"
    touch = tmp_path / "touch.sh"
    touch.write_text(f"#!/bin/sh\ntouch {sprung}\ncat\n")
    touch.chmod(0o755)
    hooks = ("post-merge", "post-checkout", "post-index-change", "reference-transaction", "pre-merge-commit")
    for name in (*hooks, "post-rewrite", "pre-commit", "commit-msg", "prepare-commit-msg", "post-commit"):
        (repo / ".git/hooks").mkdir(exist_ok=True)
        (repo / ".git/hooks" / name).write_text(touch.read_text())
        (repo / ".git/hooks" / name).chmod(0o755)
    for key in ("filter.evil.smudge", "filter.evil.clean", "filter.evil.process", "merge.evil.driver"):
        git(repo, "config", key, str(touch))
    for key in ("core.fsmonitor", "diff.external", "core.editor", "core.pager", "gpg.program", "core.sshCommand"):
        git(repo, "config", key, str(touch))
    git(repo, "config", "commit.gpgSign", "true")
    sprung.unlink(missing_ok=True)
    return sprung.exists
