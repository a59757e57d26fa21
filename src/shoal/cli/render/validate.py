"""Whether a file is right, in words."""

from collections.abc import Iterator, Sequence

from shoal.cli.plain import plain
from shoal.cli.render.columns import count
from shoal.model.plan import Plan
from shoal.pipeline.problems import Problem


def verdict_lines(file: str, plans: Sequence[Plan], problems: Sequence[Problem]) -> Iterator[str]:
    """Give `file:line:column: what` for each problem, or what there is to run."""
    if problems:
        yield from (plain(str(problem)) for problem in problems)
        return
    yield f"{plain(file)}: right, {', '.join(map(_pipeline, plans)) or 'agents only'}"
    yield from (f"{plain(file)}: note: {plain(note)}" for one in plans for note in one.notes)


def _pipeline(plan: Plan) -> str:
    workers = sum(step.workers for step in plan.working)
    return f"{plain(plan.name)} ({count(len(plan.steps), 'step')}, {count(workers, 'agent')})"
