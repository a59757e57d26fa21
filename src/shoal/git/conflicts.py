"""What `git merge-tree` says of a merge, read as what it means: a tree, or conflicts of a kind with their files."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.model.merge import Conflict, ConflictKind

LINK, GITLINK = "120000", "160000"
LONGEST_MESSAGE = 500
# git's own names, which are the same in every language and version; `None` is told by the entries.
KINDS: Mapping[str, ConflictKind | None] = {
    "CONFLICT (contents)": None,
    "CONFLICT (binary)": ConflictKind.BINARY,
    "CONFLICT (file/directory)": ConflictKind.DIRECTORY_FILE,
    "CONFLICT (distinct modes)": None,
    "CONFLICT (modify/delete)": ConflictKind.MODIFY_DELETE,
    "CONFLICT (rename/rename)": ConflictKind.RENAME_RENAME,
    "CONFLICT (rename/delete)": ConflictKind.RENAME_DELETE,
}
# What is said beside a better reason for the same files: a renamed file that was deleted is also a modified one.
STRONGEST = (
    ConflictKind.RENAME_RENAME,
    ConflictKind.RENAME_DELETE,
    ConflictKind.DIRECTORY_FILE,
    ConflictKind.SUBMODULE,
    ConflictKind.SYMLINK,
)


@dataclass(frozen=True, slots=True)
class Clean:
    """Both sides are in *tree*."""

    tree: str


@dataclass(frozen=True, slots=True)
class Conflicted:
    """What a person has to look at; *tree* has markers where they can be written."""

    conflicts: tuple[Conflict, ...]
    tree: str = ""

    @property
    def paths(self) -> tuple[str, ...]:
        """All files, each once."""
        return tuple(dict.fromkeys(path for one in self.conflicts for path in one.paths))


Tried = Clean | Conflicted


@dataclass(frozen=True, slots=True)
class Entry:
    """One side of a file in conflict: *stage* is 1 for what was before, 2 for ours, 3 for theirs."""

    mode: str
    oid: str
    stage: int
    path: str


@dataclass(frozen=True, slots=True)
class _Said:
    """One message: what sort it is of, and the files it is about."""

    sort: str
    paths: tuple[str, ...]
    text: str


def records(output: bytes) -> tuple[list[Tried], bytes]:
    """Read the merges that `merge-tree --stdin --messages` has told whole, and give what is left of *output*."""
    *words, rest = output.decode(errors="surrogateescape").split("\0")
    found: list[Tried] = []
    at = read = 0
    with contextlib.suppress(IndexError, ValueError):  # the rest has not come yet
        while True:
            tried, at = _record(words, at)
            found.append(tried)
            read = at
    return found, "\0".join((*words[read:], rest)).encode(errors="surrogateescape")


def _record(words: Sequence[str], at: int) -> tuple[Tried, int]:
    """Read one merge from the word number *at*, and say where the next one begins."""
    gap = words.index("", at + 2)
    messages: list[_Said] = []
    at, is_clean, tree, entries = gap + 1, words[at] == "1", words[at + 1], words[at + 2 : gap]
    # What git says of submodules at the end has no number before it, and takes the place of the empty word (2.39).
    while words[at].isdigit():
        end = at + 1 + int(words[at])
        messages.append(_Said(words[end], tuple(words[at + 1 : end]), words[end + 1].strip()))
        at = end + 2
    if is_clean:
        return Clean(tree), at + 1
    return Conflicted(_conflicts([_entry(word) for word in entries], messages), tree), at + 1


def _entry(word: str) -> Entry:
    facts, _, path = word.partition("\t")
    mode, oid, stage = facts.split(" ")
    return Entry(mode, oid, int(stage), path)


def _conflicts(entries: Sequence[Entry], said: Sequence[_Said]) -> tuple[Conflict, ...]:
    """Tell each file once, by the strongest of what git says of it; what it only lists is told by its entries."""
    by_path: dict[str, list[Entry]] = {}  # sought once for each message, and there may be 10,000 of both
    for entry in entries:
        by_path.setdefault(entry.path, []).append(entry)
    told = [_conflict(one, by_path) for one in said if one.sort.startswith("CONFLICT")]
    told.sort(key=lambda one: STRONGEST.index(one.kind) if one.kind in STRONGEST else len(STRONGEST))
    kept: list[Conflict] = []
    seen: set[str] = set()
    for one in told:
        if not seen.intersection(one.paths):
            kept.append(one)
        seen.update(one.paths)
    silent = (path for path in by_path if path not in seen)
    kept += [Conflict(kind=_kind_of(by_path[path]), paths=(path,)) for path in silent]
    return tuple(sorted(kept, key=lambda one: one.paths))


def _conflict(said: _Said, by_path: Mapping[str, Sequence[Entry]]) -> Conflict:
    own = [entry for path in dict.fromkeys(said.paths) for entry in by_path.get(path, ())]
    kind = ConflictKind.SUBMODULE if said.sort.startswith("CONFLICT (submodule") else KINDS.get(said.sort, _OTHER)
    # Where sides are of different types git renames one of them: its own entry then has no partner.
    kind = _kind_of(own) if kind is None else kind
    return Conflict(kind=kind, paths=said.paths, message=said.text[:LONGEST_MESSAGE])


_OTHER = ConflictKind.RENAME


def _kind_of(entries: Sequence[Entry]) -> ConflictKind:
    modes = {entry.mode for entry in entries}
    sides = [entry for entry in entries if entry.stage > 1]
    if GITLINK in modes:
        return ConflictKind.SUBMODULE
    if LINK in modes:
        return ConflictKind.SYMLINK
    if len(sides) == 2 and sides[0].oid == sides[1].oid:
        return ConflictKind.MODE
    return ConflictKind.CONTENT
