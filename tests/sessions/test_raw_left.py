"""Files that an agent leaves on disk give nobody another's rights."""

import os
import stat
from pathlib import Path

import pytest

from shoal.workspaces.remove import clear_privileges
from tests.acting import worked

# A repository inside with rules that cost too much to follow cannot be kept as files, so that the raw ones stay.
LEAVE = "git init -q nested; echo n > nested/n; truncate -s 100G nested/.gitignore"
MARK = "cp /bin/true mine; chmod 6755 mine; mkdir deep; cp mine deep/; chmod 2755 deep/mine; ln -s /bin/su link"


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
async def test_raw_files_have_no_setuid_bits(repo: Path, strategy: str) -> None:
    result = await worked(repo, f"{MARK}; {LEAVE}", strategy=strategy)

    assert result.raw is not None, result
    left = [path for path in (repo / ".shoal").rglob("mine") if path.is_file()]
    assert len(left) >= 2
    assert not any(path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID) for path in left)
    closed = [folder for folder in (Path(result.raw), *Path(result.raw).parents) if not folder.stat().st_mode & 0o077]
    assert any(folder.is_relative_to(repo) for folder in closed), "others may open them"


async def test_no_link_is_followed_and_no_depth_is_too_deep(tmp_path: Path) -> None:
    outside, left = tmp_path / "outside", tmp_path / "left"
    outside.touch()
    outside.chmod(0o4755)
    left.mkdir()
    (left / "link").symlink_to(outside)
    place = os.open(left, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("x" * 200, dir_fd=place)
        inner = os.open("x" * 200, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(os.open("mine", os.O_CREAT | os.O_WRONLY, 0o755, dir_fd=place))
    mine = os.open("mine", os.O_RDONLY, dir_fd=place)
    os.fchmod(mine, 0o4755)

    await clear_privileges(left, tmp_path / "missing")

    assert stat.S_IMODE(os.fstat(mine).st_mode) == 0o755
    assert stat.S_IMODE(outside.stat().st_mode) == 0o4755
    os.close(mine)
    os.close(place)
