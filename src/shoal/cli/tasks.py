"""Tasks from a file or from stdin: one on each line, as plain text or as a JSON object."""

import json
import sys
from pathlib import Path

from shoal.errors import BadInput
from shoal.model.task import Task

MOST_BYTES = 16 * 2**20
STDIN = "-"


def read_tasks(source: str) -> tuple[Task, ...]:
    """Read the tasks of the file *source*, or of stdin for `-`; what is wrong is told with file, line and column."""
    name = "stdin" if source == STDIN else source
    content = _content(source, name)
    lines = content.decode(errors="surrogateescape").removeprefix("\ufeff").split("\n")
    tasks = tuple(_task(line, f"{name}:{number}") for number, line in enumerate(lines, start=1) if line.strip())
    if not tasks:
        raise BadInput(f"{name}: there is no task in it; write one on each line")
    return tasks


def _content(source: str, name: str) -> bytes:
    try:
        if source == STDIN:
            content = sys.stdin.buffer.read(MOST_BYTES + 1)
        else:
            with Path(source).open("rb") as file:
                content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot read tasks from {name!r} ({error.strerror}); check the path") from None
    if len(content) > MOST_BYTES:
        raise BadInput(f"{name}: more than {MOST_BYTES // 2**20} MiB of tasks; split it")
    return content


def _task(line: str, place: str) -> Task:
    column = len(line) - len(line.lstrip()) + 1
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise BadInput(f"{place}:{error.start + 1}: not UTF-8; save it as UTF-8") from None
    try:
        return Task.of(_object(line, place) if line.lstrip().startswith("{") else line.strip())
    except BadInput as error:
        where = "" if str(error).startswith(place) else f"{place}:{column}: "
        raise BadInput(f"{where}{error}") from None


def _object(line: str, place: str) -> dict[str, object]:
    try:
        read = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        column = error.colno if isinstance(error, json.JSONDecodeError) else 1
        what = error.msg if isinstance(error, json.JSONDecodeError) else "nested too deep"
        raise BadInput(f"{place}:{column}: this is no JSON object ({what}); one object on one line") from None
    assert isinstance(read, dict)  # noqa: S101 - it begins with a brace
    return read
