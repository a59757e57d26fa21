"""Shells complete commands, options, and the names of runs and sessions."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.conftest import git


def complete(folder: Path, *words: str) -> list[str]:
    """Complete the last of *words* in a real bash."""
    script = (
        'eval "$(shoal completion bash)"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shoal; echo "${COMPREPLY[*]}"'
    )
    env = environment(PATH=f"{SHOAL.parent}:/usr/bin:/bin")
    argv = ["bash", "-c", script, "bash", "shoal", *words]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_commands_options_and_names(ran: Shoal, ran_in: Path) -> None:
    report = json.loads(ran("status", "--json").out)
    (first, *_) = sorted(worker["session"] for step in report["steps"] for worker in step["worker_results"])

    assert complete(ran_in, "stat") == ["status"]
    assert complete(ran_in, "report", "--ht") == ["--html"]
    assert complete(ran_in, "completion", "z") == ["zsh"]
    assert complete(ran_in, "report", "") == [report["run"]]
    assert complete(ran_in, "logs", first[:5]) == [first]


def test_names_are_found_from_a_linked_worktree(ran: Shoal, ran_in: Path, tmp_path: Path) -> None:
    git(ran_in, "worktree", "add", "-q", "--detach", str(tmp_path / "linked"))
    name = json.loads(ran("status", "--json").out)["run"]

    assert ran("completion", "names", "runs", cwd=tmp_path / "linked").out.split() == [name]
    assert ran("completion", "names", "runs", cwd=tmp_path).out.split() == []


def test_names_cost_no_heavy_import() -> None:
    script = "import sys; from shoal.cli import main; sys.argv = ['shoal', 'completion', 'names', 'runs+sessions'];"
    argv = [sys.executable, "-c", f"{script} main.main(); print(*sys.modules)"]
    loaded = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()

    assert {"typer", "asyncio", "pydantic", "rich", "shoal.model.events"} & set(loaded) == set()


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_name_all_commands(ran: Shoal, shell: str, tmp_path: Path) -> None:
    done = ran("completion", shell)
    (tmp_path / "script").write_text(done.out)

    assert (done.code, " report " in done.out, "completion names" in done.out) == (0, True, True)
    if shutil.which(shell):
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True)
