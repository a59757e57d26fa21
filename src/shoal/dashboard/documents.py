"""The documents for the page: runs as cards, sessions as rows, and a whole run; all from folded events."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence

from shoal.errors import ShoalError
from shoal.model.events import Recorded
from shoal.model.results import RunReport
from shoal.model.status import Status
from shoal.store.codec import encode
from shoal.store.documents import worker_document
from shoal.store.fold import report
from shoal.store.progress import AgentProgress, RunProgress
from shoal.store.reader import SampleAt
from shoal.store.run_state import RunState, SessionState, StepState
from shoal.store.timeline import Lane, cpu_points, disk_points, memory_points

MAX_TEXT_CHARS = 4000
MAX_PROMPT_CHARS = 300
MAX_TICK_CHARS = 120
FAILURES = (Status.FAILED, Status.TIMED_OUT, Status.OVER_LIMIT)
Document = dict[str, object]


def run_card(site: str, run: RunState, progress: RunProgress | None = None) -> Document:
    """Describe a run for the board."""
    sessions = [session for step in run.steps.values() for session in step.sessions.values()]
    summary = report(run)
    workers = summary.workers
    return {
        "site": site,
        "run": run.run,
        "name": run.name,
        "status": run.status.value,
        "ended": run.status.is_ended,
        "started_at": run.started_at,
        "duration_seconds": run.duration_seconds,
        "error": run.error,
        "workers": len(workers),
        "good": sum(worker.status.is_good for worker in workers),
        "bad": sum(worker.status in FAILURES for worker in workers),
        "running": sum(not session.status.is_ended for session in sessions),
        "queued": 0 if progress is None or run.status.is_ended else progress.count_queued(),
        "usage": dict(summary.usage) if progress is None or run.status.is_ended else progress.usage,
        "waiting": "" if progress is None or run.status.is_ended else progress.waiting,
        "seconds_left": None if progress is None else progress.seconds_left(time.time()),
        "prompt": next((worker.prompt for worker in workers if worker.prompt), "")[:MAX_PROMPT_CHARS],
        "column": column(run, summary),
        "gates": [_gate(step) for step in run.waiting],
        "overlaps": sum(overlap.step is None for overlap in run.overlaps),  # the others are alternatives
        "merged": None if run.merge is None else run.merge.commit,
        "deliveries": {into: delivery.status.value for into, delivery in run.deliveries.items()},
    }


def column(run: RunState, summary: RunReport) -> str:
    """Return the board column of a run, by what a person has to do next."""
    if run.waiting:
        return "needs you"
    if not run.status.is_ended:
        has_begun = any(step.sessions for step in run.steps.values())
        return "running" if has_begun else "queued"
    if run.merge is not None and run.merge.needs_a_person:
        return "needs you"
    if run.merge is not None and run.merge.commit and run.merge.results:
        return "merged"
    has_work = any(worker.commit and worker.status.is_good for worker in summary.workers)
    if has_work:
        return "ready to merge"
    return "done" if run.status.is_good else "failed"


def _gate(step: StepState) -> Document:
    gate = step.gate
    return {
        "step": step.step,
        "message": "" if gate is None else gate.message[:MAX_TEXT_CHARS],
        "opened_at": 0.0 if gate is None else gate.opened_at,
        "timeout": None if gate is None else gate.timeout,
    }


def session_row(step: str, session: SessionState, agent: AgentProgress | None, version: int = 0) -> Document:
    """Describe a session for the table of its run."""
    result = session.result
    usage = dict(result.usage) if result is not None and result.usage else dict(agent.usage if agent else {})
    return {
        "session": session.session,
        "step": step,
        "index": session.index,
        "attempt": session.attempt,
        "visit": session.visit,
        "status": session.status.value,
        "ended": session.status.is_ended,
        "prompt": session.prompt[:MAX_PROMPT_CHARS],
        "agent": session.agent,
        "adapter": session.adapter,
        "takes_messages": session.takes_messages,
        "branch": session.branch,
        "started_at": session.started_at,
        "duration_seconds": None if result is None else result.duration_seconds,
        "files_changed": None if result is None else result.files_changed,
        "error": None if result is None or result.error is None else result.error[:MAX_TEXT_CHARS],
        "limit": None if result is None else result.limit,
        "usage": usage,
        "resources": {} if result is None else dict(result.resources),
        "executable": [] if result is None else list(result.executable),
        "contracts": [] if result is None else worker_document(result)["contracts"],
        "artifacts": [] if result is None else sorted(result.artifacts),
        "discarded": session.is_discarded,
        "last": "" if agent is None else agent.action[:MAX_PROMPT_CHARS],
        "last_ok": agent is None or not agent.has_failed,
        "phase": "" if agent is None or agent.is_ended else agent.phase.value,
        "sample": _sample(agent),
        "waits_until": 0.0 if agent is None else agent.waits_until,
        "edited": 0 if agent is None else len(agent.edited),
        "version": version,
    }


def _sample(agent: AgentProgress | None) -> Document:
    """Return the latest sample of what a running session uses."""
    if agent is None or agent.is_ended or agent.sample is None:
        return {}
    return {
        "memory_mb": agent.sample.memory_mb,
        "cpu_seconds": agent.sample.cpu_seconds,
        "disk_mb": agent.sample.disk_mb,
    }


def run_page(site: str, run: RunState, plan: Sequence[Document], progress: RunProgress | None = None) -> Document:
    """Describe a whole run except for its sessions."""
    summary = report(run)
    return {
        **run_card(site, run, progress),
        "base": run.base,
        "wall": run.wall,
        "workspace": run.workspace,
        "limits": run.limits,
        "notes": list(run.notes),
        "plan": list(plan),
        "steps": [
            {
                "step": step.step,
                "status": step.status.value,
                "error": step.error,
                "selected": step.selected,
                "ranking": [
                    {"index": row.index, "eligible": row.is_eligible, "reasons": row.reasons} for row in step.ranking
                ],
                "rounds": step.rounds,
                "notes": list(step.notes),
                "total": step.total_workers,
                "good": step.success_count,
            }
            for step in summary.steps
        ],
        "overlap_pairs": [overlap.as_fields() for overlap in run.overlaps[:500]],
        "merge": None if run.merge is None else run.merge.as_fields(),
    }


def plan_stages(text: str) -> list[Document]:
    """List the stages of a recorded plan with their needs; an unreadable plan has none."""
    try:
        plan = json.loads(text)
        return list(_stages(plan.get("steps") or [], ""))
    except (ValueError, TypeError, AttributeError, RecursionError):
        return []


def _stages(stages: Sequence[Mapping[str, object]], group: str) -> Iterator[Document]:
    for stage in stages:
        needs = stage.get("needs")
        inner = stage.get("stages") or stage.get("steps")
        name = str(stage.get("name", ""))
        yield {
            "name": name,
            "kind": str(stage.get("@", "Step")),
            "needs": [str(need) for need in needs] if isinstance(needs, list) else [],
            "group": group,
        }
        if isinstance(inner, list):
            yield from _stages(inner, name)


def event_document(recorded: Recorded) -> Document:
    """Describe one event of a session's log; long texts are cut."""
    fields = json.loads(encode(recorded.event))
    for name, value in fields.items():
        if isinstance(value, str) and len(value) > MAX_TEXT_CHARS:
            fields[name] = f"{value[:MAX_TEXT_CHARS]}…"
    return {"seq": recorded.seq, "at": recorded.at, "event": type(recorded.event).__name__, **fields}


def lane_document(lane: Lane) -> Document:
    """Describe when a session did what: states as start, end and kind; ticks as time, seconds, kind and text."""
    return {
        "spans": [[span.start, span.end, span.kind] for span in lane.spans],
        "ticks": [[tick.at, tick.took, tick.kind, tick.text[:MAX_TICK_CHARS]] for tick in lane.ticks],
    }


def samples_document(samples: Sequence[SampleAt]) -> Document:
    """Describe what a session used over time: memory and disk in MB, CPU in percent of a core."""
    return {"memory": memory_points(samples), "cpu": cpu_points(samples), "disk": disk_points(samples)}


def error_document(error: ShoalError) -> Document:
    """Describe an error."""
    return {"error": str(error)}
