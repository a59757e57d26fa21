"""Merge results and sessions for a program, and deliver them into a branch of the user on request."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.errors import BadInput, UnknownName
from shoal.merge.merge import merge
from shoal.merge.request import (
    ConflictOptions,
    MergeRequest,
    conflict_rule,
    find_results,
    open_merge_context,
    session_name,
)
from shoal.merge.resolver_prompt import advice
from shoal.model.conflict_rule import verification
from shoal.model.merge import Conflict, MergeReport, MergeResult
from shoal.model.merge import Strategy as MergeStrategy
from shoal.model.results import WorkerResult
from shoal.model.task import AgentLike
from shoal.runs.auto_merge import prepare_merge_request
from shoal.runs.isolated_session import IsolatedAgentSession
from shoal.runs.program_run import ProgramRun
from shoal.sessions.command_session import OpenSession

SessionLike = WorkerResult | str | OpenSession | IsolatedAgentSession


class ProgramMerge(ProgramRun):
    """What a coordinator does with finished work."""

    _line: str | None = None
    """The run whose branch collects what is merged session by session, while no run is open."""

    async def merge(
        self,
        results: Sequence[SessionLike] | None = None,
        strategy: str = "review",
        *,
        into: str | None = None,
        allow_executable_config: bool = False,
        allow_secrets: bool = False,
        verify: str | Sequence[str] | None = None,
        on_conflict: str = "report",
        resolver: AgentLike | None = None,
    ) -> MergeReport:
        """Merge the work of *results*, or of the whole run, on its branch `shoal/<run>`.

        No branch of the user is moved unless it is named as *into*, and with `review` only by `deliver`. Conflicts do
        not stop the merge: see the report. The command *verify* runs in the sandbox on the combined work, and sessions
        that make it fail are left out. Conflicts are resolved as *on_conflict* says, with `agent` by the agent
        *resolver*; `redo` runs tasks of this run again.
        """
        how = ConflictOptions(rule=conflict_rule(on_conflict, resolver))
        request = MergeRequest(strategy=_strategy(strategy), into=into, allow_secrets=allow_secrets, resolving=how)
        request = replace(request, allow_executable=allow_executable_config)
        if results is not None and not results:
            return await self._merge_sessions([], replace(request, into=None))
        if verify is None and not how.needs_sessions:
            return await self._merge_sessions(results, request)
        if results is None and not self._is_entered:
            raise BadInput("the run has ended: name the results to merge, or merge inside `async with`")
        async with self._open() as task_run:
            if resolver is not None:
                request = replace(request, resolving=replace(how, resolver=await task_run.resolver(resolver)))
            async with prepare_merge_request(
                task_run.runner, request, None if verify is None else verification(verify)
            ) as whole:
                return await self._merge_sessions(results, whole)

    async def merge_agent_results(
        self, sessions: Sequence[SessionLike], strategy: str = "review", *, into: str | None = None
    ) -> list[MergeResult]:
        """Merge *sessions* in order (seed 002), and return the result of each; without sessions, nothing is merged.

        All that a coordinator merges this way is collected on one branch, so that each session is checked against
        the others, also sessions that were opened one by one. *into* delivers, as in `merge`.
        """
        if not sessions:
            return []
        request = MergeRequest(strategy=_strategy(strategy), into=into)
        done = await self._merge_sessions(sessions, request, is_ordered=True)
        self._line = done.run
        return list(done.results)

    async def merge_agent_work(
        self, session_id: SessionLike, strategy: str = "review", *, into: str | None = None
    ) -> MergeResult:
        """Merge one session (seed 002); the result's fields are also available as `result["status"]`."""
        (result,) = await self.merge_agent_results([session_id], strategy, into=into)
        return result

    async def deliver(self, into: str, report: MergeReport | None = None) -> MergeReport:
        """Approve what was merged and deliver it *into* a branch of yours: from *report*, otherwise the last merge."""
        run = report.run if report is not None else self._line
        request = MergeRequest(strategy=MergeStrategy.REVIEW, into=into, is_approved=True)
        request = request if report is None else replace(request, strategy=report.strategy)
        if run is None and not self._is_entered:
            raise BadInput("nothing was merged here yet: give the report of `merge`")
        return await self._merge_sessions([], request, run=run)

    def resolve_conflicts(self, conflicts: Sequence[Conflict | Mapping[str, object]]) -> list[str]:
        """Say what a person should do about each of *conflicts* (seed 002); nothing is changed."""
        return advice(conflicts)

    async def _merge_sessions(
        self,
        given: Sequence[SessionLike] | None,
        request: MergeRequest,
        *,
        is_ordered: bool = False,
        run: str | None = None,
    ) -> MergeReport:
        # The sessions do not belong to a run that was opened for this call alone.
        context = self._task_run.runner.context if self._task_run is not None and self._is_entered else None
        if context is not None and run not in (None, context.run):
            context = None
        if given is not None and not given and context is None and run is None:
            raise BadInput("nothing to merge: give results, or merge inside `async with`")
        names = [session_name(session) for session in given or ()]
        line = run or (self._line if is_ordered else None)
        async with open_merge_context(self.repo, self.settings.environ, context, names, line) as merge_context:
            workers = None if given is None else find_results(merge_context.paths, given)
            if not is_ordered or workers is None:
                return await merge(merge_context, request, workers)
            order = tuple(worker.session for worker in workers)
            done = await merge(merge_context, replace(request, sessions=order), workers)
            return replace(done, results=tuple(done[name] for name in order))


def _strategy(name: str) -> MergeStrategy:
    if name not in set(MergeStrategy):
        raise UnknownName("strategy", name, [strategy.value for strategy in MergeStrategy])
    return MergeStrategy(name)
