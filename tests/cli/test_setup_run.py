"""Set-up of workspaces, from the command line: run once, shared, and never counted as an agent's work."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SHOAL, Shoal, environment
from tests.conftest import git

# Files of set-up show how often it ran: nothing outside the sandbox is reliable.
STAMP = "od -An -N8 -tx8 /dev/urandom > stamp"
COPY = "cat stamp > got"
Step = dict[str, Any]


def document(setup: object, command: str, *, workers: int = 1, **runtime: object) -> str:
    """A file with one step whose agent is a shell script."""
    agents = {"w": {"adapter": "command", "command": ["/bin/sh", "-c", command]}}
    steps = [{"name": "work", "agent": "w", "prompt": "go", "concurrency": workers, "on_failure": "best_effort"}]
    said = {} if setup is None else {"setup": setup}
    return json.dumps({"runtime": {**runtime, **said}, "agents": agents, "steps": steps})


def ran(shoal: Shoal, repo: Path, text: str) -> dict[str, Any]:
    (repo / "shoal.yaml").write_text(text)
    said = shoal("run", "shoal.yaml", "--json")
    report: dict[str, Any] = json.loads(said.out)
    return report


def workers(report: dict[str, Any], step: int = 0) -> list[Step]:
    found: list[Step] = report["steps"][step]["worker_results"]
    return found


def committed(repo: Path, files: dict[str, str], message: str = "more") -> None:
    for name, text in files.items():
        (repo / name).parent.mkdir(parents=True, exist_ok=True)
        (repo / name).write_text(text)
    git(repo, "add", "-A", ":!shoal.yaml")
    git(repo, "commit", "-qm", message)


def got(repo: Path, worker: Step, name: str = "got") -> str:
    assert worker["branch"], worker
    return git(repo, "show", f"{worker['branch']}:{name}")


def files_of(repo: Path, worker: Step) -> set[str]:
    return set(git(repo, "diff", "--name-only", "main", worker["branch"]).splitlines())


def test_it_runs_once_for_five_workers_and_not_again_in_the_next_run(shoal: Shoal, repo: Path) -> None:
    text = document(STAMP, COPY, workers=5)

    first = ran(shoal, repo, text)
    second = ran(shoal, repo, text)

    assert [one["status"] for one in workers(first)] == ["succeeded"] * 5
    assert len({got(repo, one) for one in (*workers(first), *workers(second))}) == 1
    assert {frozenset(files_of(repo, one)) for one in workers(first)} == {frozenset({"got"})}


@pytest.mark.deep
def test_it_runs_again_for_a_new_lock_file_another_text_or_other_included_files(shoal: Shoal, repo: Path) -> None:
    committed(repo, {".gitignore": ".env\n", ".worktreeinclude": ".env\n", "package-lock.json": "1\n"})
    (repo / ".env").write_text("A=1\n")
    seen = [got(repo, workers(ran(shoal, repo, document(STAMP, COPY)))[0])]
    seen.append(got(repo, workers(ran(shoal, repo, document([STAMP, "true"], COPY)))[0]))
    (repo / ".env").write_text("A=2\n")
    seen.append(got(repo, workers(ran(shoal, repo, document(STAMP, COPY)))[0]))
    committed(repo, {"package-lock.json": "2\n"})
    seen.append(got(repo, workers(ran(shoal, repo, document(STAMP, COPY)))[0]))

    assert len(set(seen)) == 4


@pytest.mark.parametrize("strategy", ["overlay", "worktree", "directory"])
def test_what_it_makes_is_not_the_agents_work_unless_the_agent_changes_it(
    shoal: Shoal, repo: Path, strategy: str
) -> None:
    setup = [
        "mkdir -p node_modules 'odd [a]*' && echo dep > node_modules/dep.js && echo x > 'odd [a]*/ b '",
        "echo changed > README.md; rm d0/f1.txt; echo both >> d0/f0.txt; echo taken > other.txt",
    ]
    agent = "git status --porcelain; echo mine > node_modules/mine.js; echo me >> d0/f0.txt; echo new >> other.txt"
    (worker,) = workers(ran(shoal, repo, document(setup, agent, isolation_strategy=strategy)))

    assert (worker["status"], worker["output"], worker["unkept"]) == ("succeeded", "", [])
    assert files_of(repo, worker) == {"node_modules/mine.js", "d0/f0.txt", "other.txt"}
    assert got(repo, worker, "d0/f0.txt").endswith("both\nme")


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
def test_an_agents_own_commit_does_not_take_it_in_either(shoal: Shoal, repo: Path, strategy: str) -> None:
    setup = "mkdir made && echo 1 > made/one && echo changed > README.md"
    agent = "echo mine > mine.txt && git add -A && git commit -qm own && git commit -aqm more --allow-empty"
    (worker,) = workers(ran(shoal, repo, document(setup, agent, isolation_strategy=strategy)))

    assert files_of(repo, worker) == {"mine.txt"}
    assert len(git(repo, "log", "--format=%s", f"main..{worker['branch']}").splitlines()) == 2


def test_an_agent_that_does_nothing_has_changed_nothing(shoal: Shoal, repo: Path) -> None:
    for strategy in ("overlay", "worktree"):
        text = document("echo changed > README.md; echo new > new", "cat new", isolation_strategy=strategy)
        (worker,) = workers(ran(shoal, repo, text))

        assert (worker["status"], worker["branch"], worker["output"]) == ("no_changes", None, "new\n")


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
def test_a_failing_one_fails_the_session_and_is_not_kept(shoal: Shoal, repo: Path, strategy: str) -> None:
    text = document(["echo fine", "echo 'no such package' >&2; exit 7"], COPY, workers=2, isolation_strategy=strategy)

    report = ran(shoal, repo, text)

    for worker in workers(report):
        assert worker["status"] == "failed"
        assert worker["error"].startswith("setup failed: it exited with 7\n")
        assert "no such package" in worker["error"]
        assert worker["branch"] is None
    assert git(repo, "branch", "--list", "agent/*") == ""
    assert list((repo / ".shoal/setup").glob("*/ready")) == []
    assert list((repo / ".shoal/setup").glob("making-*")) == []
    assert list((repo / ".shoal/boxes").iterdir()) == []


def test_time_is_bounded_and_the_end_is_named(shoal: Shoal, repo: Path) -> None:
    for setup in ({"run": "sleep 60", "timeout": 0.3}, "sleep 61"):
        (worker,) = workers(ran(shoal, repo, document(setup, COPY, setup_timeout=0.3)))

        assert worker["error"].startswith("setup failed: it was still running after 0.3 s")


def killed_when_there(repo: Path, text: str, *patterns: str) -> None:
    """Run a file, and end Shoal by force when a file is there that no event tells of."""
    (repo / "shoal.yaml").write_text(text)
    with subprocess.Popen([SHOAL, "run", "shoal.yaml"], cwd=repo, env=environment(), stdout=subprocess.DEVNULL) as one:
        end = time.monotonic() + 30
        while not any(list((repo / ".shoal").glob(pattern)) for pattern in patterns) and time.monotonic() < end:
            os.sched_yield()
        os.kill(one.pid, signal.SIGKILL)


@pytest.mark.deep
def test_killed_in_the_middle_it_leaves_no_half_layer(shoal: Shoal, repo: Path) -> None:
    text = document(f"{STAMP}; echo half > half; exec sleep 3600", COPY)
    killed_when_there(repo, text, "setup/making-*/tree/half")
    assert list((repo / ".shoal/setup").glob("making-*")) != []

    (worker,) = workers(ran(shoal, repo, document(STAMP, f"{COPY}; ls half || echo whole")))

    assert (worker["status"], worker["output"]) == ("succeeded", "whole\n")
    assert list((repo / ".shoal/setup").glob("making-*")) == []
    assert str(repo) not in Path("/proc/self/mounts").read_text()


@pytest.mark.deep
@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
def test_work_that_a_kill_left_is_brought_in_without_what_set_up_made(shoal: Shoal, repo: Path, strategy: str) -> None:
    setup = "echo changed > README.md; mkdir made; echo 1 > made/one"
    agent = "echo mine > mine.txt; exec sleep 3600"
    text = document(setup, agent, isolation_strategy=strategy)
    killed_when_there(repo, text, "boxes/*/upper/mine.txt", "workspaces/*/*/*/mine.txt")

    assert shoal("clean").code == 0

    branch = git(repo, "for-each-ref", "--format=%(refname:short)", "refs/heads/agent")
    assert git(repo, "diff", "--name-only", "main", branch) == "mine.txt"


@pytest.mark.parametrize("strategy", ["worktree", pytest.param("directory", marks=pytest.mark.deep)])
def test_what_set_up_made_before_a_kill_is_not_the_work_of_an_agent(shoal: Shoal, repo: Path, strategy: str) -> None:
    text = document("echo changed > README.md; echo made > made; exec sleep 3600", "true", isolation_strategy=strategy)
    killed_when_there(repo, text, "workspaces/*/*/*/made")

    assert shoal("clean").code == 0

    assert git(repo, "for-each-ref", "refs/heads/agent") == ""
    assert list((repo / ".shoal/workspaces").iterdir()) == []


@pytest.mark.deep
def test_two_runs_at_once_wait_for_one(shoal: Shoal, repo: Path) -> None:
    (repo / "shoal.yaml").write_text(document(STAMP, COPY))
    words = [str(SHOAL), "run", "shoal.yaml", "--json"]
    both = [
        subprocess.Popen(words, cwd=repo, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        for _ in range(2)
    ]
    reports = [json.loads(one.communicate(timeout=60)[0]) for one in both]

    assert len({got(repo, workers(report)[0]) for report in reports}) == 1


def test_a_repository_inside_that_it_made_stays_out(shoal: Shoal, repo: Path) -> None:
    made = "git init -q vendor/x && cd vendor/x && echo 1 > f && git add f && git commit -qm x"
    for strategy in ("overlay", "worktree"):
        agent = "cat vendor/x/f > mine.txt; git add -A; git commit -qm own"
        (worker,) = workers(ran(shoal, repo, document(made, agent, isolation_strategy=strategy)))

        assert worker["unkept"] == []
        assert files_of(repo, worker) == {"mine.txt"}


def test_the_nearest_word_holds_and_an_empty_list_is_none(shoal: Shoal, repo: Path) -> None:
    committed(repo, {"conductor.json": json.dumps({"scripts": {"setup": "echo conductor > from"}})})
    agent = {"adapter": "command", "command": ["/bin/sh", "-c", "cat from > got || echo none > got"]}
    steps = [
        {"name": "a", "agent": "plain", "prompt": "go"},
        {"name": "b", "agent": "own", "prompt": "go"},
        {"name": "c", "agent": "own", "prompt": "go", "setup": "echo step > from"},
        {"name": "d", "agent": "own", "prompt": "go", "setup": []},
    ]
    agents = {"plain": agent, "own": {**agent, "setup": "echo agent > from"}}
    report = ran(shoal, repo, json.dumps({"agents": agents, "steps": steps}))

    assert [got(repo, workers(report, n)[0]) for n in range(4)] == ["conductor", "agent", "step", "none"]
    assert [note for note in report["notes"] if "set-up comes from conductor.json" in note] != []


def test_one_that_names_what_differs_is_run_for_each(shoal: Shoal, repo: Path) -> None:
    text = document("echo $CONDUCTOR_PORT > port", 'test "$(cat port)" = "$SHOAL_PORT" && cat port > got', workers=2)

    found = workers(ran(shoal, repo, text))

    assert [one["status"] for one in found] == ["succeeded"] * 2
    assert len({got(repo, one) for one in found}) == 2


def test_absolute_paths_that_it_wrote_lead_to_each_agents_own_workspace(shoal: Shoal, repo: Path) -> None:
    """As a virtual environment has them, and a package that is installed to be edited."""
    setup = 'mkdir tools && printf \'#!/bin/sh\\ncat "%s/README.md"\\n\' "$PWD" > tools/show && chmod +x tools/show'
    agent = 'echo edited > README.md && tools/show && where=$(tail -n 1 tools/show | cut -d\\" -f2) && echo y > ${where%/*}/in'
    (worker,) = workers(ran(shoal, repo, document(setup, agent)))

    assert (worker["status"], worker["output"]) == ("succeeded", "edited\n")
    assert files_of(repo, worker) == {"README.md", "in"}


@pytest.mark.deep
def test_programs_of_the_users_that_it_begins_with_are_there_for_the_agent_too(shoal: Shoal, repo: Path) -> None:
    tool = repo.parent / "tools/bin/my-installer"
    tool.parent.mkdir(parents=True)
    tool.write_text('#!/bin/sh\nln -s "$0" installed\necho ran\n')
    tool.chmod(0o755)
    (repo / "shoal.yaml").write_text(document("true && my-installer", "cd .. && cd - && ./installed 2>/dev/null"))

    said = shoal("run", "shoal.yaml", "--json", PATH=f"{tool.parent}:{os.environ['PATH']}")

    (worker,) = workers(json.loads(said.out))
    assert worker["output"].endswith("ran\n"), worker


@pytest.mark.deep
def test_the_gitdir_cannot_be_taken_away_by_that_other_path(shoal: Shoal, repo: Path) -> None:
    agent = (
        'cd "$(cat where)" && ! rm -f .git 2>/dev/null && ! ln -sfn /etc .git 2>/dev/null && git status --porcelain'
        " && ! sh -c 'echo gitdir: /etc > .git' 2>/dev/null && echo 1 > got"
    )
    (worker,) = workers(ran(shoal, repo, document("pwd > where", agent)))

    assert (worker["status"], worker["output"]) == ("succeeded", "")


def test_its_words_are_in_the_log_and_marked(shoal: Shoal, repo: Path) -> None:
    ran(shoal, repo, document("echo installing", "echo work"))
    first = shoal("logs").out
    ran(shoal, repo, document("echo installing", "echo work"))

    assert "setup: installing\n" in first
    assert "\nwork\n" in first
    assert "setup: reused from an earlier session\n" in shoal("logs").out


def test_a_dry_run_shows_it(shoal: Shoal, repo: Path) -> None:
    (repo / "shoal.yaml").write_text(document({"run": ["npm ci"], "network": "host", "timeout": "5m"}, COPY))

    said = shoal("run", "shoal.yaml", "--dry-run")

    assert "setup: npm ci (once for all, at most 5 min 00 s, network host)" in said.out
    assert json.loads(shoal("run", "shoal.yaml", "--dry-run", "--json").out)["steps"][0]["setup"] == ["npm ci"]


def test_later_steps_and_checks_use_it_again_until_a_lock_file_changes(shoal: Shoal, repo: Path) -> None:
    committed(repo, {".gitignore": "node_modules\n", "package-lock.json": "1\n"})
    setup = "mkdir -p node_modules; od -An -N8 -tx8 /dev/urandom > node_modules/stamp"

    def step(name: str, command: str, *needs: str) -> Step:
        agent = ["/bin/sh", "-c", f"{command}; cat node_modules/stamp > {name}.got"]
        return {"name": name, "command": agent, "needs": list(needs)}

    checked = step("a", "echo 1 > one") | {
        "contract": {"type": "test_suite", "command": "cmp node_modules/stamp a.got"}
    }
    steps = [checked, step("b", "echo 2 > package-lock.json", "a"), step("c", "true", "b")]
    report = ran(shoal, repo, json.dumps({"runtime": {"setup": setup}, "steps": steps}))
    a, b, c = (got(repo, workers(report, n)[0], f"{name}.got") for n, name in enumerate("abc"))

    assert report["status"] == "succeeded"
    assert a == b != c
