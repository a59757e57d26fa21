"""`shoal demo`, end to end."""

import re
from pathlib import Path

from tests.cli.conftest import Shoal
from tests.conftest import git


def test_the_demonstration_shows_five_agents_and_the_overlap(shoal: Shoal, tmp_path: Path) -> None:
    said = shoal("demo", TMPDIR=str(tmp_path))
    place = Path(re.findall(r"cd (\S+)", said.out)[0])
    branches = git(place, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent").splitlines()

    assert said.code == 0
    assert said.out.count("  ended  ") == 5
    assert len(branches) == 4, "one of the five changed nothing"
    assert re.search(r"x greet\.py: (polite|french)-\w+, (polite|french)-\w+", said.out)
    assert re.search(r"sandbox: (bubblewrap|landlock)", said.out)
    assert "1024 MB memory" in said.out
    assert shoal("status", cwd=place).code == 0
    assert shoal("diff", "polite", cwd=place).code == 0


def test_the_demonstration_can_leave_nothing(shoal: Shoal, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()

    said = shoal("demo", "--no-keep", TMPDIR=str(scratch))

    assert said.code == 0
    assert list(scratch.glob("shoal-demo-*")) == []


def test_without_bubblewrap_the_demonstration_takes_landlock_and_says_so(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").symlink_to("/usr/bin/git")

    said = shoal("demo", TMPDIR=str(tmp_path), PATH=str(tmp_path / "bin"))

    assert "landlock" in (said.out + said.err).lower()
    assert said.code in (0, 5), said.err
