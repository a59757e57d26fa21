"""What a repository says about set-up itself: other tools' files in the base, and `.worktreeinclude`."""

import contextlib
import functools
import os
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

from shoal.engine.site import Site
from shoal.errors import BadInput
from shoal.git.ignored import ignored_files
from shoal.model.plan import Plan
from shoal.model.policy import Bind
from shoal.model.repository import Base, Repository
from shoal.model.setup import Project, Setup
from shoal.pipeline.setup_files import KNOWN, LARGEST, setup_in
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths
from shoal.workspaces.setup_files import content, copied, digest, is_file

INCLUDE = ".worktreeinclude"
OURS = (".git", ".shoal")


@contextlib.asynccontextmanager
async def project_ready(repository: Repository, base: Base, paths: StatePaths, run: str) -> AsyncIterator[Project]:
    """Find what the repository says, and hold copies of the files that go along while the run lives."""
    project = _brought(base.tree)
    patterns = _patterns(repository, base)
    if patterns is None:
        yield project
        return
    folder = paths.setups / f"files-{run}"
    _forget_dead(paths)
    try:
        yield await _with_files(project, repository, base, patterns, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def setup_notes(site: Site, plan: Plan) -> tuple[str, ...]:
    """Say once where set-up comes from that no document names, and which files of the checkout go along.

    Raises `BadInput` where those cannot.
    """
    if site.project.refusal:
        raise BadInput(site.project.refusal)
    project, told = site.project, list(_source_notes(site.project, plan, site.sandbox.name))
    if project.included:
        count = len(project.included)
        files = "1 file" if count == 1 else f"{count} files"
        told.append(f"{INCLUDE}: {files} of your checkout {'is' if count == 1 else 'are'} copied into each workspace")
    return tuple(told)


def dry_notes(folder: Path, plan: Plan) -> tuple[str, ...]:
    """Say where set-up would come from, by what the checkout has now."""
    return _source_notes(_brought(folder), plan, plan.sandbox)


def _source_notes(project: Project, plan: Plan, wall: str) -> tuple[str, ...]:
    # A coordinator knows no steps when it begins.
    is_wanted = not plan.working or any(step.task.nearest_setup is None for step in plan.working)
    if project.setup is None or not is_wanted:
        return ()
    how = "" if wall != "none" else ", which runs behind a wall only: it is left out"
    return (f"set-up comes from {project.setup.source}{how}; `setup` in `runtime` says otherwise",)


def root_covers(site: Site) -> tuple[Bind, ...]:
    """Show the files that go along at their own paths in the user's checkout, of which a box sees nothing else."""
    project = site.project
    if project.files is None:
        return ()
    tops = dict.fromkeys(name.split("/")[0] for name in project.included)
    return tuple(Bind(project.files / top, site.repository.top / top) for top in tops)


def _brought(tree: Path) -> Project:
    """Read the first file of another tool's that *tree* has; one that cannot be read is told when it is needed."""
    for name in KNOWN:
        if (text := content(tree, name, LARGEST)) is not None:
            try:
                setup = setup_in(name, text, functools.partial(is_file, tree))
            except BadInput as error:
                return Project(setup=Setup(source=name), problem=str(error))
            if setup is not None:
                return Project(setup=setup)
    return Project()


def _patterns(repository: Repository, base: Base) -> bytes | None:
    if not (repository.top / ".git").exists():  # a plain folder has no ignored files
        return None
    said = content(repository.top, INCLUDE, LARGEST)
    return content(base.tree, INCLUDE, LARGEST) if said is None else said


async def _with_files(project: Project, repository: Repository, base: Base, patterns: bytes, folder: Path) -> Project:
    files = folder / "files"
    files.mkdir(mode=0o700, parents=True)
    (folder / "patterns").write_bytes(patterns)
    named = await ignored_files(repository, folder / "patterns")
    wanted = [name for name in named if _may_go(base.tree, name)]
    try:
        included = copied(repository.top, files, wanted)
    except BadInput as error:
        return replace(project, refusal=str(error))
    if not included:
        return project
    return replace(project, files=files, included=included, digest=digest(files, included))


def _may_go(tree: Path, name: str) -> bool:
    """Say whether a file can be kept out of every commit: not where the base has one there, or git cannot name it."""
    is_ours = any(part in OURS for part in name.split("/"))
    return not is_ours and "\n" not in name and not os.path.lexists(tree / name)


def _forget_dead(paths: StatePaths) -> None:
    """Remove what runs that were killed had copied."""
    for folder in paths.setups.glob("files-*"):
        if not is_locked(paths.run_lock(folder.name.removeprefix("files-"))):
            shutil.rmtree(folder, ignore_errors=True)
