"""The invariants I1 to I8 of a repository after its runs have been killed and resumed, as one check."""

import contextlib
import hashlib
import os
import select
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.model.events import Recorded, SessionDiscarded, SessionEnded, SessionStarted
from shoal.model.merge import DeliveryRecorded, MergeRecorded
from shoal.steps.history import FINISHED
from shoal.store.fold import fold
from shoal.store.lock import is_locked
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from tests.conftest import git
from tests.faults.scene import Scene
from tests.outside import mounts_below

DYING_SECONDS = 10
OURS = ("refs/heads/agent/", "refs/heads/shoal/", "refs/shoal/")
HELD = (
    "refs/shoal/kept/",
    "refs/shoal/history/",
    "refs/shoal/checkpoint/",
    "refs/shoal/salvage/",
    "refs/shoal/import/",
)
"""What may stay below `refs/shoal` when no run lives."""
EMPTY = ("workspaces", "boxes", "runs", "trash", "requests")
SESSION_KINDS = (
    "AgentStarted",
    "AgentEnded",
    "AgentActed",
    "AgentMessaged",
    "ClientHeard",
    "ModelAnswered",
    "Output",
    "PermissionDecided",
    "ResourcesSampled",
)
"""What is recorded in the log of its session and not in the ledger."""


@dataclass(frozen=True)
class Untouched:
    """What belongs to the user alone, as it was before the first command."""

    refs: frozenset[str]
    own: str

    @classmethod
    def of(cls, repo: Path) -> "Untouched":
        return cls(frozenset(_user_refs(repo)), _own_state(repo))


def find_violations(scene: Scene, before: Untouched, declared: str | None = "refs/heads/main") -> list[str]:
    """Check all invariants of a repository where no run lives; each sentence begins with the one that is violated."""
    if damage := list(_sound(scene.repo, scene.paths)):  # then nothing else can be read
        return damage
    return [
        *_acknowledged(scene),
        *_files_kept(scene),
        *_user_untouched(scene.repo, before, declared),
        *_once(scene),
        *_no_process(scene.repo),
        *_no_leftover(scene.repo),
        *_no_ghost(scene.paths),
    ]


def _acknowledged(scene: Scene) -> Iterator[str]:
    """I1: what was printed is recorded."""
    if not scene.paths.ledger.exists():
        yield from (f"I1: {printed.kind} was printed, and there is no ledger" for printed in scene.printed)
        return
    recorded: dict[str | None, set[tuple[int, str]]] = {None: rows(scene.paths.ledger)}
    for printed in scene.printed:
        log = printed.session if printed.kind in SESSION_KINDS else None
        if log is not None and log not in recorded:
            recorded[log] = rows(scene.paths.session_db(log))
        if (printed.seq, printed.kind) not in recorded[log]:
            yield f"I1: {printed.kind} number {printed.seq} was printed, and is not recorded"


def rows(database: Path) -> set[tuple[int, str]]:
    """Give the number and the kind of each event in *database*."""
    if not database.exists():
        return set()
    with contextlib.closing(sqlite3.connect(database)) as connection:
        return set(connection.execute("SELECT seq, kind FROM events"))


def _files_kept(scene: Scene) -> Iterator[str]:
    """I2: what an agent wrote is on a ref or on disk."""
    names = scene.wrote()
    held = {line.split(" ")[0] for line in git(scene.repo, "rev-list", "--objects", "--all").splitlines()}
    for name in names:
        note = f"{name} was here\n".encode()
        blob = hashlib.sha1(b"blob %d\0%s" % (len(note), note)).hexdigest()
        if blob not in held and not any(path.read_bytes() == note for path in _raw_notes(scene, name)):
            yield f"I2: what {name} wrote is on no ref and not on disk"


def _raw_notes(scene: Scene, name: str) -> Iterator[Path]:
    for folder, _, files in os.walk(scene.repo / ".shoal"):
        if name in files and Path(folder).name == "notes":
            yield Path(folder, name)


def _user_untouched(repo: Path, before: Untouched, declared: str | None) -> Iterator[str]:
    """I3: the user's refs, index, files, configuration, hooks and stash are as they were but for the declared ref."""
    changed = frozenset(_user_refs(repo)) ^ before.refs
    yield from (f"I3: {line} changed" for line in sorted(changed) if line.split(" ")[0] != declared)
    if declared is not None and any(line.startswith(f"{declared} ") for line in before.refs):
        old = next(line.split(" ")[1] for line in before.refs if line.startswith(f"{declared} "))
        if git(repo, "rev-list", "--count", old, f"^{declared}") != "0":
            yield f"I3: {declared} lost commits of the user's"
    if _own_state(repo) != before.own:
        yield "I3: the user's index, files, configuration, hooks or stash changed"


