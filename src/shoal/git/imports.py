"""Import a session's pack into the user's repository: limited in size, checked in quarantine, then held by a ref."""

import asyncio
import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal import proc
from shoal.errors import GitFailed, first_error
from shoal.git.gitdir import quote_path
from shoal.git.run import ENVIRONMENT, FLAGS, TIMEOUT, git
from shoal.model.command import Command, ProcessLimits
from shoal.model.limits import WORK_BOUNDS, WorkBounds
from shoal.model.repository import Repository

MAX_PACK_BYTES = 512 * 2**20
MAX_BLOB_BYTES = 100 * 2**20
# Names of changed files, which are read into memory: some 400,000 of them, or fewer if they are long.
MAX_LISTED_BYTES = 64 * 2**20
# The most that git may allocate at once, so that a highly compressed object of gigabytes does not fill the memory.
MAX_ALLOC_BYTES = 512 * 2**20
GITLINK = "160000"
STATE = re.compile(r'"?\.shoal(?:[/"]|\Z)')
OLD_QUARANTINE = "tmp_objdir-shoal-"
KEEP = "shoal-import"


@dataclass(frozen=True, slots=True)
class ImportRefused:
    """The reason why a pack was refused; nothing of it is in the repository."""

    why: str


@dataclass(frozen=True, slots=True)
class ImportedWork:
    """An imported tip; no ref holds it yet, but it is protected from the user's gc."""

    tip: str
    paths: tuple[str, ...]
    """The paths that differ from the base."""
    keeps: tuple[Path, ...] = field(default=(), compare=False)
    """The files that protect its packs from gc until `release`."""

    @property
    def files_changed(self) -> int:
        """Count the changed files."""
        return len(self.paths)


async def import_pack(
    repository: Repository,
    pack: Path,
    *,
    base: str,
    tips: tuple[str, ...],
    lender: Path,
    bounds: WorkBounds = WORK_BOUNDS,
) -> ImportedWork | ImportRefused:
    """Check *pack* in a quarantine folder and move its objects into the repository, if it is sound.

    The first of *tips* is the session's result and must descend from *base*; the others are imported with it. *lender*
    has the objects that they may build on: an agent cannot name objects that it was not given. A check that crashes
    or exceeds *bounds* has failed.
    """
    for tip in tips:
        if not re.fullmatch(rf"[0-9a-f]{{{repository.digits}}}", tip):
            return ImportRefused(f"its tip is not an object name: {tip[:80]!r}")
    try:
        async with asyncio.timeout(bounds.import_seconds):
            with _quarantine(pack) as aside:
                return await _check_and_take(_Quarantine.of(repository, aside, lender, bounds), pack, base, tips)
    except TimeoutError:
        return ImportRefused(f"to check it took more than {bounds.import_seconds:.0f} s")
    except GitFailed as error:
        return ImportRefused(f"git could not check it: {error}")


async def import_history(
    repository: Repository, pack: Path, tips: tuple[str, ...], *, bounds: WorkBounds = WORK_BOUNDS
) -> ImportedWork | ImportRefused:
    """Check a foreign *pack* with the whole history of *tips*, and move its objects like `import_pack`."""
    if not all(re.fullmatch(rf"[0-9a-f]{{{repository.digits}}}", tip) for tip in tips):
        return ImportRefused("a tip is no object name of this repository's format")
    try:
        async with asyncio.timeout(bounds.import_seconds):
            with _quarantine(pack) as folder:
                aside = _Quarantine.of(repository, folder, repository.lenders[0], bounds)
                refusal = await _unpack(aside, pack) or await _not_whole(aside, None, tips)
                refusal = refusal or _too_large(await _objects(aside)) or await _has_state(aside, tips)
                if refusal:
                    return ImportRefused(refusal)
                return ImportedWork(tips[0], (), migrate_packs(folder, repository.lenders[0]))
    except TimeoutError:
        return ImportRefused(f"to check it took more than {bounds.import_seconds:.0f} s")
    except GitFailed as error:
        return ImportRefused(f"git could not check it: {error}")


async def _has_state(aside: "_Quarantine", tips: tuple[str, ...]) -> str | None:
    for tip in tips:
        if (await aside.git("ls-tree", tip, "--", ".shoal")).stdout:
            return f"{tip[:10]} has a `.shoal` of its own"
    return None


