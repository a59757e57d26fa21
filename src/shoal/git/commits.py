"""Commits written as loose objects, without a git process."""

import hashlib
import secrets
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Broken
from shoal.model.repository import Identity, Repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A commit to make; *author* is git's whole author line if it is not ours."""

    tree: str
    parents: tuple[str, ...]
    message: str | bytes
    author: bytes | None = None
    encoding: bytes | None = None


@dataclass(frozen=True, slots=True)
class Original:
    """The author, date and message of an existing commit, as bytes."""

    author: bytes
    encoding: bytes | None
    message: bytes


def write_commit(commit: Commit, repository: Repository, objects: Path) -> str:
    """Write *commit* as a loose object into the folder *objects*, and return its id."""
    body = _body(commit, repository.identity)
    whole = b"commit %d\0" % len(body) + body
    name = hashlib.new(repository.object_format, whole, usedforsecurity=False).hexdigest()
    try:
        _store_object(objects / name[:2] / name[2:], zlib.compress(whole, 1))
    except OSError as error:
        raise Broken(f"the commit {name} could not be written: {error.strerror}") from error
    return name


def original(raw: bytes) -> Original:
    """Parse the output of `git cat-file commit`."""
    head, _, message = raw.partition(b"\n\n")
    lines = dict(line.split(b" ", 1) for line in head.split(b"\n") if b" " in line and not line.startswith(b" "))
    return Original(lines.get(b"author", b""), lines.get(b"encoding"), message)


def _body(commit: Commit, who: Identity) -> bytes:
    stamp = _stamp(who)
    lines = [f"tree {commit.tree}".encode()]
    lines += [f"parent {parent}".encode() for parent in commit.parents]
    lines += [b"author " + (commit.author or stamp), b"committer " + stamp]
    lines += [b"encoding " + commit.encoding] if commit.encoding else []
    message = commit.message.encode(errors="surrogateescape") if isinstance(commit.message, str) else commit.message
    return b"\n".join([*lines, b"", message])


def _stamp(who: Identity) -> bytes:
    """Format name and time as git does, without characters that would end a name."""
    now = time.time()
    minutes = (time.localtime(now).tm_gmtoff or 0) // 60
    zone = f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}{abs(minutes) % 60:02d}"
    return f"{_name(who.name)} <{_name(who.email)}> {int(now)} {zone}".encode(errors="surrogateescape")


def _name(text: str) -> str:
    return "".join(char for char in text if char not in "<>\n\0").strip() or "shoal"


def _store_object(place: Path, content: bytes) -> None:
    """Write to a temporary file, then move it into place: other processes may read the object at any time."""
    if place.exists():
        return
    place.parent.mkdir(exist_ok=True)
    aside = place.with_name(f"tmp_obj_{secrets.token_hex(6)}")
    aside.write_bytes(content)
    aside.replace(place)
