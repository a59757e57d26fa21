"""Read files of commits, many at once and bounded."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.git.run import git

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
    # Asked for their sizes first: a file of gigabytes would have to pass through a pipe.
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


def _heads(names: Sequence[bytes], said: bytes) -> Iterator[_Head | None]:
    at = 0
    for name in names:
        missing = name + b" missing\n"  # looked for as a whole: a name may have line ends in it
        if said.startswith(missing, at):
            at += len(missing)
            yield None
            continue
        end = said.index(b"\n", at)
        oid, kind, size = said[at:end].split(b" ")
        at = end + 1
        yield _Head(oid, kind.decode(), int(size))


async def _read(gitdir: Path, wanted: Sequence[_Head]) -> dict[bytes, bytes]:
    if not wanted:
        return {}
    asked = b"".join(head.object + b"\n" for head in wanted)
    limit = 2 * MOST_ALL_BYTES
    said = (await git(gitdir, "cat-file", "--batch=%(objectsize)", stdin=asked, limit=limit)).stdout
    found, at = {}, 0
    for head in wanted:
        at = said.index(b"\n", at) + 1
        found[head.object] = said[at : at + head.size]
        at += head.size + 1
    return found
