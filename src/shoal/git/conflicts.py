"""Parse the output of `git merge-tree`: a tree, or conflicts with their kinds and files."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from shoal.model.merge import Conflict, ConflictKind

LINK, GITLINK = "120000", "160000"
LONGEST_MESSAGE = 500
# git's own names, the same in every language and version; `None` means that the entries decide.
KINDS: Mapping[str, ConflictKind | None] = {
    "CONFLICT (contents)": None,
    "CONFLICT (binary)": ConflictKind.BINARY,
    "CONFLICT (file/directory)": ConflictKind.DIRECTORY_FILE,
    "CONFLICT (distinct modes)": None,
    "CONFLICT (modify/delete)": ConflictKind.MODIFY_DELETE,
    "CONFLICT (rename/rename)": ConflictKind.RENAME_RENAME,
    "CONFLICT (rename/delete)": ConflictKind.RENAME_DELETE,
}
# Messages that only repeat a better reason for the same files: a deleted renamed file is also a modified one.
STRONGEST = (
    ConflictKind.RENAME_RENAME,
    ConflictKind.RENAME_DELETE,
    ConflictKind.DIRECTORY_FILE,
    ConflictKind.SUBMODULE,
    ConflictKind.SYMLINK,
)


@dataclass(frozen=True, slots=True)
class Clean:
    """A clean merge: both sides are in *tree*."""

    tree: str


@dataclass(frozen=True, slots=True)
class Conflicted:
    """A merge with conflicts; *tree* has conflict markers where possible."""

    conflicts: tuple[Conflict, ...]
    tree: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """All files, each once."""
        return tuple(dict.fromkeys(path for conflict in self.conflicts for path in conflict.paths))


Tried = Clean | Conflicted


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One side of a conflicting file: *stage* is 1 for the base, 2 for ours, 3 for theirs."""

    mode: str
    oid: str
    stage: int
    path: str

    @classmethod
    def parse(cls, word: str) -> Self:
        """Parse an entry as `git merge-tree` writes it."""
        facts, _, path = word.partition("\t")
        mode, oid, stage = facts.split(" ")
        return cls(mode, oid, int(stage), path)


@dataclass(frozen=True, slots=True)
class _ConflictOutput:
    """One message: its kind and its files."""

    sort: str
    paths: tuple[str, ...]
    text: str


def records(output: bytes) -> list[Tried]:
    """Parse the complete records of `merge-tree --stdin --messages`."""
    reader = ConflictReader()
    reader.feed(output)
    return reader.found


class ConflictReader:
    """Parses `merge-tree --stdin --messages` incrementally, looking at every byte once."""

    def __init__(self) -> None:
        self.found: list[Tried] = []
        self.pending_bytes = 0
        """The size of the incomplete record so far."""
        self._cut: list[bytes] = []  # the parts of an incomplete word
        self._words = self._take_words()
        next(self._words)

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        before = len(self.found)
        first, *rest = chunk.split(b"\0")
        self._cut.append(first)
        if rest:
            *whole, last = b"".join(self._cut), *rest
            self._cut = [last]
            for word in whole:
                self._words.send(word.decode(errors="surrogateescape"))
        self.pending_bytes = len(chunk) if len(self.found) > before else self.pending_bytes + len(chunk)

    def _take_words(self) -> Generator[None, str]:
        while True:
            is_clean = (yield) == "1"
            tree = yield
            entries = []
            while word := (yield):
                entries.append(IndexEntry.parse(word))
            messages = []
            # git's messages about submodules at the end have no number before them (2.39).
            while (count := (yield)).isdecimal():
                paths = []
                for _ in range(int(count)):
                    paths.append((yield))  # noqa: PERF401 - a comprehension cannot yield
                sort, text = (yield), (yield)
                messages.append(_ConflictOutput(sort, tuple(paths), text.strip()))
            self.found.append(Clean(tree) if is_clean else Conflicted(_conflicts(entries, messages), tree))


def _conflicts(entries: Sequence[IndexEntry], messages: Sequence[_ConflictOutput]) -> tuple[Conflict, ...]:
    """Report each file once, by git's strongest message; a file without one by its index entries."""
    by_path: dict[str, list[IndexEntry]] = {}  # built once: there may be 10,000 messages and entries
    for entry in entries:
        by_path.setdefault(entry.path, []).append(entry)
    conflicts = [_conflict(message, by_path) for message in messages if message.sort.startswith("CONFLICT")]
    conflicts.sort(
        key=lambda conflict: STRONGEST.index(conflict.kind) if conflict.kind in STRONGEST else len(STRONGEST)
    )
    kept: list[Conflict] = []
    seen: set[str] = set()
    for conflict in conflicts:
        if not seen.intersection(conflict.paths):
            kept.append(conflict)
        seen.update(conflict.paths)
    silent = (path for path in by_path if path not in seen)
    kept += [Conflict(kind=_kind_of(by_path[path]), paths=(path,)) for path in silent]
    return tuple(sorted(kept, key=lambda conflict: conflict.paths))


def _conflict(message: _ConflictOutput, by_path: Mapping[str, Sequence[IndexEntry]]) -> Conflict:
    own = [entry for path in dict.fromkeys(message.paths) for entry in by_path.get(path, ())]
    kind = ConflictKind.SUBMODULE if message.sort.startswith("CONFLICT (submodule") else KINDS.get(message.sort, _OTHER)
    # If the sides are of different types, git renames one of them: its own entry then has no partner.
    kind = _kind_of(own) if kind is None else kind
    return Conflict(kind=kind, paths=message.paths, message=message.text[:LONGEST_MESSAGE])


_OTHER = ConflictKind.RENAME


def _kind_of(entries: Sequence[IndexEntry]) -> ConflictKind:
    modes = {entry.mode for entry in entries}
    sides = [entry for entry in entries if entry.stage > 1]
    if GITLINK in modes:
        return ConflictKind.SUBMODULE
    if LINK in modes:
        return ConflictKind.SYMLINK
    if len(sides) == 2 and sides[0].oid == sides[1].oid:
        return ConflictKind.MODE
    return ConflictKind.CONTENT
