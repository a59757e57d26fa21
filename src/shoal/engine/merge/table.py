"""What the conflicts of one merge are settled with, and what is known of whose work they are."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from shoal.engine.dispatch import Place
from shoal.engine.job import Job
from shoal.engine.merge.candidates import Candidate
from shoal.engine.merge.chain import Chain, Smith
from shoal.engine.merge.desk import Desk, Resolving
from shoal.engine.merge.dispute import Intent
from shoal.engine.merge.look import Look
from shoal.model.conflict_rule import ConflictRule
from shoal.model.merge import MergeResult
from shoal.model.results import WorkerResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """What the conflicts of one merge are settled with."""

    desk: Desk
    smith: Smith
    look: Look
    how: Resolving
    allow_executable: bool
    candidates: Mapping[str, Candidate]
    workers: Mapping[str, WorkerResult]
    past: Mapping[str, MergeResult]
    """What was merged before, and how."""

    def rule(self, session: str) -> ConflictRule:
        """Say what is done with the work of *session*: a side that won before wins again."""
        before = self.past.get(session)
        if before is not None and before.resolved_by in (ConflictRule.OURS, ConflictRule.THEIRS):
            return ConflictRule(before.resolved_by)
        return self.how.rule

    def was_resolved(self, session: str) -> bool:
        """Say whether the work of *session* was merged before although it conflicted."""
        return session in self.past and self.past[session].resolved_by is not None

    def landed(self, chain: Chain, one: Candidate, tree: str) -> Chain:
        """Add *one* by a tree that somebody made of both sides."""
        return self.smith.finished(self.smith.joined(chain.has(one.session), one, tree))

    def place(self, session: str) -> Place:
        """Say which worker of which step *session* was."""
        for step in self.desk.report.steps:
            for worker in step.worker_results:
                if worker.session == session:
                    return Place(step.step, worker.index)
        return Place(session.rpartition("-")[0] or "merge", 0)

    def job(self, session: str) -> Job | None:
        """Give the job that *session* was the last attempt of, where this very process ran it."""
        dispatch, place = self.how.dispatch, self.place(session)
        last = dispatch.results.get(place) if dispatch else None
        return dispatch.jobs.get(place) if dispatch and last and last.session == session else None

    def intent(self, session: str) -> Intent:
        """Say what a session was asked for, whole where that is still known."""
        job, worker = self.job(session), self.workers.get(session)
        return Intent(session=session, prompt=job.task.prompt if job else worker.prompt if worker else "")


def credited(chain: Chain, said: str, rule: str, resolver: str | None) -> Chain:
    """Say of the session that was added last how it could be."""
    *others, last = chain.results
    return replace(chain, results=(*others, replace(last, message=said, resolved_by=rule, resolver=resolver)))
