"""Create gitdirs by writing files, without a git process: private ones for agents, fresh ones for seals."""

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from shoal.model.repository import Identity, Repository


def write_gitdir(
    target: Path,
    repository: Repository,
    *,
    head: str,
    refs: Mapping[str, str],
    index: Path | None,
    lenders: Iterable[Path],
    loose_stat: bool = True,
) -> None:
    """Write a complete gitdir at *target*, which must not exist.

    *head* is the text of HEAD, *refs* maps full names to commits, *lenders* are folders of objects to borrow: for a
    sandbox only those of its base, on the host the repository's. *loose_stat* is for sandboxes that see other
    uids than the index does (35x on the first status); our own seal compares everything, so that no change is missed.
    """
    # As few entries as git accepts: each takes time to create and remove, and refs in one file are refs too.
    place = os.fspath(target)
    os.mkdir(place)  # noqa: PTH102 - and no folder above it: a repository that was renamed must not come back empty
    for folder in ("objects", "objects/info", "refs"):
        os.mkdir(f"{place}/{folder}")  # noqa: PTH102 - half the time of Path.mkdir, here and below
    chain = "".join(f"{quote_path(path)}\n" for path in lenders)
    _write(f"{place}/objects/info/alternates", chain)
    _write(f"{place}/config", config_text(repository, loose_stat=loose_stat))
    write_refs(target, head=head, refs=refs)
    if index is not None:
        shutil.copyfile(index, f"{place}/index")
    if repository.is_shallow:
        shutil.copyfile(repository.git / "shallow", f"{place}/shallow")


def write_refs(target: Path | str, *, head: str, refs: Mapping[str, str]) -> None:
    """Write HEAD and all refs of the gitdir at *target*; nothing else differs between sessions."""
    place = os.fspath(target)
    _write(f"{place}/HEAD", f"{head}\n")
    if refs:
        lines = "".join(f"{commit} {name}\n" for name, commit in sorted(refs.items()))
        _write(f"{place}/packed-refs", f"# pack-refs with: peeled fully-peeled sorted \n{lines}")


def _write(file: str, text: str) -> None:
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        content = text.encode(errors="surrogateescape")
        os.write(fd, content)
        os.ftruncate(fd, len(content))  # truncated afterwards: ext4 flushes a file at once that was emptied before
    finally:
        os.close(fd)


def config_text(repository: Repository, *, loose_stat: bool) -> str:
    """Return the configuration of our gitdirs: the repository's line endings, never its programs."""
    core = {
        "bare": "false",
        "logallrefupdates": "true",
        **{key.removeprefix("core."): value for key, value in repository.settings.items()},
    }
    if loose_stat:
        core |= {"checkStat": "minimal", "trustctime": "false"}
    extensions = {"objectFormat": "sha256"} if repository.object_format == "sha256" else {}
    sections = {
        "core": {"repositoryformatversion": "1" if extensions or repository.promisor else "0", **core},
        "extensions": extensions | ({"partialClone": repository.promisor} if repository.promisor else {}),
        f'remote "{repository.promisor}"': {"promisor": "true"} if repository.promisor else {},
        "gc": {"auto": "0"},
        "maintenance": {"auto": "false"},
        "user": _user(repository.identity),
    }
    return "".join(_section(name, keys) for name, keys in sections.items() if keys)


def user_config(identity: Identity) -> str:
    """Return a configuration with the committer's identity only."""
    return _section("user", _user(identity)) + _section("init", {"defaultBranch": "main"})


def _user(identity: Identity) -> dict[str, str]:
    return {"name": _value(identity.name), "email": _value(identity.email)}


def _value(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", " ")
    return f'"{escaped}"'


def _section(name: str, keys: Mapping[str, str]) -> str:
    return f"[{name}]\n" + "".join(f"\t{key} = {value}\n" for key, value in keys.items())


def quote_path(path: Path, separator: str = "\n") -> str:
    """Quote a path for git's list of object folders."""
    text = str(path)
    if not text.startswith('"') and separator not in text and "\n" not in text:
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
