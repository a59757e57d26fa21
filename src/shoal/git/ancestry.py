"""The commits since some start, and their ancestry."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shoal.errors import Broken
from shoal.git.run import git
from shoal.model.repository import Repository

MOST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Ancestry:
    """Commits with their parents, parents first; everything else is older than the start."""

    parents: Mapping[str, tuple[str, ...]]

    def reach(self, commits: Iterable[str]) -> frozenset[str]:
        """Return the ancestors of *commits*, including themselves."""
        found: set[str] = set()
        left = [commit for commit in commits if commit in self.parents]
        while left:
            commit = left.pop()
            if commit not in found:
                found.add(commit)
                left += [parent for parent in self.parents[commit] if parent in self.parents]
        return frozenset(found)

    def without_merges(self, commits: Iterable[str]) -> list[str]:
        """Return *commits* in topological order, without pure merges."""
        wanted = set(commits)
        return [commit for commit, parents in self.parents.items() if commit in wanted and len(parents) < 2]


async def since(repository: Repository, starts: Sequence[str], tips: Sequence[str]) -> Ancestry:
    """Read the commits that *tips* reach and *starts* do not."""
    wanted = (*dict.fromkeys(tips), *(f"^{start}" for start in dict.fromkeys(starts)))
    asked = "".join(f"{revision}\n" for revision in wanted)
    done = await git(
        repository.git,
        *("rev-list", "--topo-order", "--reverse", "--parents", "--stdin"),
        stdin=asked.encode(),
        limit=MOST_BYTES,
    )
    if done.dropped:
        raise Broken("the sessions have more commits than can be looked at; merge fewer of them at once")
    rows = (line.split() for line in done.stdout.decode().splitlines())
    return Ancestry({row[0]: tuple(row[1:]) for row in rows})


async def missing_commits(repository: Repository, commits: Iterable[str]) -> frozenset[str]:
    """Return those of *commits* that the repository no longer has."""
    asked = "".join(f"{commit}\n" for commit in dict.fromkeys(commits))
    if not asked:
        return frozenset()
    done = await git(repository.git, "cat-file", "--batch-check", stdin=asked.encode(), limit=MOST_BYTES)
    rows = (line.split() for line in done.stdout.decode().splitlines())
    return frozenset(row[0] for row in rows if row[-1] == "missing")


async def is_ancestor(repository: Repository, inner: str, outer: str) -> bool:
    """Return whether *inner* is an ancestor of *outer*; a missing commit is not."""
    done = await git(repository.git, "merge-base", "--is-ancestor", inner, outer, accept=(0, 1, 128))
    return done.ok
