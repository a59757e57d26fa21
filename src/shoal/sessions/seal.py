"""Seal an ended agent's work: a second, short-lived sandbox turns its files into a commit and a pack."""

import asyncio
import contextlib
import functools
import importlib.resources
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from shoal import proc
from shoal.git.gitdir import write_gitdir
from shoal.git.imports import MAX_BLOB_BYTES, MAX_PACK_BYTES
from shoal.model.command import Command
from shoal.model.limits import WorkBounds
from shoal.proc import Stream
from shoal.proc.free_space import above_floor
from shoal.sessions.context import RunContext
from shoal.sessions.sandboxed import git_environment, open_sandboxed
from shoal.sessions.session_dir import SessionDir
from shoal.sessions.setup.changes import for_seal
from shoal.workspaces.kind import Workspace

NAMED_AT_MOST = 50
MOST_HEADER_BYTES = 4 * 2**20
MAX_WALK_BYTES = 128 * 2**20  # git's tables of 16 million objects, or one commit or tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """The result: the tip and other commits in *pack*, or why there is none."""

    tip: str | None = None
    extras: tuple[str, ...] = ()
    pack: Path | None = None
    unkept: tuple[str, ...] = ()
    large: tuple[str, ...] = ()
    """Those of the files left out that are too large for a branch."""
    special: tuple[str, ...] = ()
    """Pipes and sockets, which contain no bytes to keep."""
    unconverted: tuple[str, ...] = ()
    """Files kept as they are, because they are not in the encoding that their attributes name."""
    ignored: int = 0
    squashed: str | None = None
    """Why the agent's own commits are not on its branch; its files are."""
    is_partial: bool = False
    """Whether other branches or stashes of the agent were left out."""
    is_plain: bool = False
    """Whether its ignore rules and attributes were too expensive to apply."""
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SealRequest:
    """How to seal: with the agent's own history or without, and joined with a commit that the host made."""

    message: str
    has_history: bool
    join: str = ""
    known_tree: str = ""
    """The tree that is already kept: if the files are the same, there is nothing to seal."""
    scratch_files: tuple[str, ...] = ()
    """Untracked files that are not work, as git ignore patterns."""


async def seal_work(context: RunContext, workspace: Workspace, directory: SessionDir, request: SealRequest) -> Seal:
    """Seal the files; a failure is returned, never "no changes". Raises `DiskFull` before the host's disk is full."""
    with _fresh_gitdir(context, workspace, directory, request) as gitdir:
        command = _command(context, workspace, directory, request, gitdir)
        policy = context.policy(
            token=secrets.token_hex(8),
            read=(workspace.path, workspace.changes, directory.git),
            write=(gitdir,),
            layers=workspace.sealing,
        )
        # As the files' owner on the host, so that the index's stat data matches; able to read files of mode 000.
        policy = replace(policy, uid=os.getuid(), gid=os.getgid(), capabilities=("CAP_DAC_READ_SEARCH",))
        pack = directory.path / f"pack-{secrets.token_hex(3)}"
        with pack.open("xb") as spool:
            output = _SealOutput(spool)
            try:
                async with (
                    above_floor(directory.path),
                    open_sandboxed(context.sandbox, command, policy, sink=output.feed) as process,
                    asyncio.timeout(context.bounds.seal_seconds),
                ):
                    exit_ = await process.wait()
            except TimeoutError:
                return Seal(failure=f"sealing took more than {context.bounds.seal_seconds:.0f} s")
            except _TooMuch as error:  # the sandbox was ended at once
                return Seal(failure=str(error))
        return _read(output, exit_, pack)


@contextlib.contextmanager
def _fresh_gitdir(
    context: RunContext, workspace: Workspace, directory: SessionDir, request: SealRequest
) -> Iterator[Path]:
    gitdir = directory.path / f"seal-{secrets.token_hex(3)}"
    lenders = (*context.lenders, *((directory.git / "objects",) if request.has_history else ()))
    write_gitdir(
        gitdir,
        context.repository,
        head=context.base.commit,
        refs={},
        index=workspace.index,
        lenders=lenders,
        loose_stat=False,
    )
    for_seal(directory.path, gitdir)
    (gitdir / "message").write_text(request.message, errors="replace")
    if request.scratch_files:
        (gitdir / "info").mkdir(exist_ok=True)
        with (gitdir / "info" / "exclude").open("a") as exclude:  # files of the user may be listed there already
            exclude.write("\n".join(request.scratch_files) + "\n")
    try:
        yield gitdir
    finally:
        shutil.rmtree(gitdir, ignore_errors=True)


