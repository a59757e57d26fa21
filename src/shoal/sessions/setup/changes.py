"""Find what set-up changed in a workspace, with git in a sandbox, so that it does not count as the agent's work."""

import asyncio
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from shoal.errors import SetupFailed
from shoal.git.gitdir import write_gitdir
from shoal.model.command import Command
from shoal.model.policy import Layers
from shoal.proc import Stream
from shoal.sessions.context import RunContext
from shoal.sessions.sandboxed import git_environment, open_sandboxed
from shoal.workspaces.kind import Workspace
from shoal.workspaces.overlay import sealing

LEFT = "setup"
"""The folder in the session directory that records what set-up changed."""
SECONDS = 300.0
MOST_BYTES = 64 * 2**20
MOST_SINGLE = 1000
"""The agent's own git ignores up to this many new files by name; beyond that, whole folders."""
LINK = b"160000"
# Written to one pack, because a file for each new object would take longer than the set-up.
SCRIPT = """
git() {
  command git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c core.safecrlf=false \\
    -c advice.addEmbeddedRepo=false "$@"
}
git ls-files -o -z --exclude-standard --directory --no-empty-directory && printf '\\0' || exit
git -c core.bigFileThreshold=1 add -A --ignore-errors -- . ":(top,exclude,literal).shoal" >&2
[ $? -le 1 ] || exit
git diff-index --cached --raw -z --no-abbrev --no-renames --ignore-submodules=none "$BASE"
"""


@dataclass(frozen=True, slots=True)
class SetupEntry:
    """A path that differs from the base: its mode and content now, or none if it was deleted."""

    path: bytes
    mode: bytes
    object: bytes
    is_new: bool

    @property
    def is_gone(self) -> bool:
        """Return whether set-up deleted it."""
        return not self.mode.strip(b"0")


@dataclass(frozen=True, slots=True)
class SetupChanges:
    """What set-up changed, except what git ignores; *tops* are the topmost new files and folders."""

    entries: tuple[SetupEntry, ...]
    tops: tuple[bytes, ...]

    def write(self, folder: Path) -> None:
        """Write it in git's formats: `exclude` and `assumed` for the agent's gitdir, the rest for the seal."""
        folder.mkdir()
        new = [entry.path for entry in self.entries if entry.is_new]
        plain = [entry for entry in self.entries if entry.mode != LINK]
        (folder / "exclude").write_bytes(_patterns(new if len(new) <= MOST_SINGLE else self.tops))
        (folder / "assumed").write_bytes(b"".join(entry.path + b"\0" for entry in plain if not entry.is_new))
        laid = ((b"0" if entry.is_gone else entry.mode) + b" " + entry.object + b"\t" + entry.path for entry in plain)
        (folder / "laid-index").write_bytes(b"".join(line + b"\0" for line in laid))
        same = sorted(entry.mode + b" " + entry.object + b" 0\t" + entry.path for entry in plain if not entry.is_gone)
        (folder / "laid-same").write_bytes(b"".join(line + b"\0" for line in same))
        (folder / "laid-gone").write_bytes(b"".join(entry.path + b"\0" for entry in plain if entry.is_gone))
        links = (b":(top,exclude,literal)" + entry.path + b"\0" for entry in self.entries if entry.mode == LINK)
        (folder / "laid-links").write_bytes(b"".join(links))


