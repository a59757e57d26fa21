"""`shoal doctor`: what this host can hold, by trying."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.document import text
from shoal.cli.options import Json
from shoal.cli.render.doctor import Page
from shoal.engine.doctor.examine import diagnosed
from shoal.model.finding import Diagnosis

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
    diagnosis = asyncio.run(_told(repo) if json else _shown(repo))
    return GOOD if diagnosis.holds else NOT_HELD


async def _told(folder: Path) -> Diagnosis:
    diagnosis = await diagnosed(folder, os.environ)
    output.say(text(_document(diagnosis)))
    return diagnosis


async def _shown(folder: Path) -> Diagnosis:
    """Show each area as soon as it is known: some take a second."""
    page = Page(output.paint(), width=shutil.get_terminal_size().columns if output.is_terminal() else None)
    diagnosis = await diagnosed(folder, os.environ, lambda found: output.say("\n".join(page.lines(found))))
    output.say(f"\n{page.sentence(diagnosis)}")
    return diagnosis


def _document(diagnosis: Diagnosis) -> dict[str, object]:
    return {
        "holds": diagnosis.holds,
        "walls": list(diagnosis.walls),
        "workspace": diagnosis.workspace,
        "limits": diagnosis.limits,
        "findings": [one.as_fields() for one in diagnosis.findings],
    }
