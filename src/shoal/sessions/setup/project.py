"""Read a repository's own set-up: other tools' files in the base, and `.worktreeinclude`."""

import contextlib
import functools
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter_of
from shoal.errors import BadInput
from shoal.git.repository import list_ignored_files, own_gitdir
from shoal.git.run import git
from shoal.model.plan import Plan
from shoal.model.policy import Bind
from shoal.model.repository import Base, Repository
from shoal.model.setup import Project, Setup
from shoal.sessions.context import RunContext
from shoal.sessions.policy import network_of, setup_network
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths
from shoal.workspaces.setup_layers import content, copy_files, digest, is_file

LARGEST = 64 * 1024
MOST_COMMANDS = 100

Exists = Callable[[str], bool]
"""Return whether the base has a file of that name."""


def setup_in(name: str, content: bytes, exists: Exists) -> Setup | None:
    """Read the set-up in the file *name*; `None` if it has none. Raises `BadInput` if it is invalid."""
    try:
        document = _toml(content.decode()) if name.endswith(".toml") else json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} cannot be read: {str(error)[:200]}; fix it, or set `setup: []` in `runtime`") from None
    found = KNOWN[name](document if isinstance(document, dict) else {})
    commands = _texts(name, found)
    if name == CURSOR and isinstance(found, str):
        commands = tuple(_script(command, exists) for command in commands)
    return Setup(commands=commands, source=name) if commands else None


def _toml(text: str) -> object:
    import tomllib  # takes 10 ms, and hardly any repository has such a file

    return tomllib.loads(text)


def _conductor(document: Mapping[str, object]) -> object:
    scripts = document.get("scripts")
    return scripts.get("setup") if isinstance(scripts, dict) else None


def _cursor(document: Mapping[str, object]) -> object:
    own = document.get("setup-worktree-unix")
    return document.get("setup-worktree") if own is None else own


def _texts(name: str, found: object) -> tuple[str, ...]:
    listed = [found] if isinstance(found, str) else found if found is not None else []
    if (
        not isinstance(listed, list)
        or len(listed) > MOST_COMMANDS
        or not all(isinstance(command, str) for command in listed)
    ):
        raise BadInput(f"{name}: its setup must be a text or a list of texts")
    if any("\0" in command for command in listed):
        raise BadInput(f"{name}: its setup contains a NUL byte; remove it")
    return tuple(command for command in listed if command.strip())


def _script(text: str, exists: Exists) -> str:
    """Run a text that is the path of a script, relative to its file, as a script; any other text is a command."""
    path = f".cursor/{text.strip().removeprefix('./')}"
    if any(sign.isspace() or sign in "'\"$;|&<>" for sign in text.strip()) or not exists(path):
        return text
    return f"if [ -x '{path}' ]; then './{path}'; else sh '{path}'; fi"


CURSOR = ".cursor/worktrees.json"
KNOWN: Mapping[str, Callable[[Mapping[str, object]], object]] = {
    # Conductor itself ignores the older file if the newer one exists.
    ".conductor/settings.toml": _conductor,
    "conductor.json": _conductor,
    CURSOR: _cursor,
}


INCLUDE = ".worktreeinclude"
OURS = (".git", ".shoal")
USERS_REFS = ("refs/heads", "refs/remotes", "refs/tags")
AGENTS_REFS = ("refs/heads/agent/", "refs/heads/shoal/")
MOST_BYTES = 16 * 2**20


