"""A command as a value, separate from running it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class InheritedBytes:
    """Bytes that the child reads from a descriptor, whose number replaces this value in argv."""

    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReportPipe:
    """A pipe that the child writes to; its number is put into argv, and its content is returned under *name*."""

    name: str


@dataclass(frozen=True, slots=True)
class OpenInput:
    """A standard input that stays open: it is written to while the child runs."""


@dataclass(frozen=True, slots=True)
class SharedSocket:
    """One end of a pair of sockets; its number stands in argv, and ours is found under *name*."""

    name: str


Argument = str | InheritedBytes | ReportPipe | SharedSocket


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """Limits of a process of ours: memory that it writes to, and CPU; beyond them, it is killed."""

    memory_bytes: int | None = None
    cpu_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its arguments, folder, complete environment (nothing is inherited) and standard input.

    *stdin* is its content, or a file of ours, or `OpenInput`.
    """

    argv: tuple[Argument, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | Path | OpenInput = field(default=b"", repr=False)
    limits: ProcessLimits = ProcessLimits()
