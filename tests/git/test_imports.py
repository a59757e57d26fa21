"""A pack from a box is taken whole or not at all."""

import os
import subprocess
from pathlib import Path

from shoal.git.imports import Refused, Taken, take
from shoal.git.repository import inspect
from tests.conftest import git


def packed(repo: Path, *tips: str, base: str) -> Path:
    asked = "\n".join((*tips, f"^{base}", ""))
    argv = ["git", "pack-objects", "--revs", "--stdout", "--thin", "-q"]
    done = subprocess.run(argv, cwd=repo, input=asked.encode(), capture_output=True, check=True)
    return written(repo, done.stdout)


def written(repo: Path, content: bytes) -> Path:
    """A pack as a file."""
    path = repo.parent / f"pack-{hash(content)}"
    path.write_bytes(content)
    return path


def agent_of(repo: Path, tmp_path: Path) -> Path:
    """A clone in which an agent may do as it likes."""
    git(tmp_path, "clone", "-q", "--shared", str(repo), "agent")
    return tmp_path / "agent"


def objects(repo: Path) -> list[str]:
    return sorted(str(path) for path in (repo / ".git/objects").rglob("*"))


async def test_a_sound_pack_is_taken(repo: Path, tmp_path: Path) -> None:
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    (agent / "new.txt").write_text("new\n")
    git(agent, "add", "-A")
    git(agent, "commit", "-qm", "new")
    tip = git(agent, "rev-parse", "HEAD")

    taken = await take(await inspect(repo, os.environ), packed(agent, tip, base=base), base=base, tips=(tip,))

    assert taken == Taken(tip, ("new.txt",))
    assert git(repo, "show", f"{tip}:new.txt") == "new"


async def test_many_objects_come_as_a_pack_and_are_whole(repo: Path, tmp_path: Path) -> None:
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    for number in range(300):
        (agent / f"new{number}").write_text(f"{number}\n")
    git(agent, "add", "-A")
    git(agent, "commit", "-qm", "new")
    tip = git(agent, "rev-parse", "HEAD")

    taken = await take(await inspect(repo, os.environ), packed(agent, tip, base=base), base=base, tips=(tip,))
    git(repo, "update-ref", "refs/heads/taken", tip)

    assert isinstance(taken, Taken)
    assert taken.files_changed == 300
    assert git(repo, "fsck", "--full", "--strict") == ""


async def test_unrelated_history_and_nested_repositories_are_refused_and_leave_nothing(
    repo: Path, tmp_path: Path
) -> None:
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    orphan = git(agent, "commit-tree", git(agent, "write-tree"), "-m", "orphan")
    git(agent, "update-index", "--add", "--cacheinfo", f"160000,{base},sub")
    git(agent, "commit", "-qm", "link")
    link = git(agent, "rev-parse", "HEAD")
    found, before = await inspect(repo, os.environ), objects(repo)

    unrelated = await take(found, packed(agent, orphan, base=base), base=base, tips=(orphan,))
    nested = await take(found, packed(agent, link, base=base), base=base, tips=(link,))

    assert isinstance(unrelated, Refused)
    assert "descend" in unrelated.why
    assert isinstance(nested, Refused)
    assert "nested repository: sub" in nested.why
    assert objects(repo) == before


async def test_a_tip_that_is_no_name_or_not_in_the_pack_is_refused(repo: Path, tmp_path: Path) -> None:
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    git(agent, "commit", "-q", "--allow-empty", "-m", "x")
    pack = packed(agent, git(agent, "rev-parse", "HEAD"), base=base)
    found = await inspect(repo, os.environ)

    for tip in ("", "HEAD", "--all", "f" * 40):
        assert isinstance(await take(found, pack, base=base, tips=(tip,)), Refused)
    assert isinstance(await take(found, written(repo, b"garbage" * 10), base=base, tips=(base,)), Refused)


async def test_a_tree_that_would_write_into_a_gitdir_is_refused(repo: Path, tmp_path: Path) -> None:
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    blob = git(agent, "hash-object", "-w", "README.md")
    entry = b"100644 .git\0" + bytes.fromhex(blob)
    done = subprocess.run(
        ["git", "hash-object", "-w", "-t", "tree", "--literally", "--stdin"],
        cwd=agent,
        input=entry,
        capture_output=True,
        check=True,
    )
    tip = git(agent, "commit-tree", done.stdout.decode().strip(), "-p", base, "-m", "evil")

    taken = await take(await inspect(repo, os.environ), packed(agent, tip, base=base), base=base, tips=(tip,))

    assert isinstance(taken, Refused)
