"""What an impatient user once could do to `shoal merge` in a terminal."""

import os
import pty
import select
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.conftest import git

SECONDS = 30.0


@pytest.mark.usefixtures("ran")
def test_ctrl_c_at_the_question_ends_it_at_once_and_delivers_nothing(ran_in: Path) -> None:
    """The first one went to the loop, which could not end what was waiting for a line."""
    before = git(ran_in, "rev-parse", "main")
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover - another process
        os.chdir(ran_in)
        os.execve(SHOAL, [str(SHOAL), "merge", "--into", "main"], environment())

    try:
        assert b"[y/N]" in said(terminal, b"[y/N]")
        os.write(terminal, b"\x03")
        rest = said(terminal, None)
    finally:
        os.close(terminal)

    assert b"Traceback" not in rest
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 130
    assert git(ran_in, "rev-parse", "main") == before


@pytest.mark.usefixtures("ran")
def test_the_question_stands_alone_and_a_no_says_what_it_leaves(ran_in: Path) -> None:
    before = git(ran_in, "rev-parse", "main")
    child, terminal = pty.fork()
    if child == 0:  # pragma: no cover - another process
        os.chdir(ran_in)
        os.execve(SHOAL, [str(SHOAL), "merge", "--into", "main"], environment())

    try:
        asked = said(terminal, b"[y/N]")
        os.write(terminal, b"n\n")
        rest = said(terminal, None)
    finally:
        os.close(terminal)
        os.waitpid(child, 0)

    assert b"--into BRANCH" not in asked
    assert b"not delivered: main is unchanged; `" in rest
    assert git(ran_in, "rev-parse", "main") == before


def said(terminal: int, until: bytes | None) -> bytes:
    """Read what is said until a word comes, or the end."""
    heard = b""
    while until is None or until not in heard:
        assert select.select([terminal], [], [], SECONDS)[0], heard
        try:
            heard += os.read(terminal, 4096)
        except OSError:  # whoever had the other side is gone
            break
    return heard


def test_no_branch_at_all_is_refused_whatever_goes_with_it(ran: Shoal) -> None:
    for words in (["--into", ""], ["--into", "", "--yes"], ["--preview", "--into", ""], ["--undo", "--into", ""]):
        assert ran("merge", *words).code == 2


def test_what_two_branches_hold_is_not_said_to_be_taken_out(repo: Path, shoal: Shoal) -> None:
    git(repo, "branch", "other")
    assert shoal("run", "--task", "x", "--command", "sh -c 'echo x > x.txt'").code == 0
    assert shoal("merge", "--into", "main", "--yes").code == 0
    assert shoal("merge", "--into", "other", "--yes").code == 0

    undone = shoal("merge", "--undo", "--yes")

    assert (undone.code, "both contain it" in undone.err) == (2, True)
    assert git(repo, "show", "main:x.txt") == git(repo, "show", "other:x.txt") == "x"
