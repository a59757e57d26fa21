"""The sandbox enforces permissions: read-only files stay unchanged, readable ones can be read."""

from pathlib import Path

import pytest

from shoal.model.permissions import Permissions
from shoal.model.status import Status
from tests.acting import assert_nothing_left, fingerprint, shown
from tests.conftest import git
from tests.sessions.permitting import changed, one

WALLS = [
    ("overlay", "bubblewrap"),
    ("worktree", "bubblewrap"),
    ("directory", "bubblewrap"),
    ("worktree", "landlock"),
    ("directory", "landlock"),
]

HELD = pytest.mark.parametrize(("strategy", "sandbox"), WALLS, ids=["-".join(pair) for pair in WALLS])

# Each line is an attempt at a file that is not to be written; none may change what the branch holds.
ATTEMPTS = """
echo bad > new
echo bad >> README.md
rm -f README.md
mv README.md moved
mkdir folder
ln README.md d0/hard && echo bad > d0/hard
ln -sf ../README.md d0/soft && echo bad > d0/soft; rm -f d0/soft
mv d0 d1
rmdir d0; rm -rf d0/../README.md
cp -f d0/f0.txt README.md
git checkout -q HEAD~0 -- README.md
echo bad > .git
echo good > d0/f0.txt
echo good > d0/made
"""


@HELD
async def test_only_the_writable_folder_can_be_written(repo: Path, strategy: str, sandbox: str) -> None:
    before = fingerprint(repo)
    permissions = Permissions(writable=("d0", "d0/f1.txt"))

    result = await one(repo, ATTEMPTS, permissions, sandbox=sandbox, strategy=strategy)

    assert changed(repo, result) == ["d0/f0.txt", "d0/made"], result
    assert shown(repo, result, "d0/made") == "good"
    assert shown(repo, result, "README.md") == "scratch"
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


@HELD
async def test_a_single_file_can_be_written_and_git_still_commits(repo: Path, strategy: str, sandbox: str) -> None:
    script = "echo good >> README.md; echo bad > d0/f0.txt; git commit -qam 'my own' && git status --short"

    result = await one(repo, script, Permissions(writable=("README.md",)), sandbox=sandbox, strategy=strategy)

    assert (result.status, result.output) == (Status.SUCCEEDED, "")
    assert changed(repo, result) == ["README.md"]
    assert git(repo, "log", "-1", "--format=%s", str(result.branch)) == "my own"


@HELD
async def test_nothing_can_be_written_where_nothing_is_listed(repo: Path, strategy: str, sandbox: str) -> None:
    script = "echo bad > new; echo bad > README.md; echo own > $HOME/x && echo own > $TMPDIR/x && cat d0/f0.txt"

    result = await one(repo, script, Permissions(writable=()), sandbox=sandbox, strategy=strategy)

    assert result.status is Status.NO_CHANGES, result
    assert result.output.startswith("line 0\n")


async def test_a_tree_made_by_plumbing_does_not_reach_the_tip(repo: Path) -> None:
    """The gitdir is the agent's own; what it commits without a file is not in what is brought in."""
    script = """
blob=$(echo bad | git hash-object -w --stdin)
git update-index --add --cacheinfo 100644,$blob,README.md && git update-index --add --cacheinfo 100644,$blob,new
git commit -qm sly && echo good > d0/f0.txt && git cat-file -p HEAD:new
"""

    result = await one(repo, script, Permissions(writable=("d0",)))

    assert result.output == "bad\n"
    assert changed(repo, result) == ["d0/f0.txt"]


@HELD
async def test_a_readable_folder_outside_can_be_read_and_not_written(
    repo: Path, tmp_path: Path, strategy: str, sandbox: str
) -> None:
    data, beside = tmp_path / "data", tmp_path / "beside"
    for folder in (data, beside):
        folder.mkdir()
        (folder / "x").write_text("of the host\n")
    script = f"cat {data}/x; echo bad > {data}/x; echo bad > {data}/new; cat {beside}/x; echo done > done"

    result = await one(repo, script, Permissions(readable=(str(data),)), sandbox=sandbox, strategy=strategy)

    assert result.output == "of the host\n"
    assert changed(repo, result) == ["done"]
    assert [(path.name, path.read_text()) for path in data.iterdir()] == [("x", "of the host\n")]
