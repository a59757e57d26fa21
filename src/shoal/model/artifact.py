"""Artifacts: files that steps pass on to each other, as declared and as agents left them."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import PurePosixPath
from typing import NoReturn

from shoal.errors import BadInput

LONGEST_PATH = 500
DEEPEST = 100
MOST_CONTAINERS = 500_000  # 8 MiB of `{},` would be read into 200 MB
MOST_STRINGS = 1_000_000  # scanning 4 million of them takes a second
OURS = (".git", ".shoal")
_HEADING = re.compile(r"^[ \t]*#+[ \t]*worker\b", re.MULTILINE | re.IGNORECASE)


class Type(StrEnum):
    """The type of an artifact's content."""

    JSON = "json"
    TEXT = "text"
    MARKDOWN = "markdown"
    BINARY = "binary"


_SUFFIXES = {Type.JSON: ".json", Type.TEXT: ".txt", Type.MARKDOWN: ".md", Type.BINARY: ".bin"}
_TYPES = {".json": Type.JSON, ".md": Type.MARKDOWN, ".markdown": Type.MARKDOWN} | dict.fromkeys(
    (".bin", ".bz2", ".db", ".gif", ".gz", ".jpeg", ".jpg", ".pdf", ".png", ".tar", ".webp", ".whl", ".xz", ".zip"),
    Type.BINARY,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """A file that a step has to leave at *path*, relative to its workspace."""

    name: str
    path: str
    type: Type = Type.TEXT
    required: bool = True

    def __post_init__(self) -> None:
        """Refuse a path outside the workspace."""
        if why := refusal(self.path):
            raise BadInput(f"artifact {self.name}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Injection:
    """An artifact of an earlier step to pass to a step, perhaps under another *name*."""

    step: str
    artifact: str
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducedArtifact:
    """An artifact with its *content*; *path* is the declared one, *worker* its owner if each worker has its own."""

    name: str
    type: Type
    path: str
    content: bytes = field(repr=False)
    worker: int | None = None

    @property
    def label(self) -> str:
        """Its name, with the worker if each has its own."""
        return self.name if self.worker is None else f"{self.name}.{self.worker}"

    @property
    def file(self) -> str:
        """The name of its copy, chosen by us, with the suffix of the declared path."""
        suffix = PurePosixPath(self.path).suffix
        return self.label + (suffix if re.fullmatch(r"\.[A-Za-z0-9]{1,10}", suffix) else _SUFFIXES[self.type])

    @property
    def value(self) -> object:
        """The value for templates: the document, the text, or nothing for binary content."""
        match self.type:
            case Type.JSON:
                return json.loads(self.content)  # checked when it was collected
            case Type.TEXT | Type.MARKDOWN:
                return self.content.decode()
            case Type.BINARY:
                return None


def type_of(path: str) -> Type:
    """Return the type by the path's suffix; an unknown one is text."""
    return _TYPES.get(PurePosixPath(path).suffix.lower(), Type.TEXT)


def refusal(path: str) -> str | None:
    """Return why *path* cannot be an artifact's, or `None`."""
    parts = path.split("/")
    if not path.strip() or path.endswith(("/", "/.")) or path == ".":
        return "the path must name a file, like plan.json"
    if path.startswith("/"):
        return "the path must be inside the workspace; write it from the top, without a leading `/`"
    if ".." in parts:
        return "the path must stay inside the workspace; remove the `..`"
    if barred := [part for part in parts if part.casefold() in OURS]:
        return f"nothing below `{barred[0].casefold()}` can be an artifact; choose another path"
    if not path.isprintable():
        return "the path contains unprintable characters; choose another"
    if len(path) > LONGEST_PATH or any(len(part.encode(errors="replace")) > 255 for part in parts):
        return f"the path is too long; use at most {LONGEST_PATH} characters, and 255 bytes for each name"
    return None


def fault(artifact: Artifact, content: bytes) -> str | None:
    """Return why *content* does not match the declaration, or `None`."""
    if not content or (artifact.type is not Type.BINARY and not content.strip()):
        return "is empty"
    if artifact.type is Type.BINARY:
        return None
    try:
        document(content) if artifact.type is Type.JSON else content.decode()
    except UnicodeDecodeError as error:
        return f"is not UTF-8 (byte {error.start}); declare it as `type: binary`, or write it as UTF-8"
    except ValueError as error:
        return f"is not JSON: {error}"
    return None


def document(content: bytes) -> object:
    """Parse JSON with limits on depth and size; raise `ValueError` with the fault."""
    text = content.decode()
    _assert_bounded(content)
    try:
        return json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} in line {error.lineno}, column {error.colno}") from None
    except ValueError:  # one of ours, or Python refuses a number of thousands of digits
        raise ValueError("a number in it is too long, or none that JSON knows") from None


def merge_artifacts(parts: Sequence[ProducedArtifact | None], *, always: bool = False) -> tuple[ProducedArtifact, ...]:
    """Combine the artifacts of a step's workers in order; workers without one are skipped.

    That of a single worker stays as it is, unless *always* is set: a matrix may have one item or many, and its reader
    should not have to check. Of several, JSON documents become an array (without nulls for missing ones), texts are
    joined below headings with the workers' numbers, and binary files stay separate.
    """
    found = [(worker, part) for worker, part in enumerate(parts) if part is not None]
    if not found or (len(parts) == 1 and not always):
        return tuple(part for _, part in found)
    first = found[0][1]
    match first.type:
        case Type.JSON:
            # Joined as text: parsing and writing them again would change numbers and drop duplicate keys.
            return (replace(first, content=b"[" + b",\n".join(part.content.strip() for _, part in found) + b"]\n"),)
        case Type.TEXT | Type.MARKDOWN:
            return (replace(first, content=b"\n".join(_with_heading(worker, part) for worker, part in found)),)
        case Type.BINARY:
            return tuple(replace(part, worker=worker) for worker, part in found)


def select_inputs(
    parts: Mapping[str, Sequence[ProducedArtifact]], wanted: Sequence[Injection] | None
) -> dict[str, tuple[ProducedArtifact, ...]]:
    """Choose the *wanted* artifacts of each step, under their new names; `None` means all."""
    if wanted is None:
        return {step: tuple(those) for step, those in parts.items() if those}
    chosen: dict[str, tuple[ProducedArtifact, ...]] = {}
    for injection in wanted:
        found = [part for part in parts.get(injection.step, ()) if part.name == injection.artifact]
        if found:
            named = tuple(replace(part, name=injection.name or part.name) for part in found)
            chosen[injection.step] = (*chosen.get(injection.step, ()), *named)
    return chosen


def _refuse(word: str) -> NoReturn:
    raise ValueError(word)  # NaN and the like, which only Python reads


def _finite(text: str) -> float:
    """Refuse `1e999`: parsed as infinite, it passes every `maximum`, and cannot be written as JSON again."""
    number = float(text)
    return number if math.isfinite(number) else _refuse(text)


# An unterminated string is matched whole too: searching for its end from each quote in it would take forever.
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_BRACKETS = bytes.maketrans(b"{}", b"[]")
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))


def _assert_bounded(content: bytes) -> None:
    """Refuse what would overflow a recursive reader or its memory."""
    if content.count(b'"') > 2 * MOST_STRINGS:
        raise ValueError(f"it has more than {MOST_STRINGS:,} strings")
    brackets = _STRINGS.sub(b"", content).translate(_BRACKETS, _OTHERS)
    if len(brackets) > 2 * MOST_CONTAINERS:
        raise ValueError(f"it has more than {MOST_CONTAINERS:,} lists and mappings")
    for _ in range(DEEPEST):
        outer = brackets.replace(b"[]", b"")
        if outer == brackets:
            break
        brackets = outer
    if brackets:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels, or its brackets do not match")


def under_number(text: str) -> str:
    """Escape lines of a worker's text that look like another worker's heading."""
    return _HEADING.sub(r"\\\g<0>", text)


def _with_heading(worker: int, part: ProducedArtifact) -> bytes:
    text = under_number(part.content.decode(errors="surrogateescape")).encode(errors="surrogateescape")
    return b"## worker %d\n\n%s\n" % (worker, text.rstrip(b"\n"))
