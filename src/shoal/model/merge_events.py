"""What is recorded of a merge: each move of a ref is written down before it is made and after it was."""

from dataclasses import dataclass

from shoal.model.merge import MergeResult, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeIntended:
    """The integration branch is about to go from *old* to *new*; an empty one means that it is not there.

    *results* are all sessions that are merged in *new*, so that the last of these events says everything.
    """

    run: str
    old: str
    new: str
    start: str
    strategy: Strategy
    results: tuple[MergeResult, ...] = ()
    out: tuple[str, ...] = ()
    """Sessions that were taken out again, and stay out until they are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeRecorded:
    """The integration branch is at *new*."""

    run: str
    new: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryIntended:
    """The user's branch *into* is about to go from *old* to *new*."""

    run: str
    into: str
    old: str
    new: str
    is_undo: bool = False
    """Whether it is to take work out again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryRecorded:
    """The user's branch *into* holds *new*."""

    run: str
    into: str
    old: str
    new: str
    is_undo: bool = False
    """Whether it took work out again."""
