"""Looking at what some came to together: names that differ only by case, and what a verification says, once a tree."""

from dataclasses import dataclass, field

from shoal.engine.merge.cases import new_clashes
from shoal.engine.merge.chain import Chain
from shoal.engine.merge.desk import Verify
from shoal.git.merge import Bench
from shoal.model.merge import Conflict, ConflictKind

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
class Look:
    """Looks at chains that grew from a tree."""

    bench: Bench
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


def cut(log: str) -> str:
    """Keep the reason, which is the first line, and the end of what was said."""
    reason, _, said = log.partition("\n")
    return f"{reason}\n{said[-LONGEST_LOG:]}".rstrip()


def said_of(fault: Fault) -> str:
    """Say what is wrong, the reason first."""
    return by_case(fault) if isinstance(fault, Conflict) else cut(fault or "")