async def _check_and_take(
    aside: "_Quarantine", pack: Path, base: str, tips: tuple[str, ...]
) -> ImportedWork | ImportRefused:
    if refusal := await _unpack(aside, pack):
        return ImportRefused(refusal)
    try:
        async with asyncio.TaskGroup() as group:
            whole = group.create_task(_not_whole(aside, base, tips))
            related = group.create_task(_check_related(aside, base, tips[0]))
            brought = group.create_task(_objects(aside))
            change = group.create_task(_find_change(aside, base, tips[0]))
    except BaseExceptionGroup as errors:
        raise first_error(errors) from None
    refusal = whole.result() or related.result() or _too_large(brought.result()) or change.result().refusal
    commits = [item.name for item in brought.result().objects if item.kind == "commit"]
    # The objects of an extra ref may be in the repository already; a single commit was covered by the diff to the base.
    commits += [tip for tip in tips[1:] if tip not in commits]
    if not refusal and commits not in ([], [tips[0]]):
        refusal = await _check_commits(aside, commits)
    if refusal:
        return ImportRefused(refusal)
    keeps = migrate_packs(aside.folder, aside.repository.lenders[0])
    return ImportedWork(tips[0], change.result().paths, keeps)


@dataclass(frozen=True, slots=True)
class _Quarantine:
    """The quarantine: the pack's objects, with the agent's base objects as alternates."""

    repository: Repository
    folder: Path
    alone: Mapping[str, str]
    env: Mapping[str, str]
    limits: ProcessLimits

    @classmethod
    def of(cls, repository: Repository, folder: Path, lender: Path, bounds: WorkBounds) -> "_Quarantine":
        alone = {"GIT_OBJECT_DIRECTORY": str(folder), "GIT_ALLOC_LIMIT": str(MAX_ALLOC_BYTES)}
        env = {**alone, "GIT_ALTERNATE_OBJECT_DIRECTORIES": quote_path(lender, ":")}
        limits = ProcessLimits(memory_bytes=bounds.import_memory_mb * 2**20, cpu_seconds=bounds.import_cpu)
        return cls(repository, folder, alone, env, limits)

    async def git(
        self, *args: str, stdin: bytes = b"", accept: tuple[int, ...] = (0,), limit: int = 64 * 2**20
    ) -> proc.Completed:
        return await git(
            self.repository.git,
            *args,
            env=self.env,
            stdin=stdin,
            accept=accept,
            limit=limit,
            limits=self.limits,
        )


@contextlib.contextmanager
def _quarantine(pack: Path) -> Iterator[Path]:
    """Make an object folder beside *pack*, out of reach of the user's gc."""
    with tempfile.TemporaryDirectory(prefix="import-", dir=pack.parent) as folder:
        yield Path(folder)


def release(work: ImportedWork) -> None:
    """Stop protecting the objects of *work* from gc: a ref holds them now, or nothing needs them."""
    release_packs(work.keeps)


def release_packs(keeps: Iterable[Path]) -> None:
    """Let gc have packs again that `migrate_packs` protected."""
    for keep in keeps:
        keep.unlink(missing_ok=True)


def release_abandoned(repository: Repository) -> None:
    """Release the imports of dead processes, and remove quarantines of older versions."""
    objects = repository.lenders[0]
    for keep in objects.glob("pack/*.keep"):
        with contextlib.suppress(OSError):
            words = keep.read_text(errors="replace").split()
            if words[:1] == [KEEP] and words[1:] != _identity(int(words[1])):
                keep.unlink()
    for folder in objects.glob(f"{OLD_QUARANTINE}*"):
        if not Path("/proc", folder.name.removeprefix(OLD_QUARANTINE).split("-")[0]).exists():
            shutil.rmtree(folder, ignore_errors=True)


