"""Inspect the folder given by the user: which repository it belongs to, and whether it is usable."""

import os
from collections.abc import Mapping
from pathlib import Path

from shoal import proc
from shoal.errors import BadInput, BadRepository
from shoal.git.run import ENVIRONMENT, TIMEOUT, git
from shoal.model.command import Command
from shoal.model.repository import Identity, Repository

# The settings that a checkout depends on; none of them can start a program.
CHECKOUT_SETTINGS = (
    "core.autocrlf",
    "core.eol",
    "core.safecrlf",
    "core.filemode",
    "core.symlinks",
    "core.ignorecase",
    "core.precomposeunicode",
)
STATE = ".shoal"
NO_ONE = Identity(name="shoal", email="shoal@localhost")
FACTS = (
    "--is-bare-repository",
    "--is-shallow-repository",
    "--show-object-format",
    "--path-format=absolute",
    "--git-common-dir",
    "--show-toplevel",
)


async def inspect(path: Path, environ: Mapping[str, str]) -> Repository:
    """Find the repository that contains *path*, or say why it cannot be used.

    *environ* is the user's own: their configuration decides line endings and identity.
    """
    top, common, object_format, is_shallow = await _facts(path.resolve(), environ)
    await _refuse_foreign_state(_home(top, common))
    settings = await _settings(top, environ)
    if settings.get("extensions.refstorage", "files") != "files":
        raise BadRepository(path, "its refs are kept as reftable, which Shoal cannot work on yet")
    return Repository(
        top=top,
        home=_home(top, common),
        git=common,
        lenders=_lenders(common / "objects"),
        object_format=object_format,
        is_shallow=is_shallow,
        promisor=_promisor(settings),
        settings={key: settings[key] for key in CHECKOUT_SETTINGS if key in settings},
        identity=_identity(settings, environ),
        branch=await _branch(top),
    )


async def resolve(repository: Repository, ref: str | None) -> str:
    """Resolve the user's base (by default the checked-out commit) to a commit id."""
    name = "HEAD" if ref is None else ref
    if not name.strip() or name.startswith("-") or "\0" in name:
        raise BadInput(f"{name!r} does not name a commit; give --base a branch, a tag or a commit id")
    commit = await _commit(repository, name)
    if commit is not None:
        await _assert_whole(repository, commit)
        return commit
    if ref is None:
        raise BadRepository(repository.top, "there is no commit yet; commit something first")
    raise BadInput(f"base {name!r} is not a commit of {repository.top}; `git log --oneline` lists some")


async def has_commit(repository: Repository) -> bool:
    """Return whether a commit is checked out; a new repository has none."""
    return await _commit(repository, "HEAD") is not None


async def _commit(repository: Repository, name: str) -> str | None:
    gitdir = await own_gitdir(repository.top) if name.startswith(("HEAD", "@")) else repository.git
    done = await git(
        gitdir, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}", accept=(0, 1, 128)
    )
    commit = done.stdout.decode(errors="replace").strip()
    return commit if done.exit.code == 0 and len(commit) == repository.digits else None


async def _assert_whole(repository: Repository, commit: str) -> None:
    """In a partial clone, files of the base may be missing, and agents fetch nothing."""
    if repository.promisor is None:
        return
    done = await git(repository.git, "rev-list", "--objects", "--missing=print", f"{commit}^{{tree}}", limit=2**30)
    missing = sum(line.startswith(b"?") for line in done.stdout.splitlines())
    if missing:
        why = f"it is a partial clone, and {missing} objects of {commit[:10]} are not here"
        raise BadRepository(repository.top, f"{why}; fetch them first, by a checkout of that commit")


async def dirt(repository: Repository) -> int:
    """Count the paths with uncommitted changes in the user's checkout, which agents do not see."""
    # The index is only read: GIT_OPTIONAL_LOCKS=0. The user's own filters would run here, so they are disabled.
    gitdir = await own_gitdir(repository.top)
    no_filters = await without_filters(repository)
    done = await git(
        gitdir,
        *no_filters,
        "status",
        "--porcelain",
        "-z",
        "--no-renames",
        "--untracked-files=normal",
        "--ignore-submodules=all",
        env={"GIT_WORK_TREE": str(repository.top)},
    )
    return done.stdout.count(b"\0")


async def _facts(path: Path, environ: Mapping[str, str]) -> tuple[Path, Path, str, bool]:
    if not path.is_dir():
        raise BadRepository(path, "there is no such folder")
    done = await proc.run(
        Command(
            argv=("git", "-C", str(path), "rev-parse", *FACTS),
            cwd=Path("/"),
            env=_users(environ),
        ),
        timeout=TIMEOUT,
    )
    output = done.stdout.decode(errors="surrogateescape").removesuffix("\n")
    lines = output.split("\n")  # splitlines() would also split a path at U+2028 and the like
    if not done.ok:
        raise BadRepository(path, _why_not(lines, done.stderr.decode(errors="replace")))
    if len(lines) != len(FACTS) - 1 or "\r" in output:  # --path-format itself prints nothing
        raise BadRepository(path, "its path contains a line break, which git does not support; move it")
    common, top = Path(lines[3]), Path(lines[4])
    return top.resolve(), common.resolve(), lines[2], lines[1] == "true"


