"""What hostile set-ups tried: to lead the host out of the wall, and to be there for others than their own agent."""

from pathlib import Path

import pytest

from shoal.model.setup import Setup
from shoal.model.status import Status
from tests.acting import paths_in, ran, step
from tests.conftest import git

GITDIR = "G=$(git rev-parse --absolute-git-dir)"


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
