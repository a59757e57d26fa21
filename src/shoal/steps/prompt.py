"""What an agent is told beside its prompt: files to look at, context, and the results of earlier work."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TypeGuard

from shoal.errors import BadInput
from shoal.model.artifact import Produced
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.task import Task
from shoal.sessions.worker import WorkerSpec

FOLDER = "$SHOAL_INPUTS_DIR"
TOLD_AGAIN = 2000
PARAMS = "params.json"
SHOWN_BYTES = 4096
"""Of each result in the prompt; the file beside it has all that the result itself kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """The whole prompt, and the *inputs* that lie beside it as files, by their names."""

    prompt: str
    inputs: Mapping[str, str] = field(default_factory=dict)


def briefing(task: Task) -> Briefing:
    """Tell all that *task* carries; a task that carries only its prompt is told as it stands."""
    results = _given(task)
    params = json.dumps(dict(task.params), indent=1, ensure_ascii=False) if task.params else ""
    blocks = (
        _block("Context", task.context if isinstance(task.context, str) else ""),
        _block(f"Parameters (also in {FOLDER}/{PARAMS})", params),
        _block("Files to look at first", "\n".join(f"- {_inside(path)}" for path in task.files)),
        _block(
            f"Results of earlier work (whole in {FOLDER})",
            "\n\n".join(_quote_result(one, name) for name, one in results.items()),
        ),
    )
    inputs = {name: _content(one) for name, one in results.items()} | ({PARAMS: params} if params else {})
    return Briefing(prompt="\n\n".join((task.prompt.rstrip("\n"), *filter(None, blocks))), inputs=inputs)


def again(worker: WorkerSpec, number: int, before: WorkerResult) -> WorkerSpec:
    """Make the next attempt of *worker*, told what became of the one *before*."""
    where = f", on branch {before.branch}" if before.branch else ""
    said = f"Attempt {number - 1} ended as {before.status.value}{where}: {before.error or 'it gave no reason'}"
    output = _quote_lines(before.output, TOLD_AGAIN)
    told = _block(f"This is attempt {number}", f"{said}\n\n{output}")
    prompt = f"{worker.task.prompt.rstrip()}\n\n{told}"
    return replace(worker, attempt=number, hex=secrets.token_hex(3), task=replace(worker.task, prompt=prompt))


def with_artifacts(assignment: ResolvedTask, parts: Mapping[str, Sequence[Produced]]) -> ResolvedTask:
    """Hand on what earlier steps left, by their names: as files, and listed in the prompt without any content."""
    files = {f"{step}/{one.file}": one for step, those in parts.items() for one in those}
    lines = (f"- {FOLDER}/{place} ({one.type.value}, {len(one.content)} bytes)" for place, one in files.items())
    told = _block("Artifacts of earlier steps", "\n".join(lines))
    prompt = f"{assignment.prompt.rstrip()}\n\n{told}" if told else assignment.prompt
    contents = {place: one.content for place, one in files.items()}
    return replace(assignment, prompt=prompt, inputs={**assignment.inputs, **contents})


def _block(title: str, text: str) -> str:
    return f"## {title}\n\n{text.strip()}" if text.strip() else ""


def _given(task: Task) -> dict[str, WorkerResult | str]:
    """Give what *task* is told of earlier work, by the names of the files that hold it."""
    found: dict[str, WorkerResult | str] = {}
    if isinstance(task.context, WorkerResult):
        found["context.json"] = task.context
    if isinstance(task.inputs, Mapping):
        return found | {f"{name}.{_ending(one)}": one for name, one in task.inputs.items() if _is_input(one)}
    return found | {f"{number}-{_label(one)}": one for number, one in enumerate(task.inputs, start=1)}


def _is_input(one: object) -> TypeGuard[WorkerResult | str]:
    return isinstance(one, str | WorkerResult)


def _ending(one: object) -> str:
    return "json" if isinstance(one, WorkerResult) else "txt"


def _quote_result(one: WorkerResult | str, name: str) -> str:
    """Quote what an agent said, line by line: it is material, and must not pass for our own headings."""
    head = f"### {name}"
    if isinstance(one, WorkerResult):
        where = f", branch {one.branch} at {one.commit}" if one.branch else ""
        head += f"\n\n{one.session}: {one.status.value}, {one.files_changed} files changed{where}"
    quoted = _quote_lines(one if isinstance(one, str) else one.output, SHOWN_BYTES)
    return f"{head}\n\n{quoted}" if quoted else head


def _quote_lines(said: str, most: int) -> str:
    shown = said[-most:]
    cut = f"[{len(said) - len(shown)} signs before this are left out]\n" if len(shown) < len(said) else ""
    return "\n".join(f"> {line}" for line in f"{cut}{shown}".splitlines())


def _label(one: WorkerResult | str) -> str:
    return f"{one.session}.json" if isinstance(one, WorkerResult) else "input.txt"


def _content(one: WorkerResult | str) -> str:
    if isinstance(one, str):
        return one
    fields = ("session", "exit_code", "output", "branch", "commit", "files_changed", "duration_seconds", "error")
    told = {"status": one.status.value, **{name: getattr(one, name) for name in fields}}
    return json.dumps(told, indent=1)


def _inside(path: str) -> str:
    pure = PurePosixPath(path)
    if not isinstance(path, str) or pure.is_absolute() or ".." in pure.parts or not path.isprintable():
        raise BadInput(f"{path!r:.80} is no path inside of the repository; write it from its top")
    return str(pure)
