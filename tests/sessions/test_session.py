"""One agent, from a task to a branch, whatever the agent leaves behind."""

import asyncio
from pathlib import Path

import pytest

from shoal.model.events import Output, Recorded, SessionEnded
from shoal.model.results import WorkerResult
from shoal.model.status import Status
from tests.acting import assert_nothing_left, fingerprint, paths_in, ran, shown, step, worked
from tests.conftest import git

STRATEGIES = ["overlay", "worktree", "directory"]


@pytest.mark.parametrize("strategy", STRATEGIES)
async def test_five_agents_write_one_file_and_five_branches_are_right(repo: Path, strategy: str) -> None:
    before = fingerprint(repo)
    script = 'echo "$SHOAL_WORKER_INDEX" > same.txt; echo "$SHOAL_WORKER_INDEX" >> README.md; rm d0/f1.txt'

    report = await ran(repo, step("same", script, 5), strategy=strategy)

    results = report.steps[0].worker_results
    assert report.status is Status.SUCCEEDED
    assert [result.index for result in results] == list(range(5))
    for result in results:
        assert shown(repo, result, "same.txt") == str(result.index)
        assert shown(repo, result, "README.md") == f"scratch\n{result.index}"
        assert "d0/f1.txt" not in paths_in(repo, result)
        assert result.files_changed == 3
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


async def test_what_the_agents_themselves_saw_differs_and_is_what_the_report_says(repo: Path) -> None:
    script = 'pwd; git rev-parse --show-toplevel; git symbolic-ref --short HEAD; echo "$HOME"; echo "$TMPDIR"; echo "$SHOAL_PORT"'

    report = await ran(repo, step("look", script, 3))

    seen = [result.output.splitlines() for result in report.steps[0].worker_results]
    for result, (pwd, top, branch, _, _, _) in zip(report.steps[0].worker_results, seen, strict=True):
        assert pwd == top == result.workspace
        assert branch.startswith("agent/look/")
        assert branch.removeprefix("agent/look/") == result.session.removeprefix("look-")
    for column in zip(*seen, strict=True):
        assert len(set(column)) == 3


