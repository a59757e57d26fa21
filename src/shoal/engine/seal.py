"""Sealing: a second, short box turns the files that an ended agent left into a commit and a pack."""

import asyncio
import contextlib
import importlib.resources
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from shoal import proc
from shoal.engine.behind import boxed
from shoal.engine.inner import git_environment
from shoal.engine.lease import Lease
from shoal.engine.setup_note import for_seal
from shoal.engine.site import Site
from shoal.git.gitdir import write_gitdir
from shoal.git.imports import MAX_BLOB_BYTES, MAX_PACK_BYTES
from shoal.model.command import Command
from shoal.proc import Stream
from shoal.workspaces.kind import Workspace

SEAL_SECONDS = 300.0
NAMED_AT_MOST = 50
MOST_HEADER_BYTES = 4 * 2**20
MAX_WALK_BYTES = 128 * 2**20  # git's tables of 16 million objects, or one commit or tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Seal:
    """What the box said: the tip and other commits in *pack*, or why there is none."""

    tip: str | None = None
    extras: tuple[str, ...] = ()
    pack: Path | None = None
    unkept: tuple[str, ...] = ()
    special: tuple[str, ...] = ()
    """Pipes and sockets, which hold no bytes that could be kept."""
    unconverted: tuple[str, ...] = ()
    """What is kept as it lies there, since it is not in the encoding that its attributes name."""
    ignored: int = 0
    failure: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How to seal: with the agent's own history or squashed, and joined with a commit that the host made."""

    message: str
    has_history: bool
    squash: bool = False
    join: str = ""
    litter: tuple[str, ...] = ()
    """What is no work where nobody tracks it, as git's ignore patterns."""


async def sealed(site: Site, workspace: Workspace, lease: Lease, wish: Wish) -> Seal:
    """Seal the files; a failure is told, and is never "no changes"."""
    with _fresh_gitdir(site, workspace, lease, wish) as gitdir:
        command = _command(site, workspace, lease, wish, gitdir)
        policy = site.policy(
            token=secrets.token_hex(8),
            read=(workspace.path, workspace.changes, lease.git),
            write=(gitdir,),
            layers=workspace.sealing,
        )
        # As the owner of the files on the host, so that the index's stat data fits; able to read what mode 000 hides.
        policy = replace(policy, uid=os.getuid(), gid=os.getgid(), capabilities=("CAP_DAC_READ_SEARCH",))
        pack = lease.box / f"pack-{secrets.token_hex(3)}"
        with pack.open("xb") as spool:
            said = _Said(spool)
            try:
                async with boxed(site.sandbox, command, policy, sink=said.feed) as box:
                    async with asyncio.timeout(SEAL_SECONDS):
                        exit_ = await box.wait()
            except TimeoutError:
                return Seal(failure=f"sealing took more than {SEAL_SECONDS:.0f} s")
        return _read(said, exit_, pack)


@contextlib.contextmanager
def _fresh_gitdir(site: Site, workspace: Workspace, lease: Lease, wish: Wish) -> Iterator[Path]:
    gitdir = lease.box / f"seal-{secrets.token_hex(3)}"
    lenders = (*site.repository.lenders, *((lease.git / "objects",) if wish.has_history else ()))
    write_gitdir(
        gitdir,
        site.repository,
        head=site.base.commit,
        refs={},
        index=workspace.index,
        lenders=lenders,
        loose_stat=False,
    )
    for_seal(lease.box, gitdir)
    (gitdir / "message").write_text(wish.message, errors="replace")
    if wish.litter:
        (gitdir / "info").mkdir(exist_ok=True)
        with (gitdir / "info" / "exclude").open("a") as exclude:  # files of the user's own may be named there already
            exclude.write("\n".join(wish.litter) + "\n")
    try:
        yield gitdir
    finally:
        shutil.rmtree(gitdir, ignore_errors=True)


def _command(site: Site, workspace: Workspace, lease: Lease, wish: Wish, gitdir: Path) -> Command:
    who = site.repository.identity
    env = {
        **git_environment(gitdir, workspace.path),
        "GIT_AUTHOR_NAME": who.name,
        "GIT_AUTHOR_EMAIL": who.email,
        "GIT_COMMITTER_NAME": who.name,
        "GIT_COMMITTER_EMAIL": who.email,
        "WS": str(workspace.path),
        "CHANGES": str(workspace.changes),
        "BASE": site.base.commit,
        "AGENT_GIT": str(lease.git) if wish.has_history else "",
        "SQUASH": "yes" if wish.squash else "no",
        "JOIN": wish.join,
        "MAX_KIB": str(MAX_BLOB_BYTES // 1024),
        "MAX_ALLOC": str(MAX_WALK_BYTES),
    }
    return Command(argv=("/bin/sh", "-c", _script(), "seal"), cwd=workspace.path, env=env)


def _script() -> str:
    return importlib.resources.files("shoal.engine").joinpath("seal.sh").read_text()


class _Said:
    """Takes what the box writes: facts up to the line `pack` in memory, the pack in a file of ours, both bounded."""

    def __init__(self, spool: BinaryIO) -> None:
        self._spool = spool
        self.header = b"\n"
        self.stderr = b""
        self.packed = 0
        self.is_packing = False
        self.is_over = False

    def feed(self, stream: Stream, data: bytes) -> None:
        if stream is Stream.STDERR:
            self.stderr = (self.stderr + data)[-4096:]
        elif self.is_packing:
            self._pack(data)
        else:
            # A whole line: the name of a file that could not be kept may end in "pack" too.
            self.header, found, rest = (self.header + data).partition(b"\npack\n")
            self.is_packing = bool(found)
            self.is_over = len(self.header) > MOST_HEADER_BYTES
            self._pack(rest)

    def _pack(self, data: bytes) -> None:
        self.packed += len(data)
        if self.packed > MAX_PACK_BYTES:
            self.is_over = True
        else:
            self._spool.write(data)


def _read(said: _Said, exit_: proc.Exit, pack: Path) -> Seal:
    # By "\n" alone: an agent's name for a folder may have a U+2028 in it, and a word of ours behind that.
    lines = [line.partition(" ") for line in said.header.decode(errors="replace").split("\n")]
    facts = {key: value for key, _, value in lines}
    seal = Seal(
        tip=facts.get("tip"),
        extras=tuple(value for key, _, value in lines if key == "extra"),
        pack=pack,
        unkept=_named(lines, "unkept"),
        special=_named(lines, "special"),
        unconverted=_named(lines, "unconverted"),
        ignored=int(facts["ignored"]) if facts.get("ignored", "").strip().isdigit() else 0,
    )
    return replace(seal, failure=_failure(facts, said, exit_))


def _named(lines: list[tuple[str, str, str]], wanted: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value for key, _, value in lines if key == wanted))[:NAMED_AT_MOST]


def _failure(facts: dict[str, str], said: _Said, exit_: proc.Exit) -> str | None:
    if said.is_over:
        return f"its changes make a pack of more than {MAX_PACK_BYTES // 2**20} MiB"
    is_told = ("none" in facts) != (said.is_packing and "tip" in facts)
    if "failed" in facts or exit_.code != 0 or not is_told:
        last = said.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["nothing was said"]
        return f"sealing failed: {facts.get('failed') or last[0]}"
    return None
