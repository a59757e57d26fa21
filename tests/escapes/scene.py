"""The scene of an attack: a repository worth stealing, an attacking agent, and one beside it that only works.

The agent itself runs every attack, in the sandbox; the host checks the result after the run and after a person's
next commands (`diff`, `open`, `clean`).
"""

import asyncio
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from shoal.model.results import RunReport, WorkerResult
from shoal.model.status import Status
from tests.acting import assert_nothing_left, fingerprint, ran, shown, step
from tests.cli.conftest import shoal_in
from tests.cli.warm import Said
from tests.conftest import git

GOOD = "sleep 0.1; echo good > good.txt"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """The result of an attack."""

    report: RunReport
    result: WorkerResult
    good: WorkerResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where the attack happens; only code outside every sandbox could create the file *canary*."""

    repo: Path
    wall: str
    canary: Path
    home: Path
    secret: str
    before: str

    @property
    def is_walled(self) -> bool:
        """Return whether it is the full sandbox, not the fallback."""
        return self.wall == "bubblewrap"

    async def attacked(self, script: str, *, strategy: str = "auto", **task: object) -> Attack:
        """Run *script* as an agent, beside a good one, and make the checks that are the same for all attacks."""
        steps = (step("attack", script, **task), step("good", GOOD))  # type: ignore[arg-type]
        report = await ran(self.repo, *steps, strategy=strategy, sandbox=self.wall)
        attack, good = (one.worker_results[0] for one in report.steps)
        self.assert_held(report)
        assert good.status is Status.SUCCEEDED, good
        assert shown(self.repo, good, "good.txt") == "good"
        return Attack(report=report, result=attack, good=good)

    def assert_held(self, report: RunReport) -> None:
        """Nothing of the user changed, nothing ran outside, and no secret of the host is in the report."""
        assert not self.canary.exists(), "code of the agent's ran outside of its box"
        assert fingerprint(self.repo) == self.before, "the user's repository changed"
        assert self.secret not in repr(report), "a secret of the host came out"
        assert (self.home / ".ssh/id_rsa").read_text() == self.secret

    def shoal(self, *words: str) -> Said:
        """Run the command like the user, in the repository."""
        return shoal_in(self.repo)(*words)

    async def looked_after(self, attack: Attack) -> None:
        """Do what a person does next: view the diff, open the branch, clean up; and check again."""
        place = self.repo.parent / f"opened-{secrets.token_hex(2)}"
        opening = [("open", "attack", "--path", str(place))] if attack.result.branch else []
        for words in (("diff", "attack"), ("status", "--json"), ("logs", "attack"), *opening, ("clean", "--force")):
            said = await asyncio.to_thread(self.shoal, *words)
            assert said.code == 0, (words, said)
            assert "\x1b" not in said.out + said.err, words
        if opening:
            git(self.repo, "worktree", "remove", "--force", str(place))
        self.assert_held(attack.report)
        assert_nothing_left(self.repo)


def made(repo: Path, wall: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """Give the user hooks, a stash, a remote, a private home with secrets in it, and variables worth reading."""
    home, secret = folder / "home", f"canary-{secrets.token_hex(8)}"
    for name in (".ssh/id_rsa", ".aws/credentials", ".config/gh/hosts.yml", ".netrc", ".git-credentials", ".env"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(secret)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MY_TOKEN", secret)
    monkeypatch.setenv("SSH_AUTH_SOCK", f"{folder}/agent.sock")
    (repo / "README.md").write_text("stashed\n")
    git(repo, "stash")
    (repo / ".git/hooks/pre-commit").write_text("#!/bin/sh\nexit 0\n")
    git(repo, "branch", "precious")
    git(repo, "config", "user.name", "Ada")
    git(repo, "config", "user.email", "ada@example.org")
    yield Scene(repo=repo, wall=wall, canary=folder / "canary", home=home, secret=secret, before=fingerprint(repo))
    assert os.path.lexists(repo / ".git/refs/stash")
