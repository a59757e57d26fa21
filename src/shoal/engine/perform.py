"""The stages of a plan, each when its needs have ended: steps, gates, pipelines inside of pipelines, and loops."""

import graphlib
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.engine.gate import passed
from shoal.engine.outcome import Outcome
from shoal.engine.schedule import in_turn
from shoal.engine.scope import Scope, told
from shoal.engine.site import Site
from shoal.engine.stack import Unstacked, stacked
from shoal.engine.stage_end import GOOD_ENOUGH, ended_well, failed, group_status, noted, started
from shoal.engine.step import Steps
from shoal.errors import BadInput, Broken
from shoal.model.artifact import Produced
from shoal.model.plan import Approval, Group, Loop, Stage, Step, everything
from shoal.model.results import StepResult
from shoal.model.status import Status


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a stage stands: the commit that it starts from, and what its texts may name."""

    base: str | None
    scope: Scope
    needs: Mapping[str, Outcome]


class Performance:
    """One run of a plan's stages; *outcomes* has those that have ended, by their full names."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.outcomes: dict[str, Outcome] = {}
        self._begun: set[str] = set()

    async def all(self, stages: Sequence[Stage], start: str | None, scope: Scope) -> dict[str, Outcome]:
        """Do *stages*, those that need nothing from the commit *start*."""
        known = {stage.name: stage for stage in stages}
        await started(self.steps.site, stages, self._begun)
        self._begun |= known.keys()

        async def perform(name: str, ended: Mapping[str, Outcome]) -> Outcome:
            outcome = _masked(self.steps.site, await self._stage(known[name], ended, start, scope))
            self.outcomes[name] = outcome
            await noted(self.steps.site, outcome.result)
            return outcome

        return await in_turn({stage.name: stage.needs for stage in stages}, perform)

    async def _stage(self, stage: Stage, ended: Mapping[str, Outcome], start: str | None, scope: Scope) -> Outcome:
        needs = {need: ended[need] for need in stage.needs}
        if bad := [need for need, one in needs.items() if not one.is_met]:
            why = f"it needs {', '.join(bad)}, which did not end well"
            return replace(self.steps.unstarted(stage, Status.SKIPPED, why), commit=start)
        base = start
        try:
            base = await self._base(stage, needs, start)
            here = Standing(base=base, scope=scope.at(stage, ended), needs=needs)
            if stage.condition is not None and not here.scope.holds(stage.condition):
                return replace(
                    self.steps.unstarted(stage, Status.SKIPPED, f"`if: {stage.condition}` does not hold"),
                    is_met=True,
                    commit=base,
                    is_passed_over=True,
                )
            return await (self._once(stage, here) if stage.loop is None else self._rounds(stage, stage.loop, here))
        except (Unstacked, BadInput, Broken) as error:
            return replace(self.steps.unstarted(stage, Status.FAILED, str(error)), commit=base)

    async def _base(self, stage: Stage, needs: Mapping[str, Outcome], start: str | None) -> str | None:
        if stage.base is not None:
            return stage.base
        if not stage.is_stacked:
            return None
        return await self._merged(stage, needs) or start

    async def _once(self, stage: Stage, here: Standing) -> Outcome:
        match stage:
            case Step():
                return await self.steps.done(stage, here.base, here.scope, here.needs)
            case Approval():
                return await self._approval(stage, here)
            case Group():
                return await self._group(stage, here)
            case _:
                raise TypeError(f"{type(stage).__name__} is no kind of stage")

    async def _rounds(self, stage: Stage, loop: Loop, here: Standing) -> Outcome:
        """Do *stage* again and again, each time on what it came to before."""
        previous: Outcome | None = None
        for number in range(1, loop.most + 1):
            if previous is not None and previous.conflict is not None:
                why = f"round {number} cannot build on the one before: {previous.conflict}"
                return failed(stage, replace(previous, conflict=None), why)
            before = {} if previous is None else told(previous)
            self._forget(stage)
            scope = here.scope.having(loop={"round": number, "max": loop.most, "previous": before})
            outcome = await self._once(stage, replace(here, scope=scope))
            outcome = replace(outcome, result=replace(outcome.result, rounds=number))
            if not outcome.is_met:
                return outcome
            try:
                if _after(scope, outcome).holds(loop.until):
                    return outcome
            except BadInput as error:
                return failed(stage, outcome, str(error))
            previous, here = outcome, replace(here, base=outcome.commit)
        return _exhausted(stage, loop, previous)

    def _forget(self, stage: Stage) -> None:
        """Let go of what the round before came to: what this one does not reach must not look done."""
        self.steps.forget(stage)
        for inner in everything(stage.stages) if isinstance(stage, Group) else ():
            self.outcomes.pop(inner.name, None)

    async def _approval(self, stage: Approval, here: Standing) -> Outcome:
        gate = replace(stage.gate, message=here.scope.rendered(stage.gate.message))
        steps = self.steps
        answer = await passed(gate, steps.door, steps.site, stage.name, approve_all=steps.approve_all)
        result = StepResult(
            step=stage.name, on_failure="fail_fast", status=answer.status, worker_results=(), error=answer.error
        )
        return Outcome(result=result, is_met=ended_well(stage, answer.status), commit=here.base)

    async def _group(self, stage: Group, here: Standing) -> Outcome:
        scope = here.scope
        if isinstance(stage.input, str):
            scope = scope.having(input=scope.rendered(stage.input))
        elif stage.input is not None:
            scope = scope.having(input={name: scope.rendered(text) for name, text in stage.input.items()})
        inner = await self.all(stage.stages, here.base, scope)
        status = group_status(stage.stages, inner)
        result = StepResult(step=stage.name, on_failure="fail_fast", status=status, worker_results=())
        outcome = Outcome(
            result=result,
            is_met=ended_well(stage, status),
            commit=here.base,
            artifacts=_left(stage, inner),
            inner=inner,
        )
        return await self._gathered(stage, outcome) if status in GOOD_ENOUGH else outcome

    async def _gathered(self, stage: Group, outcome: Outcome) -> Outcome:
        """Merge what the last stages of a group came to: those that nobody inside needs."""
        needed = {need for one in stage.stages for need in one.needs}
        last = {one.name: outcome.inner[one.name] for one in stage.stages if one.name not in needed}
        try:
            commit = await self._merged(stage, last)
        except Unstacked as error:  # no fault of the group's own: it counts for who would build on it
            return replace(outcome, conflict=f"{stage.name}: {error}")
        return replace(outcome, commit=commit or outcome.commit)

    async def _merged(self, stage: Stage, parts: Mapping[str, Outcome]) -> str | None:
        """Merge the work of *parts* for *stage*; raises `Unstacked` where it does not go together."""
        if spoilt := next((one.conflict for one in parts.values() if one.conflict), None):
            raise Unstacked(spoilt)
        commits = [one.commit for one in parts.values() if one.commit]
        return await stacked(self.steps.site, stage.name, tuple(parts), commits)


