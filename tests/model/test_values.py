"""The values of the model keep their promises."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import BadInput
from shoal.model.permissions import AccessDenied, PermissionManager
from shoal.model.results import StepResult, WorkerResult
from shoal.model.status import Status
from shoal.model.task import Task


@given(st.lists(st.sampled_from(list(Status)), max_size=12))
def test_workers_are_counted_once_each(statuses: list[Status]) -> None:
    results = tuple(WorkerResult(index=n, session=str(n), status=status) for n, status in enumerate(statuses))
    step = StepResult(step="s", on_failure="best_effort", status=Status.DEGRADED, worker_results=results)

    apart = step.success_count + step.cancelled_count + step.skipped_count
    at_work = sum(not status.is_ended for status in statuses)
    assert apart + step.fail_count + at_work == step.total_workers == len(statuses)
    assert step.fail_count >= 0


@pytest.mark.parametrize("status", [Status.PENDING, Status.RUNNING, Status.SKIPPED, Status.CANCELLED])
def test_who_has_not_ended_and_who_never_started_has_not_failed(status: Status) -> None:
    worker = WorkerResult(index=0, session="s", status=status)

    assert StepResult(step="s", on_failure="any", status=status, worker_results=(worker,)).fail_count == 0


def test_only_success_and_no_changes_are_good() -> None:
    assert {status for status in Status if status.is_good} == {Status.SUCCEEDED, Status.NO_CHANGES}


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", ".git", ".git/config", "out/x", "a/../../x"])
def test_what_lies_outside_is_denied_with_links_followed(tmp_path: Path, path: str) -> None:
    (tmp_path / "ws").mkdir()
    (tmp_path / "ws/out").symlink_to(tmp_path)

    with pytest.raises(AccessDenied, match="Access denied: "):
        PermissionManager(tmp_path / "ws").validate_path(path)


def test_what_lies_inside_is_allowed_whether_it_exists_or_not(tmp_path: Path) -> None:
    manager = PermissionManager(tmp_path)

    assert manager.validate_path("a/b") == tmp_path / "a/b"
    assert manager.is_allowed(tmp_path / "x")


def test_a_prompt_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(BadInput, match="not UTF-8 at character 6"):
        Task(prompt=os.fsdecode(b"echo \xff"))
