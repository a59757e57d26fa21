"""Packs that travel between repositories of the same history: all of it once, and then only what is new."""

import contextlib
import hashlib
import secrets
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal import proc
from shoal.errors import Broken
from shoal.git.run import ENVIRONMENT, FLAGS, git, git_text
from shoal.model.command import Command
from shoal.model.repository import Repository

PACK_SECONDS = 4 * 3600.0
MAX_TRAVEL_BYTES = 64 * 2**30
HELD = "refs/shoal/mirror"
"""The refs that hold what a mirror was sent."""
MAX_HELD = 64
ABANDONED_SECONDS = 24 * 3600.0


async def write_pack(repository: Repository, tips: Sequence[str], without: Sequence[str], target: Path) -> int:
    """Write what *tips* reach and *without* does not into the new file *target*, and return its size."""
    # without deltas, a changed file would bring the list of all its neighbours: 1.2 MB for 50,000 files in a folder
    search = () if without else ("--window=0",)  # but a search in all that a repository has takes minutes
    options = ("pack-objects", "-q", "--revs", "--stdout", "--thin", "--delta-base-offset", *search)
    words = (*tips, *(f"^{commit}" for commit in without))
    command = Command(
        argv=("git", *FLAGS, *options),
        cwd=Path("/"),
        env={**ENVIRONMENT, "GIT_DIR": str(repository.git)},
        stdin="".join(f"{word}\n" for word in words).encode(),
    )
    with target.open("xb") as file:
        done = await proc.run_into(command, file, timeout=PACK_SECONDS, limit=MAX_TRAVEL_BYTES)
    if not done.ok or done.dropped:
        raise Broken(f"{repository.top} cannot be packed: {_why(done.stderr)}")
    return target.stat().st_size


@contextlib.contextmanager
def hold_pack_file(root: Path) -> Iterator[Path]:
    """Name a new file below the state folder *root*, and remove it on leaving; also what killed processes left."""
    folder = root / "packs"
    folder.mkdir(mode=0o700, exist_ok=True)
    for old in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > ABANDONED_SECONDS:
                old.unlink()
    pack = folder / f"pack-{secrets.token_hex(6)}"
    try:
        yield pack
    finally:
        pack.unlink(missing_ok=True)


async def take_pack(gitdir: Path, pack: Path, commit: str) -> None:
    """Add the thin *pack* to the repository at *gitdir*, which keeps *commit* from then on."""
    command = Command(
        argv=("git", *FLAGS, "index-pack", "--stdin", "--fix-thin"),
        cwd=Path("/"),
        env={**ENVIRONMENT, "GIT_DIR": str(gitdir)},
        stdin=pack,
    )
    done = await proc.run(command, timeout=PACK_SECONDS)
    if not done.ok:
        raise Broken(f"the pack cannot be unpacked: {_why(done.stderr)}")
    await hold_commit(gitdir, commit)


async def hold_commit(gitdir: Path, commit: str) -> None:
    """Keep *commit*, and the latest of those that were kept before."""
    await git(gitdir, "update-ref", f"{HELD}/{commit}", commit)
    for old in (await list_held(gitdir))[MAX_HELD:]:
        await git(gitdir, "update-ref", "-d", f"{HELD}/{old}")


async def list_held(gitdir: Path) -> list[str]:
    """List the commits that a mirror keeps, the newest first."""
    listed = await git_text(gitdir, "for-each-ref", "--sort=-creatordate", "--format=%(objectname)", HELD)
    return listed.split()


async def make_mirror(folder: Path, object_format: str) -> None:
    """Make an empty repository in *folder*, which exists; nothing is ever checked out there."""
    command = ("init", "--quiet", f"--object-format={object_format}", "--initial-branch=shoal", str(folder))
    await git(folder / ".git", *command)


async def configure_mirror(gitdir: Path, branch: str, settings: dict[str, str]) -> None:
    """Let a mirror describe the repository that it stands for."""
    if branch:
        await git(gitdir, "symbolic-ref", "HEAD", f"refs/heads/{branch}", accept=(0, 1, 128))
    for name, value in settings.items():
        await git(gitdir, "config", name, value)


async def list_known(repository: Repository, commits: Sequence[str]) -> list[str]:
    """Return those of *commits* that are commits here; anybody may have named them."""
    asked = [commit for commit in commits if len(commit) == repository.digits and commit.isalnum()]
    if not asked:
        return []
    stdin = "".join(f"{commit}\n" for commit in asked).encode()
    done = await git(repository.git, "cat-file", "--batch-check=%(objecttype)", stdin=stdin)
    kinds = done.stdout.decode().splitlines()
    return [commit for commit, kind in zip(asked, kinds, strict=True) if kind == "commit"]


def repository_key(repository: Repository, host: str) -> str:
    """Return what tells the mirrors of different repositories apart."""
    return hashlib.sha256(f"{host}\0{repository.git}".encode(errors="surrogateescape")).hexdigest()[:24]


def _why(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "git gave no reason"
