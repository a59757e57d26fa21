"""Large worktrees are recycled: the next agent finds exactly the base, to the last byte and mode."""

from pathlib import Path

import pytest

from shoal.model.status import Status
from tests.acting import ran, shown, step, worked
from tests.conftest import git, make_repo

MESS = """
echo mine > d0/f0.txt; rm -r d1; chmod 4777 d0/f1.txt; echo '*.log' > .gitignore; echo l > a.log; mkdir -p new/empty
git init -q nested; echo n > nested/n; ln -s /etc/passwd link; chmod 000 d0/f2.txt; mkdir shut; echo s > shut/s; chmod 000 shut
touch -r d0/f5.txt stamp; printf 'line 3X\\n%.0s' $(seq 20) > d0/f3.txt; touch -r stamp d0/f3.txt
python3 -c "import os; os.setxattr('d0/f4.txt', 'user.note', b'hello')" || true
"""
LOOK = """
git status --porcelain --ignored; ls -A | tr '\\n' ' '; stat -c %a d0/f1.txt; cat d0/f3.txt | head -1
python3 -c "import os; print(os.listxattr('d0/f4.txt'))"; echo w > w
"""


async def test_a_recycled_worktree_is_pristine_and_quick_to_have(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "large", 700)

    first = await worked(repo, MESS, strategy="worktree")
    pooled = list((repo / ".shoal/pool").glob("*.json"))
    second = await worked(repo, LOOK, strategy="worktree")

    assert first.status is Status.SUCCEEDED, first
    assert shown(repo, first, "d0/f0.txt") == "mine"
    assert shown(repo, first, "d0/f3.txt").startswith("line 3X")
    assert shown(repo, first, "nested/n") == "n"
    assert len(pooled) == 1
    assert second.output.splitlines() == [".git README.md d0 d1 d2 d3 644", "line 3", "[]"], second.output
    assert shown(repo, second, "w") == "w"


MARKS = """
chmod 2755 d0; chmod 3777 d1; touch -d '2001-02-03 04:05:06' d2; chmod 2755 .; touch -d '2001-02-03 04:05:06' README.md .
python3 - <<'PYTHON'
import array, fcntl, os
for path, flag in (("d3", 0x08), (".", 0x80)):  # writes at once, and no times of access
    fd = os.open(path, os.O_RDONLY)
    try:
        flags = array.array("l", [0])
        fcntl.ioctl(fd, 0x80086601, flags)
        flags[0] |= flag
        fcntl.ioctl(fd, 0x40086602, flags)
        print("flagged")
    except OSError as error:
        print(error)
PYTHON
"""
SEEN = """
mkdir d0/made d1/made made; stat -c '%a %n' . d0 d1 d2 d3 d0/made d1/made made
find . -path ./.git -prune -o ! -newermt 2010-01-01 -print
python3 - <<'PYTHON'
import array, fcntl, os
for path in (".", "d0", "d3", "README.md", "made"):
    flags = array.array("l", [0])
    try:
        fcntl.ioctl(os.open(path, os.O_RDONLY), 0x80086601, flags)
    except OSError:
        pass
    print(path, hex(flags[0] & 0x88), [name for name in os.listxattr(path) if name.startswith("user")])
PYTHON
rmdir d0/made d1/made made; git status --porcelain
"""


async def test_a_recycled_worktree_has_no_mode_flag_or_time_of_the_last_agents(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "large", 700)

    first = await worked(repo, f"{MARKS}\necho done > done", strategy="worktree")
    assert len(list((repo / ".shoal/pool").glob("*.json"))) == 1
    second = await worked(repo, SEEN, strategy="worktree")

    assert first.status is Status.SUCCEEDED, first
    folders = [".", "d0", "d1", "d2", "d3", "d0/made", "d1/made", "made"]
    flags = [f"{path} 0x0 []" for path in (".", "d0", "d3", "README.md", "made")]
    assert second.output.splitlines() == [*(f"755 {path}" for path in folders), *flags], (first.output, second.output)


@pytest.mark.deep
async def test_the_pool_serves_a_new_base_and_is_bounded(tmp_path: Path) -> None:
    repo = make_repo(tmp_path / "large", 700)
    await ran(repo, step("many", "true", 12), strategy="worktree")
    assert len(list((repo / ".shoal/pool").glob("*.json"))) == 8
    (repo / "later.txt").write_text("later\n")
    git(repo, "rm", "-rq", "d1")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "later")

    result = await worked(repo, "cat later.txt; ls d1; git status --porcelain", strategy="worktree")

    assert result.output == "later\n"
    assert git(repo, "worktree", "prune", "--dry-run") == ""
    assert git(repo, "fsck", "--strict", "--no-dangling") == ""
