"""`shoal demo`: five scripted agents at once on a scratch repository."""

import asyncio
import importlib.resources
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.face import Lines
from shoal.cli.following import FOR_A_PERSON, GOOD, asked, followed
from shoal.cli.render.demo import fallback_note, greeting, parting
from shoal.engine.ground import wall
from shoal.errors import Unavailable
from shoal.git.scratch import scratch_repository
from shoal.model.plan import Plan
from shoal.pipeline.load import load
from shoal.pipeline.plan import plan

FILES = {
    "README.md": "# Greet\n\nA very small project.\n",
    "greet.py": 'def greet(name):\n    return "Hello " + name\n',
}
WIDTH = len("polite-3f9c1a")


def command(
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Keep the scratch repository, to look at it.")] = True,
) -> int:
    """Watch five scripted agents at work in a scratch repository."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    try:
        output.say(greeting(folder))
        code = asyncio.run(_shown(folder))
        output.say(parting(folder, is_kept=keep))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return code


async def _shown(folder: Path) -> int:
    pipeline = importlib.resources.files("shoal.cli").joinpath("demo.yaml").read_text()
    await scratch_repository(folder, FILES | {"shoal.yaml": pipeline})
    made = await _walled(replace(plan(load(folder / "shoal.yaml"), environ={}), name="demo"))
    code = await followed(made, asked(made, folder), Lines(width=WIDTH))
    return GOOD if code == FOR_A_PERSON else code  # two of its agents conflict so that this can be seen


async def _walled(made: Plan) -> Plan:
    """Take Landlock where bubblewrap cannot be had: only the demonstration does so by itself, and it says so."""
    try:
        await wall(made.sandbox)
    except Unavailable as refused:
        return replace(made, sandbox="landlock", notes=(*made.notes, fallback_note(refused)))
    return made
