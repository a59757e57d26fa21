"""Values of merging: conflicts, overlaps, results of sessions, and recorded facts."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum


class Strategy(StrEnum):
    """How sessions become commits of the integration branch."""

    REVIEW = "review"
    """A merge commit for each session; a person delivers the result."""
    AUTO = "auto"
    """A merge commit for each session."""
    SQUASH = "squash"
    """A plain commit for each session."""
    REBASE = "rebase"
    """The sessions' own commits, one after the other."""
    OCTOPUS = "octopus"
    """A single merge commit."""

    @property
    def form(self) -> "Strategy":
        """Return the strategy whose commits look the same: `review` makes those of `auto`."""
        return Strategy.AUTO if self is Strategy.REVIEW else self


class MergeStatus(StrEnum):
    """The result of merging a session."""

    MERGED = "merged"
    CONFLICTS = "conflicts"
    NO_CHANGES = "no_changes"
    HELD = "held"

    @property
    def needs_a_person(self) -> bool:
        """Return whether a person has to look at it."""
        return self in (MergeStatus.CONFLICTS, MergeStatus.HELD)


class ConflictKind(StrEnum):
    """How two sides conflict."""

    CONTENT = "content"
    BINARY = "binary"
    MODE = "mode"
    SYMLINK = "symlink"
    SUBMODULE = "submodule"
    MODIFY_DELETE = "modify/delete"
    RENAME_RENAME = "rename/rename"
    RENAME_DELETE = "rename/delete"
    RENAME = "rename"
    """A rename that collides with something else, or a folder that was moved to several places."""
    DIRECTORY_FILE = "directory/file"
    CASE = "case"
    """Names that are the same on a case-insensitive file system."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A conflict for a person to decide."""

    kind: ConflictKind
    paths: tuple[str, ...]
    message: str = ""
    """git's message; names in it are an agent's."""
    partners: tuple[str, ...] = ()
    """The sessions, merged before, that it conflicts with."""

    def as_fields(self) -> dict[str, object]:
        """Return the fields by their names."""
        return {
            "kind": self.kind.value,
            "paths": list(self.paths),
            "message": self.message,
            "partners": list(self.partners),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeResult:
    """The result of merging a session; its fields are also available as `result["status"]` (seed 002)."""

    session: str
    status: MergeStatus
    source: str | None = None
    """The commit with the session's own work."""
    commit: str | None = None
    """The commit of the integration branch that merged it."""
    message: str = ""
    conflicts: tuple[Conflict, ...] = ()
    resolved_by: str | None = None
    """The rule that resolved its conflict: `agent`, `redo`, `ours` or `theirs`."""
    resolver: str | None = None
    """The session that resolved it, if any."""

    def __getitem__(self, name: str) -> object:
        """Return a field by its name."""
        return self.as_fields()[name]

    def keys(self) -> Iterator[str]:
        """Name the fields."""
        return (field.name for field in fields(self))

    def as_fields(self) -> dict[str, object]:
        """Return the fields by their names."""
        return {
            "session": self.session,
            "status": self.status.value,
            "source": self.source,
            "commit": self.commit,
            "message": self.message,
            "conflicts": [conflict.as_fields() for conflict in self.conflicts],
            "resolved_by": self.resolved_by,
            "resolver": self.resolver,
        }


class DeliveryStatus(StrEnum):
    """The result of a delivery."""

    DELIVERED = "delivered"
    UNCHANGED = "unchanged"
    """The branch contained everything already."""
    LEFT = "left"
    """Nothing was touched; the message says what is in the way."""
    WAITING = "waiting"
    """Nothing was touched: the strategy `review` waits until a person approves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """The delivery into a branch of the user."""

    into: str
    status: DeliveryStatus
    old: str
    new: str
    message: str = ""
    command: str | None = None
    """The command that completes it, if it was left."""
    is_undo: bool = False
    """Whether it takes the work out of the branch."""

    def as_fields(self) -> dict[str, object]:
        """Return the fields by their names."""
        return {
            "into": self.into,
            "status": self.status.value,
            "old": self.old,
            "new": self.new,
            "message": self.message,
            "command": self.command,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeReport:
    """The result of a merge: of each session, in merge order, and of the user's branch."""

    run: str
    strategy: Strategy
    branch: str
    """The integration branch, even if it does not exist."""
    start: str
    """The commit that it starts from."""
    commit: str | None
    """Its tip; `None` if it does not exist."""
    results: tuple[MergeResult, ...]
    delivery: Delivery | None = None
    left_out: tuple[str, ...] = ()
    """Sessions that did not succeed, or were taken out; they are merged if they are named."""
    base_fault: str | None = None
    """Why verification already fails on what they were to land on, if that was found out."""
    branch_fault: str | None = None
    """Why verification fails on what was merged before; then nothing is delivered."""

    @property
    def needs_a_person(self) -> bool:
        """Return whether anything is left for a person."""
        open_ends = (DeliveryStatus.LEFT, DeliveryStatus.WAITING)
        left = self.delivery is not None and self.delivery.status in open_ends
        return left or self.branch_fault is not None or any(result.status.needs_a_person for result in self.results)

    def __getitem__(self, session: str) -> MergeResult:
        """Return the result of *session*."""
        return self.by_session[session]

    @property
    def by_session(self) -> Mapping[str, MergeResult]:
        """The results by their sessions."""
        return {result.session: result for result in self.results}

    def as_fields(self) -> dict[str, object]:
        """Return the fields by their names."""
        return {
            "run": self.run,
            "strategy": self.strategy.value,
            "branch": self.branch,
            "start": self.start,
            "commit": self.commit,
            "results": [result.as_fields() for result in self.results],
            "delivery": self.delivery.as_fields() if self.delivery else None,
            "left_out": list(self.left_out),
            "base_fault": self.base_fault,
            "branch_fault": self.branch_fault,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Clash:
    """Two sessions whose work conflicts, and why."""

    one: str
    other: str
    conflicts: tuple[Conflict, ...]

    def as_fields(self) -> dict[str, object]:
        """Return the fields by their names."""
        return {"sessions": [self.one, self.other], "conflicts": [conflict.as_fields() for conflict in self.conflicts]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """Which sessions changed the same files, and which of them conflict; *sessions* gives the order of the matrix."""

    run: str
    sessions: tuple[str, ...]
    overlaps: tuple[tuple[str, str], ...] = ()
    """Pairs that touch the same files and can be merged."""
    clashes: tuple[Clash, ...] = ()
    is_whole: bool = True
    """Whether every overlapping pair was tried; with very many sessions, only some are."""

    def partners(self, session: str) -> tuple[str, ...]:
        """Name the sessions that *session* conflicts with."""
        pairs = ((clash.one, clash.other) for clash in self.clashes)
        return tuple(
            other for first, second in pairs for mine, other in ((first, second), (second, first)) if mine == session
        )

    def as_fields(self) -> dict[str, object]:
        """Return the fields by their names."""
        return {
            "run": self.run,
            "sessions": list(self.sessions),
            "overlaps": [list(pair) for pair in self.overlaps],
            "clashes": [clash.as_fields() for clash in self.clashes],
            "whole": self.is_whole,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeIntended:
    """The integration branch is about to move from *old* to *new*; an empty commit means that it does not exist.

    *results* are all sessions merged in *new*, so the last of these events is complete.
    """

    run: str
    old: str
    new: str
    start: str
    strategy: Strategy
    results: tuple[MergeResult, ...] = ()
    out: tuple[str, ...] = ()
    """Sessions that were taken out, and stay out until they are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRecorded:
    """The integration branch is at *new*."""

    run: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryIntended:
    """The user's branch *into* is about to move from *old* to *new*."""

    run: str
    into: str
    old: str
    new: str
    is_undo: bool = False
    """Whether it takes work out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecorded:
    """The user's branch *into* contains *new*."""

    run: str
    into: str
    old: str
    new: str
    is_undo: bool = False
    """Whether it took work out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeEnded:
    """A merge or an undo ended; recorded if its report differs from the last one."""

    run: str
    report: MergeReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """A pair of sessions that touch the same places; *conflicts* is empty if both can be merged."""

    one: str
    other: str
    paths: tuple[str, ...]
    """The first of the files that both changed; names in it are an agent's."""
    files: int
    """How many files both changed."""
    conflicts: tuple[Conflict, ...] = ()
    step: str | None = None
    """The step of both, if they are workers that did the same task: then an overlap is expected."""

    def as_fields(self) -> dict[str, object]:
        """Return the fields by their names."""
        return {
            "sessions": [self.one, self.other],
            "step": self.step,
            "files": self.files,
            "paths": list(self.paths),
            "conflicts": [conflict.as_fields() for conflict in self.conflicts],
        }
