"""A client's own files in a workspace are not work; tracked files under such names are."""

from dataclasses import replace
from pathlib import Path

import pytest

from shoal.model.agent import AgentSpec
from shoal.model.results import WorkerResult
from tests.acting import paths_in, ran, step
from tests.conftest import git

CACHE = ".aider.tags.cache.v4"
LOG = '{{"event": "{0}", "properties": {{"reason": "Completed --message-file"}}}}'
TURN = "; ".join(f"echo '{LOG.format(name)}'" for name in ("message_send_starting", "message_send", "exit"))


async def worked(repo: Path, script: str, strategy: str) -> WorkerResult:
    """Run a script in aider's place."""
    made = step("work", "")
    assert made.task is not None
    command = ("/bin/sh", "-c", f"{script}; {TURN}")
    agent = AgentSpec(name="a", adapter="aider", command=command, env={"OPENAI_API_KEY": "dummy"})
    report = await ran(repo, replace(made, task=replace(made.task, agent=agent)), strategy=strategy)
    return report.steps[0].worker_results[0]


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
async def test_a_clients_own_cache_is_not_taken_along(repo: Path, strategy: str) -> None:
    result = await worked(repo, f"mkdir {CACHE}; echo x > {CACHE}/cache.db; echo y > work.txt", strategy)

    assert result.error is None
    assert paths_in(repo, result) - {"README.md"} == {*(f"d0/f{n}.txt" for n in range(5)), "work.txt"}


async def test_a_cache_alone_is_no_change(repo: Path) -> None:
    result = await worked(repo, f"mkdir {CACHE}; echo x > {CACHE}/cache.db", "auto")

    assert (result.status, result.branch) == ("no_changes", None)


async def test_a_tracked_file_of_that_name_is_work(repo: Path) -> None:
    (repo / CACHE).mkdir()
    (repo / CACHE / "kept").write_text("old\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "tracked")

    result = await worked(repo, f"echo new > {CACHE}/kept", "auto")

    assert git(repo, "show", f"{result.branch}:{CACHE}/kept") == "new"


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
async def test_files_of_the_checkout_stay_out_beside_it(repo: Path, strategy: str) -> None:
    (repo / ".git/info/exclude").write_text(".env\n.worktreeinclude\n")
    (repo / ".worktreeinclude").write_text(".env\n")
    (repo / ".env").write_text("secret\n")

    result = await worked(repo, f"cat .env > /dev/null; touch .env; mkdir {CACHE}; echo y > work.txt", strategy)

    assert paths_in(repo, result) - {"README.md"} == {*(f"d0/f{n}.txt" for n in range(5)), "work.txt"}
