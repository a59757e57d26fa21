"""What can be refused is refused before an agent starts, and later failures still have a report."""

import json
import stat
from pathlib import Path

import pytest

from tests.cli.conftest import Shoal
from tests.cli.flows import CHEAP, ran, written
from tests.conftest import git

WORK = 'steps: [{name: a, command: "echo x > a.txt"}]'


def refused(shoal: Shoal, file: str, code: int) -> str:
    said = shoal("run", file, "--json")
    assert (said.code, said.out) == (code, ""), said.err
    return said.err


def test_a_branch_to_deliver_into_must_be_there(repo: Path, shoal: Shoal) -> None:
    file = written(repo, WORK, runtime=f"{CHEAP}, merge: {{strategy: auto, into: nope}}")

    said = refused(shoal, file, 2)

    assert "p.yaml:1:" in said
    assert "there is no branch 'nope' to deliver into" in said
    assert not (repo / ".shoal").exists(), "nothing was begun"


@pytest.mark.parametrize("verify", ["no-such-program -q", "[no-such-program, -q]", "no-such-program && echo x > y"])
def test_a_verification_must_have_its_program(repo: Path, shoal: Shoal, verify: str) -> None:
    file = written(repo, WORK, runtime=f"{CHEAP}, merge: {{strategy: auto, verify: {verify}}}")

    said = refused(shoal, file, 5)

    assert "p.yaml:1:" in said
    assert "the program 'no-such-program'" in said
    assert git(repo, "for-each-ref", "refs/heads/agent") == ""


def test_contracts_selections_and_commands_must_have_their_programs(repo: Path, shoal: Shoal) -> None:
    work = {
        "step a: contract test_suite": "command: echo x, contract: {type: test_suite, command: no-such-program}",
        "step a: select": "command: echo x, concurrency: 2, select: {by: command, command: no-such-program}",
        "step a": "command: no-such-program -x",
    }

    said = {where: refused(shoal, written(repo, f"steps: [{{name: a, {step}}}]"), 5) for where, step in work.items()}

    assert all(f"{where}: the program 'no-such-program'" in text for where, text in said.items()), said


def test_a_program_that_the_sandbox_does_not_show_comes_with_the_way_to_show_it(
    repo: Path, shoal: Shoal, tmp_path: Path
) -> None:
    program = tmp_path / "tools/own-check"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    merge = "merge: {strategy: auto, verify: own-check}"
    path = f"{program.parent}:/usr/local/bin:/usr/bin:/bin"

    said = shoal("run", written(repo, WORK, runtime=f"{CHEAP}, {merge}"), PATH=path)
    mended = shoal("run", written(repo, WORK, runtime=f"{CHEAP}, {merge}, toolchains: [{program.parent}]"), PATH=path)

    assert said.code == 5
    assert f"toolchains: [{program.parent}]" in said.err
    assert mended.code == 0, mended.err


@pytest.mark.parametrize(
    "command",
    ["no-such-program || echo x > x", "true; no-such-program; true", "./made-by-agent", "x=1 no-such-program"],
)
def test_what_may_pass_all_the_same_is_not_refused(repo: Path, command: str) -> None:
    assert ran(repo, f"steps: [{{name: a, command: {json.dumps(command)}}}]").said.code in (0, 1)


def test_the_report_is_printed_although_the_merge_at_the_end_cannot_be_made(repo: Path, shoal: Shoal) -> None:
    git(repo, "branch", "side")
    gone = 'git -C "$SHOAL_ROOT_PATH" branch -qD side; echo x > a.txt'
    steps = f"steps: [{{name: a, command: {json.dumps(gone)}}}]"

    done = ran(repo, steps, runtime=f"{CHEAP}, merge: {{strategy: auto, into: side}}")

    assert done.said.code == 2
    assert "there is no branch 'side'" in done.said.err
    assert "there is no branch 'side'" in done.report["error"]
    assert done.report["status"] == "degraded"
    assert done.shown("a", "a.txt") == "x"
    later = json.loads(shoal("status", "--json").out)
    assert (later["status"], later["error"]) == ("degraded", done.report["error"])
    git(repo, "branch", "side")
    lines = shoal("run", "p.yaml")
    assert (lines.code, "1 of 1 agent succeeded" in lines.out, "error: " in lines.out) == (2, True, True)