def _command(
    context: RunContext, workspace: Workspace, directory: SessionDir, request: SealRequest, gitdir: Path
) -> Command:
    who = context.repository.identity
    env = {
        **git_environment(gitdir, workspace.path),
        "GIT_AUTHOR_NAME": who.name,
        "GIT_AUTHOR_EMAIL": who.email,
        "GIT_COMMITTER_NAME": who.name,
        "GIT_COMMITTER_EMAIL": who.email,
        **who.dates,
        "WS": str(workspace.path),
        "CHANGES": str(workspace.changes),
        "BASE": context.base.commit,
        "AGENT_GIT": str(directory.git) if request.has_history else "",
        "JOIN": request.join,
        "KNOWN_TREE": request.known_tree,
        "MAX_KIB": str(MAX_BLOB_BYTES // 1024),
        "MAX_ALLOC": str(MAX_WALK_BYTES),
        **_bounds(context.bounds),
        "HISTORY": _script("seal_history.sh") if request.has_history else "",
        "PLAIN": _script("seal_plain.sh"),
    }
    return Command(argv=("/bin/sh", "-c", _script("seal.sh"), "seal"), cwd=workspace.path, env=env)


def _bounds(bounds: WorkBounds) -> dict[str, str]:
    """Format the limits for the shell, which sets them for each process that it starts."""
    return {
        "MEMORY_KIB": str(bounds.seal_memory_mb * 1024),
        "RULES_CPU": str(bounds.rules_cpu),
        "ADD_CPU": str(bounds.add_cpu),
        "HISTORY_SECONDS": f"{bounds.history_seconds:g}",
        "HISTORY_CPU": str(bounds.history_cpu),
        "HISTORY_KIB": str(bounds.history_memory_mb * 1024),
        "UNPACKED": str(bounds.unpacked_mb * 2**20),
    }


@functools.cache
def _script(name: str) -> str:
    return importlib.resources.files("shoal.sessions").joinpath(name).read_text()


class _TooMuch(Exception):
    """The sandbox wrote more than is accepted."""


class _SealOutput:
    """Takes the sandbox's output: facts up to the line `pack` into memory, the pack into a file, both limited."""

    def __init__(self, spool: BinaryIO) -> None:
        self._spool = spool
        self.header = b"\n"
        self.stderr = b""
        self.packed = 0
        self.is_packing = False

    def feed(self, stream: Stream, data: bytes) -> None:
        if stream is Stream.STDERR:
            self.stderr = (self.stderr + data)[-4096:]
        elif self.is_packing:
            self._pack(data)
        else:
            # A whole line: the name of a file that could not be kept may end in "pack" too.
            self.header, found, rest = (self.header + data).partition(b"\npack\n")
            self.is_packing = bool(found)
            if len(self.header) > MOST_HEADER_BYTES:
                raise _TooMuch("sealing failed: too many files could not be kept")
            self._pack(rest)

    def _pack(self, data: bytes) -> None:
        self.packed += len(data)
        if self.packed > MAX_PACK_BYTES:
            raise _TooMuch(f"its changes make a pack of more than {MAX_PACK_BYTES // 2**20} MiB")
        self._spool.write(data)


def _read(output: _SealOutput, exit_: proc.Exit, pack: Path) -> Seal:
    # Split by "\n" alone: a folder's name, chosen by the agent, may contain U+2028 followed by a keyword of ours.
    lines = [line.partition(" ") for line in output.header.decode(errors="replace").split("\n")]
    facts = {key: value for key, _, value in lines}
    seal = Seal(
        tip=facts.get("tip"),
        extras=tuple(value for key, _, value in lines if key == "extra"),
        pack=pack,
        unkept=_list_names(lines, "unkept"),
        special=_list_names(lines, "special"),
        unconverted=_list_names(lines, "unconverted"),
        large=_list_names(lines, "large"),
        ignored=int(facts["ignored"]) if facts.get("ignored", "").strip().isdigit() else 0,
        squashed=facts.get("squashed"),
        is_partial="dropped" in facts,
        is_plain="plain" in facts,
    )
    return replace(seal, failure=_failure(facts, output, exit_))


def _list_names(lines: list[tuple[str, str, str]], wanted: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for key, _, value in lines if key == wanted))[:NAMED_AT_MOST]


def _failure(facts: dict[str, str], output: _SealOutput, exit_: proc.Exit) -> str | None:
    is_complete = ("none" in facts) != (output.is_packing and "tip" in facts)
    if "failed" in facts or exit_.code != 0 or not is_complete:
        last = output.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        return f"sealing failed: {facts.get('failed') or last[0]}"
    return None
