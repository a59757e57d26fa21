"""What the report of a run contains besides its table."""

import itertools
from dataclasses import replace

import pytest

from shoal.cli.output import Paint
from shoal.cli.render.merge import merge_lines
from shoal.cli.render.overlaps import overlap_lines
from shoal.cli.render.report import Closing, report_lines
from shoal.model.events import Recorded
from shoal.model.merge import (
    Conflict,
    ConflictKind,
    Delivery,
    DeliveryRecorded,
    DeliveryStatus,
    MergeReport,
    Overlap,
    Strategy,
)
from shoal.model.results import Purpose, RunReport, StepResult, WorkerResult
from shoal.model.status import Status
from shoal.store.fold import fold

PLAINLY: Paint = lambda text, colour: text  # noqa: E731


def lines_of(*workers: WorkerResult) -> list[str]:
    step = StepResult(step="fix", on_failure="best_effort", status=Status.FAILED, worker_results=workers)
    report = RunReport(
        run="r", status=Status.FAILED, base="b", duration_seconds=1.0, steps=(step,), wall="w", workspace="o"
    )
    return list(report_lines(report, Closing(), PLAINLY))


def worker(
    index: int, status: Status, *, attempts: int = 1, prompt: str = "", limit: str | None = None
) -> WorkerResult:
    error = f"exceeded its {limit} limit" if limit else None
    return WorkerResult(
        index=index,
        session=f"fix-{index}",
        status=status,
        attempts=attempts,
        prompt=prompt,
        limit=limit,
        error=error,
    )


def test_where_there_is_nothing_to_type_nothing_is_announced() -> None:
    lines = lines_of(worker(0, Status.CANCELLED, attempts=0))

    assert "next:" not in lines
    assert lines[-1] != ""


def test_a_prompt_that_workers_share_is_told_once() -> None:
    lines = lines_of(*(worker(index, Status.NO_CHANGES, prompt="fix the login test") for index in range(3)))

    assert lines.count("    task: fix the login test") == 1


def test_a_long_prompt_fits_the_narrowest_terminal() -> None:
    shown = next(line for line in lines_of(worker(0, Status.NO_CHANGES, prompt="word " * 40)) if "task: " in line)

    assert (len(shown), shown[-1]) == (80, "…")


def test_the_log_of_one_that_failed_is_offered_before_one_that_was_stopped() -> None:
    lines = lines_of(worker(0, Status.CANCELLED), worker(1, Status.FAILED))

    assert lines[-1] == "  shoal logs fix-1"


def test_a_limit_is_told_in_words_and_so_is_another_attempt() -> None:
    lines = lines_of(worker(0, Status.OVER_LIMIT, attempts=2, limit="disk"))

    assert "    why: exceeded its disk limit; change its limits with `limits:` in shoal.yaml" in lines
    assert "    attempt 2" in lines


def good(index: int, step: str = "fix") -> WorkerResult:
    return replace(
        worker(index, Status.SUCCEEDED), session=f"{step}-{index}", branch=f"agent/{step}/{index}", commit="c"
    )


def next_of(*steps: StepResult, merge: MergeReport | None = None) -> list[str]:
    report = RunReport(
        run="r",
        status=Status.SUCCEEDED,
        base="b",
        duration_seconds=1.0,
        steps=steps,
        wall="w",
        workspace="o",
        merge=merge,
    )
    lines = list(report_lines(report, Closing(), PLAINLY))
    return lines[lines.index("next:") + 1 :] if "next:" in lines else []


def step_of(*workers: WorkerResult, selected: int | None = None) -> StepResult:
    return StepResult(
        step="fix", on_failure="best_effort", status=Status.SUCCEEDED, worker_results=workers, selected=selected
    )


def test_one_command_comes_next_and_it_is_the_right_one() -> None:
    failed = worker(3, Status.FAILED)

    assert next_of(step_of(good(0))) == ["  git merge agent/fix/0"]
    assert next_of(step_of(good(0), good(1), selected=1)) == ["  git merge agent/fix/1"]
    assert next_of(step_of(good(0), good(1), failed)) == ["  shoal merge r --preview"]
    assert next_of(step_of(failed)) == ["  shoal logs fix-3"]


