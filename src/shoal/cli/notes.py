"""`shoal notes`: what a person, and the agents of runs, remember."""

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from shoal.cli import output
from shoal.cli.options import HERE, Json, Repo
from shoal.cli.output import escape
from shoal.cli.render.columns import ago, beginning
from shoal.cli.repository import find_place
from shoal.errors import BadInput
from shoal.model.notes import MOST_NOTE_CHARS, Note, NoteKey
from shoal.runs.context import exclude_state
from shoal.store.documents import text as write_text
from shoal.store.lookup import find_run
from shoal.store.notes import NoteStore, notes_at

MOST_LISTED = 2000
LINE_CHARS = 80

Action = Annotated[
    Literal["list", "add", "show", "rm", "search"], typer.Argument(help="What to do.", show_default=False)
]
Key = Annotated[
    str, typer.Argument(metavar="KEY", help="The name of a note; with `search`, words.", show_default=False)
]
Text = Annotated[
    str, typer.Argument(metavar="TEXT|-", help="With `add`: its text; `-` reads stdin.", show_default=False)
]
OfRun = Annotated[
    str | None, typer.Option("--run", metavar="RUN", help="The notes of a run; default: those that stay.")
]
IfVersion = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="With `add`: only if the note is at version N; 0: if there is none."),
]
Agents = Annotated[
    bool, typer.Option("--agents", help="With `add`, `show` and `rm`: a note of agents, which they do not trust.")
]


def command(
    action: Action = "list",
    key: Key = "",
    text: Text = "",
    run: OfRun = None,
    if_version: IfVersion = None,
    agents: Agents = False,
    json: Json = False,
    repo: Repo = HERE,
) -> int:
    """List, add and remove notes that agents can read.

    Agents with `talk: {notes: true}` read them. They are told that your notes are yours, and cannot change them.
    """
    if bool(key) == (action == "list"):
        raise BadInput("`list` takes no KEY" if key else f"name the note: `shoal notes {action} KEY`")
    if bool(text) != (action == "add"):
        raise BadInput(
            "say what to remember: `shoal notes add KEY TEXT`" if action == "add" else "only `add` takes a TEXT"
        )
    store, name = asyncio.run(_open(repo, run))
    at = NoteKey(key=key, run=name or "", is_trusted=not agents)
    match action:
        case "add":
            kept = store.write(Note(at=at, version=0, text=_read(text)), if_version)
            _print([kept], f"kept as version {kept.version} of {escape(key)}", json=json)
        case "show":
            found = store.read(at) or ([] if agents else store.read(NoteKey(key=key, run=at.run)))
            if not found:
                raise BadInput(f"there is no note {escape(key)}; `shoal notes` lists them")
            _print(found, "\n".join(_show(found[0])), json=json)
        case "rm":
            if not store.remove(at):
                raise BadInput(f"there is no note {escape(key)}; `shoal notes` lists them, and --agents removes theirs")
            _print([], f"removed {escape(key)}", json=json)
        case "search":
            notes = store.search(key, name, MOST_LISTED)
            _print(notes, "\n".join(map(_line, notes)) or "no note has these words", json=json)
        case _:
            notes = store.list_latest(name, MOST_LISTED)
            _print(
                notes, "\n".join(map(_line, notes)) or "there are no notes; add one with `shoal notes add`", json=json
            )
    return 0


async def _open(folder: Path, run: str | None) -> tuple[NoteStore, str | None]:
    place = await find_place(folder)
    if run is not None:
        return notes_at(place.paths), find_run(place.state(), run).run
    place.paths.create()
    exclude_state(place.repository)
    return notes_at(place.paths), None


def _read(text: str) -> str:
    return sys.stdin.read(MOST_NOTE_CHARS + 1) if text == "-" else text


def _print(notes: Sequence[Note], lines: str, *, json: bool) -> None:
    output.print_out(write_text([note.as_fields() for note in notes]) if json else lines)


def _line(note: Note) -> str:
    return f"{escape(note.at.key)}  {_source(note)}  {beginning(note.text, LINE_CHARS)}"


def _show(note: Note) -> Iterator[str]:
    yield f"{escape(note.at.key)}: version {note.version}, {_source(note)}"
    yield from (escape(line) for line in note.text.split("\n"))


def _source(note: Note) -> str:
    when = ago(max(0.0, time.time() - note.time))
    if note.at.is_trusted:
        return f"yours, {when}"
    return f"by {escape(note.agent or 'your client')}{f' in {escape(note.from_run)}' if note.from_run else ''}, {when}"
