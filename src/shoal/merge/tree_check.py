"""Check a merged tree: names that differ only by case, and verification, once per tree."""

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

from shoal.git.merge import MergeRepository
from shoal.merge.commits import Chain
from shoal.merge.request import Verify
from shoal.model.merge import Conflict, ConflictKind


async def find_new_case_clashes(bench: MergeRepository, before: str, after: str) -> tuple[tuple[str, ...], ...]:
    """Return the paths of the tree *after* that differ only by case, and did not in *before*."""
    found = case_clashes(await _paths(bench, after))
    if not found:
        return ()
    known = set(case_clashes(await _paths(bench, before)))
    return tuple(clash for clash in found if clash not in known)


def case_clashes(paths: Iterable[str]) -> tuple[tuple[str, ...], ...]:
    """Name the files and folders that differ from another only by case, together with it."""
    spellings: dict[str, set[str]] = {}
    for path in paths:
        parts = path.split("/")
        for end in range(1, len(parts) + 1):
            path_so_far = "/".join(parts[:end])
            folder = "/".join(parts[: end - 1])
            # Below two spellings of one folder, every name would be reported again.
            spellings.setdefault(f"{folder}/{_fold_case(parts[end - 1])}", set()).add(path_so_far)
    return tuple(tuple(sorted(paths)) for paths in spellings.values() if len(paths) > 1)


def _fold_case(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


async def _paths(bench: MergeRepository, tree: str) -> list[str]:
    done = await bench.git("ls-tree", "-r", "-z", "--name-only", tree)
    return done.stdout.decode(errors="surrogateescape").split("\0")[:-1]


MAX_LOG_CHARS = 4000

Fault = Conflict | str | None


@dataclass(frozen=True, slots=True)
class Verified:
    """The verdict on a commit; the log of a failure begins with the reason."""

    ok: bool
    log: str = ""


@dataclass(slots=True)
class Verdicts:
    """The verdicts on trees during one merge: they stay valid if a branch moves meanwhile."""

    verify: Verify | None = None
    _by_tree: dict[str, str | None] = field(default_factory=dict)

    async def find_failure(self, tree: str, commit: str) -> str | None:
        """Return why *commit*, which has the files of *tree*, fails verification; `None` when it passes."""
        if self.verify is None:
            return None
        if tree not in self._by_tree:
            self._by_tree[tree] = await self.verify(commit)
        return self._by_tree[tree]


@dataclass(frozen=True, slots=True)
class TreeCheck:
    """Checks chains that were built on the tree *before*."""

    bench: MergeRepository
    before: str
    verdicts: Verdicts

    async def find_fault(self, chain: Chain) -> Fault:
        """Return what is wrong with the tree of *chain*, which is finished."""
        if chain.tree != self.before and (clashes := await find_new_case_clashes(self.bench, self.before, chain.tree)):
            paths = tuple(path for clash in clashes for path in clash)
            return Conflict(kind=ConflictKind.CASE, paths=paths, message="names that differ only by case")
        if self.verdicts.verify is None:
            return None
        await self.bench.publish(chain.tip, chain.known)
        return await self.verdicts.find_failure(chain.tree, chain.tip)


def describe_case_clash(fault: Conflict) -> str:
    """Name the paths that are the same on a case-insensitive file system."""
    return f"{', '.join(fault.paths[:4])} differ only by case"


def shorten_log(log: str) -> str:
    """Keep the reason, which is the first line, and the end of the output."""
    reason, _, output = log.partition("\n")
    return f"{reason}\n{output[-MAX_LOG_CHARS:]}".rstrip()


def describe_fault(fault: Fault) -> str:
    """Describe what is wrong, the reason first."""
    return describe_case_clash(fault) if isinstance(fault, Conflict) else shorten_log(fault or "")