async def _refuse_foreign_state(home: Path) -> None:
    """Refuse a `.shoal` that came with the repository: its ledger could name any folder."""
    place = home / STATE
    if place.is_symlink():
        raise BadInput(f"{place} is a link, and Shoal keeps its own state there; remove it")
    if not place.exists():
        return
    anywhere = {"GIT_WORK_TREE": str(home), "GIT_LITERAL_PATHSPECS": "0"}
    listed = await git(await own_gitdir(home), "ls-files", "-z", "--", f":(top,icase){STATE}", env=anywhere)
    if listed.stdout:
        raise BadInput(
            f"{place} is tracked by git, so somebody else wrote what Shoal would take for its own state; look at it, "
            "then `git rm -r --cached .shoal` and remove it"
        )


def _why_not(lines: list[str], stderr: str) -> str:
    if lines[:1] == ["true"]:
        return "it is a bare repository, without a checkout; run Shoal in a clone or a worktree of it"
    if len(lines) == len(FACTS) - 2:
        return "this is the inside of a .git folder; run Shoal in the checkout"
    reason = next((line for line in stderr.splitlines() if line.startswith("fatal:")), stderr.strip())[:300]
    return f"git finds no repository to work on here ({reason}); run `git init` and commit, or name another folder"


def _users(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for questions that the user's own configuration decides; they start no program."""
    user = {name: environ[name] for name in ("HOME", "XDG_CONFIG_HOME") if name in environ}
    safe = {name: value for name, value in ENVIRONMENT.items() if not name.startswith("GIT_CONFIG")}
    return {**safe, **user, "GIT_CEILING_DIRECTORIES": ""}


async def _settings(top: Path, environ: Mapping[str, str]) -> dict[str, str]:
    command = Command(
        argv=("git", "-C", str(top), "config", "--list", "-z"),
        cwd=Path("/"),
        env=_users(environ),
    )
    done = await proc.run(command, timeout=TIMEOUT)
    pairs = (entry.partition("\n") for entry in done.stdout.decode(errors="surrogateescape").split("\0") if entry)
    return {key: value if separator else "true" for key, separator, value in pairs}


def _home(top: Path, common: Path) -> Path:
    # All worktrees of a repository share the ledger and bases of the main checkout.
    return common.parent if common.name == ".git" and common.parent.is_dir() else top


def _lenders(objects: Path, seen: tuple[Path, ...] = ()) -> tuple[Path, ...]:
    real = objects.resolve()
    if real in seen or not real.is_dir() or len(seen) > 5:
        return seen
    seen = (*seen, real)
    listed = real / "info" / "alternates"
    for line in os.fsdecode(listed.read_bytes()).split("\n") if listed.is_file() else ():
        if line and not line.startswith("#"):
            seen = _lenders(real / line, seen)
    return seen


def _promisor(settings: Mapping[str, str]) -> str | None:
    if "extensions.partialclone" in settings:
        return settings["extensions.partialclone"]
    found = [key.split(".", 1)[1] for key, value in settings.items() if key.endswith(".promisor") and value == "true"]
    return found[0].removesuffix(".promisor") if found else None


def _identity(settings: Mapping[str, str], environ: Mapping[str, str]) -> Identity:
    name = environ.get("GIT_AUTHOR_NAME") or settings.get("user.name")
    email = environ.get("GIT_AUTHOR_EMAIL") or settings.get("user.email")
    return Identity(name=name, email=email) if name and email else NO_ONE


async def _branch(top: Path) -> str | None:
    gitdir = await own_gitdir(top)
    done = await git(gitdir, "symbolic-ref", "--quiet", "HEAD", accept=(0, 1, 128))
    return done.stdout.decode(errors="surrogateescape").strip().removeprefix("refs/heads/") or None


async def own_gitdir(top: Path) -> Path:
    """Find the gitdir of the checkout at *top* itself; for a linked worktree it is not the common one."""
    pointer = top / ".git"
    if pointer.is_dir():
        return pointer
    text = pointer.read_text(errors="surrogateescape").strip().removeprefix("gitdir: ")
    return Path(os.path.normpath(top / text))


async def without_filters(repository: Repository) -> tuple[str, ...]:
    """Return options that disable the user's filters, which are programs."""
    done = await git(repository.git, "config", "--name-only", "--get-regexp", r"^filter\..*", accept=(0, 1))
    listed = done.stdout.decode(errors="surrogateescape")
    # An empty command is no filter: git then takes the file as it is.
    return tuple(word for key in sorted(set(listed.split())) for word in ("-c", f"{key}=", "-c", _not_required(key)))


def _not_required(key: str) -> str:
    return key.rsplit(".", 1)[0] + ".required=false"


MOST_BYTES = 16 * 2**20


async def list_ignored_files(repository: Repository, patterns: Path) -> tuple[str, ...]:
    """Find the files that the gitignore patterns in the file *patterns* name, as far as git ignores them."""
    gitdir = await own_gitdir(repository.top)
    env = {"GIT_WORK_TREE": str(repository.top)}
    listing = ("ls-files", "-z", "--others", "--ignored", f"--exclude-from={patterns}")
    named = (await git(gitdir, *listing, env=env, limit=MOST_BYTES)).stdout.split(b"\0")[:-1]
    if not named:
        return ()
    # Each name begins with a dot, because this command's arguments could otherwise be pathspec magic.
    asked = b"".join(b"./" + name + b"\0" for name in named)
    env["GIT_LITERAL_PATHSPECS"] = "0"
    done = await git(gitdir, "check-ignore", "-z", "--stdin", env=env, stdin=asked, accept=(0, 1), limit=MOST_BYTES)
    names = done.stdout.decode(errors="surrogateescape").split("\0")[:-1]
    return tuple(sorted(name.removeprefix("./") for name in names))
