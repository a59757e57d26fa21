"""`shoal merge` with a verification and with conflict rules, as a user types it."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acting import assert_nothing_left
from tests.cli.conftest import SHOAL, Shoal, environment
from tests.cli.flows import written
from tests.conftest import git

STEPS = """\
steps:
  - {name: one, agent: do, prompt: "echo one > same.txt; echo 1 > one.txt"}
  - {name: two, agent: do, prompt: "echo two > same.txt; echo 2 > two.txt"}
  - {name: tre, agent: do, prompt: "echo 3 > tre.txt"}
"""
BOTH = "printf 'one\\ntwo\\n' > same.txt"
SLOW = "echo half > same.txt; echo up; sleep 61.5"


@pytest.fixture
def done(repo: Path, shoal: Shoal) -> str:
    """A run without a sandbox whose second session conflicts with the first; returns its name."""
    file = written(
        repo, STEPS, runtime="sandbox: none, network: host, max_concurrent_workers: 1", fixer=BOTH, slow=SLOW
    )
    git(repo, "add", file)
    git(repo, "commit", "-qm", "plan")
    return str(json.loads(shoal("run", file, "--json").out)["run"])


def results(out: str) -> dict[str, dict[str, Any]]:
    return {one["session"].rpartition("-")[0]: one for one in json.loads(out)["results"]}


def test_what_fails_only_together_is_put_aside_with_its_log(repo: Path, shoal: Shoal, done: str) -> None:
    verify = "echo looked; test ! -e one.txt || test ! -e tre.txt"

    said = shoal("merge", done, "one", "tre", "--verify", verify, "--json")

    found = results(said.out)
    assert (said.code, found["one"]["status"], found["tre"]["status"]) == (4, "merged", "held")
    assert found["tre"]["message"].endswith("did not pass: it exited with 1\nlooked")
    assert "merge__verify-" in said.err
    assert git(repo, "ls-tree", "--name-only", f"shoal/{done}", "one.txt", "tre.txt") == "one.txt"
    run = json.loads(shoal("status", done, "--json").out)
    assert "merge__verify" in json.dumps(run)
    again = shoal("merge", done, "--json")
    assert all(not name.startswith("merge__") for name in results(again.out))
    assert_nothing_left(repo)


def test_a_base_that_fails_already_is_said(repo: Path, shoal: Shoal, done: str) -> None:
    said = shoal("merge", done, "--verify", "echo broken; false", "--verify-timeout", "30s", "--json")

    report = json.loads(said.out)
    assert said.code == 4
    assert report["base_fault"] == "`echo broken; false` did not pass: it exited with 1\nbroken"
    assert results(said.out)["one"]["message"].startswith("verification already fails on the base: `echo broken")
    assert "verification already fails on the base" in shoal("merge", done, "--verify", "false").out


def test_what_was_merged_before_is_verified_too_and_not_delivered_where_that_fails(
    repo: Path, shoal: Shoal, done: str
) -> None:
    before = git(repo, "rev-parse", "main")
    assert shoal("merge", done, "one", "tre").code == 0

    failed = shoal("merge", done, "one", "tre", "--verify", "test ! -e tre.txt", "--strategy", "auto", "--into", "main")
    as_json = shoal("merge", done, "one", "--verify", "test ! -e tre.txt", "--json")
    passed = shoal("merge", done, "one", "tre", "--verify", "test -e tre.txt")

    assert failed.code == as_json.code == 4
    assert f"verification fails on shoal/{done}: `test ! -e tre.txt` did not pass" in failed.out
    assert "--into BRANCH" not in failed.out
    assert json.loads(as_json.out)["branch_fault"] == "`test ! -e tre.txt` did not pass: it exited with 1"
    assert git(repo, "rev-parse", "main") == before
    assert (passed.code, "verify: test -e tre.txt" in passed.err) == (0, True)


@pytest.mark.parametrize(("rule", "line"), [("ours", "one"), ("theirs", "two")])
def test_a_side_is_taken_by_hand(repo: Path, shoal: Shoal, done: str, rule: str, line: str) -> None:
    said = shoal("merge", "--on-conflict", rule)

    assert (said.code, "3 of 3 sessions merged" in said.out) == (0, True)
    assert git(repo, "show", f"shoal/{done}:same.txt") == line


def test_a_resolver_of_the_file_is_used(repo: Path, shoal: Shoal, done: str) -> None:
    asked = ("merge", done, "--on-conflict", "agent", "--resolver", "fixer", "--file", "p.yaml", "--json")

    said = shoal(*asked, "--verify", "test ! -e two.txt || grep two same.txt")

    two = results(said.out)["two"]
    assert (said.code, two["status"], two["resolved_by"]) == (0, "merged", "agent")
    assert two["resolver"].startswith("two__resolve-")
    assert git(repo, "show", f"shoal/{done}:same.txt").split() == ["one", "two"]
    assert_nothing_left(repo)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--on-conflict", "redo"], "set `on_conflict: redo` under `runtime.merge` in the file"),
        (["--on-conflict", "agent"], "--on-conflict agent needs --resolver"),
        (["--resolver", "fixer"], "--resolver and --file need --on-conflict agent"),
        (["--on-conflict", "agent", "--resolver", "fixr", "--file", "p.yaml"], "did you mean 'fixer'?"),
        (["--on-conflict", "agent", "--resolver", "fixer"], "name its file with --file"),
        (["--verify-timeout", "3"], "--verify-timeout needs --verify"),
        (["--verify", " "], "--verify is empty"),
        (["--verify", "true", "--verify-timeout", "soon"], "'soon' is not a duration"),
        (["--preview", "--verify", "true"], "cannot be combined with --verify"),
        (["--verify", "true", "-j", "0"], "-j must be at least 1"),
    ],
)
def test_what_makes_no_sense_changes_nothing(repo: Path, shoal: Shoal, words: list[str], why: str) -> None:
    (repo / "p.yaml").write_text(
        "agents: {fixer: {adapter: command, command: [sh]}}\nsteps: [{name: a, agent: fixer, prompt: x}]\n"
    )
    if "fixr" in words or words[-1] == "fixer":
        shoal("run", "--task", "x", "--command", "true", "--sandbox", "none")

    said = shoal("merge", *words)

    assert (said.code, why in said.err) == (2, True), said.err
    assert git(repo, "for-each-ref", "refs/heads/shoal") == ""


@contextlib.contextmanager
def started(repo: Path, done: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a merge, and wait until its resolver has started to write."""
    words = ["merge", done, "--on-conflict", "agent", "--resolver", "slow", "--file", "p.yaml", "--json"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [str(SHOAL), *words], cwd=repo, env=environment(), text=True, stdout=pipe, stderr=pipe
    ) as one:
        assert one.stderr is not None
        assert "two__resolve-" in one.stderr.readline()
        while not any(path.read_text() == "half\n" for path in (repo / ".shoal").rglob("same.txt") if path.is_file()):
            assert one.poll() is None
        yield one


@pytest.mark.deep
def test_ctrl_c_ends_the_resolver_and_keeps_what_it_wrote(repo: Path, shoal: Shoal, done: str) -> None:
    with started(repo, done) as process:
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "resolving it was stopped" in results(out)["two"]["message"]
    (branch,) = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent/two__resolve").splitlines()
    assert git(repo, "show", f"{branch}:same.txt") == "half"
    assert git(repo, "show", f"shoal/{done}:tre.txt") == "3", "what is clean has landed"
    assert_nothing_left(repo)


@pytest.mark.deep
def test_killed_the_same_command_finishes(repo: Path, shoal: Shoal, done: str) -> None:
    with started(repo, done) as process:
        process.kill()
    assert git(repo, "show", f"shoal/{done}:tre.txt") == "3", "what is clean has landed"

    said = shoal("merge", done, "--on-conflict", "agent", "--resolver", "fixer", "--file", "p.yaml", "--json")

    assert (said.code, results(said.out)["two"]["resolved_by"]) == (0, "agent")
    assert git(repo, "show", f"shoal/{done}:same.txt").split() == ["one", "two"]
    assert_nothing_left(repo)
