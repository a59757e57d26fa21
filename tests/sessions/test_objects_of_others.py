"""Which of the repository's objects an agent can read: those that its base reaches, and no others."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from shoal import IsolatedAgentSession
from shoal.git.imports import ImportRefused, import_pack
from shoal.git.repository import inspect
from shoal.model.plan import Step
from shoal.model.status import Status
from shoal.store.paths import StatePaths
from shoal.workspaces.object_stores import objects_ready
from tests.acting import paths_in, ran, shown, step, worked
from tests.conftest import git
from tests.git.test_imports import agent_of, packed

LOOK = """
git cat-file --batch-all-objects --batch | grep -ao 'SECRET-[A-Z]*' | sort -u
for o in {names}; do git cat-file -p $o; done
find {objects} -mindepth 1 | head -n 3
true
"""
HISTORY = "git log --format=%s; git blame -s README.md | cut -d ' ' -f 2-; git fsck --full && echo sound"


def look(repo: Path, *names: str) -> str:
    """Attack: read every object there is, those of *names* by their names, and the user's folder of objects."""
    return LOOK.format(names=" ".join(names), objects=repo / ".git/objects")


def plant(repo: Path) -> list[str]:
    """Leave work that is no agent's business: a stash, a dropped commit, another branch; name it."""
    names = []
    for word, keep in (
        ("STASH", ("stash",)),
        ("DROPPED", ("commit", "-qam", "SECRET-DROPPED")),
        ("BRANCH", ("commit", "-qam", "SECRET-BRANCH")),
    ):
        (repo / "README.md").write_text(f"SECRET-{word}\n")
        names.append(git(repo, "hash-object", "README.md"))
        git(repo, *keep)
        if word == "BRANCH":
            git(repo, "branch", "other")
        git(repo, "reset", "-q", "--hard", "main@{0}" if word == "STASH" else "HEAD~1")
    git(repo, "repack", "-adq")
    return names


@pytest.mark.parametrize(
    ("strategy", "sandbox"),
    [("overlay", "bubblewrap"), ("worktree", "bubblewrap"), ("directory", "bubblewrap"), ("worktree", "landlock")],
)
async def test_an_agent_reads_nothing_of_the_users_or_of_earlier_agents(
    repo: Path, strategy: str, sandbox: str
) -> None:
    names = plant(repo)
    left = "echo SECRET-KEPT > k; git add k; git stash; echo SECRET-WORK > w"
    first = await worked(repo, left, strategy=strategy, sandbox=sandbox)
    assert shown(repo, first, "w") == "SECRET-WORK"
    assert first.kept_refs
    names += [git(repo, "rev-parse", f"{first.branch}:w"), *(git(repo, "rev-parse", ref) for ref in first.kept_refs)]

    spy = await worked(repo, look(repo, *names), strategy=strategy, sandbox=sandbox)

    assert spy.status is Status.NO_CHANGES
    assert spy.output == ""


async def test_an_agent_reads_nothing_of_those_that_end_beside_it(repo: Path) -> None:
    async with IsolatedAgentSession("spy", repo) as spy:
        beside = await worked(repo, "echo SECRET-BESIDE > w")
        name = git(repo, "rev-parse", f"{beside.branch}:w")

        seen = await spy.run(look(repo, name))

    assert shown(repo, beside, "w") == "SECRET-BESIDE"
    assert seen.exit_code == 0
    assert seen.output == ""


async def test_an_agent_reads_the_whole_history_of_its_base(repo: Path) -> None:
    for text in ("one\n", "one\ntwo\n"):
        (repo / "README.md").write_text(text)
        git(repo, "commit", "-qam", text.split()[-1])
    git(repo, "gc", "-q")

    seen = await worked(repo, HISTORY)

    assert seen.output.splitlines() == ["two", "one", "base", "1) one", "2) two", "sound"]


async def test_a_step_reads_the_work_that_it_builds_on_and_no_other(repo: Path) -> None:
    plan: tuple[Step, ...] = (
        step("one", "echo FIRST > one.txt"),
        step("two", "echo SECRET-OTHER > two.txt"),
        replace(step("three", f"git rev-list --count HEAD~1..HEAD; cat one.txt; {look(repo)}"), needs=("one",)),
    )

    report = await ran(repo, *plan)

    (last,) = report.steps[2].worker_results
    assert last.output.split() == ["1", "FIRST"]


async def test_an_object_that_is_only_named_does_not_come_back(repo: Path) -> None:
    """Who knows a name could else have the object put on its branch, and read it in the next step."""
    stolen, *_ = plant(repo)
    script = f"""
    echo own > own.txt; git add own.txt; git update-index --add --cacheinfo 100644,{stolen},stolen.txt
    git update-ref HEAD $(git commit-tree $(git write-tree --missing-ok) -p HEAD -m steal)
    """

    result = await worked(repo, script)

    assert result.status is Status.SUCCEEDED
    assert "own.txt" in paths_in(repo, result)
    assert stolen not in git(repo, "rev-list", "--objects", str(result.branch))


async def test_a_pack_that_names_what_its_base_does_not_reach_is_refused(repo: Path, tmp_path: Path) -> None:
    stolen, *_ = plant(repo)
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    git(agent, "update-index", "--add", "--cacheinfo", f"100644,{stolen},stolen.txt")
    git(agent, "commit", "-qm", "steal")
    tip = git(agent, "rev-parse", "HEAD")
    found, stores = await inspect(repo, os.environ), StatePaths.of(repo).objects
    stores.parent.mkdir()

    async with objects_ready(found, base, stores) as lender:
        taken = await import_pack(
            found, packed(agent, tip, base=f"{base}\n^{stolen}"), base=base, tips=(tip,), lender=lender
        )

    assert isinstance(taken, ImportRefused)


async def test_work_begun_when_agents_borrowed_from_the_repository_itself_is_still_kept(repo: Path) -> None:
    """An earlier Shoal's gitdirs name the user's objects, which no sandbox shows any more."""
    older = f"echo {repo}/.git/objects > $(git rev-parse --git-dir)/objects/info/alternates"

    result = await worked(repo, f"echo w > w; git add w; git commit -qm own; echo x > x; {older}")

    assert result.status is Status.SUCCEEDED
    assert {"w", "x"} <= paths_in(repo, result)
    assert git(repo, "log", "-2", "--format=%s", str(result.branch)).splitlines()[-1] == "own"
