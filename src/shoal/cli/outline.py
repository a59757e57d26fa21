"""The outline of a plan: its stages in waves, and how many agents run at a time."""

import graphlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from shoal.model.conflict_rule import Merging
from shoal.model.limits import ResourceLimits
from shoal.model.matrix import Matrix, expand_matrix
from shoal.model.plan import INNER, Approval, PipelineGroup, Plan, Stage, Step
from shoal.model.policy import Network
from shoal.pipeline.graph_checks import width
from shoal.sessions.policy import list_agents
from shoal.store.documents import rule


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineRow:
    """A stage by its whole name; *needs* are whole names too, and *wave* counts from 1."""

    name: str
    stage: Stage
    needs: tuple[str, ...]
    starts_from: tuple[str, ...]
    """Stages whose merged work it starts from; without any, its own `base` or the run's."""
    aggregates: tuple[str, ...] = ()
    """Stages that give it their aggregate and artifacts, but no tree to start from."""
    wave: int = 1

    @property
    def workers(self) -> int | None:
        """How many agents it has in all; `None` if an artifact decides it during the run."""
        match self.stage:
            case Step(matrix=None, workers=workers):
                return workers
            case Step(matrix=Matrix(source=None) as matrix):
                return len(expand_matrix(matrix))
            case Step():
                return None
            case _:
                return 0

    def together(self, most: int) -> int:
        """Return how many of them can run at once, if the run allows *most*."""
        parallel = self.stage.matrix.most if isinstance(self.stage, Step) and self.stage.matrix else None
        bounds = [bound for bound in (self.workers, parallel) if bound is not None]
        return min(bounds, default=most)

    @property
    def kind(self) -> str:
        """Return the kind of stage."""
        match self.stage:
            case Approval():
                return "gate"
            case PipelineGroup():
                return "pipeline"
            case Step(is_command=True):
                return "command"
            case _:
                return "agents"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """A plan as rows in order of their waves; *at_once* is how many agents can run at the same time."""

    plan: Plan
    rows: tuple[OutlineRow, ...]
    at_once: int

    @property
    def total(self) -> int | None:
        """How many agents there are in all, each counted once; `None` if that is not known yet."""
        numbers = [row.workers for row in self.rows]
        return None if None in numbers else sum(number or 0 for number in numbers)


def outline_plan(plan: Plan) -> Outline:
    """Outline *plan* without reading anything else."""
    rows = list(_rows(plan.steps))
    waits = _waits(rows)
    waves = _waves(waits)
    ordered = sorted((replace(row, wave=waves[row.name]) for row in rows), key=lambda row: row.wave)
    workers = {row.name: row.together(plan.max_concurrent) for row in rows}
    return Outline(plan=plan, rows=tuple(ordered), at_once=min(plan.max_concurrent, width(waits, workers)))


def _rows(stages: Sequence[Stage], start: tuple[str, ...] = ()) -> Iterator[OutlineRow]:
    """Yield each stage, and after a group its inner stages; those without needs start from *start*."""
    known = {stage.name: stage for stage in stages}
    sources = _sources(known, start)
    for stage in stages:
        wide = [need for need in stage.needs if _is_split(known[need])]
        yield OutlineRow(
            name=stage.name,
            stage=stage,
            needs=stage.needs,
            starts_from=() if stage.base else sources[stage.name],
            aggregates=tuple(wide) if stage.is_stacked else (),
        )
        if isinstance(stage, PipelineGroup):
            yield from _rows(stage.stages, sources[stage.name])


