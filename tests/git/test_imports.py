"""A pack from a sandbox is imported completely or not at all."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from shoal.git.imports import ImportedWork, ImportRefused, import_pack, release, release_abandoned
from shoal.git.repository import inspect
from shoal.model.limits import WorkBounds
from tests.conftest import git
from tests.sessions.bombs import ZEROS, of


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

    taken = await import_pack(
        await inspect(repo, os.environ),
        packed(agent, tip, base=base),
        base=base,
        tips=(tip,),
        lender=repo / ".git/objects",
    )

    assert taken == ImportedWork(tip, ("new.txt",))
    assert git(repo, "show", f"{tip}:new.txt") == "new"


async def test_many_objects_come_as_a_pack_and_are_whole(repo: Path, tmp_path: Path) -> None:
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    for number in range(300):
        (agent / f"new{number}").write_text(f"{number}\n")
    git(agent, "add", "-A")
    git(agent, "commit", "-qm", "new")
    tip = git(agent, "rev-parse", "HEAD")

    taken = await import_pack(
        await inspect(repo, os.environ),
        packed(agent, tip, base=base),
        base=base,
        tips=(tip,),
        lender=repo / ".git/objects",
    )
    git(repo, "update-ref", "refs/heads/taken", tip)

    assert isinstance(taken, ImportedWork)
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

    unrelated = await import_pack(
        found, packed(agent, orphan, base=base), base=base, tips=(orphan,), lender=repo / ".git/objects"
    )
    nested = await import_pack(
        found, packed(agent, link, base=base), base=base, tips=(link,), lender=repo / ".git/objects"
    )

    assert isinstance(unrelated, ImportRefused)
    assert "descend" in unrelated.why
    assert isinstance(nested, ImportRefused)
    assert "nested repository: sub" in nested.why
    assert objects(repo) == before


async def test_a_tip_that_is_no_name_or_not_in_the_pack_is_refused(repo: Path, tmp_path: Path) -> None:
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    git(agent, "commit", "-q", "--allow-empty", "-m", "x")
    pack = packed(agent, git(agent, "rev-parse", "HEAD"), base=base)
    found = await inspect(repo, os.environ)

    for tip in ("", "HEAD", "--all", "f" * 40):
        assert isinstance(
            await import_pack(found, pack, base=base, tips=(tip,), lender=repo / ".git/objects"), ImportRefused
        )
    assert isinstance(
        await import_pack(found, written(repo, b"garbage" * 10), base=base, tips=(base,), lender=repo / ".git/objects"),
        ImportRefused,
    )


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

    taken = await import_pack(
        await inspect(repo, os.environ),
        packed(agent, tip, base=base),
        base=base,
        tips=(tip,),
        lender=repo / ".git/objects",
    )

    assert isinstance(taken, ImportRefused)


def tree_of(agent: Path, *entries: str) -> str:
    made = subprocess.run(["git", "mktree"], cwd=agent, input="\n".join(entries), text=True, capture_output=True)
    return made.stdout.strip()


def bomb_of(agent: Path, base: str, levels: int) -> str:
    """Commit ten files to the power of *levels* and one more, in a dozen of objects."""
    blob = git(agent, "hash-object", "-w", "README.md")
    tree = tree_of(agent, *(f"100644 blob {blob}\tf{n}" for n in range(10)))
    for _ in range(levels):
        tree = tree_of(agent, *(f"040000 tree {tree}\td{n}" for n in range(10)))
    return git(agent, "commit-tree", tree, "-p", base, "-m", "bomb")


async def test_a_kept_ref_of_one_commit_is_looked_at_too(repo: Path, tmp_path: Path) -> None:
    """Only the first tip was, and what came in more than one commit."""
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    blob = git(agent, "hash-object", "-w", "README.md")
    state = tree_of(agent, f"040000 tree {tree_of(agent, f'100644 blob {blob}{chr(9)}ledger.db')}\t.shoal")
    extra = git(agent, "commit-tree", state, "-p", base, "-m", "kept")
    before = objects(repo)

    taken = await import_pack(
        await inspect(repo, os.environ),
        packed(agent, extra, base=base),
        base=base,
        tips=(base, extra),
        lender=repo / ".git/objects",
    )

    assert taken == ImportRefused("it changes what is Shoal's own: .shoal/ledger.db")
    assert objects(repo) == before


async def test_a_check_that_dies_or_takes_too_long_is_one_that_failed(repo: Path, tmp_path: Path) -> None:
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    bomb = bomb_of(agent, base, 4)
    repository, pack, before = await inspect(repo, os.environ), packed(agent, bomb, base=base), objects(repo)

    late = await import_pack(
        repository, pack, base=base, tips=(bomb,), lender=repo / ".git/objects", bounds=WorkBounds(import_seconds=0.001)
    )
    first = await import_pack(
        repository, pack, base=base, tips=(bomb,), lender=repo / ".git/objects", bounds=WorkBounds(import_memory_mb=16)
    )
    other = await import_pack(
        repository,
        pack,
        base=base,
        tips=(base, bomb),
        lender=repo / ".git/objects",
        bounds=WorkBounds(import_memory_mb=16),
    )

    assert late == ImportRefused("to check it took more than 0 s")
    assert isinstance(first, ImportRefused)
    assert "emory" in first.why, first
    assert isinstance(other, ImportRefused)
    assert "emory" in other.why, other
    assert objects(repo) == before


async def test_a_pack_that_unpacks_to_gigabytes_is_given_up(repo: Path, tmp_path: Path) -> None:
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    subprocess.run([sys.executable, "-c", of(ZEROS, size=99 << 20, count=3)], cwd=agent, check=True)
    git(agent, "config", "core.bigFileThreshold", "1m")
    tip = git(agent, "rev-parse", "HEAD")
    pack = packed(agent, tip, base=base)

    taken = await import_pack(
        await inspect(repo, os.environ),
        pack,
        base=base,
        tips=(tip,),
        lender=repo / ".git/objects",
        bounds=WorkBounds(import_cpu=1),
    )

    assert pack.stat().st_size < 2**20
    assert taken == ImportRefused("to unpack it takes more than 1 s of a processor")


async def test_no_gc_of_the_users_takes_what_no_ref_holds_yet(repo: Path, tmp_path: Path) -> None:
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    (agent / "new.txt").write_text("new\n")
    git(agent, "add", "-A")
    git(agent, "commit", "-qm", "new")
    tip = git(agent, "rev-parse", "HEAD")
    found = await inspect(repo, os.environ)
    taken = await import_pack(
        found, packed(agent, tip, base=base), base=base, tips=(tip,), lender=repo / ".git/objects"
    )
    git(repo, "gc", "-q", "--prune=now")
    assert isinstance(taken, ImportedWork)
    assert git(repo, "show", f"{tip}:new.txt") == "new"

    release_abandoned(found)
    assert all(keep.exists() for keep in taken.keeps), "its process is alive"
    for keep in taken.keeps:
        keep.write_text("shoal-import 1 1 another-boot\n")
    release_abandoned(found)
    git(repo, "gc", "-q", "--prune=now")
    assert not [path for path in objects(repo) if path.endswith(".keep")]
    assert subprocess.run(["git", "cat-file", "-e", tip], cwd=repo, check=False, capture_output=True).returncode != 0


async def test_a_gc_while_a_pack_is_checked_takes_nothing_of_it(repo: Path, tmp_path: Path) -> None:
    agent, base = agent_of(repo, tmp_path), git(repo, "rev-parse", "HEAD")
    (agent / "new.txt").write_text("new\n")
    git(agent, "add", "-A")
    git(agent, "commit", "-qm", "new")
    tip = git(agent, "rev-parse", "HEAD")
    before = objects(repo)

    found = await inspect(repo, os.environ)
    taking = asyncio.ensure_future(
        import_pack(found, packed(agent, tip, base=base), base=base, tips=(tip,), lender=repo / ".git/objects")
    )
    while not taking.done():
        assert [path for path in objects(repo) if path not in before and "tmp_objdir" in path] == []
        await asyncio.sleep(0)
    taken = taking.result()
    assert isinstance(taken, ImportedWork)
    release(taken)
    assert not [path for path in objects(repo) if path.endswith(".keep")]
