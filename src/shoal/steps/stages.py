"""Run the stages of a plan, each when its needs have ended: steps, gates, nested pipelines, and loops."""

import graphlib
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.errors import BadInput, Broken, ShoalError
from shoal.model.artifact import ProducedArtifact
from shoal.model.plan import Approval, Loop, PipelineGroup, Stage, Step, walk_stages
from shoal.model.results import StepResult
from shoal.model.status import Status
from shoal.sessions.context import RunContext
from shoal.steps.dag import Contribution, DagRunner, Node, NodeInputs, Unstacked, explain_skip, merge_parts
from shoal.steps.gate import ask_person
from shoal.steps.stage_outcome import (
    StageOutcome,
    fail_stage,
    is_good_enough,
    judge_group,
    record_stage_ended,
    record_stages_started,
)
from shoal.steps.step import StepRunner
from shoal.steps.template_scope import TemplateScope, describe_outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class StageState:
    """The state of a stage: the commit that it starts from, and what its texts may name."""

    base: str | None
    scope: TemplateScope
    needs: Mapping[str, StageOutcome]


class StageRunner:
    """Runs the stages of a plan; *outcomes* has those that have ended, by their full names."""

    def __init__(self, steps: StepRunner) -> None:
        self.steps = steps
        self.outcomes: dict[str, StageOutcome] = {}
        self.rounds: dict[str, int] = {}
        """The current round of each loop, by the name of its stage."""
        self.notes: dict[str, tuple[str, ...]] = {}
        """Remarks about a stage, by its name: conflicts between its needs that a rule resolved."""
        self._begun: set[str] = set()

    async def run(self, stages: Sequence[Stage], start: str | None, scope: TemplateScope) -> dict[str, StageOutcome]:
        """Run *stages*; those without needs start from *start*."""
        await record_stages_started(self.steps.context, stages, self._begun)
        self._begun |= {stage.name for stage in stages}
        work = _StageWork(self, {stage.name: stage for stage in stages}, start, scope)
        return await DagRunner(self.steps.context, work).run([work.node(stage) for stage in stages])

    async def run_stage(self, stage: Stage, turn: NodeInputs[StageOutcome], scope: TemplateScope) -> StageOutcome:
        """Run *stage*, unless its condition is false."""
        try:
            within = scope.at(stage, turn.ended)
            if stage.condition is not None and not within.holds(stage.condition):
                return self.pass_over(stage, turn.base)
            here = StageState(base=turn.base, scope=within, needs=turn.needs)
            return await (self._once(stage, here) if stage.loop is None else self._rounds(stage, stage.loop, here))
        except (Unstacked, BadInput, Broken) as error:
            return replace(self.steps.skip(stage, Status.FAILED, str(error)), commit=turn.base)

    def pass_over(self, stage: Stage, base: str | None, conflict: str | None = None) -> StageOutcome:
        """Skip *stage*, whose condition is false; a conflict between its needs affects those that build on them."""
        skipped = self.steps.skip(stage, Status.SKIPPED, f"`if: {stage.condition}` does not hold")
        return replace(skipped, is_met=True, commit=base, is_passed_over=True, conflict=conflict)

    async def finish(self, name: str, outcome: StageOutcome) -> StageOutcome:
        """Record how a stage ended."""
        outcome = replace(outcome, result=replace(outcome.result, notes=self.notes.get(name, ())))
        outcome = _mask(self.steps.context, outcome)
        self.outcomes[name] = outcome
        await record_stage_ended(self.steps.context, outcome.result, self.steps.visits.get(name, 1))
        return outcome

    async def _once(self, stage: Stage, here: StageState) -> StageOutcome:
        match stage:
            case Step():
                return await self.steps.run(stage, here.base, here.scope, here.needs)
            case Approval():
                return await self._approval(stage, here)
            case PipelineGroup():
                return await self._group(stage, here)
            case _:
                raise TypeError(f"{type(stage).__name__} is no kind of stage")

    async def _rounds(self, stage: Stage, loop: Loop, here: StageState) -> StageOutcome:
        """Run *stage* repeatedly, each round on the work of the one before."""
        previous: StageOutcome | None = None
        for number in range(1, loop.most + 1):
            if previous is not None and previous.conflict is not None:
                why = f"round {number} cannot build on the one before: {previous.conflict}"
                return fail_stage(stage, replace(previous, conflict=None), why)
            before = {} if previous is None else describe_outcome(previous)
            self._forget(stage)
            self.rounds[stage.name] = number
            scope = here.scope.having(loop={"round": number, "max": loop.most, "previous": before})
            outcome = await self._once(stage, replace(here, scope=scope))
            outcome = replace(outcome, result=replace(outcome.result, rounds=number))
            if not outcome.is_met:
                return outcome
            try:
                if _after(scope, outcome).holds(loop.until):
                    return outcome
            except BadInput as error:
                return fail_stage(stage, outcome, str(error))
            previous, here = outcome, replace(here, base=outcome.commit)
        return _exhaust_loop(stage, loop, previous)

    def _forget(self, stage: Stage) -> None:
        """Forget the results of the round before: what this round does not reach must not look done."""
        self.steps.forget(stage)
        for inner in walk_stages(stage.stages) if isinstance(stage, PipelineGroup) else ():
            self.outcomes.pop(inner.name, None)
            self.notes.pop(inner.name, None)

    async def _approval(self, stage: Approval, here: StageState) -> StageOutcome:
        gate = replace(stage.gate, message=here.scope.render(stage.gate.message))
        steps = self.steps
        history, visit = steps.runner.history, steps.runner.history.enter(stage.name)
        steps.visits[stage.name] = visit.number
        answer = history.answers.get(visit) or await ask_person(
            gate,
            steps.door,
            steps.context,
            stage.name,
            approve_all=steps.approve_all,
            visit=visit.number,
            question=history.questions.get(visit),
        )
        result = StepResult(
            step=stage.name, on_failure="fail_fast", status=answer.status, worker_results=(), error=answer.error
        )
        return StageOutcome(result=result, is_met=is_good_enough(stage, answer.status), commit=here.base)

    async def _group(self, stage: PipelineGroup, here: StageState) -> StageOutcome:
        scope = here.scope
        if isinstance(stage.input, str):
            scope = scope.having(input=scope.render(stage.input))
        elif stage.input is not None:
            scope = scope.having(input={name: scope.render(text) for name, text in stage.input.items()})
        inner = await self.run(stage.stages, here.base, scope)
        status = judge_group(stage.stages, inner)
        result = StepResult(step=stage.name, on_failure="fail_fast", status=status, worker_results=())
        outcome = StageOutcome(
            result=result,
            is_met=is_good_enough(stage, status),
            commit=here.base,
            artifacts=_group_artifacts(stage, inner),
            inner=inner,
        )
        return await self._merge_group(stage, outcome) if status.is_usable else outcome

    async def _merge_group(self, stage: PipelineGroup, outcome: StageOutcome) -> StageOutcome:
        """Merge the work of the last stages of a group: those that nothing inside needs."""
        needed = {need for inner in stage.stages for need in inner.needs}
        last = {inner.name: outcome.inner[inner.name] for inner in stage.stages if inner.name not in needed}
        try:
            parts = [_contribution(name, part) for name, part in last.items()]
            merged = await merge_parts(self.steps.context, stage.name, parts)
        except Unstacked as error:  # not the group's own fault: it affects what builds on it
            return replace(outcome, conflict=f"{stage.name}: {error}")
        return replace(outcome, commit=merged.commit or outcome.commit)