def _user_refs(repo: Path) -> list[str]:
    lines = git(repo, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return [line for line in lines if not line.startswith(OURS)]


def _own_state(repo: Path) -> str:
    digest = hashlib.sha256(git(repo, "status", "--porcelain", GIT_OPTIONAL_LOCKS="0").encode())
    for part in ("config", "HEAD"):
        digest.update((repo / ".git" / part).read_bytes())
    for hook in sorted((repo / ".git" / "hooks").iterdir()):
        digest.update(hook.name.encode() + hook.read_bytes())
    digest.update(git(repo, "stash", "list").encode())
    return digest.hexdigest()


def _once(scene: Scene) -> Iterator[str]:
    """I4: a session starts once, an attempt that finished starts no more, and each merge lands once."""
    events = sorted(read_events(scene.paths), key=lambda recorded: recorded.seq)
    yield from _starts_once(events)
    moves = Counter((type(e).__name__, e.new) for e in _of(events) if isinstance(e, MergeRecorded | DeliveryRecorded))
    yield from (f"I4: {kind} to {new} was recorded {times} times" for (kind, new), times in moves.items() if times > 1)
    sessions = git(scene.repo, "log", "--format=%(trailers:key=Shoal-Session,valueonly)", f"{scene.base}..main").split()
    landed = Counter(sessions)
    yield from (f"I4: {name} landed {times} times" for name, times in landed.items() if times > 1)


def _starts_once(events: list[Recorded]) -> Iterator[str]:
    started: dict[str, tuple[object, ...]] = {}
    finished: set[tuple[object, ...]] = set()
    for event in _of(events):
        match event:
            case SessionStarted() if "__" not in event.step:  # what checks a merge is started by each merge
                key = (event.run, event.step, event.visit, event.index, event.attempt)
                if event.session in started:
                    yield f"I4: {event.session} started twice"
                if key in finished:
                    yield f"I4: {event.step} {event.index} started again although it had finished"
                started[event.session] = key
            case SessionEnded(session=name, result=result) if name in started and result.status in FINISHED:
                finished.add(started[name])
            case SessionDiscarded(session=name) if name in started:
                finished.discard(started[name])


def _of(events: list[Recorded]) -> Iterator[object]:
    return (recorded.event for recorded in events)


def _no_process(repo: Path) -> Iterator[str]:
    """I5: no process of a run is left some seconds later."""
    for pid, what in list(processes_of(repo)):
        if not _is_ending(pid) and any(pid == other for other, _ in processes_of(repo)):
            yield f"I5: process {pid} is left: {what}"


def processes_of(repo: Path) -> Iterator[tuple[int, str]]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            cwd = os.readlink(f"/proc/{name}/cwd")
            if int(name) != os.getpid() and (f"{repo}/" in f"{line}/" or f"{cwd}/".startswith(f"{repo}/")):
                yield int(name), line or cwd


def _is_ending(pid: int) -> bool:
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], DYING_SECONDS)[0])
    finally:
        os.close(descriptor)


def _no_leftover(repo: Path) -> Iterator[str]:
    """I6: no lock, half-made file, mount, socket, session directory or undeclared ref is left."""
    state = repo / ".shoal"
    entries = [path for name in EMPTY if (state / name).is_dir() for path in (state / name).iterdir()]
    entries += [
        path for pattern in ("*.lock", "tmp_*", "*.keep", "index-shoal-*") for path in (repo / ".git").rglob(pattern)
    ]
    entries += list(state.rglob("making-*")) + [path for path in state.rglob("*") if path.is_socket()]
    yield from (f"I6: {path.relative_to(repo)} is left" for path in entries)
    yield from (f"I6: {place} is still mounted" for place in mounts_below(repo))
    refs = git(repo, "for-each-ref", "--format=%(refname)", "refs/shoal").splitlines()
    yield from (f"I6: {ref} is left" for ref in refs if not ref.startswith(HELD))
    if (repo / ".git" / "worktrees").exists():
        yield "I6: a worktree is left"


def _no_ghost(paths: StatePaths) -> Iterator[str]:
    """I7: no run is said to be running without a process that owns it."""
    for run in fold(read_events(paths)).runs.values():
        if not run.status.is_ended and not is_locked(paths.run_lock(run.run)):
            yield f"I7: {run.run} is {run.status.value}, and nobody owns it"


def _sound(repo: Path, paths: StatePaths) -> Iterator[str]:
    """I8: the repository and every database are sound."""
    try:
        git(repo, "fsck", "--full", "--strict", "--no-dangling")
    except AssertionError as error:
        yield f"I8: {error}"
    for database in (paths.ledger, *sorted(paths.sessions.glob("*.db"))):
        try:
            with contextlib.closing(sqlite3.connect(database)) as connection:
                (word,) = connection.execute("PRAGMA integrity_check").fetchone()
        except sqlite3.DatabaseError as error:
            word = str(error)
        if word != "ok":
            yield f"I8: {database.name}: {word}"
