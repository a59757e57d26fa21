"""Faults by their rows of the catalogue: each has tests, and those below have theirs here."""

import asyncio
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from shoal.model.status import Status
from tests.acting import shown, worked
from tests.cli.conftest import SHOAL, Shoal, environment, shoal_in
from tests.cli.flows import CHEAP, written
from tests.cli.test_approve import started
from tests.conftest import git
from tests.outside import wait_until

TESTS = Path(__file__).parents[1]
ROWS = {
    "1-10 kill -9 at each point": (
        "faults/test_crash_points.py:test_a_run_killed_at_a_point_ends_as_if_nothing_had_happened",
        "faults/test_crash_points.py:test_a_run_killed_five_times_while_it_is_resumed_ends_as_if_nothing_had_happened",
        "faults/test_crash_points.py:test_every_point_of_a_run",
        "faults/test_crash_points.py:test_every_point_of_undo_and_clean",
    ),
    "11 random kills": ("faults/test_random_kills.py:test_runs_of_every_shape_that_die_at_random",),
    "12 SIGINT": (
        "cli/test_run.py:test_an_interrupted_run_keeps_the_work_and_is_exit_130",
        "cli/test_stop.py:test_more_than_two_interrupts_change_nothing",
    ),
    "14 SIGTERM": (
        "cli/test_run.py:test_an_interrupted_run_keeps_the_work_and_is_exit_130",
        "cli/test_detach.py:test_wait_ends_with_the_code_of_a_run_that",
    ),
    "15 SIGHUP": (
        "cli/test_detach.py:test_a_closed_terminal_stops_the_run_where_nothing_was_asked",
        "cli/test_detach.py:test_a_closed_terminal_lets_the_run_go_where_that_was_asked",
        "clients/test_tmux.py:test_without_that_option_a_closed_terminal_stops_the_run_and_keeps_its_work",
        "clients/test_tmux.py:test_a_run_outlives_its_terminal_and_is_controlled_from_others",
    ),
    "17 stdout closed": ("cli/test_run.py:test_a_reader_that_goes_away_does_not_stop_the_run",),
    "18 no space for the ledger": (
        "store/test_ledger_faults.py:test_a_full_disk_is_never_acknowledged_and_forgotten_once_there_is_room",
        "cli/test_full_disk.py:test_a_run_on_a_full_disk_waits_says_so_and_continues",
        "cli/test_full_disk.py:test_clean_recovers_a_killed_run_with_no_byte_free",
    ),
    "19 no space, quota or inodes for work": (
        "sessions/test_host_disk.py:test_who_fills_the_hosts_disk_ends_alone_before_its_last_part_is_taken",
        "cli/test_full_disk.py:test_work_that_cannot_be_kept_on_a_full_disk_is_kept_when_there_is_room",
        "cli/test_full_disk.py:test_an_agent_that_fills_the_disk_itself_ends_and_the_run_continues",
        "faults/test_machine.py:test_a_quota_that_is_used_up_for_a_while_costs_no_work",
        "faults/test_machine.py:test_without_a_free_inode_a_run_waits_and_then_continues",
        "faults/test_machine.py:test_an_agent_that_uses_up_the_inodes_ends_alone",
    ),
    "20 a failing sync": (
        "store/test_machine_faults.py:test_a_sync_that_fails_once_is_an_error_and_never_an_acknowledgement",
    ),
    "21 read-only or gone": (
        "faults/test_machine.py:test_a_read_only_disk_refuses_a_run_with_the_cause_and_can_be_read",
        "faults/test_machine.py:test_a_disk_that_becomes_read_only_starts_no_more_agents_and_loses_none_that_worked",
        "store/test_machine_faults.py:test_a_ledger_that_cannot_be_written_is_refused_with_the_cause",
        "faults/test_rows.py:test_state_that_is_deleted_during_a_run_ends_it_and_branches_stay",
    ),
    "22 locked for a minute": (
        "faults/test_machine.py:test_a_program_that_locks_the_ledger_for_a_minute_costs_a_run_nothing",
        "store/test_machine_faults.py:test_a_program_that_has_the_ledger_to_itself_is_waited_for_by_the_first_reading_too",
    ),
    "23 cancelled in a transaction": (
        "store/test_machine_faults.py:test_a_write_whose_caller_is_cancelled_leaves_no_transaction_open",
    ),
    "24 damaged ledger": (
        "store/test_ledger_faults.py:test_a_damaged_ledger_is_moved_aside_and_named",
        "store/test_rebuild.py:test_bytes_flipped_anywhere_never_lose_a_session_in_silence",
    ),
    "26 copied while written": ("store/test_machine_faults.py:test_a_copy_made_while_a_run_writes_is_whole",),
    "27 clock": ("cli/test_moved.py:test_a_clock_that_is_set_during_a_run_changes_no_timeout_and_no_order",),
    "28 EMFILE": ("sessions/test_faults.py:test_more_agents_than_open_files_wait_for_their_turn",),
    "29 EAGAIN": (
        "steps/test_admission.py:test_what_is_short_is_said",
        "cli/test_kept_again.py:test_a_sandbox_that_is_gone_for_a_moment_costs_no_work",
    ),
    "30 OOM": (
        "limits/test_limit_breaches.py:test_memory_is_held_and_named",
        "cli/test_resume.py:test_a_killed_run_ends_as_if_nothing_had_happened",
    ),
    "31 stale locks": (
        "merge/test_merge_faults.py:test_a_delivery_that_was_cut_off_in_the_middle_of_a_file_is_finished",
        "escapes/test_host_git.py:test_locks_left_behind_stop_nobody",
    ),
    "32 live locks": (
        "merge/test_merge_faults.py:test_a_lock_of_another_git_is_not_ours_to_take_away",
        "git/test_ref_locks.py:test_a_packed_refs_lock_of_another_git_is_waited_for",
    ),
    "33 gc of the user": (
        "faults/test_meddling.py:test_a_users_gc_every_second_takes_nothing_of_a_run",
        "git/test_imports.py:test_no_gc_of_the_users_takes_what_no_ref_holds_yet",
        "git/test_imports.py:test_a_gc_while_a_pack_is_checked_takes_nothing_of_it",
    ),
    "35 repository renamed": (
        "faults/test_rows.py:test_a_repository_that_is_renamed_during_a_run_is_waited_for",
        "store/test_ledger_faults.py:test_a_ledger_whose_repository_is_moved_is_waited_for_until_it_is_back",
        "runs/test_recovery.py:test_the_work_of_a_killed_run_is_brought_in_after_its_repository_was_moved",
    ),
    "36 branch moved": (
        "faults/test_meddling.py:test_work_is_merged_on_top_of_what_the_user_committed_meanwhile",
        "merge/test_merge_delivery.py:test_a_branch_that_moved_is_merged_on_anew",
    ),
    "37 branch rewritten or gone": (
        "faults/test_meddling.py:test_a_branch_that_the_user_rewrote_or_deleted_meanwhile_is_left_alone",
        "merge/test_merge_delivery.py:test_a_branch_that_was_rewritten_or_is_gone_is_refused",
    ),
    "38 user works meanwhile": ("merge/test_merge_faults.py:test_the_user_goes_on_working_meanwhile",),
    "39 kinds of repository": (
        "runs/test_repositories.py:test_every_row_is_a_test",
        "merge/test_merge_delivery.py:test_what_the_user_has_under_way_is_not_disturbed",
    ),
    "40 ignores SIGTERM": ("sessions/test_session.py:test_time_ends_an_agent_that_ignores_term_and_its_work_is_kept",),
    "41 hangs": ("sessions/test_stall.py:test_who_says_and_does_nothing_has_stalled",),
    "42 no change": ("sessions/test_session.py:test_the_end_is_told_honestly",),
    "43 uncommitted": ("sessions/test_session.py:test_ignored_files_are_counted_not_committed",),
    "44 failed with commits": ("faults/test_rows.py:test_commits_of_an_agent_that_fails_are_kept_and_not_merged",),
    "45 workspace destroyed": ("faults/test_rows.py:test_an_agent_that_destroys_its_workspace_disturbs_nobody",),
    "46 history": (
        "sessions/test_session.py:test_the_work_is_kept_whatever_is_left_behind",
        "git/test_imports.py:test_unrelated_history_and_nested_repositories_are_refused_and_leave_nothing",
    ),
    "56 two owners": (
        "faults/test_two_shoals.py:test_of_two_that_resume_a_run_in_the_same_moment_one_owns_it_and_is_named_to_the_other",
        "faults/test_two_shoals.py:test_two_runs_that_start_in_the_same_moment_both_succeed",
        "cli/test_run_owner.py:test_of_twenty_resumes_at_the_same_moment_one_wins_and_the_others_name_it",
    ),
    "57 the old owner lives": (
        "faults/test_two_shoals.py:test_a_run_that_is_being_stopped_is_not_resumed_before_it_has_ended",
        "cli/test_run_owner.py:test_an_owner_that_stood_still_while_another_took_its_run_over_writes_nothing_more",
    ),
    "59 reboot": ("faults/test_orphans.py:test_a_reboot_interrupts_all_runs_and_loses_nothing_of_them",),
    "60 power loss": (
        "store/test_ledger.py:test_the_ledger_is_held_to_its_durability",
        "store/test_read.py:test_a_log_that_a_power_cut_took_is_an_empty_one",
        "workspaces/test_object_stores.py:test_what_a_kill_or_a_power_failure_left_is_made_again",
    ),
    "61 sandbox unavailable": (
        "sessions/test_sandboxed.py:test_a_wall_that_cannot_be_had_is_refused_and_nothing_starts",
    ),
    "62 program removed": ("cli/test_kept_again.py:test_a_sandbox_that_is_gone_for_a_moment_costs_no_work",),
    "63 model fails": (
        "gateway/test_model_calls.py:test_twenty_agents_in_a_storm_all_finish_and_none_sees_a_refusal",
        "gateway/test_runs.py:test_a_retry_after_a_killed_gateway_gets_a_new_one",
    ),
    "PostgreSQL: restart": (
        "databases/test_limits.py:test_a_server_that_restarts_is_waited_for_before_the_next_agent",
        "store/test_postgres.py:test_a_server_that_restarts_is_waited_for_and_nothing_is_lost",
    ),
    "PostgreSQL: connection cut": ("store/test_postgres.py:test_events_whose_commit_was_not_heard_are_kept_once",),
    "PostgreSQL: too many connections": ("databases/test_limits.py:test_an_agent_has_so_many_connections_and_no_more",),
    "PostgreSQL: disk filled": ("databases/test_limits.py:test_an_agent_that_fills_the_server_is_over_its_disk_limit",),
    "PostgreSQL: kill -9": (
        "databases/test_kills.py:test_a_server_of_our_own_ends_with_the_run_that_is_killed",
        "databases/test_kills.py:test_a_users_server_is_cleared_by_the_next_run_that_names_it",
        "store/test_postgres.py:test_a_run_of_a_live_process_is_known_to_others_until_that_is_killed",
    ),
    "PostgreSQL: unreachable": (
        "databases/test_limits.py:test_a_server_that_is_not_there_is_an_error_at_once",
        "cli/test_shared_ledger.py:test_a_wrong_address_is_refused_before_anything_is_recorded",
    ),
    "65 clean-up fails": (
        "faults/test_rows.py:test_a_clean_up_that_fails_changes_no_verdict_and_is_done_by_the_next_start",
        "runs/test_recovery.py:test_what_cannot_be_brought_in_is_named_until_it_is",
    ),
}
"""The tests of each row, by the beginning of their names."""


