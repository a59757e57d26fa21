"""Looking at what some came to together: names that differ only by case, and what a verification says, once a tree."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.git.merge import MergeRepository
from shoal.merge.commits import Chain
from shoal.merge.request import Verify
from shoal.model.merge import Conflict, ConflictKind


async def new_clashes(bench: MergeRepository, before: str, after: str) -> tuple[tuple[str, ...], ...]:
    """Name the paths of the tree *after* that differ only by case, and did not do so in *before*."""
    found = clashes(await _paths(bench, after))
    if not found:
        return ()
    known = set(clashes(await _paths(bench, before)))
    return tuple(clash for clash in found if clash not in known)


def clashes(paths: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Name the files and folders that differ from another only by case, together with it."""
    spelled: dict[str, set[str]] = {}
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            place = "/".join(parts[:end])
            folder = "/".join(parts[: end - 1])
            # Below two spellings of one folder every name would be told again.
            spelled.setdefault(f"{folder}/{_fold_case(parts[end - 1])}", set()).add(place)
    return tuple(tuple(sorted(places)) for places in spelled.values() if len(places) > 1)


def _fold_case(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


async def _paths(bench: MergeRepository, tree: str) -> list[str]:
    done = await bench.git("ls-tree", "-r", "-z", "--name-only", tree)
    return done.stdout.decode(errors="surrogateescape").split("\0")[:-1]


LONGEST_LOG = 4000

Fault = Conflict | str | None


@dataclass(slots=True)
class Verdicts:
    """What was said of trees, for as long as one merge takes: a branch that moves meanwhile changes none of it."""

    verify: Verify | None = None
    _said: dict[str, str | None] = field(default_factory=dict)

    async def of(self, tree: str, commit: str) -> str | None:
        """Say why *commit*, which has the files of *tree*, is not good."""
        if self.verify is None:
            return None
        if tree not in self._said:
            self._said[tree] = await self.verify(commit)
        return self._said[tree]


@dataclass(frozen=True, slots=True)
class TreeCheck:
    """Looks at chains that grew from a tree."""

    bench: MergeRepository
    before: str
    verdicts: Verdicts

    async def fault(self, chain: Chain) -> Fault:
        """Say what is wrong with what *chain*, which is finished, came to."""
        if chain.tree != self.before and (clashes := await new_clashes(self.bench, self.before, chain.tree)):
            paths = tuple(path for clash in clashes for path in clash)
            return Conflict(kind=ConflictKind.CASE, paths=paths, message="names that differ only by case")
        if self.verdicts.verify is None:
            return None
        await self.bench.publish(chain.tip, chain.known)
        return await self.verdicts.of(chain.tree, chain.tip)


def by_case(fault: Conflict) -> str:
    """Say which names a file system without case takes for one."""
    return f"{', '.join(fault.paths[:4])} differ only by case"


def shorten_log(log: str) -> str:
    """Keep the reason, which is the first line, and the end of what was said."""
    reason, _, said = log.partition("\n")
    return f"{reason}\n{said[-LONGEST_LOG:]}".rstrip()


def describe_fault(fault: Fault) -> str:
    """Say what is wrong, the reason first."""
    return by_case(fault) if isinstance(fault, Conflict) else shorten_log(fault or "")
