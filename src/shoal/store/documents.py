"""Reports and events as JSON documents."""

import json

from shoal.model.events import Recorded
from shoal.model.results import NONE, RunReport, StepResult, WorkerResult
from shoal.store.codec import encode


def text(document: object, *, indent: int | None = 1) -> str:
    """Format a document in ASCII, so that it cannot control a terminal."""
    return json.dumps(document, ensure_ascii=True, indent=indent)


def event_line(recorded: Recorded) -> str:
    """Format one event on one line: its number, time, kind and fields."""
    fields = json.loads(encode(recorded.event))
    head = {"seq": recorded.seq, "at": recorded.at, "event": type(recorded.event).__name__}
    return text(head | fields, indent=None)


def run_document(report: RunReport) -> dict[str, object]:
    """Return the report as printed by `shoal run --json`."""
    return {
        "run": report.run,
        "status": report.status.value,
        "base": report.base,
        "duration_seconds": report.duration_seconds,
        "usage": {**NONE, **report.usage},
        "steps": [_step(step) for step in report.steps],
        "merge": None if report.merge is None else report.merge.as_fields(),
        "queues": [queue.as_fields() for queue in report.queues],
        "overlaps": [overlap.as_fields() for overlap in report.overlaps],
        "wall": report.wall,
        "limits": report.limits,
        "workspace": report.workspace,
        "notes": list(report.notes),
        "error": report.error,
    }


def _step(step: StepResult) -> dict[str, object]:
    return {
        "step": step.step,
        "on_failure": rule(step.on_failure),
        "status": step.status.value,
        "total_workers": step.total_workers,
        "success_count": step.success_count,
        "fail_count": step.fail_count,
        "cancelled_count": step.cancelled_count,
        "skipped_count": step.skipped_count,
        "worker_workspaces": [worker.workspace for worker in step.worker_results],
        "worker_results": [worker_document(worker) for worker in step.worker_results],
        "error": step.error,
        "selected": step.selected,
        "ranking": [{"index": row.index, "eligible": row.is_eligible, "reasons": row.reasons} for row in step.ranking],
        "rounds": step.rounds,
        "notes": list(step.notes),
        "artifacts": dict(step.artifacts),
    }


def rule(on_failure: str) -> object:
    """Return a rule as it is written in a file."""
    name, is_quorum, number = on_failure.partition("quorum=")
    return {"quorum": int(number)} if is_quorum else name


def worker_document(worker: WorkerResult) -> dict[str, object]:
    """Return one worker's part of the report."""
    return {
        "index": worker.index,
        "item": worker.item,
        "parent": worker.parent or None,
        "session": worker.session,
        "prompt": worker.prompt,
        "agent": worker.agent,
        "status": worker.status.value,
        "exit_code": worker.exit_code,
        "output": worker.output,
        "branch": worker.branch,
        "commit": worker.commit,
        "base": worker.base,
        "node": worker.node or None,
        "files_changed": worker.files_changed,
        "attempts": worker.attempts,
        "duration_seconds": worker.duration_seconds,
        "usage": dict(worker.usage),
        "resources": dict(worker.resources),
        "client_session": worker.client_session,
        "artifacts": dict(worker.artifacts),
        "limit": worker.limit,
        "error": worker.error,
        "contracts": [
            {"type": check.type, "passed": check.is_met, "warning": check.is_warning, "message": check.message}
            for check in worker.checks
            if not check.is_trial
        ],
        "unkept": list(worker.unkept),
        "unconverted": list(worker.unconverted),
        "notes": list(worker.notes),
        "executable_config": list(worker.executable),
        "secrets": list(worker.secrets),
        "instructions": list(worker.instructions),
        "set_back": list(worker.set_back),
        "ignored": worker.ignored,
        "kept_refs": list(worker.kept_refs),
        "raw": worker.raw,
    }
