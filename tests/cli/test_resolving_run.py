"""A run that resolves its own conflicts: each rule from a file, with obedient agents."""

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.acting import assert_nothing_left
from tests.cli.conftest import SHOAL, environment, shoal_in
from tests.cli.flows import Ran, ran, written
from tests.conftest import git

STEPS = """\
steps:
  - {name: one, agent: do, prompt: "echo one > same.txt; echo 1 > one.txt"}
  - {name: two, agent: do, prompt: "echo two > same.txt; echo 2 > two.txt"}
"""
BOTH = "printf 'one\\ntwo\\n' > same.txt"


def merged(repo: Path, rule: str, more: str = "", fixer: str = BOTH, steps: str = STEPS) -> Ran:
    how = f"strategy: auto, on_conflict: {rule}{', resolver: fixer' if rule == 'agent' else ''}{more}"
    runtime = f"sandbox: none, network: host, max_concurrent_workers: 1, merge: {{{how}}}"
    return ran(repo, steps, runtime=runtime, fixer=fixer)


def second(done: Ran) -> dict[str, Any]:
    """What became of the session that came second."""
    (found,) = [one for one in done.report["merge"]["results"] if one["session"].startswith("two-")]
    return dict(found)


def landed(done: Ran, path: str = "same.txt") -> list[str]:
    return git(done.repo, "show", f"shoal/{done.report['run']}:{path}").splitlines()


@pytest.mark.parametrize(("rule", "lines"), [("ours", ["one"]), ("theirs", ["two"])])
def test_a_side_wins_and_the_rest_of_both_lands(repo: Path, rule: str, lines: list[str]) -> None:
    done = merged(repo, rule)

    assert done.said.code == 0, done.said.err
    assert (second(done)["status"], second(done)["resolved_by"], second(done)["resolver"]) == ("merged", rule, None)
    assert second(done)["message"].endswith(f"resolved by `{rule}`")
    assert (landed(done), landed(done, "one.txt"), landed(done, "two.txt")) == (lines, ["1"], ["2"])


def test_an_agent_writes_what_both_mean(repo: Path) -> None:
    fixer = f"grep -q '> echo one' $SHOAL_PROMPT_FILE && grep -q '^<<<<<<<' same.txt && {BOTH}"
    done = merged(repo, "agent", ", verify: 'test $(wc -l < same.txt) = 2 || test ! -e two.txt'", fixer)

    assert done.said.code == 0, done.said.err
    result = second(done)
    assert (result["status"], result["resolved_by"]) == ("merged", "agent")
    assert landed(done) == ["one", "two"]
    (worker,) = done["two__resolve"]["worker_results"]
    assert (worker["session"], worker["status"]) == (result["resolver"], "succeeded")
    assert git(repo, "rev-parse", worker["branch"]) == worker["commit"]
    assert "<<<<<<<" not in git(repo, "log", "-p", f"shoal/{done.report['run']}")

    again = shoal_in(repo)("merge")
    assert (again.code, "2 of 2 sessions merged" in again.out) == (0, True)


def test_markers_that_are_left_leave_it_to_a_person(repo: Path) -> None:
    done = merged(repo, "agent", fixer="echo more >> same.txt")

    assert done.said.code == 4
    result = second(done)
    assert result["status"] == "conflicts"
    assert (
        "did not resolve it: the work of fixer was not accepted: conflict markers are left in same.txt"
        in result["message"]
    )
    branches = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent/two__resolve").splitlines()
    assert len(branches) == 2
    assert all(branch in result["message"] for branch in branches)
    assert (landed(done), done.statuses["two__resolve"]) == (["one"], "failed")


def test_what_is_not_verified_is_told_to_the_next_try(repo: Path) -> None:
    again = "if grep -q 'did not pass' $SHOAL_PROMPT_FILE; then echo good > same.txt; else echo bad > same.txt; fi"
    verify = ", verify: 'test ! -e two.txt || grep good same.txt'"
    done = merged(repo, "agent", verify, again)

    assert done.said.code == 0, done.said.err
    assert (second(done)["resolved_by"], landed(done)) == ("agent", ["good"])
    assert len(git(repo, "for-each-ref", "refs/heads/agent/two__resolve").splitlines()) == 2