@dataclass(frozen=True, slots=True)
class _StageWork:
    """Stages of one level, for the scheduler."""

    runner: StageRunner
    stages: Mapping[str, Stage]
    start: str | None
    scope: TemplateScope

    def node(self, stage: Stage) -> Node:
        return Node(
            name=stage.name,
            needs=stage.needs,
            base=stage.base,
            is_stacked=stage.is_stacked,
            start=self.start,
            on_conflict=stage.on_conflict,
        )

    def is_met(self, ended: StageOutcome) -> bool:
        return ended.is_met

    def contribution(self, name: str, ended: StageOutcome) -> Contribution:
        return _contribution(name, ended)

    async def skip(self, node: Node, failed: Sequence[str]) -> StageOutcome:
        skipped = self.runner.steps.skip(self.stages[node.name], Status.SKIPPED, explain_skip(failed))
        return await self.runner.finish(node.name, replace(skipped, commit=self.start))

    async def unstack(self, node: Node, error: Unstacked, turn: NodeInputs[StageOutcome]) -> StageOutcome:
        stage = self.stages[node.name]
        outcome = self._conflict(stage, error, turn)
        return await self.runner.finish(node.name, outcome)

    def _conflict(self, stage: Stage, error: Unstacked, turn: NodeInputs[StageOutcome]) -> StageOutcome:
        why: ShoalError = error
        try:
            if stage.condition is not None and not self.scope.at(stage, turn.ended).holds(stage.condition):
                return self.runner.pass_over(stage, turn.base, f"{stage.name}: {error}")
        except (BadInput, Broken) as wrong:
            why = wrong
        return replace(self.runner.steps.skip(stage, Status.FAILED, str(why)), commit=turn.base)

    async def perform(self, node: Node, turn: NodeInputs[StageOutcome]) -> StageOutcome:
        if turn.note is not None:
            self.runner.notes[node.name] = (self.runner.steps.context.mask.text(turn.note),)
        outcome = await self.runner.run_stage(self.stages[node.name], turn, self.scope)
        return await self.runner.finish(node.name, outcome)


def _contribution(name: str, outcome: StageOutcome) -> Contribution:
    if outcome.conflict:
        raise Unstacked(outcome.conflict)
    return Contribution(name, outcome.commit)


def _mask(context: RunContext, outcome: StageOutcome) -> StageOutcome:
    """Mask secrets in a stage's own error; its workers' results have been masked already."""
    if outcome.result.error is None:
        return outcome
    return replace(outcome, result=replace(outcome.result, error=context.mask.text(outcome.result.error)))


def _group_artifacts(
    stage: PipelineGroup, inner: Mapping[str, StageOutcome]
) -> dict[str, tuple[ProducedArtifact, ...]]:
    """Return the artifacts of all stages inside; of two with the same name, that of the later stage."""
    order = graphlib.TopologicalSorter({inside.name: inside.needs for inside in stage.stages}).static_order()
    return {name: parts for inside in order for name, parts in inner[inside].artifacts.items()}


def _after(scope: TemplateScope, outcome: StageOutcome) -> TemplateScope:
    """Add the result of a round: as `this`, and the stages inside it under their own names."""
    now = describe_outcome(outcome)
    inner, steps = now["steps"], scope.values.get("steps")
    both = [values for values in (inner, steps) if isinstance(values, Mapping)]
    return scope.having(this=now, steps=ChainMap(*both))  # type: ignore[arg-type]  # they are only read


def _exhaust_loop(stage: Stage, loop: Loop, last: StageOutcome | None) -> StageOutcome:
    if last is None:
        raise BadInput(f"step {stage.name}: a loop without rounds")
    if not loop.must_hold:
        return last
    return fail_stage(stage, last, f"`until: {loop.until}` does not hold after {loop.most} rounds")
