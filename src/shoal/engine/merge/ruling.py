"""One conflict, resolved by the rule that was asked for; what that cannot do stays with its reason."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace

from shoal.engine.merge.ahead import Verified
from shoal.engine.merge.candidates import Candidate, held
from shoal.engine.merge.chain import Chain
from shoal.engine.merge.desk import Resolving
from shoal.engine.merge.dispute import Dispute
from shoal.engine.merge.look import said_of
from shoal.engine.merge.resolve import Means, Resolved, Unresolved, resolved
from shoal.engine.merge.table import Table, credited
from shoal.engine.merge.verify import Stopped
from shoal.errors import first_of
from shoal.git.conflicts import Conflicted
from shoal.model.conflict_rule import ConflictRule
from shoal.model.merge import MergeResult

STOPPED = "resolving it was stopped"
LONGEST_WHY = 1000

Work = Awaitable[Resolved | Unresolved]


async def ruled(table: Table, chain: Chain, refused: MergeResult, found: Conflicted, rule: ConflictRule) -> Chain:
    """Resolve what was *found* between *chain* and the work of a session by *rule*, or say why not."""
    landing = _Landing(table, chain, table.candidates[refused.session])
    doing = resolved(rule, _dispute(table, chain, refused, found), _means(table, landing))
    match await _unless_stopped(table.how, doing):
        case None:
            return chain.without(replace(refused, message=f"{refused.message}; {STOPPED}"))
        case Unresolved() as left:
            return chain.without(replace(refused, message=_left(refused, rule, left)))
        case Resolved() as done:
            return _taken(landing, refused, rule, done)


@dataclass(frozen=True, slots=True)
class _Landing:
    """Where the work of *one* would land; *made* are the chains that were tried, by their tips."""

    table: Table
    chain: Chain
    one: Candidate
    made: dict[str, Chain] = field(default_factory=dict)

    def land(self, tree: str, source: str) -> str:
        after = self.table.landed(self.chain, replace(self.one, source=source), tree)
        self.made[after.tip] = after
        return after.tip

    async def verify(self, commit: str) -> Verified:
        fault = await self.table.look.fault(self.made[commit])
        return Verified(ok=fault is None, log=said_of(fault))


def _dispute(table: Table, chain: Chain, refused: MergeResult, found: Conflicted) -> Dispute:
    partners = dict.fromkeys(name for conflict in refused.conflicts for name in conflict.partners)
    return Dispute(
        tip=chain.tip,
        theirs=table.candidates[refused.session].source,
        found=found,
        loser=table.intent(refused.session),
        partners=tuple(map(table.intent, partners)),
        truth=chain.truth,
    )


def _means(table: Table, landing: _Landing) -> Means:
    session = landing.one.session
    return Means(
        bench=table.smith.bench,
        land=landing.land,
        verify=landing.verify,
        dispatch=table.how.dispatch,
        resolver=table.how.resolver,
        place=table.place(session),
        job=table.job(session),
        before=table.workers.get(session),
    )


def _taken(landing: _Landing, refused: MergeResult, rule: ConflictRule, done: Resolved) -> Chain:
    """Let it land, unless who resolved it changed what runs on a person's machine."""
    last = done.results[-1] if done.results else None
    if last is not None and last.executable and not landing.table.allow_executable:
        aside = held(last)
        said = f"resolved by `{rule.value}`, {aside.message}"
        return landing.chain.without(replace(aside, session=refused.session, source=refused.source, message=said))
    by = f"by {last.session} (`{rule.value}`)" if last else f"by `{rule.value}`"
    resolver = last.session if last else None
    return credited(landing.made[done.commit], f"{refused.message}, resolved {by}", rule.value, resolver)


def _left(refused: MergeResult, rule: ConflictRule, left: Unresolved) -> str:
    branches = [one.branch for one in left.results if one.branch]
    kept = f"; what was tried is on {', '.join(branches)}" if branches else ""
    return f"{refused.message}; `{rule.value}` did not resolve it: {left.why[:LONGEST_WHY]}{kept}"


async def _unless_stopped(how: Resolving, work: Work) -> Resolved | Unresolved | None:
    """Wait for *work*; stopped, what its sessions wrote is kept, and nothing is decided."""
    try:
        async with asyncio.TaskGroup() as group:
            doing, told = group.create_task(_done(work)), group.create_task(how.stop.wait())
            await asyncio.wait((doing, told), return_when=asyncio.FIRST_COMPLETED)
            doing.cancel()
            told.cancel()
            try:
                await asyncio.wait((doing,))
            except asyncio.CancelledError:
                # Cancelled once more: task groups that are ending already would not pass that on.
                if how.dispatch is not None:
                    how.dispatch.end_at_once()
                raise
    except BaseExceptionGroup as errors:
        raise first_of(errors) from None
    return None if doing.cancelled() else doing.result()


async def _done(work: Work) -> Resolved | Unresolved | None:
    try:
        return await work
    except Stopped:
        return None