def _identity(pid: int) -> list[str]:
    """Return a unique name for a process; `None` if it does not exist."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
        return [str(pid), started, Path("/proc/sys/kernel/random/boot_id").read_text().strip()]
    except OSError:
        return []


async def _unpack(aside: _Quarantine, pack: Path) -> str | None:
    with pack.open("rb") as file:
        start = file.read(32)
    if start[:4] != b"PACK" or len(start) < 32:
        return "the output of the sandbox is not a pack"
    done = await _feed_pack(aside, pack)
    if done.exit.signal is not None:
        return f"to unpack it takes more than {aside.limits.cpu_seconds} s of a processor"
    return None if done.ok else f"git does not take its objects: {_first_error(done.stderr)}"


async def _feed_pack(aside: _Quarantine, pack: Path) -> proc.Completed:
    verb = ("index-pack", "--stdin", "--fix-thin", "--threads=2", "--strict", f"--max-input-size={MAX_PACK_BYTES}")
    command = Command(
        argv=("git", *FLAGS, *verb),
        cwd=Path("/"),
        env={**ENVIRONMENT, "GIT_DIR": str(aside.repository.git), **aside.env},
        stdin=pack,
        limits=aside.limits,
    )
    return await proc.run(command, timeout=TIMEOUT)


async def _not_whole(aside: _Quarantine, base: str | None, tips: tuple[str, ...]) -> str | None:
    known = () if base is None else (f"^{base}",)
    done = await aside.git("rev-list", "--objects", "--quiet", *tips, *known, accept=(0, 128))
    return None if done.ok else f"its history is not whole: {_last_line(done.stderr)}"


async def _check_related(aside: _Quarantine, base: str, tip: str) -> str | None:
    done = await aside.git("merge-base", "--is-ancestor", base, tip, accept=(0, 1, 128))
    return None if done.ok else "it does not descend from the base"


@dataclass(frozen=True, slots=True)
class _PackedObject:
    """One object of the pack."""

    name: str
    kind: str
    size: int


@dataclass(frozen=True, slots=True)
class _PackObjects:
    """All objects of the pack, or too many to list."""

    objects: list[_PackedObject]
    is_cut: bool


async def _objects(aside: _Quarantine) -> _PackObjects:
    asked = "--batch-check=%(objectname) %(objecttype) %(objectsize)"
    done = await replace(aside, env=aside.alone).git(
        "cat-file", "--batch-all-objects", "--unordered", "--buffer", asked
    )
    rows = (line.split() for line in done.stdout.decode().splitlines()) if not done.dropped else ()
    return _PackObjects([_PackedObject(name, kind, int(size)) for name, kind, size in rows], bool(done.dropped))


def _too_large(brought: _PackObjects) -> str | None:
    if brought.is_cut:
        return "it brings more objects than can be looked at"
    for item in brought.objects:
        if item.kind == "blob" and item.size > MAX_BLOB_BYTES:
            return (
                f"the file {item.name[:10]} has {item.size // 2**20} MiB; at most {MAX_BLOB_BYTES // 2**20} are taken"
            )
    return None


@dataclass(frozen=True, slots=True)
class _Change:
    """The files that differ between base and tip, and whether one of them is forbidden."""

    paths: tuple[str, ...]
    refusal: str | None


async def _find_change(aside: _Quarantine, base: str, tip: str) -> _Change:
    options = ("-r", "-z", "--raw", "--no-renames")
    done = await aside.git("diff-tree", *options, base, tip, accept=(0, 128), limit=MAX_LISTED_BYTES)
    if done.dropped:
        return _Change((), "it changes more files than can be looked at")
    if not done.ok:
        return _Change((), f"git cannot list what it changes: {_last_line(done.stderr)}")
    words = done.stdout.decode(errors="surrogateescape").split("\0")[:-1]
    pairs = list(zip(words[::2], words[1::2], strict=False))
    return _Change(tuple(path for _, path in pairs), _check_entries([f"{facts}\t{path}" for facts, path in pairs]))


async def _check_commits(aside: _Quarantine, commits: list[str]) -> str | None:
    """Check each commit separately: a later one may have removed what an earlier one added."""
    raw = await aside.git(
        *("diff-tree", "--stdin", "-r", "-m", "--root", "--raw", "--no-renames"),
        stdin="".join(f"{commit}\n" for commit in commits).encode(),
    )
    return "too much changes in it" if raw.dropped else _check_entries(raw.stdout.decode(errors="replace").splitlines())


def _check_entries(lines: list[str]) -> str | None:
    for line in lines:
        facts, _, path = line.partition("\t")
        if facts.startswith(":") and facts.split(" ")[1] == GITLINK:
            return f"it adds or changes a nested repository: {path}"
        # git treats ignored files as expendable: a checkout of it would replace our ledger by an agent's.
        if facts.startswith(":") and STATE.match(path):
            return f"it changes what is Shoal's own: {path}"
    return None


def migrate_packs(aside: Path, objects: Path) -> tuple[Path, ...]:
    """Move packs, protected from the user's gc, each before its index, as git does."""
    keeps = []
    for path in sorted((aside / "pack").glob("*.pack")):
        (objects / "pack").mkdir(exist_ok=True)
        keep = objects / "pack" / f"{path.stem}.keep"
        if not keep.exists():  # otherwise it is the user's own, or protects the same objects for another session
            note = aside / "pack" / keep.name  # never without its text, which says whose it is
            note.write_text(" ".join((KEEP, *_identity(os.getpid()))) + "\n")
            _move(note, keep)
            keeps.append(keep)
        for name in (f"{path.stem}.rev", path.name, f"{path.stem}.idx"):
            if (aside / "pack" / name).exists() and not (objects / "pack" / name).exists():
                _move(aside / "pack" / name, objects / "pack" / name)
    return tuple(keeps)


def _move(path: Path, target: Path) -> None:
    try:
        path.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        part = target.with_name(f"tmp_{target.name}")  # with git's own prefix, so that its gc recognises it
        shutil.copyfile(path, part)
        with part.open("rb") as file:
            os.fsync(file.fileno())
        part.rename(target)


def _first_error(stderr: bytes) -> str:
    """Return the line that names the bad object; git's last line is less specific."""
    lines = stderr.decode(errors="replace").splitlines()
    return next((line[:300] for line in lines if line.startswith("error")), _last_line(stderr))


def _last_line(stderr: bytes) -> str:
    lines = stderr.decode(errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "git gave no reason"
