"""Looking at what was committed, by plumbing: no link is followed, and nothing that anybody configured runs."""

from pathlib import Path, PurePosixPath

from shoal.engine.contracts.bench import PLAIN, Change
from shoal.errors import Broken
from shoal.git.run import git

CHANGES_BYTES = 64 * 2**20
# Renames are found as long as that is quick: one that is not found is a deletion.
SAFE = ("-r", "--no-color", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "-M", "-l400")


async def blob(gitdir: Path, commit: str, path: str, limit: int) -> bytes | None:
    """Give the beginning of the plain file at *path*; `None` where there is none, or it is none."""
    if "\0" in path:
        return None
    path = str(PurePosixPath(path))
    done = await git(gitdir, "ls-tree", "-z", commit, "--", path)
    facts, _, name = done.stdout.decode(errors="surrogateescape").removesuffix("\0").partition("\t")
    mode, _, rest = facts.partition(" ")
    if name != path or mode not in PLAIN:
        return None
    return (await git(gitdir, "cat-file", "blob", rest.split(" ")[-1], limit=limit)).stdout


async def changes(gitdir: Path, base: str, commit: str) -> tuple[Change, ...]:
    """List the files that differ."""
    done = await git(gitdir, "diff-tree", *SAFE, "--raw", "-z", base, commit, limit=CHANGES_BYTES)
    if done.dropped:
        raise Broken("it changes more files than can be looked at")
    return _taken_apart(done.stdout.decode(errors="surrogateescape").split("\0")[:-1])


async def patch(gitdir: Path, base: str, commit: str, limit: int) -> str:
    """Give the difference as text, and say how much of it was left out."""
    done = await git(gitdir, "diff-tree", *SAFE, "--patch", base, commit, limit=limit)
    cut = f"\n[{done.dropped} more bytes are left out]" if done.dropped else ""
    return done.stdout.decode(errors="replace") + cut


def _taken_apart(words: list[str]) -> tuple[Change, ...]:
    """Read `:mode mode blob blob status`, path and, for a rename or a copy, its new path."""
    found, rest = [], iter(words)
    for head in rest:
        old_mode, mode, _, _, status = head.removeprefix(":").split(" ")
        old_path = next(rest)
        path = next(rest) if status[0] in "RC" else old_path
        found.append(Change(status=status[0], path=path, old_path=old_path, mode=mode, old_mode=old_mode))
    return tuple(found)