@contextlib.asynccontextmanager
async def project_ready(repository: Repository, base: Base, paths: StatePaths, run: str) -> AsyncIterator[Project]:
    """Find the repository's own set-up, and keep copies of the included files while the run lives."""
    project = _read_tool_file(base.tree)
    patterns = await _patterns(repository, base)
    if patterns is None:
        yield project
        return
    folder = paths.setups / f"files-{run}"
    _forget_dead(paths)
    try:
        yield await _with_files(project, repository, base, patterns, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def setup_notes(context: RunContext, plan: Plan) -> tuple[str, ...]:
    """Describe set-up that comes from no document, and the files of the checkout that are included.

    Raises `BadInput` if those cannot be copied.
    """
    if context.project.refusal:
        raise BadInput(context.project.refusal)
    project, notes = context.project, list(_source_notes(context.project, plan, context.sandbox.name))
    if project.included:
        count = len(project.included)
        files = "1 file" if count == 1 else f"{count} files"
        notes.append(f"{INCLUDE}: {files} of your checkout {'is' if count == 1 else 'are'} copied into each workspace")
    return (*notes, *_list_confined_notes(context, plan))


def _list_confined_notes(context: RunContext, plan: Plan) -> Iterator[str]:
    """Name the steps whose set-up runs in a workspace with agents' work, and therefore without its own network."""
    for step in plan.working:
        setup = step.task.nearest_setup
        is_on_work = bool(step.needs) and step.base is None and step.is_stacked
        if setup is None or not is_on_work or step.task.allow_executable_config:
            continue
        adapter = adapter_of(step.task.agent, this_host())
        setup = replace(setup, network=setup.network or setup_network(step.task, adapter))
        confined = setup.within(network_of(step.task, adapter)).is_confined
        is_shared = context.kind.has_layers and context.sandbox.mounts and not setup.is_each
        if confined and not is_shared:
            what = f"step {step.name}: its set-up runs on the work of earlier agents, and therefore without a network"
            yield f"{what}; `allow_executable_config: true` gives it one"


def dry_notes(folder: Path, plan: Plan) -> tuple[str, ...]:
    """Describe where set-up would come from, judging by the current checkout."""
    return _source_notes(_read_tool_file(folder), plan, plan.sandbox)


def _source_notes(project: Project, plan: Plan, wall: str) -> tuple[str, ...]:
    # A coordinator knows no steps when it begins.
    is_wanted = not plan.working or any(step.task.nearest_setup is None for step in plan.working)
    if project.setup is None or not is_wanted:
        return ()
    how = "" if wall != "none" else ", which runs only in a sandbox, and is left out"
    return (f"set-up comes from {project.setup.source}{how}; `setup` in `runtime` overrides it",)


def root_covers(context: RunContext) -> tuple[Bind, ...]:
    """Show the included files at their own paths in the user's checkout; a sandbox sees nothing else of it."""
    project = context.project
    if project.files is None:
        return ()
    tops = dict.fromkeys(name.split("/")[0] for name in project.included)
    return tuple(Bind(project.files / top, context.repository.top / top) for top in tops)


def _read_tool_file(tree: Path) -> Project:
    """Read the first file of another tool that *tree* has; an unreadable one is reported when it is needed."""
    for name in KNOWN:
        if (text := content(tree, name, LARGEST)) is not None:
            try:
                setup = setup_in(name, text, functools.partial(is_file, tree))
            except BadInput as error:
                return Project(setup=Setup(source=name), problem=str(error))
            if setup is not None:
                return Project(setup=setup)
    return Project()


async def _patterns(repository: Repository, base: Base) -> bytes | None:
    if not (repository.top / ".git").exists():  # a plain folder has no ignored files
        return None
    if (patterns := content(repository.top, INCLUDE, LARGEST)) is not None:
        return patterns
    patterns = content(base.tree, INCLUDE, LARGEST)
    # An agent that writes this file asks for the user's own files.
    return patterns if patterns is not None and await _base_is_users(repository, base) else None


async def _base_is_users(repository: Repository, base: Base) -> bool:
    """Return whether a branch or tag of the user contains the base: then its files are the user's decision."""
    wanted = ("for-each-ref", "--format=%(refname)", f"--contains={base.commit}", *USERS_REFS)
    refs = (await git(repository.git, *wanted, limit=MOST_BYTES)).stdout.decode(errors="replace").splitlines()
    return any(not ref.startswith(AGENTS_REFS) for ref in refs) or await _is_head(repository, base)


async def _is_head(repository: Repository, base: Base) -> bool:
    """Return whether the base is the user's HEAD: a detached head is on no branch."""
    done = await git(await own_gitdir(repository.top), "rev-parse", "--verify", "-q", "HEAD", accept=(0, 1))
    return done.stdout.decode().strip() == base.commit


async def _with_files(project: Project, repository: Repository, base: Base, patterns: bytes, folder: Path) -> Project:
    files = folder / "files"
    files.mkdir(mode=0o700, parents=True)
    (folder / "patterns").write_bytes(patterns)
    named = await list_ignored_files(repository, folder / "patterns")
    wanted = [name for name in named if _may_go(base.tree, name)]
    try:
        included = copy_files(repository.top, files, wanted)
    except BadInput as error:
        return replace(project, refusal=str(error))
    if not included:
        return project
    return replace(project, files=files, included=included, digest=digest(files, included))


def _may_go(tree: Path, name: str) -> bool:
    """Return whether a file can be kept out of every commit: the base has no such file, and git can name it."""
    is_ours = any(part in OURS for part in name.split("/"))
    return not is_ours and "\n" not in name and not os.path.lexists(tree / name)


def _forget_dead(paths: StatePaths) -> None:
    """Remove the copies of killed runs."""
    for folder in paths.setups.glob("files-*"):
        if not is_locked(paths.run_lock(folder.name.removeprefix("files-"))):
            shutil.rmtree(folder, ignore_errors=True)