def _sources(stages: Mapping[str, Stage], start: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Find whose work each stage starts from; a stage without work of its own passes on its start."""
    found: dict[str, tuple[str, ...]] = {}
    for name in graphlib.TopologicalSorter({name: stage.needs for name, stage in stages.items()}).static_order():
        stage = stages[name]
        if stage.base is not None or not stage.is_stacked:
            found[name] = () if stage.base is None else (stage.base,)
            continue
        given = [(need,) if _has_tree(stages[need]) else found[need] for need in stage.needs]
        found[name] = tuple(dict.fromkeys(itertools.chain(*given))) if stage.needs else start
    return found


def _has_tree(stage: Stage) -> bool:
    """Return whether there is work of *stage* to start from: a gate has none, and several workers no single one."""
    return not isinstance(stage, Approval) and not _is_split(stage)


def _is_split(stage: Stage) -> bool:
    return isinstance(stage, Step) and stage.workers > 1 and stage.select is None and stage.matrix is None


def _waits(rows: Sequence[OutlineRow]) -> dict[str, list[str]]:
    """Map each row to what it waits for: inner stages to their group, and dependants of a group to all of it."""
    groups = [row.name for row in rows if isinstance(row.stage, PipelineGroup)]
    inside = {group: [row.name for row in rows if row.name.startswith(f"{group}{INNER}")] for group in groups}
    waits = {row.name: [name for need in row.needs for name in (need, *inside.get(need, ()))] for row in rows}
    for group, members in inside.items():
        for member in members:
            waits[member].append(group)
    return waits


def _waves(waits: Mapping[str, Sequence[str]]) -> dict[str, int]:
    waves: dict[str, int] = {}
    for name in graphlib.TopologicalSorter(waits).static_order():
        waves[name] = 1 + max((waves[need] for need in waits[name]), default=0)
    return waves


def network(step: Step) -> Network:
    """Return the network of the agents of *step*."""
    return next(list_agents([step])).network


def plan_document(outline: Outline) -> dict[str, object]:
    """Return the plan for `shoal run --dry-run --json`."""
    plan = outline.plan
    return {
        "plan": plan.name,
        "dry_run": True,
        "steps": [_row_document(row) for row in outline.rows],
        "total_workers": outline.total,
        "max_concurrent": plan.max_concurrent,
        "agents_at_once": outline.at_once,
        "wall": plan.sandbox,
        "workspace": plan.isolation_strategy,
        "merge": None if plan.merging is None else _merge_document(plan.merging),
        "notes": list(plan.notes),
    }


def _merge_document(how: Merging) -> dict[str, object]:
    return {
        "strategy": how.strategy.value,
        "into": how.into,
        "verify": None if how.verify is None else how.verify.words,
        "on_conflict": how.on_conflict.value,
    }


def _row_document(row: OutlineRow) -> dict[str, object]:
    stage = row.stage
    common: dict[str, object] = {
        "step": row.name,
        "kind": row.kind,
        "wave": row.wave,
        "workers": row.workers,
        "needs": list(row.needs),
        "starts_from": list(row.starts_from) or stage.base or "run",
        "on_conflict": stage.on_conflict.value,
        "aggregates": list(row.aggregates),
        "optional": stage.is_optional,
        "if": stage.condition,
        "loop": None if stage.loop is None else asdict(stage.loop),
    }
    match stage:
        case Step():
            return common | _step_document(stage)
        case Approval(gate=gate):
            return common | {"gate": asdict(gate)}
        case _:
            return common


def _step_document(step: Step) -> dict[str, object]:
    task = step.task
    return {
        "agent": task.agent.name,
        "agents": list(dict.fromkeys(each.agent.name for each in step.tasks)),
        "adapter": task.agent.adapter,
        "prompt": task.prompt,
        "network": network(step).value,
        "sandbox": step.sandbox,
        "isolation_strategy": step.isolation_strategy,
        "limits": asdict(task.limits or ResourceLimits.default()),
        "timeout": task.timeout,
        "on_failure": rule(step.on_failure),
        "retry": asdict(task.retry),
        "expect": task.expect,
        "env": sorted(task.env),
        "setup": None if task.nearest_setup is None else list(task.nearest_setup.commands),
        "artifacts": [artifact.name for artifact in step.artifacts],
        "contracts": [{"type": contract.type, "promise": contract.promise} for contract in step.contracts],
        "select": None if step.select is None else list(step.select.by),
        "vary": len(step.vary),
        "from_queue": step.queue or None,
        "at_once": step.at_once if step.queue else None,
        "matrix": None if step.matrix is None else _matrix_document(step.matrix),
    }


def _matrix_document(matrix: Matrix) -> dict[str, object]:
    cells = None if matrix.source is not None else [cell.id for cell in expand_matrix(matrix)]
    source = None if matrix.source is None else {"step": matrix.source.step, "artifact": matrix.source.artifact}
    return {"cells": cells, "items_source": source, "max_parallel": matrix.most}
