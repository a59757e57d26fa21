"""Write commits as loose objects, read files of commits, and find the ancestry between commits."""

import hashlib
import secrets
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import Broken
from shoal.git.run import git
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
    now = time.time() if who.date is None else who.date
    minutes = 0 if who.date is not None else (time.localtime(now).tm_gmtoff or 0) // 60
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


MOST_BYTES = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Ancestry:
    """Commits with their parents, parents first; everything else is older than the start."""

    parents: Mapping[str, tuple[str, ...]]

    def reach(self, commits: Iterable[str]) -> frozenset[str]:
        """Return the ancestors of *commits*, including themselves."""
        found: set[str] = set()
        left = [commit for commit in commits if commit in self.parents]
        while left:
            commit = left.pop()
            if commit not in found:
                found.add(commit)
                left += [parent for parent in self.parents[commit] if parent in self.parents]
        return frozenset(found)

    def without_merges(self, commits: Iterable[str]) -> list[str]:
        """Return *commits* in topological order, without pure merges."""
        wanted = set(commits)
        return [commit for commit, parents in self.parents.items() if commit in wanted and len(parents) < 2]


async def since(repository: Repository, starts: Sequence[str], tips: Sequence[str]) -> Ancestry:
    """Read the commits that *tips* reach and *starts* do not."""
    wanted = (*dict.fromkeys(tips), *(f"^{start}" for start in dict.fromkeys(starts)))
    asked = "".join(f"{revision}\n" for revision in wanted)
    done = await git(
        repository.git,
        *("rev-list", "--topo-order", "--reverse", "--parents", "--stdin"),
        stdin=asked.encode(),
        limit=MOST_BYTES,
    )
    if done.dropped:
        raise Broken("the sessions have more commits than can be looked at; merge fewer of them at once")
    rows = (line.split() for line in done.stdout.decode().splitlines())
    return Ancestry({row[0]: tuple(row[1:]) for row in rows})


async def missing_commits(repository: Repository, commits: Iterable[str]) -> frozenset[str]:
    """Return those of *commits* that the repository no longer has."""
    asked = "".join(f"{commit}\n" for commit in dict.fromkeys(commits))
    if not asked:
        return frozenset()
    done = await git(repository.git, "cat-file", "--batch-check", stdin=asked.encode(), limit=MOST_BYTES)
    rows = (line.split() for line in done.stdout.decode().splitlines())
    return frozenset(row[0] for row in rows if row[-1] == "missing")


async def is_ancestor(repository: Repository, inner: str, outer: str) -> bool:
    """Return whether *inner* is an ancestor of *outer*; a missing commit is not."""
    done = await git(repository.git, "merge-base", "--is-ancestor", inner, outer, accept=(0, 1, 128))
    return done.ok


MOST_ALL_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Content:
    """An object; *data* is `None` if it is too large."""

    kind: str
    data: bytes | None


async def contents(gitdir: Path, names: Sequence[bytes], *, limit: int) -> list[Content | None]:
    """Read the objects named by *names* like `commit:path`, in their order; `None` for a missing one."""
    if not names:
        return []
    # Sizes first: a file of gigabytes would have to pass through a pipe.
    asked = b"".join(name + b"\0" for name in names)
    done = await git(gitdir, "cat-file", "-z", "--batch-check=%(objectname) %(objecttype) %(objectsize)", stdin=asked)
    heads = list(_heads(names, done.stdout))
    wanted, room = [], MOST_ALL_BYTES
    for head in dict.fromkeys(head for head in heads if head is not None):
        if head.size <= min(limit, room):
            wanted.append(head)
            room -= head.size
    read = await _read(gitdir, wanted)
    return [None if head is None else Content(head.kind, read.get(head.object)) for head in heads]


def tree_names(data: bytes, digits: int) -> Iterator[str]:
    """Yield the names in a tree object."""
    at = 0
    while at < len(data):
        end = data.index(b"\0", at)
        yield data[at:end].partition(b" ")[2].decode(errors="surrogateescape")
        at = end + 1 + digits // 2


@dataclass(frozen=True, slots=True)
class _Head:
    object: bytes
    kind: str
    size: int


def _heads(names: Sequence[bytes], output: bytes) -> Iterator[_Head | None]:
    at = 0
    for name in names:
        missing = name + b" missing\n"  # compared as a whole: a name may contain line ends
        if output.startswith(missing, at):
            at += len(missing)
            yield None
            continue
        end = output.index(b"\n", at)
        oid, kind, size = output[at:end].split(b" ")
        at = end + 1
        yield _Head(oid, kind.decode(), int(size))


async def _read(gitdir: Path, wanted: Sequence[_Head]) -> dict[bytes, bytes]:
    if not wanted:
        return {}
    asked = b"".join(head.object + b"\n" for head in wanted)
    limit = 2 * MOST_ALL_BYTES
    output = (await git(gitdir, "cat-file", "--batch=%(objectsize)", stdin=asked, limit=limit)).stdout
    found, at = {}, 0
    for head in wanted:
        at = output.index(b"\n", at) + 1
        found[head.object] = output[at : at + head.size]
        at += head.size + 1
    return found
