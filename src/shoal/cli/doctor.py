"""`shoal doctor`: what this host can hold, by trying."""

import asyncio
import itertools
import os
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.json_output import text
from shoal.cli.options import Json
from shoal.cli.output import Paint, escape
from shoal.doctor.doctor import diagnose
from shoal.model.finding import Diagnosis, Finding

SIGNS = {True: "ok", False: "no", None: "–"}
SIGN, NAME = 2, 11
GAP = "  "
INDENT = " " * (len(GAP) * 3 + SIGN + NAME)
WIDEST, NARROWEST = 100, 50
TITLES = {
    "bubblewrap": "wall: bubblewrap (the default)",
    "landlock": "wall: landlock (by name: --sandbox landlock)",
    "clients": "agent programs",
}
POLLING = "limits by polling (approximately, and cpu not at all)"


class Page:
    """Sets findings as lines: folded to *width* for a person, one to a line for a program."""

    def __init__(self, paint: Paint, *, width: int | None) -> None:
        self._paint = paint
        self._width = None if width is None else max(NARROWEST, min(WIDEST, width))
        self._is_first = True

    def lines(self, findings: Sequence[Finding]) -> Iterator[str]:
        """Give each area its title and its lines."""
        for area, some in itertools.groupby(findings, key=lambda one: one.area):
            if not self._is_first:
                yield ""
            self._is_first = False
            yield self._paint(TITLES.get(area, area), "bold")
            for one in some:
                yield from self._line(one)

    def sentence(self, diagnosis: Diagnosis) -> str:
        """Say in one sentence what this host can hold."""
        held = ", ".join(_held_lines(diagnosis)) or "nothing"
        head, tone = ("This host holds:", "good") if diagnosis.holds else ("This host does not hold:", "bad")
        rest = held if diagnosis.holds else f"{', '.join(_missing(diagnosis))}. It holds: {held}"
        folded = textwrap.fill(escape(f"{head} {rest}"), self._width or len(head + rest) + 1, break_on_hyphens=False)
        return folded.replace(head, self._paint(head, tone), 1)

    def _line(self, one: Finding) -> Iterator[str]:
        sign = self._paint(SIGNS[one.held].ljust(SIGN), _tone(one))
        text = escape(f"{one.tried}: {one.said}" if one.tried else one.said)
        remedy = f"→ {escape(one.remedy)}" if one.remedy else ""
        if self._width is None or len(INDENT) + len(text) + 1 + len(remedy) <= self._width:
            folded = [f"{text} {self._fix_hint(remedy)}".rstrip()]
        else:
            folded = [*self._wrap(text), *map(self._fix_hint, self._wrap(remedy, hang=GAP))]
        yield f"{GAP}{sign}{GAP}{escape(one.name).ljust(NAME)}{GAP}{folded[0]}"
        yield from (f"{INDENT}{line}" for line in folded[1:])

    def _wrap(self, text: str, *, hang: str = "") -> list[str]:
        room = (self._width or WIDEST) - len(INDENT)
        return textwrap.wrap(text, room, subsequent_indent=hang, break_on_hyphens=False)

    def _fix_hint(self, text: str) -> str:
        return self._paint(text, "mark") if text else ""


def _held_lines(diagnosis: Diagnosis) -> Iterator[str]:
    yield from (f"{wall} wall" for wall in diagnosis.walls)
    if diagnosis.workspace:
        yield f"{diagnosis.workspace} workspaces"
    if diagnosis.limits:
        yield POLLING if diagnosis.limits == "polling" else f"limits by {diagnosis.limits}"


def _missing(diagnosis: Diagnosis) -> Iterator[str]:
    failed = [one for one in diagnosis.findings if one.needed and one.held is not True]
    for area, some in itertools.groupby(failed, key=lambda one: one.area):
        names = [one.name for one in some]
        if names == ["wall"]:
            yield f"{area} wall"
        else:
            yield f"{f'{area} wall' if area in TITLES else area} ({', '.join(names)})"


def _tone(one: Finding) -> str:
    if one.held is None:
        return "dim"
    return "good" if one.held else "bad" if one.needed else "warn"


GOOD, NOT_HELD = 0, 5
HERE = Path()


def command(
    json: Json = False,
    repo: Annotated[
        Path, typer.Option("--repo", metavar="DIR", help="Where agents would work; any folder will do.")
    ] = HERE,
) -> int:
    """Say what this host can hold, by trying to get out.

    Runs live escapes and one breach of each limit in a scratch repository; nothing of it stays.
    """
    diagnosis = asyncio.run(_diagnose_quietly(repo) if json else _diagnose_aloud(repo))
    return GOOD if diagnosis.holds else NOT_HELD


async def _diagnose_quietly(folder: Path) -> Diagnosis:
    diagnosis = await diagnose(folder, os.environ)
    output.print_out(text(_document(diagnosis)))
    return diagnosis


async def _diagnose_aloud(folder: Path) -> Diagnosis:
    """Show each area as soon as it is known: some take a second."""
    page = Page(output.paint(), width=shutil.get_terminal_size().columns if output.is_terminal() else None)
    diagnosis = await diagnose(folder, os.environ, lambda found: output.print_out("\n".join(page.lines(found))))
    output.print_out(f"\n{page.sentence(diagnosis)}")
    return diagnosis


def _document(diagnosis: Diagnosis) -> dict[str, object]:
    return {
        "holds": diagnosis.holds,
        "walls": list(diagnosis.walls),
        "workspace": diagnosis.workspace,
        "limits": diagnosis.limits,
        "findings": [one.as_fields() for one in diagnosis.findings],
    }
