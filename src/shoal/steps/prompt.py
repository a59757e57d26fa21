"""Build an agent's whole prompt: the task, files to look at, context, and the results of earlier work."""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TypeGuard

from shoal.contracts.workbench import quote_lines
from shoal.errors import BadInput
from shoal.model.artifact import ProducedArtifact
from shoal.model.resolved_task import ResolvedTask
from shoal.model.results import WorkerResult
from shoal.model.task import Task
from shoal.sessions.worker import WorkerSpec

FOLDER = "$SHOAL_INPUTS_DIR"
RETRY_OUTPUT_CHARS = 2000
PARAMS = "params.json"
INTERRUPTED = (
    "An agent that worked on this task was interrupted. Its files are in the workspace: look at what is done, "
    "and do the rest."
)
REWOUND = (
    "An agent has worked on this task before. A person has reset the files in the workspace to a state from "
    "the middle of that work. Look at what is done, and do the rest in your own way."
)
SHOWN_BYTES = 4096
"""Of each result in the prompt; the file beside it has everything that was kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Briefing:
    """The whole prompt, and the *inputs*: files that are put beside it, by name."""

    prompt: str
    inputs: Mapping[str, str] = field(default_factory=dict)


def briefing(task: Task) -> Briefing:
    """Format everything in *task*; a task with nothing but a prompt keeps it unchanged."""
    results = _collect_inputs(task)
    params = json.dumps(dict(task.params), indent=1, ensure_ascii=False) if task.params else ""
    blocks = (
        _block("Context", task.context if isinstance(task.context, str) else ""),
        _block(f"Parameters (also in {FOLDER}/{PARAMS})", params),
        _block("Files to look at first", "\n".join(f"- {_inside(path)}" for path in task.files)),
        _block(
            f"Results of earlier work (in full in {FOLDER})",
            "\n\n".join(_quote_result(result, name) for name, result in results.items()),
        ),
    )
    inputs = {name: _content(result) for name, result in results.items()} | ({PARAMS: params} if params else {})
    return Briefing(prompt="\n\n".join((task.prompt.rstrip("\n"), *filter(None, blocks))), inputs=inputs)


def next_attempt(worker: WorkerSpec, number: int, before: WorkerResult) -> WorkerSpec:
    """Make the next attempt of *worker*; its prompt says how the attempt *before* ended."""
    where = f", on branch {before.branch}" if before.branch else ""
    ending = f"Attempt {number - 1} ended as {before.status.value}{where}: {before.error or 'it gave no reason'}"
    output = _quote_end(before.output, RETRY_OUTPUT_CHARS)
    block = _block(f"This is attempt {number}", f"{ending}\n\n{output}")
    prompt = f"{worker.task.prompt.rstrip()}\n\n{block}"
    return replace(worker, attempt=number, hex=secrets.token_hex(3), task=replace(worker.task, prompt=prompt))


def with_interruption(prompt: str) -> str:
    """Add to *prompt* that an agent has worked on it before, and left its files."""
    return f"{prompt.rstrip()}\n\n{_block('This task was interrupted', INTERRUPTED)}"


def with_rewind(prompt: str) -> str:
    """Add to *prompt* that its files are those of a checkpoint."""
    return f"{prompt.rstrip()}\n\n{_block('This task starts again from a checkpoint', REWOUND)}"


def with_artifacts(assignment: ResolvedTask, parts: Mapping[str, Sequence[ProducedArtifact]]) -> ResolvedTask:
    """Pass on what earlier steps left, by name: as files, and listed in the prompt without their content."""
    files = {f"{step}/{part.file}": part for step, those in parts.items() for part in those}
    lines = (f"- {FOLDER}/{place} ({part.type.value}, {len(part.content)} bytes)" for place, part in files.items())
    block = _block("Artifacts of earlier steps", "\n".join(lines))
    prompt = f"{assignment.prompt.rstrip()}\n\n{block}" if block else assignment.prompt
    contents = {place: part.content for place, part in files.items()}
    return replace(assignment, prompt=prompt, inputs={**assignment.inputs, **contents})


def _block(title: str, text: str) -> str:
    return f"## {title}\n\n{text.strip()}" if text.strip() else ""


def _collect_inputs(task: Task) -> dict[str, WorkerResult | str]:
    """Collect the earlier work that *task* refers to, by the names of the files that contain it."""
    found: dict[str, WorkerResult | str] = {}
    if isinstance(task.context, WorkerResult):
        found["context.json"] = task.context
    if isinstance(task.inputs, Mapping):
        return found | {f"{name}.{_ending(value)}": value for name, value in task.inputs.items() if _is_input(value)}
    return found | {f"{number}-{_label(value)}": value for number, value in enumerate(task.inputs, start=1)}


def _is_input(value: object) -> TypeGuard[WorkerResult | str]:
    return isinstance(value, str | WorkerResult)


def _ending(value: object) -> str:
    return "json" if isinstance(value, WorkerResult) else "txt"


def _quote_result(result: WorkerResult | str, name: str) -> str:
    """Quote an agent's output line by line: it is material, and must not look like our own headings."""
    head = f"### {name}"
    if isinstance(result, WorkerResult):
        where = f", branch {result.branch} at {result.commit}" if result.branch else ""
        head += f"\n\n{result.session}: {result.status.value}, {result.files_changed} files changed{where}"
    quoted = _quote_end(result if isinstance(result, str) else result.output, SHOWN_BYTES)
    return f"{head}\n\n{quoted}" if quoted else head


def _quote_end(text: str, most: int) -> str:
    shown = text[-most:]
    cut = f"[{len(text) - len(shown)} earlier characters are left out]\n" if len(shown) < len(text) else ""
    return quote_lines(f"{cut}{shown}")


def _label(result: WorkerResult | str) -> str:
    return f"{result.session}.json" if isinstance(result, WorkerResult) else "input.txt"


def _content(result: WorkerResult | str) -> str:
    if isinstance(result, str):
        return result
    fields = ("session", "exit_code", "output", "branch", "commit", "files_changed", "duration_seconds", "error")
    described = {"status": result.status.value, **{name: getattr(result, name) for name in fields}}
    return json.dumps(described, indent=1)


def _inside(path: str) -> str:
    pure = PurePosixPath(path)
    if not isinstance(path, str) or pure.is_absolute() or ".." in pure.parts or not path.isprintable():
        raise BadInput(f"{path!r:.80} is not a path inside the repository; write it relative to the top directory")
    return str(pure)
