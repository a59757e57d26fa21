"""What a person is to do about a conflict, in one sentence for each kind."""

from collections.abc import Mapping, Sequence

from shoal.model.merge import Conflict, ConflictKind

SHOWN = 5
WAYS = {
    ConflictKind.CONTENT: "both changed the same lines of {paths}: take one side, or write what both mean",
    ConflictKind.BINARY: "{paths} cannot be merged by lines: take one side",
    ConflictKind.MODE: "{paths} is a program on one side only: say whether it is one",
    ConflictKind.SYMLINK: "{paths} is a link that leads elsewhere on each side: take one",
    ConflictKind.SUBMODULE: "{paths} is another repository at different commits: choose one there",
    ConflictKind.MODIFY_DELETE: "{paths} was changed on one side and deleted on the other: keep it or let it go",
    ConflictKind.RENAME_RENAME: "{paths}: renamed to different names: choose one",
    ConflictKind.RENAME_DELETE: "{paths}: renamed on one side and deleted on the other: keep it or let it go",
    ConflictKind.RENAME: "{paths}: a rename collides with something else: choose a place for each",
    ConflictKind.DIRECTORY_FILE: "{paths} is a file on one side and a folder on the other: rename one of them",
    ConflictKind.CASE: "{paths} are one name where case does not count: rename one of them",
}


def advice(conflicts: Sequence[Conflict | Mapping[str, object]]) -> list[str]:
    """Say what to do about each of *conflicts*."""
    return [_sentence(one if isinstance(one, Conflict) else _conflict(one)) for one in conflicts]


def _sentence(one: Conflict) -> str:
    paths = ", ".join(ascii(path)[1:-1] for path in one.paths[:SHOWN])
    partners = f" (with {', '.join(one.partners)})" if one.partners else ""
    return WAYS[one.kind].replace("{paths}", paths) + partners


def _conflict(fields: Mapping[str, object]) -> Conflict:
    """Read a conflict as `result["conflicts"]` has it."""
    paths, partners = fields.get("paths"), fields.get("partners")
    return Conflict(
        kind=ConflictKind(str(fields.get("kind"))),
        paths=tuple(map(str, paths)) if isinstance(paths, list | tuple) else (),
        partners=tuple(map(str, partners)) if isinstance(partners, list | tuple) else (),
    )
