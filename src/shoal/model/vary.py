"""What differs between the workers of one step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """One worker's differences; `None` means as the others have it, *prompt* is added to theirs."""

    model: str | None = None
    temperature: float | None = None
    prompt: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


def variation(vary: Sequence[Variation], index: int) -> Variation:
    """Give the worker's own: they are dealt out in turn, and begin again when there are more workers."""
    return vary[index % len(vary)] if vary else Variation()