async def inspect_setup(context: RunContext, workspace: Workspace, session_dir: Path) -> SetupChanges:
    """Find what set-up changed in a workspace; raise `SetupFailed` if that cannot be determined."""
    gitdir = session_dir / f"note-{secrets.token_hex(3)}"
    write_gitdir(
        gitdir,
        context.repository,
        head=context.base.commit,
        refs={},
        index=workspace.index,
        lenders=context.lenders,
        loose_stat=False,
    )
    env = {**git_environment(gitdir, workspace.path), "BASE": context.base.commit}
    command = Command(argv=("/bin/sh", "-c", SCRIPT, "note"), cwd=workspace.path, env=env)
    read = (workspace.path, workspace.changes)
    policy = context.policy(token=secrets.token_hex(8), read=read, write=(gitdir,), layers=_only_read(workspace))
    policy = replace(policy, uid=os.getuid(), gid=os.getgid(), capabilities=("CAP_DAC_READ_SEARCH",))
    output = _SetupOutput()
    try:
        async with (
            open_sandboxed(context.sandbox, command, policy, sink=output.feed) as running,
            asyncio.timeout(SECONDS),
        ):
            done = await running.wait()
    except TimeoutError:
        raise SetupFailed("setup failed: its changes could not be listed within 5 minutes") from None
    finally:
        shutil.rmtree(gitdir, ignore_errors=True)
    if done.code != 0 or output.is_over:
        why = "too many new files" if output.is_over else output.stderr.decode(errors="replace").strip()[-300:]
        raise SetupFailed(f"setup failed: its changes cannot be listed: {why}; add the files to .gitignore")
    return parse_setup_note(output.stdout)


def for_seal(session_dir: Path, gitdir: Path) -> None:
    """Tell a seal what set-up had left before the agent started; nothing if there was no set-up."""
    left = session_dir / LEFT
    if not left.is_dir():
        return
    for file in left.glob("laid-*"):
        shutil.copyfile(file, gitdir / file.name)
    if (left / "laid-links").exists() and (
        session_dir / "opened"
    ).exists():  # its time separates set-up from the agent's work
        shutil.copystat(session_dir / "opened", gitdir / "laid-links")
    if (left / "included").exists():
        (gitdir / "info").mkdir(exist_ok=True)
        shutil.copyfile(left / "included", gitdir / "info" / "exclude")


def write_setup_note(layer: Path, session_dir: Path) -> None:
    """Tell the seal of a session what *layer* contains: a file that was only touched is not changed."""
    same = layer / LEFT / "laid-same"
    if same.exists() and same.stat().st_size:
        (session_dir / LEFT).mkdir()
        (session_dir / LEFT / same.name).hardlink_to(same)
        (
            session_dir / LEFT / "laid-gone"
        ).touch()  # the seal sees everything in the base that the agent itself did not delete


def _only_read(workspace: Workspace) -> Layers | None:
    return None if workspace.layers is None else sealing(workspace.layers)


class _SetupOutput:
    def __init__(self) -> None:
        self.stdout = b""
        self.stderr = b""
        self.is_over = False

    def feed(self, stream: Stream, data: bytes) -> None:
        if stream is Stream.STDERR:
            self.stderr = (self.stderr + data)[-4096:]
        elif len(self.stdout) + len(data) > MOST_BYTES:
            self.is_over = True
        else:
            self.stdout += data


def parse_setup_note(output: bytes) -> SetupChanges:
    """Parse the sandbox's output: names of the topmost new entries, an empty one, then git's raw records."""
    tops, _, raw = output.partition(b"\0\0") if not output.startswith(b"\0") else (b"", b"", output[1:])
    return SetupChanges(tuple(_entries(raw)), tuple(name for name in tops.split(b"\0") if name))


def _entries(raw: bytes) -> Iterator[SetupEntry]:
    words = raw.split(b"\0")[:-1]
    for facts, path in zip(words[::2], words[1::2], strict=True):
        before, after, _, content, _ = facts.removeprefix(b":").split(b" ")
        yield SetupEntry(path=path, mode=after, object=content, is_new=not before.strip(b"0"))


def _patterns(paths: list[bytes] | tuple[bytes, ...]) -> bytes:
    return b"".join(pattern(path) + b"\n" for path in paths if b"\n" not in path)


def pattern(path: bytes) -> bytes:
    """Format a path from the top as a line of an ignore file that matches nothing else."""
    for sign in (b"\\", b"*", b"?", b"["):
        path = path.replace(sign, b"\\" + sign)
    stem = path.rstrip(b" ")
    return b"/" + stem + b"\\ " * (len(path) - len(stem))
