"""`shoal validate`: check pipeline files."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.options import Json
from shoal.cli.output import escape
from shoal.cli.render.columns import count
from shoal.errors import BadInput
from shoal.model.plan import Plan
from shoal.pipeline.load import Document, load
from shoal.pipeline.names import own_file
from shoal.pipeline.plan import plan
from shoal.pipeline.problems import BadDocument, Problem
from shoal.store.documents import text


def verdict_lines(file: str, plans: Sequence[Plan], problems: Sequence[Problem]) -> Iterator[str]:
    """Yield `file:line:column: what` for each problem, or the pipelines of a valid file."""
    if problems:
        yield from (escape(str(problem)) for problem in problems)
        return
    yield f"{escape(file)}: valid, {', '.join(map(_pipeline, plans)) or 'agents only'}"
    yield from (f"{escape(file)}: note: {escape(note)}" for plan in plans for note in plan.notes)


def _pipeline(plan: Plan) -> str:
    workers = sum(step.workers for step in plan.working)
    return f"{escape(plan.name)} ({count(len(plan.steps), 'step')}, {count(workers, 'agent')})"


WRONG = 2


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """The plans of a valid file, or its problems."""

    file: str
    plans: tuple[Plan, ...] = ()
    problems: tuple[Problem, ...] = ()

    def as_fields(self) -> dict[str, object]:
        """Return the verdict for a JSON document."""
        return {
            "file": self.file,
            "ok": not self.problems,
            "pipelines": [{"name": plan.name, "steps": [step.name for step in plan.steps]} for plan in self.plans],
            "notes": [note for plan in self.plans for note in plan.notes],
            "problems": [_fields(problem) for problem in self.problems],
        }


def command(
    files: Annotated[
        list[Path] | None,
        typer.Argument(metavar="FILE", help="A pipeline file; repeatable. Default: shoal.yaml.", show_default=False),
    ] = None,
    json: Json = False,
) -> int:
    """Check pipeline files without running anything."""
    verdicts = [validate_file(file) for file in files or [_own()]]
    if json:
        output.print_out(text({"files": [verdict.as_fields() for verdict in verdicts]}))
    else:
        for verdict in verdicts:
            show = output.print_err if verdict.problems else output.print_out
            show("\n".join(verdict_lines(verdict.file, verdict.plans, verdict.problems)))
    return WRONG if any(verdict.problems for verdict in verdicts) else 0


def _own() -> Path:
    file = own_file(Path())
    if not file.is_file():
        raise BadInput(f"nothing to check: there is no {file}; name a file")
    return file


def validate_file(file: Path) -> FileVerdict:
    """Read *file* and plan each of its pipelines."""
    try:
        document = load(file)
        return FileVerdict(
            str(file),
            plans=tuple(plan(document, name, environ=os.environ, is_trial=True) for name in _pipelines(document)),
        )
    except BadDocument as error:
        return FileVerdict(str(file), problems=error.problems)


def _pipelines(document: Document) -> list[str | None]:
    shape = document.shape
    if shape.steps is None and shape.pipelines is None and shape.agents:
        return []  # a file of agents only, for `shoal run --task … --agent …`
    return [pipeline.name for pipeline in shape.pipelines or ()] or [None]


def _fields(problem: Problem) -> dict[str, object]:
    at = problem.at
    return {"line": at.line if at else None, "column": at.column if at else None, "what": problem.what}