@pytest.mark.parametrize("flag", ["executable", "secrets", "instructions"])
def test_git_merge_is_never_beside_a_warning_to_look_first(flag: str) -> None:
    names = ("Makefile",)
    flags = {
        "executable": replace(good(0), executable=names),
        "secrets": replace(good(0), secrets=names),
        "instructions": replace(good(0), instructions=names),
    }
    flagged = flags[flag]

    assert next_of(step_of(flagged)) == ["  shoal diff fix-0"]


def test_after_a_merge_comes_what_it_left() -> None:
    done = MergeReport(run="r", strategy=Strategy.AUTO, branch="shoal/r", start="a", commit="b" * 40, results=())
    delivered = Delivery(into="main", status=DeliveryStatus.DELIVERED, old="a" * 40, new="b" * 40)
    left = replace(delivered, status=DeliveryStatus.LEFT, command="git merge --ff-only shoal/r")

    assert next_of(step_of(good(0)), merge=done) == ["  git merge shoal/r"]
    assert next_of(step_of(good(0)), merge=replace(done, delivery=delivered)) == []
    assert next_of(step_of(good(0)), merge=replace(done, delivery=left)) == ["  git merge --ff-only shoal/r"]


def test_a_failure_is_its_first_line_and_its_last_ones() -> None:
    error = "\n".join(["the tests failed", *(f"line {number}" for number in range(30))])
    lines = lines_of(replace(worker(0, Status.FAILED), error=error))

    at = lines.index(next(line for line in lines if "the tests failed" in line))
    shown = "\n".join(lines[at:]).split("\n")
    assert shown[1].strip() == "… `shoal logs fix-0` shows all of it"
    assert [line.strip() for line in shown[2:7]] == [f"line {number}" for number in range(25, 30)]


def test_a_verification_has_passed_and_a_failed_one_shows_its_last_lines() -> None:
    output = "\n".join(f"line {number}" for number in range(30))
    passed = replace(worker(0, Status.NO_CHANGES), session="merge__verify-0", purpose=Purpose.VERIFY)
    failed = replace(worker(1, Status.FAILED), session="merge__verify-1", purpose=Purpose.VERIFY, output=output)

    lines = lines_of(passed, failed)

    assert any("merge__verify-0  passed" in line for line in lines)
    assert [line.strip() for line in lines if line.strip().startswith("> line")] == [
        f"> line {number}" for number in range(25, 30)
    ]


def test_overlaps_are_summed_up_by_file_with_a_legend() -> None:
    clash = Conflict(kind=ConflictKind.CONTENT, paths=("a.txt",))
    names = [f"fix-{number}" for number in range(6)]
    overlaps = [
        Overlap(one=one, other=other, paths=("a.txt", "b.txt"), files=2, conflicts=(clash,))
        for one, other in itertools.combinations(names, 2)
    ]

    assert list(overlap_lines(overlaps, PLAINLY)) == [
        "overlap: 2 files changed by more than one agent, 1 conflict (x in conflict, ~ merges by itself)",
        "  x a.txt: fix-0, fix-1, fix-2, fix-3 and 2 more",
        "  ~ b.txt: fix-0, fix-1, fix-2, fix-3 and 2 more",
    ]


def test_a_merge_of_nothing_and_an_undone_one_are_told_as_that() -> None:
    undone = Delivery(into="main", status=DeliveryStatus.DELIVERED, old="a" * 40, new="b" * 40, is_undo=True)
    report = MergeReport(
        run="r", strategy=Strategy.AUTO, branch="shoal/r", start="a", commit="b" * 40, results=(), delivery=undone
    )

    assert list(merge_lines(report, "shoal", PLAINLY)) == [
        "r: nothing is merged; shoal/r at bbbbbbbbbb",
        "taken out of main again: aaaaaaaaaa → bbbbbbbbbb",
    ]


def test_what_was_undone_is_not_told_as_delivered_by_the_events() -> None:
    done = DeliveryRecorded(run="r", into="main", old="a", new="b", is_undo=True)
    state = fold([Recorded(1, 1.0, done)])

    assert state.runs["r"].deliveries["main"].is_undo
