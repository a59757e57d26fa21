"""Move refs of the user's repository, always by full name and compare-and-swap."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import BadRepository, Broken, GitFailed
from shoal.git.run import git
from shoal.model.repository import Repository

ABSENT = ""


@dataclass(frozen=True, slots=True)
class Move:
    """One ref from *old* to *new*; `ABSENT` means that it does not exist."""

    ref: str
    new: str
    old: str


async def move(repository: Repository, moves: Iterable[Move]) -> bool:
    """Make all moves in one transaction; `False` if some ref had another value than expected."""
    zero = "0" * repository.digits
    lines = [f"update {move.ref}\0{move.new or zero}\0{move.old or zero}\0" for move in moves]
    try:
        await git(repository.git, "update-ref", "-m", "shoal", "--stdin", "-z", stdin="".join(lines).encode())
    except GitFailed as refused:
        if refused.code == 128:
            return False
        raise
    return True


async def refusal(repository: Repository, ref: str, commit: str) -> str | None:
    """Return why git refuses to move *ref* to *commit* although its value is as expected; nothing is moved."""
    zero = "0" * repository.digits
    lines = ("start", f"update {ref}", commit, await value(repository, ref) or zero, "prepare", "abort")
    asked = "".join(f"{line}\0" for line in lines).encode()
    done = await git(repository.git, "update-ref", "--stdin", "-z", stdin=asked, accept=(0, 1, 128))
    if done.ok:
        return None
    complaint = done.stderr.decode(errors="replace").strip().partition("\n")[0]
    return complaint.removeprefix("fatal: ").removeprefix("prepare: ")[:300] or "it gives no reason"


async def alias(repository: Repository, ref: str) -> str | None:
    """Return the ref that the symbolic ref *ref* points to, if it is one."""
    done = await git(repository.git, "symbolic-ref", "--quiet", ref, accept=(0, 1, 128))
    return done.stdout.decode(errors="surrogateescape").strip() or None if done.ok else None


async def aliases(repository: Repository, ref: str) -> frozenset[str]:
    """Return *ref* and the symbolic refs that point to it."""
    done = await git(repository.git, "for-each-ref", "--format=%(refname)%00%(symref)", "refs/heads")
    lines = done.stdout.decode(errors="surrogateescape").split("\n")
    names = {ref}
    pointing = [(name, to) for name, _, to in (line.partition("\0") for line in lines) if to]
    for _ in pointing:  # an alias may lead to the next
        names |= {name for name, to in pointing if to in names}
    return frozenset(names)


async def value(repository: Repository, ref: str) -> str | None:
    """Return the commit of *ref*, or `None`."""
    done = await git(repository.git, "rev-parse", "--verify", "--quiet", ref, accept=(0, 1, 128))
    return done.stdout.decode().strip() or None if done.ok else None


async def list_refs(repository: Repository, prefix: str) -> dict[str, str]:
    """Map the refs below *prefix* to their commits."""
    done = await git(repository.git, "for-each-ref", "--format=%(refname)%00%(objectname)", prefix)
    pairs = (line.partition("\0") for line in done.stdout.decode(errors="surrogateescape").split("\n"))
    return {name: commit for name, _, commit in pairs if name}


async def refuse_blocked_names(repository: Repository) -> None:
    """Refuse a repository in which the user's branch `agent` or `shoal` blocks our refs."""
    for name in ("refs/heads/agent", "refs/heads/shoal", "refs/shoal"):
        if await value(repository, name) is not None:
            raise BadRepository(
                repository.top,
                f"its branch {name.removeprefix('refs/heads/')!r} has the name that Shoal's branches start with"
                f" ({name}/…); rename it with `git branch -m`",
            )


async def refuse_blocked_steps(repository: Repository, steps: list[str]) -> None:
    """Refuse steps whose branches are blocked by a branch `agent/<step>`."""
    assert_unblocked(repository, steps, await list_refs(repository, "refs/heads/agent"))


def assert_unblocked(repository: Repository, steps: Iterable[str], taken: Container[str]) -> None:
    """Refuse steps whose branches collide with existing refs in *taken*."""
    for step in steps:
        if f"refs/heads/agent/{step}" in taken:
            why = f"its branch 'agent/{step}' stands where the branches of step {step!r} go"
            raise BadRepository(repository.top, f"{why}; rename it with `git branch -m`, or the step")


FOLDER = "refs/shoal/base"
SHORT = 12


async def pin(repository: Repository, run: str, commit: str) -> None:
    """Protect *commit* from gc while *run* lives; idempotent."""
    ref = f"{FOLDER}/{run}+{commit[:SHORT]}"
    if await value(repository, ref) is not None or await move(repository, [Move(ref, commit, ABSENT)]):
        return
    if await value(repository, ref) is None:  # otherwise another process was faster
        raise Broken(f"commit {commit} is no longer in the repository, or {ref} cannot be created")


async def unpin(repository: Repository, run: str) -> None:
    """Remove all pins of *run*."""
    await _drop(repository, {ref: commit for ref, commit in (await _pins(repository)).items() if _run(ref) == run})


async def unpin_abandoned(repository: Repository, runs: Path) -> None:
    """Remove pins that no run holds: a run locks its file in *runs* before its first pin and until after its last.

    A cancellation can interrupt the end of a run between the two.
    """
    pinned = await _pins(repository)
    locked = {path.stem for path in runs.glob("*.lock")}
    await _drop(repository, {ref: commit for ref, commit in pinned.items() if _run(ref) not in locked})


async def _pins(repository: Repository) -> dict[str, str]:
    return await list_refs(repository, FOLDER)


async def _drop(repository: Repository, pins: Mapping[str, str]) -> None:
    if pins:
        await move(repository, [Move(ref, ABSENT, commit) for ref, commit in pins.items()])


def _run(ref: str) -> str:
    return ref.removeprefix(f"{FOLDER}/").split("+")[0]
