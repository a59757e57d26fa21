"""The check of the invariants is itself checked: it finds nothing in a sound repository, and each kind of damage."""

import contextlib
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.store.kind import LASTING
from tests.conftest import git
from tests.faults import invariants
from tests.faults.invariants import Untouched, find_violations
from tests.faults.scene import FOUR_TASKS, Scene, make_scene


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scene, Untouched]:
    """A run that nobody killed."""
    scene = make_scene(tmp_path_factory.mktemp("sound") / "scene", FOUR_TASKS)
    before = Untouched.of(scene.repo)
    assert scene.start(*scene.words) == 0, scene.said()
    return scene, before


def ledger(scene: Scene, statement: str) -> None:
    with contextlib.closing(sqlite3.connect(scene.paths.ledger)) as connection:
        assert connection.execute(statement).rowcount > 0
        connection.commit()


def copy_row(kind: str, columns: str) -> str:
    return (
        f"INSERT INTO events (at, run, session, kind, body) SELECT {columns} FROM events WHERE kind = '{kind}' LIMIT 1"
    )


def shrink_object(scene: Scene) -> None:
    pack = sorted((scene.repo / ".git/objects/pack").glob("*.pack"))[0]
    pack.chmod(0o600)
    pack.write_bytes(pack.read_bytes()[:-30])


def wrote_in_vain(scene: Scene) -> None:
    with (scene.outside / "wrote").open("a") as file:
        file.write("plan-000000\n")


def leave_lock(scene: Scene) -> None:
    (scene.repo / ".git" / "index.lock").touch()


def leave_box(scene: Scene) -> None:
    (scene.repo / ".shoal" / "boxes" / "plan-000000").mkdir()


def spoil_database(scene: Scene) -> None:
    database = sorted(scene.paths.sessions.glob("*.db"))[0]
    content = bytearray(database.read_bytes())
    content[4096:] = bytes(len(content) - 4096)
    database.write_bytes(content)


DAMAGES: dict[str, tuple[str, Callable[[Scene], object]]] = {
    "an acknowledged event is gone": ("I1", lambda scene: ledger(scene, "DELETE FROM events WHERE kind = 'StepEnded'")),
    "a file is nowhere": ("I2", wrote_in_vain),
    "a tag was made": ("I3", lambda scene: git(scene.repo, "tag", "surprise")),
    "main was set back": ("I3", lambda scene: git(scene.repo, "update-ref", "refs/heads/main", orphan(scene))),
    "a setting was changed": ("I3", lambda scene: git(scene.repo, "config", "a.b", "c")),
    "a file was staged": ("I3", lambda scene: git(scene.repo, "rm", "-q", "--cached", "README.md")),
    "a hook was written": ("I3", lambda scene: (scene.repo / ".git/hooks/pre-commit").write_text("exit 0\n")),
    "a session started twice": ("I4", lambda scene: ledger(scene, copy_row("SessionStarted", "at,run,session,kind,body"))),
    "a merge was recorded twice": ("I4", lambda scene: ledger(scene, copy_row("MergeRecorded", "at,run,session,kind,body"))),
    "a session landed twice": ("I4", lambda scene: land_again(scene)),
    "a session directory is left": ("I6", leave_box),
    "a lock is left": ("I6", leave_lock),
    "a pin is left": ("I6", lambda scene: git(scene.repo, "update-ref", "refs/shoal/base/gone+1", "main")),
    "a run is said to run": ("I7", lambda scene: ledger(scene, copy_row("RunStarted", "at,'ghost',session,kind,replace(body,run,'ghost')"))),
    "an object is damaged": ("I8", shrink_object),
    "a log is damaged": ("I8", spoil_database),
}  # fmt: skip


def orphan(scene: Scene) -> str:
    return git(scene.repo, "commit-tree", "-m", "other", f"{scene.base}^{{tree}}")


def land_again(scene: Scene) -> None:
    message = git(scene.repo, "log", "-1", "--format=%B", "main")
    again = git(scene.repo, "commit-tree", "-p", "main", "-m", message, "main^{tree}")
    git(scene.repo, "update-ref", "refs/heads/main", again)


def test_a_sound_repository_violates_nothing(sound: tuple[Scene, Untouched]) -> None:
    assert find_violations(*sound) == []


def test_each_kind_of_event_is_looked_for_where_it_is_recorded(sound: tuple[Scene, Untouched]) -> None:
    paths = sound[0].paths
    in_logs = {kind for log in paths.sessions.glob("*.db") for _, kind in invariants.rows(log)}
    in_ledger = {kind for _, kind in invariants.rows(paths.ledger)}

    assert in_logs - set(LASTING) <= set(invariants.SESSION_KINDS)
    assert in_ledger & set(invariants.SESSION_KINDS) == set()


@pytest.mark.parametrize("damage", DAMAGES)
def test_each_damage_is_found(tmp_path: Path, sound: tuple[Scene, Untouched], damage: str) -> None:
    whole, before = sound
    shutil.copytree(whole.repo, tmp_path / "repo", symlinks=True)
    shutil.copytree(whole.outside, tmp_path / "outside")
    git(tmp_path / "repo", "update-index", "-q", "--refresh")
    scene = replace(whole, repo=tmp_path / "repo", outside=tmp_path / "outside")
    name, do = DAMAGES[damage]

    do(scene)

    assert {violation.split(":")[0] for violation in find_violations(scene, before)} == {name}


def test_a_process_that_is_left_is_found(sound: tuple[Scene, Untouched], monkeypatch: pytest.MonkeyPatch) -> None:
    scene, before = sound
    monkeypatch.setattr(invariants, "DYING_SECONDS", 0.05)
    with subprocess.Popen(["sleep", "60"], cwd=scene.repo) as left:
        found = find_violations(scene, before)
        left.kill()

    assert found == [f"I5: process {left.pid} is left: sleep 60 "]
