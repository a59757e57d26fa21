"""`shoal doctor`, end to end: what this host supports and what not; nothing is left behind."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from shoal.cli.doctor import Page
from shoal.model.diagnosis import Diagnosis, Finding
from tests.acting import fingerprint
from tests.cli.conftest import SHOAL, Shoal, environment, shoal_in

LIMITS = {"memory", "pids", "disk", "time", "neighbour"}


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A folder for temporary files, to see what stays in it."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def left_in(folder: Path) -> set[str]:
    """Return what is left, except the locks of ports that every Shoal shares."""
    return {path.name for path in folder.iterdir()} - {f"shoal-{os.getuid()}"}


def test_this_host_holds_the_default_wall_and_limits(shoal: Shoal, repo: Path, scratch: Path) -> None:
    before = fingerprint(repo)

    said = shoal("doctor", TMPDIR=str(scratch))

    assert (said.code, said.err) == (0, ""), said
    last = said.out.splitlines()[-1]
    assert last.startswith("This host supports: bubblewrap sandbox, ")
    assert "limits by " in last
    assert "\x1b" not in said.out
    assert fingerprint(repo) == before
    assert not (repo / ".shoal").exists()
    assert left_in(scratch) == set()


def test_the_document_says_the_same_outside_of_a_repository(tmp_path: Path, scratch: Path) -> None:
    said = shoal_in(tmp_path)("doctor", "--json", TMPDIR=str(scratch))
    document = json.loads(said.out)
    findings = document["findings"]

    assert (said.code, said.err, document["holds"]) == (0, "", True)
    assert {"host", "bubblewrap", "landlock", "workspace", "limits", "room", "clients"} <= {
        one["area"] for one in findings
    }
    assert {one["name"] for one in findings if one["area"] == "limits" and one["held"]} >= LIMITS
    assert all(one["held"] for one in findings if one["needed"])
    assert set(findings[0]) == {"area", "name", "held", "tried", "said", "remedy", "needed"}
    assert "\x1b" not in said.out
    assert {path.name for path in tmp_path.iterdir()} == {"scratch"}
    assert left_in(scratch) == set()


def test_without_bubblewrap_it_says_what_to_install(shoal: Shoal, tmp_path: Path, scratch: Path) -> None:
    (tmp_path / "bin").mkdir()

    said = shoal("doctor", PATH=str(tmp_path / "bin"), TMPDIR=str(scratch))

    assert said.code == 5
    assert "apt install bubblewrap" in said.out
    last = said.out.splitlines()[-1]
    assert last.startswith("This host does not support: bubblewrap sandbox. It supports: ")
    assert left_in(scratch) == set()


@pytest.mark.deep
def test_what_a_killed_doctor_left_is_removed_by_the_next(shoal: Shoal, tmp_path: Path, scratch: Path) -> None:
    given = environment(TMPDIR=str(scratch))
    with subprocess.Popen([SHOAL, "doctor"], cwd=tmp_path, env=given, stdout=subprocess.PIPE, text=True) as doctor:
        assert doctor.stdout is not None
        said = next(line for line in doctor.stdout if "not held" in line)  # a sandbox was tried, and limits, too
        doctor.kill()
    left = left_in(scratch)

    done = shoal("doctor", TMPDIR=str(scratch))

    assert said
    assert len(left) == 1
    assert done.code == 0
    assert left_in(scratch) == set()
    assert str(scratch) not in Path("/proc/self/mounts").read_text()


def test_words_of_a_client_cannot_move_the_cursor(shoal: Shoal, tmp_path: Path, scratch: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "claude").write_text("#!/bin/sh\nprintf '1.0 \\033[2J(evil)'\n")
    (folder / "claude").chmod(0o755)

    said = shoal("doctor", PATH=f"{folder}:{os.environ['PATH']}", TMPDIR=str(scratch))

    assert "1.0 \\x1b[2J(evil)" in said.out
    assert "\x1b" not in said.out


def test_lines_fit_the_terminal() -> None:
    long = Finding(
        area="limits",
        name="memory",
        held=False,
        tried="take " * 20,
        result="seen " * 20,
        remedy="install " * 20,
        needed=True,
    )
    page = Page(lambda text, _colour: text, width=80)

    lines = [*page.lines((long,)), *page.sentence(Diagnosis(findings=(long,) * 30)).splitlines()]

    assert max(map(len, lines)) <= 80
    assert "→ install" in "\n".join(lines)


def test_a_program_gets_one_line_for_each_finding() -> None:
    one = Finding(area="limits", name="memory", held=False, tried="take " * 40, result="seen", remedy="install it")
    page = Page(lambda text, _colour: text, width=None)

    lines = list(page.lines((one, one)))

    assert len(lines) == 3
    assert lines[1].startswith("  no  memory ")
    assert lines[1].endswith("seen → install it")
