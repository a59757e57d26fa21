"""Contracts checked against committed work: hostile commands in real sandboxes, and all contracts are checked."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from shoal.contracts.check import check
from shoal.model.contract import NonEmptyFile, SourceDiff, failure, warnings
from shoal.model.limits import ResourceLimits
from shoal.model.masking import Mask
from shoal.model.permissions import Permissions
from shoal.store.fold import fold
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.workspaces.base_checkouts import delta_ready
from tests.acting import assert_nothing_left, fingerprint
from tests.conftest import git
from tests.contracts.contracting import asked, benched, committed, message, non_empty, passes, review, running, worker


@pytest.mark.parametrize("strategy", ["overlay", "worktree", "directory"])
async def test_a_command_sees_the_committed_work_and_what_it_changes_is_thrown_away(repo: Path, strategy: str) -> None:
    commit = committed(repo, "echo new > new.txt; rm d0/f1.txt; echo more >> README.md")
    before = fingerprint(repo)
    script = "test -f new.txt && test ! -e d0/f1.txt && tail -1 README.md | grep -q more && git status --porcelain | grep . && exit 9; rm -r *; echo x > made; git commit -qam mine; exit 0"

    again = "test -f new.txt && test ! -e made && git log -1 --format=%H | tee /dev/stderr; exit 3"

    first, second = await asked(repo, commit, passes(script), passes(again), strategy=strategy)

    assert first.is_met
    assert not second.is_met
    assert second.message.splitlines()[1:] == [f"> {commit}", f"> {commit}"]
    assert fold(read_events(StatePaths.of(repo))).runs == {}
    assert fingerprint(repo) == before
    assert git(repo, "for-each-ref", "refs/heads/agent", "refs/shoal") == ""
    assert_nothing_left(repo)


async def test_without_a_commit_a_command_sees_the_base(repo: Path) -> None:
    looks, changes = passes("test -f README.md && git diff --quiet HEAD"), SourceDiff(type="source_diff")

    first, second = await asked(repo, None, looks, changes)

    assert first.is_met
    assert second.message == "0 files of ** are changed, but at least 1 are required"


async def test_work_on_a_base_that_is_a_layer_itself_is_seen_whole(repo: Path) -> None:
    """A step that builds on another has a layer for its base, and its own work is one more."""
    first = committed(repo, "rm -r d0; echo one > one")
    git(repo, "checkout", "-q", "--detach", first)
    (repo / "d0").mkdir()
    (repo / "d0/new").write_text("two\n")
    git(repo, "rm", "-q", "one")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "second")
    second = git(repo, "rev-parse", "HEAD")
    git(repo, "checkout", "-q", "main")
    git(repo, "branch", "held2", second)

    async with benched(repo, second) as bench:
        context = bench.context
        async with delta_ready(context.repository, first, context.base, context.paths.bases) as base:
            stacked = replace(bench, context=replace(context, base=base))
            ran = await stacked.run(("/bin/sh", "-c", "ls; ls d0; git status --porcelain"), None)
            changed = {one.path for one in await stacked.changes()}

    assert ran.output.split() == ["README.md", "d0", "new"]
    assert changed == {"one", "d0/new"}


async def test_a_failing_command_is_told_with_the_end_of_what_it_said(repo: Path) -> None:
    commit = committed(repo, "echo a > a")
    told = await message(
        repo,
        commit,
        passes("for i in $(seq 30); do echo line $i; done; printf 'red \\033[31m\\n'; exit 3"),
    )

    assert told is not None
    lines = told.splitlines()
    assert lines[0].endswith("did not pass: it exited with 3")
    assert len(lines) == 21
    assert lines[-2:] == ["> line 30", "> red \\x1b[31m"]
    assert "\x1b" not in told


async def test_a_command_as_a_list_is_no_shells(repo: Path) -> None:
    commit = committed(repo, "echo a > a")

    good, bad, none = await asked(
        repo, commit, *(passes(one) for one in (("test", "-f", "a"), ("test", "-f", "$(echo a)"), ("no-such-program",)))
    )

    assert good.is_met
    assert bad.message == "`test -f $(echo a)` did not pass: it exited with 1"
    assert not none.is_met
    assert "no-such-program" in none.message


async def test_a_command_that_forks_and_hangs_is_ended_with_all_it_started(repo: Path) -> None:
    commit = committed(repo, "echo a > a")
    mark = f"77{os.getpid()}"
    script = f"trap '' TERM HUP; setsid sleep {mark} & nohup sleep {mark} >/dev/null 2>&1 & sleep {mark}"

    told = await message(repo, commit, passes(script, timeout=0.3))

    assert told is not None
    assert told.splitlines()[0].endswith("did not pass: it was still running after 0.3 s")
    assert running(mark) == []
    assert_nothing_left(repo)


async def test_a_command_that_leaves_something_behind_leaves_nothing(repo: Path) -> None:
    commit = committed(repo, "echo a > a")
    mark = f"78{os.getpid()}"

    assert await message(repo, commit, passes(f"setsid sleep {mark} > /dev/null 2>&1 & exit 0")) is None
    assert running(mark) == []


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_stopped_run_ends_a_check(repo: Path, is_cancelled: bool) -> None:
    commit = committed(repo, "echo a > a")
    mark = f"79{os.getpid()}"
    stop = asyncio.Event()
    contracts = [passes(f"trap '' TERM; sleep {mark} & wait"), passes("true"), review()]

    async with benched(repo, commit, stop=stop) as bench:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(check(contracts, bench))
            while not running(mark):
                await asyncio.sleep(0.01)
            task.cancel() if is_cancelled else stop.set()
            await asyncio.wait((task,))

        assert running(mark) == []
        assert task.cancelled() == is_cancelled
        if not is_cancelled:
            assert [(one.is_met, "it was stopped" in one.message) for one in task.result()] == [(False, True)] * 3
    assert_nothing_left(repo)


async def test_a_command_has_what_the_worker_had_and_no_more(repo: Path) -> None:
    commit = committed(repo, "mkdir own; echo a > own/a")
    job = worker(
        env={"COLOUR": "blue"},
        limits=ResourceLimits(time_seconds=2),
        permissions=Permissions(writable=("d0",), deny=("Bash",)),
    )
    script = (
        'test "$COLOUR" = blue && test "$SHOAL_STEP" = work && echo > own/b && test "$(grep -c : /proc/net/dev)" = 1'
    )

    first, second = await asked(repo, commit, passes(script), passes("sleep 99"), job=job)

    assert first.is_met, first
    assert second.message == "`sleep 99` did not pass: it was still running after 2 s"


async def test_all_of_a_check_lies_in_the_box_of_its_session(repo: Path) -> None:
    """Then a kill leaves nothing that the sweep of that session does not find."""
    commit = committed(repo, "echo a > a")

    async with benched(repo, commit) as bench:
        ran = await bench.run(
            (
                "/bin/sh",
                "-c",
                'pwd; echo "$HOME"; echo "$TMPDIR"; git rev-parse --absolute-git-dir; git branch --show-current',
            ),
            None,
        )

    *places, branch = ran.output.split()
    assert all(Path(place).is_relative_to(bench.session_dir) for place in places)
    assert branch == bench.worker.branch


async def test_secrets_are_masked_in_what_is_told(repo: Path) -> None:
    commit = committed(repo, "echo a > a")
    async with benched(repo, commit) as bench:
        masked = replace(bench, context=replace(bench.context, mask=Mask.of({"TOKEN": "hunter2hunter2"})))
        (one,) = await check([passes("echo hunter2hunter2; exit 1")], masked)

    assert "hunter2hunter2" not in one.message.splitlines()[-1]


async def test_all_are_asked_and_one_that_only_warns_does_not_fail_the_work(repo: Path) -> None:
    commit = committed(repo, "echo a > a")
    contracts = (
        NonEmptyFile(type="non_empty_file", path="none", only_warns=True),
        passes("exit 4"),
        non_empty("a"),
        non_empty("b"),
    )

    found = await asked(repo, commit, *contracts)

    assert [(one.is_met, one.is_warning, one.has_failed) for one in found] == [
        (False, True, False),
        (False, False, True),
        (True, False, False),
        (False, False, True),
    ]
    assert failure(found) == (
        "contract test_suite is not met: `exit 4` did not pass: it exited with 4\n"
        "contract non_empty_file is not met: `b` is missing, or is not a regular file"
    )
    assert warnings(found) == (
        "contract non_empty_file is not met (a warning only): `none` is missing, or is not a regular file",
    )
    assert failure(found[:1]) is None
