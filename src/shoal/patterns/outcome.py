"""How one call of a pattern ended, as a value."""

from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Ok(Generic[T_co]):
    """It succeeded with *value*; *index* says which call it was, in input order."""

    value: T_co
    index: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Err:
    """It failed with *error*, whose traceback is kept."""

    error: Exception
    index: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Cancelled:
    """It was cancelled, by itself or from outside the pattern; that is not a failure."""

    index: int = field(default=0, compare=False)


Outcome: TypeAlias = Ok[T] | Err | Cancelled
