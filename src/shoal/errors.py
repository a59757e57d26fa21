"""Every error Shoal raises.

ShoalError
├── BadInput            the user's mistake: exit 2
│   ├── BadRepository   what we were pointed at cannot be worked on
│   └── UnknownName     a name that is not known, with the nearest one
├── Unavailable         what was asked for by name cannot be had on this host: exit 5
│   └── WallBroken      the wall did not come up as asserted from inside
├── GitFailed           git said no where it should not have
└── Broken              the machine failed us (disk, kernel, a lock that never came free)
"""

import difflib
from collections.abc import Iterable, Sequence
from pathlib import Path


class ShoalError(Exception):
    """The base of all our errors; its text is a whole sentence for a person."""

    exit_code = 3


class BadInput(ShoalError):
    """The user asked for something that has no meaning; nothing was changed."""

    exit_code = 2


class BadRepository(BadInput):
    """The folder given cannot be worked on."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path
        self.why = why


class UnknownName(BadInput):
    """A name that is not known, told with the nearest known one."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(names) or 'none'}"
        super().__init__(f"no {kind} named {name!r}{hint}")


class Unavailable(ShoalError):
    """What was asked for by name cannot be had on this host."""

    exit_code = 5

    def __init__(self, what: str, why: str, remedy: str) -> None:
        super().__init__(f"{what} cannot be had here: {why}; {remedy}")
        self.what = what
        self.why = why
        self.remedy = remedy


class WallBroken(Unavailable):
    """The wall, looked at from inside, was not the one that was asked for."""

    def __init__(self, wall: str, why: str) -> None:
        super().__init__(f"the {wall} wall", why, "run `shoal doctor`, or name another `--sandbox`")


class GitFailed(ShoalError):
    """A git command failed where it should not have."""

    def __init__(self, args: Sequence[str], code: int, stderr: str) -> None:
        said = stderr.strip() or "nothing"
        super().__init__(f"git {' '.join(args[:3])} ended with {code} and said: {said[-600:]}")
        self.code = code
        self.stderr = stderr


class Broken(ShoalError):
    """The machine failed us."""


def first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Give the first error of a task group, however deep it lies: siblings that fail together fail of one cause."""
    inner = errors.exceptions[0]
    return first_of(inner) if isinstance(inner, BaseExceptionGroup) else inner
