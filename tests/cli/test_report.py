"""What the report of a run says beside its table."""

from shoal.cli.output import Paint
from shoal.cli.render.report import Closing, report_lines
from shoal.model.results import RunReport, StepResult, WorkerResult
from shoal.model.status import Status

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
    error = f"over_limit: {limit}" if limit else None
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

    assert "    why: exceeded its limit of disk; change it with `limits:` in shoal.yaml" in lines
    assert "    attempt 2" in lines