async def test_the_environment_is_ours_and_nothing_of_the_hosts(repo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET_TOKEN", "hunter2")
    allowed = (
        "COMPOSE_PROJECT_NAME DATABASE_URL HOME LANG LOGNAME PATH PWD SHLVL _ OLDPWD SHOAL_BRANCH SHOAL_DATABASE_URL"
        " CONDUCTOR_DEFAULT_BRANCH CONDUCTOR_PORT CONDUCTOR_ROOT_PATH CONDUCTOR_WORKSPACE_NAME CONDUCTOR_WORKSPACE_PATH"
        " ROOT_WORKTREE_PATH"
        " SHOAL_PORT SHOAL_PROMPT_FILE SHOAL_ROOT_PATH SHOAL_RUN SHOAL_SESSION SHOAL_STEP SHOAL_SYSTEM_PROMPT_FILE"
        " SHOAL_WORKER_COUNT SHOAL_WORKER_INDEX SHOAL_WORKSPACE_PATH TERM TMPDIR USER XDG_CACHE_HOME"
        " SHOAL_MAX_CONCURRENT_AGENTS"
        " XDG_CONFIG_HOME XDG_DATA_HOME XDG_RUNTIME_DIR XDG_STATE_HOME"
    )

    result = await worked(repo, "env -0 | tr '\\0' '\\n'")

    assert {line.split("=")[0] for line in result.output.splitlines()} <= set(allowed.split())


async def test_the_prompt_is_on_stdin_and_in_its_file(repo: Path) -> None:
    result = await worked(repo, 'cat; echo; cat "$SHOAL_PROMPT_FILE"')

    assert result.output == "please do work\nplease do work\n"


async def test_everyday_git_works_inside(repo: Path) -> None:
    script = """
    set -ex
    git status --short; echo 1 > one; git add one; git commit -qm one; echo 2 >> one; git commit -qam two --amend
    echo 3 > three; git add three; git stash; git stash pop; git commit -qm three
    git checkout -qb side HEAD~1; echo s > side; git add side; git commit -qm side
    git checkout -q -; git cherry-pick side; git tag t1; git merge -q -m merged side
    git checkout -qb again HEAD~1; echo r > rebased; git add rebased; git commit -qm r; git rebase -q side
    git log --oneline | head -3; git diff main --stat; git branch -d side || git branch -D side
    git reflog expire --expire=now --all; git gc -q --prune=now; git fsck --strict; git config user.name Robot
    test "$(git rev-parse main)" = "$(git merge-base HEAD main)"
    """

    result = await worked(repo, script)

    assert result.status is Status.SUCCEEDED, result.error
    assert {"one", "side", "rebased"} <= paths_in(repo, result)
    assert_nothing_left(repo)


async def test_the_agents_own_commits_and_its_other_branches_are_kept(repo: Path) -> None:
    script = """
    echo a > a; git add a; git commit -qm 'my own'; echo s > s; git stash -qu
    git checkout -qb idea main; echo i > i; git add i; git commit -qm idea; git checkout -q -; echo b > b
    """

    result = await worked(repo, script)

    log = git(repo, "log", "--format=%s", f"main..{result.branch}").splitlines()
    assert log == ["work: please do work", "my own"]
    assert git(repo, "log", "-1", "--format=%an <%ae>", str(result.branch)) == "Ada <ada@example.org>"
    subjects = {git(repo, "log", "-1", "--format=%s", ref) for ref in result.kept_refs}
    assert "idea" in subjects
    assert len(result.kept_refs) == 2


@pytest.mark.parametrize(
    ("script", "status", "code"),
    [
        ("true", Status.NO_CHANGES, 0),
        ("echo x > README.md; printf 'scratch\\n' > README.md", Status.NO_CHANGES, 0),
        ("exit 7", Status.FAILED, 7),
        ("echo w > w; exit 7", Status.FAILED, 7),
        ("kill -9 $$", Status.FAILED, 137),
        ("echo w > w", Status.SUCCEEDED, 0),
    ],
)
async def test_the_end_is_told_honestly(repo: Path, script: str, status: Status, code: int) -> None:
    result = await worked(repo, script)

    assert (result.status, result.exit_code) == (status, code)
    assert (result.branch is not None) == ("> w" in script)
    assert (result.commit is None) == (result.branch is None)


async def test_a_task_that_expects_changes_fails_without(repo: Path) -> None:
    report = await ran(repo, step("work", "true", expect="changes"))

    assert report.steps[0].worker_results[0].status is Status.FAILED


async def test_time_ends_an_agent_that_ignores_term_and_its_work_is_kept(repo: Path) -> None:
    script = "trap '' TERM; echo half > half; (setsid sleep 4987 &); while :; do sleep 1; done"

    report = await ran(repo, step("work", script, timeout=0.5))

    result = report.steps[0].worker_results[0]
    assert result.status is Status.TIMED_OUT
    assert shown(repo, result, "half") == "half"
    assert not _running("sleep\0004987")
    assert_nothing_left(repo)


async def test_an_agent_that_is_asked_to_stop_may_tidy_up(repo: Path) -> None:
    script = "trap 'echo tidy > tidy; exit 0' TERM; echo ready; while :; do sleep 0.05; done"

    report = await ran(repo, step("work", script, timeout=0.7))

    assert shown(repo, report.steps[0].worker_results[0], "tidy") == "tidy"


async def test_fail_fast_stops_the_others_and_keeps_their_work(repo: Path) -> None:
    script = """
    echo "$SHOAL_WORKER_INDEX" > mine
    if [ "$SHOAL_WORKER_INDEX" = 0 ]; then sleep 0.5; exit 1; fi; sleep 600
    """

    report = await ran(repo, step("work", script, 3, on_failure="fail_fast"))

    statuses = [result.status for result in report.steps[0].worker_results]
    assert statuses == [Status.FAILED, Status.CANCELLED, Status.CANCELLED]
    assert report.steps[0].fail_count == 1
    assert [shown(repo, result, "mine") for result in report.steps[0].worker_results] == ["0", "1", "2"]
    assert_nothing_left(repo)


async def test_a_stop_from_outside_keeps_the_work(repo: Path) -> None:
    stop = asyncio.Event()
    written: set[str] = set()

    def hear(recorded: Recorded) -> None:
        if isinstance(recorded.event, Output):
            written.add(recorded.event.session)
        if len(written) == 2:
            stop.set()

    report = await ran(repo, step("work", "echo some > some; echo written; sleep 600", 2), stop=stop, listen=hear)

    assert report.status is Status.CANCELLED
    assert all(shown(repo, result, "some") == "some" for result in report.steps[0].worker_results)
    assert_nothing_left(repo)


NASTY = {
    "index.lock": "echo w > w; touch $(git rev-parse --git-dir)/index.lock $(git rev-parse --git-dir)/HEAD.lock",
    "wiped gitdir": "echo w > w; cd $(git rev-parse --git-dir) && find . -mindepth 1 -delete",
    "stopped pid 1": "echo w > w; kill -STOP 1; kill -INT 1; kill -KILL 1; true",
    "mode 000": "echo w > w; echo s > secret; mkdir d; echo in > d/in; chmod 000 secret d",
    "detached": "echo w > w; git checkout -q --detach",
    "orphan": "git checkout -q --orphan new; git rm -rqf --cached .; echo w > w; git add w; git commit -qm orphan",
    "mid-rebase": "echo w > w; git add w; git commit -qm w; GIT_SEQUENCE_EDITOR='sed -i s/pick/edit/' git rebase -qi HEAD~1 || true",
    "bad config": "echo w > w; echo '[core' > $(git rev-parse --git-dir)/config",
    "fsmonitor": "echo w > w; git config core.fsmonitor 'touch /tmp/x; false'; git config filter.a.clean false; echo '* filter=a' > .gitattributes",
    "alternates": "echo w > w; echo /nonexistent > $(git rev-parse --git-dir)/objects/info/alternates",
    "fifo": "echo w > w; mkfifo fifo; rm README.md; mkfifo README.md; python3 -c \"import socket; socket.socket(socket.AF_UNIX).bind('sock')\" || true",
    "head is a fifo": "echo w > w; cd $(git rev-parse --git-dir); rm HEAD; mkfifo HEAD",
    "pack is a fifo": "echo w > w; git commit -q --allow-empty -m c; mkfifo $(git rev-parse --git-dir)/objects/pack/pack-1.idx",
    "ignore file is a fifo": "echo w > w; mkdir e; mkfifo .gitignore e/.gitattributes; echo e > e/e",
    "odd names": "echo w > w; echo n > \"$(printf 'a\\nb')\"; echo e > \"$(printf '\\033[2J')\"; echo f > \"$(printf '\\377')\"; echo d > -rf",
    "deep": "echo w > w; i=0; while [ $i -lt 300 ]; do mkdir deep; cd deep || break; i=$((i+1)); done; echo x > x",
    "read-only": "echo w > w; chmod -R a-w .",
}


@pytest.mark.parametrize("name", NASTY)
@pytest.mark.parametrize("strategy", ["overlay", pytest.param("worktree", marks=pytest.mark.deep)])
async def test_the_work_is_kept_whatever_is_left_behind(repo: Path, name: str, strategy: str) -> None:
    before = fingerprint(repo)

    result = await worked(repo, NASTY[name], strategy=strategy)

    assert shown(repo, result, "w") == "w", result
    assert fingerprint(repo) == before
    assert_nothing_left(repo)


async def test_no_process_survives(repo: Path) -> None:
    script = "echo w > w; i=0; while [ $i -lt 200 ]; do (trap '' TERM; setsid sleep 4322) & i=$((i+1)); done"

    result = await worked(repo, script)

    assert shown(repo, result, "w") == "w"
    assert not _running("sleep\0004322")


async def test_what_mode_000_hides_is_kept_too(repo: Path) -> None:
    result = await worked(repo, NASTY["mode 000"])

    assert {"secret", "d/in"} <= paths_in(repo, result)
    assert result.unkept == ()


@pytest.mark.parametrize("has_commit", [True, False])
async def test_a_nested_repository_comes_as_plain_files(repo: Path, has_commit: bool) -> None:
    commit = "git add -A; git commit -qm inner;" if has_commit else ""
    script = f"mkdir -p sub/deeper; cd sub; git init -q; echo s > s; echo '*.o' > .gitignore; echo o > x.o; {commit}"
    script += "cd deeper; git init -q; echo d > d; git add d; git commit -qm deeper"

    result = await worked(repo, script)

    assert {"sub/s", "sub/deeper/d", "sub/.gitignore"} <= paths_in(repo, result), result
    assert "sub/x.o" not in paths_in(repo, result)
    assert result.unkept == ()


async def test_a_gitlink_that_the_agent_committed_is_squashed_into_plain_files(repo: Path) -> None:
    script = "git init -q sub; cd sub; echo s > s; git add s; git commit -qm s; cd ..; git add -A 2>/dev/null; git commit -qm link"

    result = await worked(repo, script)

    assert shown(repo, result, "sub/s") == "s"
    assert git(repo, "rev-list", "--count", f"main..{result.branch}") == "1"


async def test_what_is_too_large_is_named_and_the_rest_kept_without_hashing_it(repo: Path) -> None:
    result = await worked(repo, "echo w > w; truncate -s 3G sparse; truncate -s 200M README.md")

    assert result.status is Status.FAILED
    assert "2 files are too large for a branch" in str(result.error)
    assert set(result.unkept) == {"sparse", "README.md"}
    assert shown(repo, result, "README.md") == "scratch"
    assert shown(repo, result, "w") == "w"


async def test_ignored_files_are_counted_not_committed(repo: Path) -> None:
    result = await worked(repo, "echo '*.log' > .gitignore; echo l > a.log; echo l > b.log")

    assert paths_in(repo, result) >= {".gitignore"}
    assert "a.log" not in paths_in(repo, result)
    assert result.ignored == 2


async def test_output_of_any_kind_neither_hangs_nor_grows_us(repo: Path) -> None:
    script = "printf 'a\\000b\\377c\\n'; head -c 20000000 /dev/zero | tr '\\0' x; echo; echo end; (sleep 600 &)"

    result = await worked(repo, script)

    assert result.status is Status.NO_CHANGES
    assert result.output.endswith("end\n")
    assert len(result.output) < 200_000


def _running(words: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_text(errors="replace")
        except OSError:
            continue
        if words in text and "sh\0" not in text:
            found.append(text)
    return found


def test_results_are_values() -> None:
    assert WorkerResult(index=0, session="x", status=Status.LOST) == WorkerResult(
        index=0, session="x", status=Status.LOST
    )


async def test_who_is_told_to_stop_and_then_cancelled_in_the_same_instant_waits_for_nobody(repo: Path) -> None:
    """Two interrupts that come together are two: the agent is not given the time that one alone would give it."""
    stop, heard = asyncio.Event(), list[type]()

    def listen(recorded: Recorded) -> None:
        heard.append(type(recorded.event))
        if isinstance(recorded.event, Output):
            stop.set()
            running.cancel()

    stubborn = step("hold", "trap '' TERM INT; echo up; while :; do sleep 1; done")
    running = asyncio.ensure_future(ran(repo, stubborn, stop=stop, listen=listen))
    await asyncio.wait((running,), timeout=60)

    assert running.cancelled()
    assert SessionEnded not in heard
