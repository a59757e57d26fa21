"""Why an agent did not succeed, with what a person could do about it."""

from shoal.cli.plain import plain
from shoal.model.results import WorkerResult
from shoal.model.status import Status

NOT_FOUND = 127
MOST_LINES = 8
UNSEEN = (
    "agents see the system's programs and the first word of their command, nothing else of your PATH; "
    "`runtime.toolchains` shows them more"
)


def why(worker: WorkerResult) -> str | None:
    """Say it in words, escaped; `None` where there is nothing to say."""
    if worker.status is Status.OVER_LIMIT and worker.error == f"over_limit: {worker.limit}":
        return f"it passed its limit of {plain(worker.limit or '')}, which `limits:` in shoal.yaml sets"
    if worker.error and worker.exit_code == NOT_FOUND and worker.status is Status.FAILED:
        return f"{plain(worker.error)} ({UNSEEN})"
    return _lines(worker.error) if worker.error else None


def _lines(error: str) -> str:
    """Give the first lines, each below the other."""
    shown, *rest = error.splitlines() or [""]
    more = [f"      {plain(line)}" for line in rest[:MOST_LINES]]
    return "\n".join([plain(shown), *more, *(["      …"] if len(rest) > MOST_LINES else [])])