def _masked(site: Site, outcome: Outcome) -> Outcome:
    """Take secrets out of what was said about a stage as a whole; of its workers they are out already."""
    if outcome.result.error is None:
        return outcome
    return replace(outcome, result=replace(outcome.result, error=site.mask.text(outcome.result.error)))


def _left(stage: Group, inner: Mapping[str, Outcome]) -> dict[str, tuple[Produced, ...]]:
    """Give the artifacts of all stages inside; of two with one name, that of the stage that comes later."""
    order = graphlib.TopologicalSorter({one.name: one.needs for one in stage.stages}).static_order()
    return {name: parts for one in order for name, parts in inner[one].artifacts.items()}


def _after(scope: Scope, outcome: Outcome) -> Scope:
    """See what a round came to: as `this`, and the stages inside of it by their own names."""
    now = told(outcome)
    inner, steps = now["steps"], scope.values.get("steps")
    both = [one for one in (inner, steps) if isinstance(one, Mapping)]
    return scope.having(this=now, steps=ChainMap(*both))  # type: ignore[arg-type]  # they are only read


def _exhausted(stage: Stage, loop: Loop, last: Outcome | None) -> Outcome:
    if last is None:
        raise BadInput(f"step {stage.name}: a loop of no rounds")
    if not loop.must_hold:
        return last
    return failed(stage, last, f"`until: {loop.until}` does not hold after {loop.most} rounds")
