"""Everything that commands import at some time, for the process that the tests' commands are forked from."""

import gc
import importlib

import pydantic

from shoal.cli import app
from shoal.pipeline.shape import FileShape

# what is imported only where it is used: by typer for options, by a file with templates, by a dry run
LATER = ("typer._adapters", "typer._click.decorators", "shoal.pipeline.templates.evaluation", "shoal.cli.outline")
COMMANDS = [importlib.import_module(f"shoal.cli.{app.TOGETHER.get(name, name)}") for name in app.COMMANDS]
OTHERS = [importlib.import_module(name) for name in LATER]
ADAPTER = pydantic.TypeAdapter(int)  # what typer reads every option with
FileShape.model_rebuild()

# None of it is ever garbage: forked processes need not scan it, nor copy its pages for that.
gc.collect()
gc.freeze()