def test_every_row_has_its_tests() -> None:
    missing = [
        f"{row}: {name}"
        for row, names in ROWS.items()
        for name in names
        for file, _, test in [name.partition(":")]
        if not re.search(rf"def {test}", (TESTS / file).read_text())
    ]
    assert missing == []


@pytest.fixture
def shoal(repo: Path) -> Shoal:
    return shoal_in(repo)


def test_a_repository_that_is_renamed_during_a_run_is_waited_for(repo: Path, tmp_path: Path) -> None:
    work = f"echo ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo work > work"
    written(repo, "steps: [{name: work, agent: work, prompt: x}, {name: next, agent: work, prompt: x}]",
            runtime=f"{CHEAP}, max_concurrent_workers: 1", work=work)  # fmt: skip
    with subprocess.Popen(
        [SHOAL, "run", "p.yaml"],
        cwd=repo,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        assert running.stdout is not None
        next(line for line in running.stdout if "running" in line)
        away = repo.rename(tmp_path / "away")
        (tmp_path / "go").touch()
        why = next(line for line in running.stdout if "waiting: " in line)
        away.rename(repo)
        running.stdout.read()
        assert running.wait(timeout=60) == 0

    assert str(repo) in why
    assert len(git(repo, "branch", "--list", "agent/*").splitlines()) == 2


def test_state_that_is_deleted_during_a_run_ends_it_and_branches_stay(repo: Path, shoal: Shoal, tmp_path: Path) -> None:
    assert shoal("run", "--task", "echo a > a", "--command", "sh -s").code == 0
    work = f"echo ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
    written(repo, "steps: [{name: work, agent: work, prompt: x}]", work=work)
    with started(repo, SHOAL, "run", "p.yaml", "--events") as run:
        run.until_said("ready")
        subprocess.run(["rm", "-rf", repo / ".shoal"], check=False)
        (tmp_path / "go").touch()
        assert run.process.wait(timeout=60) == 3

    assert "agent/echo/" in git(repo, "branch", "--list", "agent/*")
    assert shoal("run", "--task", "echo b > b", "--command", "sh -s").code == 0


def test_an_agent_that_ends_in_time_while_its_shoal_stands_still_has_not_timed_out(repo: Path, tmp_path: Path) -> None:
    work = f"echo ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; echo work > work; touch {tmp_path}/ended"
    written(repo, "steps: [{name: work, agent: work, prompt: x, timeout: 3}]", work=work)
    with started(repo, SHOAL, "run", "p.yaml", "--events") as run:
        run.until_said("ready")
        due = time.monotonic() + 3  # or earlier: its time began before it said so
        os.kill(run.process.pid, signal.SIGSTOP)
        (tmp_path / "go").touch()
        wait_until((tmp_path / "ended").exists)
        wait_until(lambda: time.monotonic() > due)
        os.kill(run.process.pid, signal.SIGCONT)
        result = run.until("SessionEnded")["result"]
        run.process.wait(timeout=60)

    assert result["status"] == "succeeded", result


async def test_commits_of_an_agent_that_fails_are_kept_and_not_merged(repo: Path) -> None:
    result = await worked(repo, "echo c > c; git add c; git commit -qm mine; echo u > u; exit 3")
    merged = await asyncio.to_thread(shoal_in(repo), "merge", "--strategy", "auto")

    assert result.status is Status.FAILED
    assert (shown(repo, result, "c"), shown(repo, result, "u")) == ("c", "u")
    assert "mine" in git(repo, "log", "--format=%s", str(result.branch))
    assert "0 of 0" in merged.out or "nothing" in merged.out + merged.err, merged
    assert git(repo, "for-each-ref", "refs/heads/shoal") == ""


@pytest.mark.parametrize("strategy", ["overlay", "worktree"])
@pytest.mark.parametrize(
    "script",
    [
        'cd /; rm -rf "$SHOAL_WORKSPACE_PATH" 2>/dev/null; true',
        'rm -rf .git "$(git rev-parse --git-dir)" 2>/dev/null; echo w > w',
        'mv "$SHOAL_WORKSPACE_PATH" "$SHOAL_WORKSPACE_PATH-gone" 2>/dev/null; echo w > w',
    ],
)
def test_an_agent_that_destroys_its_workspace_disturbs_nobody(
    repo: Path, shoal: Shoal, strategy: str, script: str
) -> None:
    words = ("--task", script, "--task", "echo good > good", "--command", "sh -s", "--isolation", strategy)
    shoal("run", *words)

    branches = git(repo, "branch", "--list", "agent/echo-good-good/*", "--format=%(refname:short)").split()
    assert [git(repo, "show", f"{branch}:good") for branch in branches] == ["good"]
    assert git(repo, "fsck", "--full", "--strict", "--no-dangling") == ""
    assert shoal("run", "--task", "echo again > again", "--command", "sh -s").code == 0


def test_the_raw_files_of_a_worktree_are_said_to_lie_where_they_do(repo: Path, shoal: Shoal) -> None:
    task = "git init -q nested; echo precious > nested/n; truncate -s 100G nested/.gitignore"

    said = shoal("run", "--task", task, "--command", "sh -s", "--isolation", "worktree")

    words = " ".join(said.out.split())
    found = re.search(r"its raw files are in (\S+)", words)
    assert found is not None, words
    assert (Path(found[1]) / "nested/n").read_text() == "precious\n"


def test_a_path_that_is_too_long_is_refused_at_once(tmp_path: Path, shoal: Shoal) -> None:
    folder = tmp_path.joinpath(*["d" * 100] * 5)
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    git(folder, "commit", "-q", "--allow-empty", "-m", "a")

    said = shoal("run", "--task", "true", "--command", "true", cwd=folder)

    assert said.code == 2
    assert "bug" not in said.err


if os.geteuid() == 0:  # only root may mount

    def test_a_clean_up_that_fails_changes_no_verdict_and_is_done_by_the_next_start(
        repo: Path, shoal: Shoal, tmp_path: Path
    ) -> None:
        work = f"echo work > work; echo ready; while [ ! -e {tmp_path}/go ]; do sleep 0.05; done"
        written(repo, "steps: [{name: work, agent: work, prompt: x}]", work=work)
        with started(repo, SHOAL, "run", "p.yaml", "--events") as run:
            run.until_said("ready")
            (folder,) = (repo / ".shoal/boxes").iterdir()
            busy = folder / "busy"
            busy.mkdir()
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", busy], check=True)
            with (busy / "held").open("w"):
                (tmp_path / "go").touch()
                result = run.until("SessionEnded")["result"]
                code = run.process.wait(timeout=60)

        left = list((repo / ".shoal/boxes").iterdir()) + list((repo / ".shoal/trash").iterdir())
        for path in left:
            subprocess.run(["umount", "--lazy", path / "busy"], check=False, capture_output=True)
        assert (result["status"], code) == ("succeeded", 0)
        assert shoal("clean").code == 0
        assert list((repo / ".shoal/boxes").iterdir()) == []
