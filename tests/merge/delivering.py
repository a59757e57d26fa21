"""A branch of the user that work is delivered to: its commit, the result, and a commit of the user."""

from pathlib import Path

from shoal.model.merge import DeliveryStatus, MergeReport
from tests.conftest import git
from tests.merge.merging import RUN

BRANCH = f"shoal/{RUN}"


def at(repo: Path, ref: str = "main") -> str:
    return git(repo, "rev-parse", ref)


def status_of(done: MergeReport) -> DeliveryStatus:
    assert done.delivery is not None
    return done.delivery.status


def moved_on(repo: Path, name: str = "theirs") -> str:
    """Let the user commit something on the branch that is checked out."""
    (repo / name).write_text(f"{name}\n")
    git(repo, "add", name)
    git(repo, "commit", "-qm", name)
    return at(repo, "HEAD")
