"""Files of the user's checkout that git ignores and that a list names, as `.worktreeinclude` does."""

from pathlib import Path

from shoal.git.repository import own_gitdir
from shoal.git.run import git
from shoal.model.repository import Repository

MOST_BYTES = 16 * 2**20


async def ignored_files(repository: Repository, patterns: Path) -> tuple[str, ...]:
    """Find the files that the gitignore patterns in the file *patterns* name, as far as git ignores them."""
    gitdir = await own_gitdir(repository.top)
    env = {"GIT_WORK_TREE": str(repository.top)}
    listing = ("ls-files", "-z", "--others", "--ignored", f"--exclude-from={patterns}")
    named = (await git(gitdir, *listing, env=env, limit=MOST_BYTES)).stdout.split(b"\0")[:-1]
    if not named:
        return ()
    # Each name begins with a dot, because what this command is given could else be magic.
    asked = b"".join(b"./" + name + b"\0" for name in named)
    env["GIT_LITERAL_PATHSPECS"] = "0"
    done = await git(gitdir, "check-ignore", "-z", "--stdin", env=env, stdin=asked, accept=(0, 1), limit=MOST_BYTES)
    names = done.stdout.decode(errors="surrogateescape").split("\0")[:-1]
    return tuple(sorted(name.removeprefix("./") for name in names))
