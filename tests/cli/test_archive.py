"""A run in one file: exported here, imported into another clone; a manipulated archive is refused."""

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Shoal, shoal_in
from tests.cli.flows import CHEAP, written
from tests.conftest import git

STEPS = """\
steps:
  - {name: make, agent: do, prompt: "echo made > made.txt; echo said this; echo '[1]' > out.json", output_artifacts: [{name: out, path: out.json}]}
  - {name: bad, agent: do, prompt: "echo half > half.txt; false"}
"""
Members = dict[str, bytes]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A repository in which a run was exported, and the archive."""
    from tests.conftest import make_repo

    repo = make_repo(tmp_path_factory.mktemp("exported") / "repo")
    written(repo, STEPS, runtime=CHEAP)
    shoal = shoal_in(repo)
    assert shoal("run", "p.yaml").code == 1
    done = shoal("export", "-o", "run.tar.gz")
    assert done.code == 0, done.err
    return repo, repo / "run.tar.gz"


@pytest.fixture
def clone(exported: tuple[Path, Path], tmp_path: Path) -> Path:
    git(tmp_path, "clone", "-q", "--single-branch", str(exported[0]), "clone")
    git(tmp_path / "clone", "config", "user.name", "Ada")
    git(tmp_path / "clone", "config", "user.email", "ada@example.org")
    return tmp_path / "clone"


def test_every_command_works_on_an_imported_run(exported: tuple[Path, Path], clone: Path) -> None:
    here, there = shoal_in(exported[0]), shoal_in(clone)

    done = there("import", str(exported[1]))
    again = there("import", str(exported[1]))

    assert done.code == 0, done.err
    assert (again.code, "already" in again.err) == (2, True)
    before, after = (json.loads(shoal("status", "--json").out) for shoal in (here, there))
    for report in (before, after):
        for place in (report["steps"][0], report["steps"][0]["worker_results"][0]):
            artifacts = {label: Path(path).read_text() for label, path in place.pop("artifacts").items()}
            assert artifacts == {"out": "[1]\n"}
    assert after == before
    assert there("logs", "make").out == here("logs", "make").out
    assert "+made" in there("diff", "make").out
    merged = there("merge", "--into", "main", "--yes")
    assert merged.code == 0, merged.err
    assert (clone / "made.txt").read_text() == "made\n"
    assert "half.txt" in git(
        clone, "ls-tree", "-r", "--name-only", git(clone, "for-each-ref", "--format=%(refname)", "refs/heads/agent/bad")
    )
    assert there("resume").code in (1, 2)
    assert git(clone, "fsck", "--strict", "--no-dangling") == ""


def test_a_branch_whose_name_is_taken_is_imported_beside_it(exported: tuple[Path, Path], clone: Path) -> None:
    branch = git(exported[0], "for-each-ref", "--format=%(refname)", "refs/heads/agent/make")
    git(clone, "update-ref", branch, "main")

    done = json.loads(shoal_in(clone)("import", str(exported[1]), "--json").out)

    run = done["run"]
    assert done["renamed"] == [f"refs/shoal/import/{run}/{branch.removeprefix('refs/heads/')}"]
    assert git(clone, "rev-parse", branch) == git(clone, "rev-parse", "main")
    assert git(clone, "show", f"{done['renamed'][0]}:made.txt") == "made"


def members_of(archive: Path) -> Members:
    with tarfile.open(archive) as packed:
        return {entry.name: file.read() for entry in packed if (file := packed.extractfile(entry))}


def pack(target: Path, members: Members, *more: tarfile.TarInfo) -> Path:
    with tarfile.open(target, "w:gz") as packed:
        for name, content in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            packed.addfile(entry, io.BytesIO(content))
        for entry in more:
            packed.addfile(entry)
    return target


def link(name: str) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return entry


def change_manifest(**new: object) -> Callable[[Members], Members]:
    return lambda members: {
        **members,
        "manifest.json": json.dumps({**json.loads(members["manifest.json"]), **new}).encode(),
    }


HOSTILE: dict[str, Callable[[Members], Members]] = {
    "a path": lambda members: {**members, "../../evil": b"x"},
    "an absolute path": lambda members: {**members, "/evil": b"x"},
    "a branch of the user's": change_manifest(refs={"refs/heads/main": "0" * 40}),
    "a run that leaves its folder": change_manifest(run="../x"),
    "another run": change_manifest(run="other"),
    "a file of no session": change_manifest(files=[["../..", "evil"]]),
    "a file that is a path": change_manifest(files=[["", "../evil.patch"]]),
    "a newer version": change_manifest(version=9),
    "no events": lambda members: {name: content for name, content in members.items() if name != "events.jsonl"},
    "broken events": lambda members: {**members, "events.jsonl": members["events.jsonl"][:-20]},
    "a broken pack": lambda members: {**members, "work.bundle": members["work.bundle"][:-25]},
    "no bundle": lambda members: {name: content for name, content in members.items() if name != "work.bundle"},
    "nested too deep": lambda members: {**members, "manifest.json": b"[" * 100_000},
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_archive_is_refused_and_changes_nothing(
    exported: tuple[Path, Path], clone: Path, what: str, tmp_path: Path
) -> None:
    archive = pack(tmp_path / "hostile.tar.gz", HOSTILE[what](members_of(exported[1])))
    before = git(clone, "for-each-ref"), sorted(path.name for path in tmp_path.iterdir())

    done = shoal_in(clone)("import", str(archive))

    assert done.code == 2, (done.out, done.err)
    assert (git(clone, "for-each-ref"), sorted(path.name for path in tmp_path.iterdir())) == before
    assert "no runs yet" in shoal_in(clone)("runs").out
    assert [path for path in (clone / ".shoal").rglob("*") if path.is_file() and "lock" not in path.name] == []


def test_a_link_and_a_file_that_is_no_archive_are_refused(
    exported: tuple[Path, Path], clone: Path, tmp_path: Path
) -> None:
    linked = pack(tmp_path / "linked.tar.gz", members_of(exported[1]), link("files/7"))
    (tmp_path / "text").write_text("not an archive")

    answers = [shoal_in(clone)("import", str(path)) for path in (linked, tmp_path / "text", tmp_path / "absent")]

    assert [answer.code for answer in answers] == [2, 2, 2]


def test_export_refuses_to_replace_a_file(exported: tuple[Path, Path], shoal: Shoal) -> None:
    again = shoal_in(exported[0])("export", "-o", str(exported[1]))
    nothing = shoal("export")

    assert (again.code, "exists" in again.err) == (2, True)
    assert nothing.code == 2
