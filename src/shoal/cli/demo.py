"""`shoal demo`: run five scripted agents in a scratch repository."""

import asyncio
import importlib.resources
import os
import shlex
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.follow import follow_run, make_request
from shoal.cli.output import escape
from shoal.cli.run_output import LineOutput
from shoal.errors import ExitCode, Unavailable
from shoal.git.snapshot import scratch_repository
from shoal.model.plan import Plan
from shoal.pipeline.load import load
from shoal.pipeline.plan import plan
from shoal.sessions.host_probe import probe_sandbox


def greeting(folder: Path) -> str:
    """Describe what the demo is about to do."""
    return f"running five scripted agents in parallel in a scratch repository: {escape(str(folder))}\n"


def fallback_note(refused: Unavailable) -> str:
    """Say that the sandbox is a weaker one, and why."""
    return f"{refused}; this demo uses Landlock, a weaker sandbox, instead"


def cleanup_note(folder: Path, *, is_kept: bool) -> str:
    """Say how to remove the scratch repository."""
    if not is_kept:
        return "\nthe scratch repository was removed"
    return f"\nto remove the scratch repository: rm -rf {shlex.quote(escape(str(folder)))}"


FILES = {
    "README.md": "# Greet\n\nA very small project.\n",
    "greet.py": 'def greet(name):\n    return "Hello " + name\n',
}
WIDTH = len("polite-3f9c1a")


def command(
    keep: Annotated[bool, typer.Option("--keep/--no-keep", help="Keep the scratch repository.")] = True,
) -> int:
    """Run five scripted agents in a scratch repository."""
    folder = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    try:
        output.print_out(greeting(folder))
        code = asyncio.run(_show(folder))
        output.print_out(cleanup_note(folder, is_kept=keep))
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return code


async def _show(folder: Path) -> int:
    pipeline = importlib.resources.files("shoal.cli").joinpath("demo.yaml").read_text()
    await scratch_repository(folder, FILES | {"shoal.yaml": pipeline})
    made = await _with_available_sandbox(replace(plan(load(folder / "shoal.yaml"), environ={}), name="demo"))
    code = await follow_run(made, make_request(made, folder), LineOutput(width=WIDTH))
    # Two of its agents conflict, so that this can be seen.
    return ExitCode.SUCCESS if code == ExitCode.NEEDS_A_PERSON else code


async def _with_available_sandbox(made: Plan) -> Plan:
    """Fall back to Landlock if bubblewrap is not available; only the demo does this, and it says so."""
    try:
        await probe_sandbox(made.sandbox, os.environ)
    except Unavailable as refused:
        return replace(made, sandbox="landlock", notes=(*made.notes, fallback_note(refused)))
    return made
