"""What is to be run: a command as a value, apart from its running."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class InheritedBytes:
    """Bytes that the child reads from a descriptor; its number stands in argv in this value's place."""

    content: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class ReportPipe:
    """A pipe that the child writes to; its number stands in argv, and what it says is kept under *name*."""

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
    """What a process of ours may take of memory that it writes to, and of a processor; past it, it dies."""

    memory_bytes: int | None = None
    cpu_seconds: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its arguments, folder, whole environment (nothing is inherited) and standard input.

    *stdin* is what it reads, or a file of ours with that, or `OpenInput`.
    """

    argv: tuple[Argument, ...]
    cwd: Path
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | Path | OpenInput = field(default=b"", repr=False)
    limits: ProcessLimits = ProcessLimits()
