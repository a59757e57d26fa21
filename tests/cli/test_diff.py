"""`shoal diff` of several sessions, and in a terminal: pages and colours, with everything of an agent escaped."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, Shoal, environment, shoal_in
from tests.cli.test_looking import at_a_terminal
from tests.conftest import git, make_repo
from tests.merge.merging import canary

AGENTS = """\
runtime: {sandbox: none}
agents:
  one: {adapter: command, command: [sh, -c, "printf 'one\\\\n' > same.txt; echo one > one.txt"]}
  two: {adapter: command, command: [sh, -c, "printf 'two\\\\n' > same.txt; echo x > .envrc"]}
  three: {adapter: command, command: [sh, -c, "echo three > three.txt"]}
  none: {adapter: command, command: [sh, -c, "true"]}
  bad: {adapter: command, command: [sh, -c, "echo bad > bad.txt; exit 1"]}
steps:
  - {name: one, agent: one, prompt: go}
  - {name: two, agent: two, prompt: go}
  - {name: three, agent: three, prompt: go}
  - {name: none, agent: none, prompt: go}
  - {name: bad, agent: bad, prompt: go}
"""


@pytest.fixture(scope="module")
def several_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository where five agents have run; the tests of this module share it."""
    repo = make_repo(tmp_path_factory.mktemp("several") / "repo")
    (repo / "p.yaml").write_text(AGENTS)
    assert shoal_in(repo)("run", "p.yaml").code == 1
    return repo


@pytest.fixture
def several(several_in: Path) -> Shoal:
    return shoal_in(several_in)


def test_the_work_of_all_together_is_a_patch_and_nothing_stays(
    several: Shoal, several_in: Path, tmp_path: Path
) -> None:
    before = git(several_in, "count-objects", "-v"), git(several_in, "for-each-ref")

    said = several("diff", "--combined")
    document = json.loads(several("diff", "--combined", "--json").out)

    assert said.code == 0
    assert "left out because of conflicts: two-" in said.err
    assert {one["path"] for one in document["files"]} == {"same.txt", "one.txt", "three.txt"}
    assert [name.rpartition("-")[0] for name in document["sessions"]] == ["three", "one"]
    assert [name.rpartition("-")[0] for name in document["conflicting"]] == ["two"]
    assert (git(several_in, "count-objects", "-v"), git(several_in, "for-each-ref")) == before
    clone = tmp_path / "clone"
    git(several_in, "clone", "-q", str(several_in), str(clone))
    (tmp_path / "patch").write_text(said.out)
    git(clone, "apply", str(tmp_path / "patch"))
    assert (clone / "same.txt").read_text() == "one\n"


def test_two_sessions_are_compared_and_what_runs_by_itself_is_told_first(several: Shoal) -> None:
    said = several("diff", "one", "two")
    back = several("diff", "two", "one", "--name-only")
    document = json.loads(several("diff", "one", "two", "--json").out)

    assert "-one\n+two\n" in said.out
    assert "these files can run code on your machine: .envrc" in said.err
    assert back.out.split() == [".envrc", "one.txt", "same.txt"]
    assert [name.rpartition("-")[0] for name in document["sessions"]] == ["one", "two"]
    assert document["executable_config"] == [".envrc"]
    assert "2 insertions" in several("diff", "none", "one", "--stat").out, "who changed nothing came to its base"


def test_what_does_not_differ_is_said(several: Shoal) -> None:
    assert "there is no difference between one-" in several("diff", "one", "one").err
    assert "changed nothing" in several("diff", "none").err
    assert several("diff", "one", "nobody").code == 2
    assert several("diff", "--combined", "p", "one").code == 2


@pytest.mark.deep
def test_at_a_terminal_the_persons_pager_shows_it_in_colour(several_in: Path) -> None:
    shown = at_a_terminal(several_in, "diff", "two", GIT_PAGER="sed 's/^/| /'; echo $LESS", NO_COLOR="", TERM="xterm")
    other = at_a_terminal(several_in, "diff", "two", GIT_PAGER="", PAGER="echo not this one", NO_COLOR="1")
    missing = at_a_terminal(several_in, "diff", "two", GIT_PAGER="no-such-pager")

    assert shown.startswith("| \x1b[33mwarning:\x1b[0m review before you merge"), shown
    assert "| \x1b[32m+two\x1b[0m\n" in shown
    assert shown.endswith("FRX\n")
    assert "\x1b" not in other
    assert "+two\n" in other
    assert "not this one" not in other
    assert "+two\n" in missing, "a pager that is not there hides nothing"


def test_an_agents_bytes_are_escaped_in_colour_too_and_lines_cannot_pose_as_heads(repo: Path, shoal: Shoal) -> None:
    (repo / "make.py").write_text(
        "open('\\x1b[2J\\u202ename', 'w').write('\\x1b]0;x\\x07\\n++ b/README.md\\n-- a\\r\\n')\n"
    )
    git(repo, "add", "make.py")
    git(repo, "commit", "-qm", "make")
    assert shoal("run", "--task", "x", "--command", "python3 make.py", "--sandbox", "none").code == 0

    shown = at_a_terminal(repo, "diff", NO_COLOR="", TERM="xterm")
    plainly = shown
    for code in ("0", "1", "2", "31", "32", "33", "36"):
        plainly = plainly.replace(f"\x1b[{code}m", "")

    assert plainly.replace("\n", "").isprintable()
    assert plainly.isascii()
    assert "\x1b[32m+++ b/README.md\x1b[0m" in shown, "a line of the file, and no head of another"
    assert "+\\x1b]0;x\\x07" in plainly


@pytest.mark.deep
def test_nothing_that_was_configured_runs(several_in: Path, tmp_path: Path) -> None:
    is_sprung = canary(several_in, tmp_path)
    for key in ("diff.evil.textconv", "diff.evil.command", "pager.diff", "interactive.diffFilter"):
        git(several_in, "config", key, str(tmp_path / "touch.sh"))
    (several_in / ".git/info/attributes").write_text("* diff=evil filter=evil\n")
    forms = (["diff", "one"], ["diff", "one", "two"], ["diff", "--combined"], ["diff", "--stat", "one"], ["status"])

    for words in forms:
        done = subprocess.run([SHOAL, *words], cwd=several_in, env=environment(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        at_a_terminal(several_in, *words, GIT_EXTERNAL_DIFF=str(tmp_path / "touch.sh"))

    assert not is_sprung()
