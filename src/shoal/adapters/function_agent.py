"""The program that calls a Python function as an agent: reads which, and the prompt, as JSON from stdin.

Run by path in the sandbox (`python -I function_agent.py`), by the interpreter that the function was written for. The
module that holds the function is run from its source under another name than `__main__`, as `multiprocessing` does.
"""

import asyncio
import importlib
import inspect
import json
import operator
import sys
import types
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

NAME = "__shoal_main__"


def main() -> None:
    """Call the function with the prompt, and the workspace if it takes a second argument; print its result."""
    order = json.load(sys.stdin.buffer)
    workspace = Path.cwd()
    sys.path[:0] = [str(workspace / folder) for folder in order["inside"]] + order["path"]
    function = operator.attrgetter(order["qualname"])(module(order))
    given = (order["prompt"], workspace)[: order["arguments"]]
    value = function(*given)
    if inspect.isawaitable(value):
        value = asyncio.run(wait_for_value(value))
    if value is not None:
        sys.stdout.write(value if isinstance(value, str) else json.dumps(value, default=repr))


def module(order: dict[str, Any]) -> types.ModuleType:
    """Import the function's module, or make it from its source if it belongs to no package."""
    if order["source"] is None:
        return importlib.import_module(order["module"])
    made = types.ModuleType(NAME)
    made.__file__ = order["file"]
    made.__package__ = order["module"].rpartition(".")[0]  # for what it imports from its own package
    # Classes of the module find themselves by its old name too, for pickles and dataclasses.
    sys.modules[NAME] = sys.modules[order["module"]] = made
    exec(compile(order["source"], order["file"], "exec"), made.__dict__)  # noqa: S102 - the user's own program
    return made


async def wait_for_value(value: Awaitable[object]) -> object:
    """Wait for an awaitable of any kind."""
    return await value


if __name__ == "__main__":
    main()
