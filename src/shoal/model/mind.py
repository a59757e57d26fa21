"""What an in-process agent thinks with: a model by its name, and which hands it has in its workspace."""

from collections.abc import Mapping
from dataclasses import dataclass

# What each sandboxed tool takes; the first is what a rule like `read(docs/*)` speaks of.
TOOLS: Mapping[str, tuple[str, ...]] = {
    "read": ("path", "first_line", "lines"),
    "write": ("path", "content"),
    "edit": ("path", "old", "new"),
    "list": ("path",),
    "search": ("pattern", "path"),
    "shell": ("command", "seconds"),
}

SCRIPTED = "scripted"
"""The model that gives the replies it was told to, for pipelines that are tried without a provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What an agent may spend on its model for one task; `None` means no bound."""

    turns: int | None = None
    tokens: int | None = None
    dollars: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Mind:
    """The model of an in-process agent; *replies* are those of the model `scripted`, as canonical JSON."""

    model: str
    tools: tuple[str, ...] = tuple(TOOLS)
    replies: str | None = None
    budget: Budget | None = None
    temperature: float | None = None
