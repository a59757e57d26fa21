"""What set-up changed, in git's formats; and set-up in sessions that a program holds."""

import json
import os
import subprocess
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from shoal import IsolatedAgentSession
from shoal.sessions.setup.changes import SetupChanges, SetupEntry, parse_setup_note, pattern
from tests.conftest import git

NAME = st.binary(min_size=1, max_size=8).filter(
    lambda name: not set(name) & set(b"\0/\n") and name not in (b".", b"..")
)
SHA = b"a" * 40
NONE = b"0" * 40


@given(st.lists(NAME, max_size=4), st.lists(st.tuples(NAME, st.sampled_from([b"A", b"M", b"D"])), max_size=4))
def test_what_git_said_is_read_back(tops: list[bytes], changed: list[tuple[bytes, bytes]]) -> None:
    modes = {b"A": (b"000000", b"100644"), b"M": (b"100644", b"100755"), b"D": (b"100644", b"000000")}
    records = [
        b":%s %s %s %s %s\0%s\0" % (*modes[kind], NONE, NONE if kind == b"D" else SHA, kind, path)
        for path, kind in changed
    ]
    left = parse_setup_note(b"".join(name + b"\0" for name in tops) + b"\0" + b"".join(records))

    assert left.tops == tuple(tops)
    assert [(one.path, one.is_new, one.is_gone) for one in left.entries] == [
        (path, kind == b"A", kind == b"D") for path, kind in changed
    ]


def test_a_pattern_matches_its_own_path_and_nothing_else(tmp_path: Path) -> None:
    names = [b"a*b", b"axb", b"#c", b"!d", b"e ", b"e", b"f[g]", b"fg", b"\\h", b"h", b"i\xff", b"d/j", b"?k", b"xk"]
    git(tmp_path, "init", "-q")
    for name in names:
        (tmp_path / ".git/info/exclude").write_bytes(pattern(name) + b"\n")
        asked = b"".join(b"./" + one + b"\0" for one in names)
        done = subprocess.run(
            ["git", "check-ignore", "-z", "--stdin"], cwd=tmp_path, input=asked, capture_output=True, check=False
        )
        assert done.stdout == b"./" + name + b"\0"


def test_of_very_many_new_files_whole_folders_are_passed_over(tmp_path: Path) -> None:
    new = tuple(SetupEntry(b"m/%d" % number, b"100644", SHA, is_new=True) for number in range(2000))

    SetupChanges(new, (b"m/",)).write(tmp_path / "many")
    SetupChanges(new[:2], (b"m/",)).write(tmp_path / "few")

    assert (tmp_path / "many/exclude").read_bytes() == b"/m/\n"
    assert (tmp_path / "few/exclude").read_bytes() == b"/m/0\n/m/1\n"


async def test_a_session_that_a_program_holds_is_set_up_too(repo: Path) -> None:
    script = "echo dep > dep; echo changed > README.md"
    (repo / "conductor.json").write_text(json.dumps({"scripts": {"setup": script}}))
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "conductor")
    strategy = "auto" if os.geteuid() == 0 else "worktree"

    async with IsolatedAgentSession("held", base_workspace=repo, isolation_strategy=strategy) as session:
        assert (session.workspace / "dep").read_text() == "dep\n"
        (session.workspace / "mine.txt").write_text("mine\n")
    result = session.result

    assert result is not None
    assert result.branch is not None
    assert git(repo, "diff", "--name-only", "main", result.branch) == "mine.txt"
