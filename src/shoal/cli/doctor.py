"""`shoal doctor`: what this host supports, found by trying."""

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
from shoal.cli.options import Json
from shoal.cli.output import Paint, escape
from shoal.doctor.doctor import diagnose
from shoal.errors import ExitCode
from shoal.model.diagnosis import Diagnosis, Finding
from shoal.store.documents import text

MARKS = {True: "ok", False: "no", None: "–"}
MARK, NAME = 2, 11
GAP = "  "
INDENT = " " * (len(GAP) * 3 + MARK + NAME)
WIDEST, NARROWEST = 100, 50
TITLES = {
    "bubblewrap": "sandbox: bubblewrap (the default)",
    "landlock": "sandbox: landlock (choose it with --sandbox landlock)",
    "clients": "agent programs",
}
POLLING = "limits by polling (approximate, and no cpu limit)"


class Page:
    """Formats findings: folded to *width* for a terminal, one per line for a program."""

    def __init__(self, paint: Paint, *, width: int | None) -> None:
        self._paint = paint
        self._width = None if width is None else max(NARROWEST, min(WIDEST, width))
        self._is_first = True

    def lines(self, findings: Sequence[Finding]) -> Iterator[str]:
        """Yield the title and the findings of each area."""
        for area, some in itertools.groupby(findings, key=lambda finding: finding.area):
            if not self._is_first:
                yield ""
            self._is_first = False
            yield self._paint(TITLES.get(area, area), "bold")
            for finding in some:
                yield from self._line(finding)

    def sentence(self, diagnosis: Diagnosis) -> str:
        """Say in one sentence what this host supports."""
        held = ", ".join(_list_supported(diagnosis)) or "nothing"
        head, tone = ("This host supports:", "good") if diagnosis.holds else ("This host does not support:", "bad")
        rest = held if diagnosis.holds else f"{', '.join(_missing(diagnosis))}. It supports: {held}"
        folded = textwrap.fill(escape(f"{head} {rest}"), self._width or len(head + rest) + 1, break_on_hyphens=False)
        return folded.replace(head, self._paint(head, tone), 1)

    def _line(self, finding: Finding) -> Iterator[str]:
        mark = self._paint(MARKS[finding.held].ljust(MARK), _tone(finding))
        text = escape(f"{finding.tried}: {finding.result}" if finding.tried else finding.result)
        remedy = f"→ {escape(finding.remedy)}" if finding.remedy else ""
        if self._width is None or len(INDENT) + len(text) + 1 + len(remedy) <= self._width:
            folded = [f"{text} {self._fix_hint(remedy)}".rstrip()]
        else:
            folded = [*self._wrap(text), *map(self._fix_hint, self._wrap(remedy, hang=GAP))]
        yield f"{GAP}{mark}{GAP}{escape(_display_name(finding)).ljust(NAME)}{GAP}{folded[0]}"
        yield from (f"{INDENT}{line}" for line in folded[1:])

    def _wrap(self, text: str, *, hang: str = "") -> list[str]:
        room = (self._width or WIDEST) - len(INDENT)
        return textwrap.wrap(text, room, subsequent_indent=hang, break_on_hyphens=False)

    def _fix_hint(self, text: str) -> str:
        return self._paint(text, "mark") if text else ""


def _list_supported(diagnosis: Diagnosis) -> Iterator[str]:
    yield from (f"{sandbox} sandbox" for sandbox in diagnosis.walls)
    if diagnosis.workspace:
        yield f"{diagnosis.workspace} workspaces"
    if diagnosis.limits:
        yield POLLING if diagnosis.limits == "polling" else f"limits by {diagnosis.limits}"


def _missing(diagnosis: Diagnosis) -> Iterator[str]:
    failed = [finding for finding in diagnosis.findings if finding.needed and finding.held is not True]
    for area, some in itertools.groupby(failed, key=lambda finding: finding.area):
        names = [finding.name for finding in some]
        if names == ["wall"]:
            yield f"{area} sandbox"
        else:
            yield f"{f'{area} sandbox' if area in TITLES else area} ({', '.join(names)})"


def _display_name(finding: Finding) -> str:
    """Return the name to print; the JSON document keeps its older word for a sandbox."""
    return "sandbox" if finding.name == "wall" else finding.name


def _tone(finding: Finding) -> str:
    if finding.held is None:
        return "dim"
    return "good" if finding.held else "bad" if finding.needed else "warn"


HERE = Path()


def command(
    json: Json = False,
    repo: Annotated[Path, typer.Option("--repo", metavar="DIR", help="The folder where agents would work.")] = HERE,
) -> int:
    """Check what this host supports, by attacking its sandbox.

    Runs real escape attempts and exceeds each limit once, in a scratch repository that is removed afterwards.
    """
    diagnosis = asyncio.run(_diagnose_as_json(repo) if json else _diagnose_and_print(repo))
    return ExitCode.SUCCESS if diagnosis.holds else ExitCode.UNAVAILABLE


async def _diagnose_as_json(folder: Path) -> Diagnosis:
    diagnosis = await diagnose(folder, os.environ)
    output.print_out(text(_document(diagnosis)))
    return diagnosis


async def _diagnose_and_print(folder: Path) -> Diagnosis:
    """Print each area as soon as it is known; some take a second."""
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
        "findings": [finding.as_fields() for finding in diagnosis.findings],
    }
