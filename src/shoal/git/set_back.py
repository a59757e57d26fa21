"""A commit with some of its files set back to what they were."""

from collections.abc import Callable

from shoal.errors import Broken
from shoal.git.commits import Commit
from shoal.git.merge import MOST_BYTES, workbench
from shoal.git.run import git
from shoal.model.repository import Repository

CHANGES = ("diff-tree", "-r", "-z", "--raw", "--no-renames", "--no-abbrev", "--ignore-submodules=all")


async def set_back(repository: Repository, base: str, commit: str, is_meant: Callable[[str], bool]) -> str:
    """Make a commit like *commit*, but with the paths that are *meant* as on *base*; no ref holds it yet."""
    entries = await _entries(repository, base, commit, is_meant)
    if not entries:
        return commit
    async with workbench(repository) as bench:
        await bench.git("read-tree", commit)
        await bench.git("update-index", "-z", "--index-info", stdin=b"".join(entries))
        tree = (await bench.git("write-tree")).stdout.decode().strip()
        made = bench.commit(Commit(tree=tree, parents=(commit,), message="Some files as they were\n"))
        await bench.publish(made, (commit,))
    return made


async def _entries(repository: Repository, base: str, commit: str, is_meant: Callable[[str], bool]) -> list[bytes]:
    """Give the entries of *base* for an index: first those of no file, since a folder may be where one was."""
    done = await git(repository.git, *CHANGES, base, commit, limit=MOST_BYTES)
    if done.dropped:
        raise Broken("it changes more files than can be looked at")
    words = done.stdout.split(b"\0")[:-1]
    pairs = zip(words[::2], words[1::2], strict=True)
    meant = [(head.split(b" "), path) for head, path in pairs if is_meant(path.decode(errors="surrogateescape"))]
    entries = [b"%s %s\t%s\0" % (facts[0].removeprefix(b":"), facts[2], path) for facts, path in meant]
    return sorted(entries, key=lambda entry: not entry.startswith(b"000000 "))