def test_the_losing_task_is_done_again_on_what_the_others_made(repo: Path) -> None:
    steps = STEPS.replace('"echo two >', '"echo two >>')
    done = merged(repo, "redo", ", verify: 'test -e same.txt'", steps=steps)

    assert done.said.code == 0, done.said.err
    result = second(done)
    assert (result["status"], result["resolved_by"], landed(done)) == ("merged", "redo", ["one", "two"])
    assert done["two__redo"]["worker_results"][0]["session"] == result["resolver"]
    assert done["two__redo"]["worker_results"][0]["commit"] == result["source"]


def test_what_a_resolver_may_not_change_without_a_person_is_held(repo: Path) -> None:
    done = merged(repo, "agent", fixer=f"{BOTH}; echo evil > .envrc")

    assert done.said.code == 4
    assert second(done)["status"] == "held"
    assert "changes files that run on your machine: .envrc" in second(done)["message"]
    assert landed(done) == ["one"]


def test_reporting_resolves_nothing(repo: Path) -> None:
    done = merged(repo, "report")

    assert done.said.code == 4
    assert (second(done)["status"], second(done)["resolved_by"]) == ("conflicts", None)


def test_a_resolver_that_is_not_there_is_told_before_anything_starts(repo: Path) -> None:
    (repo / "p.yaml").write_text(
        "runtime: {merge: {strategy: auto, on_conflict: agent, resolver: gone}}\n"
        "agents: {gone: {adapter: command, command: [no-such-program]}}\n"
        'steps: [{name: a, command: "echo x > a.txt"}]\n'
    )
    said = shoal_in(repo)("run", "p.yaml")

    assert said.code == 5
    assert "no-such-program" in said.err
    assert git(repo, "for-each-ref", "refs/heads/agent") == ""


@pytest.mark.deep
def test_verifications_look_ahead_within_the_limit_and_the_outcome_is_the_same(repo: Path) -> None:
    """Real sandboxes, three at once: of five, the second and the fifth break what the others made."""
    names = ["good-1", "bad-1", "good-2", "good-3", "bad-2"]
    steps = "steps:\n" + "".join(f'  - {{name: {name}, command: "echo x > {name}"}}\n' for name in names)
    runtime = "max_concurrent_workers: 3, merge: {strategy: auto, verify: '! ls bad-*'}"

    done = ran(repo, steps, runtime=runtime)

    found = {one["session"].rpartition("-")[0]: one["status"] for one in done.report["merge"]["results"]}
    assert found == {name: "held" if name.startswith("bad") else "merged" for name in names}
    files = git(repo, "ls-tree", "--name-only", done.report["merge"]["branch"]).split()
    assert {name for name in files if "-" in name} == {"good-1", "good-2", "good-3"}
    assert_nothing_left(repo)


@pytest.mark.deep
@pytest.mark.parametrize("blow", [signal.SIGINT, signal.SIGKILL])
def test_a_run_that_is_ended_while_a_conflict_is_resolved_is_finished_by_hand(repo: Path, blow: signal.Signals) -> None:
    how = "merge: {strategy: auto, on_conflict: agent, resolver: slow}"
    runtime = f"sandbox: none, network: host, max_concurrent_workers: 1, {how}"
    file = written(repo, STEPS, runtime=runtime, fixer=BOTH, slow="echo half > same.txt; echo up; sleep 61.5")
    command = [str(SHOAL), "run", file, "--events"]
    with subprocess.Popen(command, cwd=repo, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        heard = (json.loads(line) for line in process.stdout)
        next(one for one in heard if one["event"] == "Output" and one["text"] == "up")
        process.send_signal(blow)
        process.stdout.read()
    assert process.returncode in (130, -9)

    said = shoal_in(repo)("merge", "--on-conflict", "agent", "--resolver", "fixer", "--file", file, "--json")

    assert said.code == 0, said.err
    assert sorted(one["status"] for one in json.loads(said.out)["results"]) == ["merged", "merged"]
    half = git(repo, "for-each-ref", "--format=%(refname)", "refs/heads/agent/two__resolve").splitlines()
    assert len(half) == 2
    assert {git(repo, "show", f"{branch}:same.txt") for branch in half} == {"half", "one\ntwo"}
    assert_nothing_left(repo)
