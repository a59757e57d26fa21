"""The refs that hold checkpoints: list, restore and remove them."""

import time
from dataclasses import dataclass

from shoal.errors import Broken
from shoal.git.refs import ABSENT, Move, move
from shoal.git.run import git
from shoal.model.repository import Repository

FOLDER = "refs/shoal/checkpoint"
SNAPSHOT = "snapshot"
"""In the place of a number: the files that a person looked at last."""
RESTORED = "its files are gone; its work is taken from its last checkpoint"
MOST_SECONDS = 7 * 86400.0
"""How long a checkpoint stays after the end of its session; `shoal clean` removes it earlier."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of a session at one moment, as a commit on its base."""

    session: str
    number: int
    commit: str
    at: float = 0.0
    """When it was kept."""

    @property
    def ref(self) -> str:
        """The ref that holds it."""
        return f"{FOLDER}/{self.session}/{self.number or SNAPSHOT}"

    @property
    def note(self) -> str:
        """Say that its session goes on from it."""
        return f"{RESTORED} {self.number}"


async def list_checkpoints(repository: Repository, session: str = "") -> list[Checkpoint]:
    """List the checkpoints of *session*, or of all sessions; those of a session by their numbers."""
    return [checkpoint for checkpoint in await list_kept(repository, session) if checkpoint.number]


async def list_kept(repository: Repository, session: str = "") -> list[Checkpoint]:
    """List the checkpoints and, with the number 0, the snapshots of *session*, or of all sessions."""
    prefix = f"{FOLDER}/{session}" if session else FOLDER
    fields = "--format=%(refname)%00%(objectname)%00%(committerdate:unix)"
    done = await git(repository.git, "for-each-ref", fields, prefix)
    rows = [line.split("\0") for line in done.stdout.decode(errors="surrogateescape").splitlines()]
    found = [Checkpoint(*_split(ref), commit, float(at or 0)) for ref, commit, at in rows]
    return sorted(found, key=lambda checkpoint: (checkpoint.session, checkpoint.number))


async def drop_old_checkpoints(repository: Repository) -> None:
    """Remove those that nobody went back to for days; when this is called, all work of dead runs is on branches."""
    before = time.time() - MOST_SECONDS
    old = [checkpoint for checkpoint in await list_kept(repository) if checkpoint.at < before]
    if old:
        await move(repository, [Move(checkpoint.ref, ABSENT, checkpoint.commit) for checkpoint in old])


def _split(ref: str) -> tuple[str, int]:
    session, _, number = ref.removeprefix(f"{FOLDER}/").rpartition("/")
    return session, int(number) if number.isascii() and number.isdigit() else 0


def is_restored(note: str) -> bool:
    """Say whether *note* is that of a checkpoint which took the place of lost files."""
    return note.startswith(RESTORED)


async def restore_checkpoint(repository: Repository, session: str, branch: str) -> Checkpoint | None:
    """Put the last checkpoint of *session*, whose files are gone, on its branch; `None` where there is none."""
    found = await list_checkpoints(repository, session)
    if not found:
        return None
    if not await move(repository, [Move(f"refs/heads/{branch}", found[-1].commit, ABSENT)]):
        raise Broken(f"{branch} cannot be made")
    return found[-1]


async def drop_checkpoints(repository: Repository, *sessions: str) -> None:
    """Remove the checkpoints of *sessions*."""
    found = [checkpoint for session in sessions for checkpoint in await list_kept(repository, session)]
    if found:
        await move(repository, [Move(checkpoint.ref, ABSENT, checkpoint.commit) for checkpoint in found])
