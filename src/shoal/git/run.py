"""The only way Shoal runs git on the host: no configured program runs with it."""

from collections.abc import Mapping
from pathlib import Path

from shoal import proc
from shoal.errors import GitFailed
from shoal.model.command import Command, ProcessLimits

# Verified against 22 attacks: no hook, filter, driver, fsmonitor, pager, helper or lazy fetch is started.
FLAGS = tuple(
    word
    for setting in (
        "core.fsmonitor=false",
        "core.hooksPath=/dev/null",
        "core.untrackedCache=false",
        "core.attributesFile=/dev/null",
        "core.protectHFS=true",
        "core.protectNTFS=true",
        "core.sshCommand=false",
        "core.pager=cat",
        "core.splitIndex=false",
        "core.quotePath=true",
        "core.fsync=committed,reference",
        # another git of the user holds these briefly, or while it packs refs
        "core.filesRefLockTimeout=10000",
        "core.packedRefsTimeout=10000",
        "commit.gpgSign=false",
        "diff.external=",
        "diff.ignoreSubmodules=all",
        "submodule.recurse=false",
        "gc.auto=0",
        "maintenance.auto=false",
        "safe.bareRepository=explicit",
        # `inspect` has asked whose repository it is, with the user's own configuration.
        "safe.directory=*",
        "protocol.allow=never",
        "advice.detachedHead=false",
    )
    for word in ("-c", setting)
)

ENVIRONMENT: Mapping[str, str] = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "",
    "GIT_CEILING_DIRECTORIES": "/",
}

TIMEOUT = 600.0
# Agents' branches are read together with the user's: none of their trees, files or attributes may take the host's
# memory, or a processor for long.
LIMITS = ProcessLimits(memory_bytes=3 * 2**30, cpu_seconds=300)


async def git(
    gitdir: Path,
    *args: str,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    accept: tuple[int, ...] = (0,),
    limit: int = 64 * 2**20,
    limits: ProcessLimits = LIMITS,
) -> proc.Completed:
    """Run git on *gitdir* with cwd `/`; raise `GitFailed` for an exit code that is not accepted."""
    command = Command(
        argv=("git", *FLAGS, *args),
        cwd=Path("/"),
        env={**ENVIRONMENT, "GIT_DIR": str(gitdir), **(env or {})},
        stdin=stdin,
        limits=limits,
    )
    done = await proc.run(command, timeout=TIMEOUT, limit=limit)
    if done.exit.code not in accept:
        raise GitFailed(args, done.exit.code or -(done.exit.signal or 0), done.stderr.decode(errors="replace"))
    return done


async def git_text(gitdir: Path, *args: str, env: Mapping[str, str] | None = None) -> str:
    """Run git and return what it printed, stripped."""
    done = await git(gitdir, *args, env=env)
    return done.stdout.decode(errors="surrogateescape").strip()
