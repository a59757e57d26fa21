"""What hostile set-ups tried: to lead the host out of the sandbox, and to affect other agents."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.model.policy import Network
from shoal.model.setup import Setup
from shoal.model.status import Status
from tests.acting import paths_in, ran, step
from tests.conftest import git

GITDIR = "G=$(git rev-parse --absolute-git-dir)"
DEEP = "n=$(printf %200s | tr ' ' x); i=0; while [ $i -lt 30 ]; do mkdir $n; cd -P $n; i=$((i+1)); done; echo 1 > f"


@pytest.mark.parametrize("strategy", ["worktree", "overlay"])
async def test_a_link_that_set_up_leaves_does_not_lead_the_host_out_of_the_wall(repo: Path, strategy: str) -> None:
    victim = repo.parent / "victim"
    victim.write_text("mine\n")
    link = f"{GITDIR}; rm -rf $G/info; mkdir $G/info; ln -s {victim} $G/info/exclude; echo x > made"
    home = f"rm -r $HOME; ln -s {victim.parent} $HOME"
    setup = Setup(commands=(f"{link}; echo changed > README.md; ln -sf /nowhere $G/index", home), each=True)

    report = await ran(repo, step("a", "cat $HOME/.gitconfig; echo y > mine", setup=setup), strategy=strategy)

    (worker,) = report.steps[0].worker_results
    assert worker.status is Status.SUCCEEDED, worker
    assert "[user]" in worker.output
    assert victim.read_text() == "mine\n"
    assert paths_in(repo, worker) - set(git(repo, "ls-files").splitlines()) == {"mine"}


async def test_commits_of_set_up_are_not_the_agents(repo: Path) -> None:
    setup = Setup(commands=("echo x > made; git add -A; git commit -qm made; echo y > staged; git add staged",))

    report = await ran(
        repo, step("a", "echo z > mine; git add mine; git commit -qm mine", setup=setup), strategy="worktree"
    )

    (worker,) = report.steps[0].worker_results
    assert worker.branch is not None
    assert git(repo, "log", "--format=%s", f"main..{worker.branch}") == "mine"
    assert git(repo, "diff", "--name-only", "main", worker.branch) == "mine"


async def test_what_is_made_on_an_agents_work_is_not_given_to_others(repo: Path) -> None:
    setup = Setup(commands=("sh ./install.sh > dep",))
    (repo / "install.sh").write_text("echo good\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "install")
    hostile = step("evil", "echo echo evil > install.sh; echo x > package.json")
    next_one = replace(step("next", "cat dep", setup=setup), needs=("evil",))

    first = await ran(repo, hostile, next_one)
    second = await ran(repo, step("other", "cat dep", setup=setup))

    assert first.steps[1].worker_results[0].output == "evil\n", "it builds on that work"
    assert second.steps[0].worker_results[0].output == "good\n"


async def test_who_has_another_network_does_not_fail_with_who_has_none(repo: Path) -> None:
    setup = Setup(commands=("readlink /proc/self/ns/net > net",))
    one = step("one", "cat net", setup=setup, network=Network.HOST)

    report = await ran(repo, one, step("two", "cat net", setup=setup, network=Network.NONE))

    said = [done.worker_results[0].output for done in report.steps]
    assert len(set(said)) == 2, said


async def test_a_file_of_set_ups_that_was_only_touched_is_not_the_agents_work(repo: Path) -> None:
    setup = Setup(commands=("mkdir -p deps; echo 1 > deps/one; echo 2 > deps/two; echo changed > README.md",))
    agent = "touch deps/one README.md; chmod 600 deps/two; echo mine > deps/mine"

    report = await ran(repo, step("a", agent, setup=setup))

    (worker,) = report.steps[0].worker_results
    assert worker.branch is not None
    assert git(repo, "diff", "--name-only", "main", worker.branch) == "deps/mine"


async def test_work_in_a_repository_that_set_up_made_does_not_vanish_in_silence(repo: Path) -> None:
    made = "git init -q vendor/x && cd vendor/x && echo 1 > f && git add f && git commit -qm x"
    report = await ran(repo, step("a", "echo 2 > vendor/x/mine", setup=Setup(commands=(made,))), strategy="worktree")

    (worker,) = report.steps[0].worker_results
    assert worker.branch or worker.unkept, worker


# What its owner has shut, only root can lay below another agent.
SHUT = ("chmod 000 .", "mkdir d; chmod 000 d") if os.geteuid() == 0 else ()
ODD = (*SHUT, "mkfifo p; ln -s . loop; ln -s /etc/passwd l")


async def test_what_cannot_be_counted_is_told_in_a_line(repo: Path) -> None:
    report = await ran(repo, step("a", "true", setup=Setup(commands=(DEEP,))))

    (worker,) = report.steps[0].worker_results
    assert worker.error == "setup failed: what it left cannot be counted: File name too long"
    assert list((repo / ".shoal/setup").glob("making-*")) == []


@pytest.mark.parametrize("odd", ODD)
async def test_what_set_up_leaves_can_be_as_odd_as_it_likes(repo: Path, odd: str) -> None:
    report = await ran(repo, step("a", "echo 2 > mine; cat dep", setup=Setup(commands=("echo 1 > dep", odd))))

    (worker,) = report.steps[0].worker_results
    assert (worker.status, worker.output) == (Status.SUCCEEDED, "1\n"), worker


async def test_who_has_more_time_does_not_fail_with_who_has_less(repo: Path) -> None:
    """Their one command takes longer than the first of them waits for it."""
    less = Setup(commands=("exec sleep 0.6",), timeout=0.3)

    report = await ran(repo, step("less", "true", setup=less), step("more", "true", setup=replace(less, timeout=60)))

    assert report.steps[1].worker_results[0].status is Status.NO_CHANGES, report


@pytest.mark.parametrize("strategy", ["worktree", "overlay"])
async def test_what_set_up_took_away_is_there_unless_something_else_is(repo: Path, strategy: str) -> None:
    for name in ("many/a\nb", "many/c/d", "many/e", "many-f"):
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).touch()
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "many")
    agent = "mkdir README.md; echo 1 > README.md/mine; mkdir many; echo 2 > many/e"
    setup = Setup(commands=("rm -r many many-f README.md; echo x > 'ma\nny'",))

    report = await ran(repo, step("a", agent, setup=setup), strategy=strategy)

    (worker,) = report.steps[0].worker_results
    assert worker.branch is not None, worker
    changed = git(repo, "diff", "--no-renames", "--name-status", "main", worker.branch).splitlines()
    assert changed[:2] == ["D\tREADME.md", "A\tREADME.md/mine"]
    assert "M\tmany/e" in changed, changed
    assert not [line for line in changed if "many-f" in line or "a\\nb" in line]
