"""Describing a Python function so that a sandboxed interpreter can call it."""

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path

from shoal.errors import BadInput
from shoal.model.agent import AgentSpec

REMEDY = "define it with `def` at the top of a module"


def function_agent(function: Callable[..., object], private: tuple[Path, ...]) -> AgentSpec:
    """Make an agent of *function*, called with the prompt and, if it takes two arguments, the workspace's path.

    What is imported from the repository is imported from the agent's own workspace: nothing *private* is shown.
    """
    qualname = getattr(function, "__qualname__", "")
    file = _file(function)
    is_bound = inspect.ismethod(function) and not inspect.isclass(function.__self__)
    if not inspect.isroutine(function) or is_bound or "<" in qualname or file is None:
        raise BadInput(f"{qualname or function!r:.80} cannot be found again by another process; {REMEDY}")
    folders = [Path(folder) for folder in sys.path if folder and Path(folder).is_dir()]
    shown = [folder for folder in folders if not any(place.is_relative_to(folder) for place in private)]
    top = private[0]
    order = {
        "module": function.__module__,
        "qualname": qualname,
        "file": str(file),
        "source": None if _is_importable(function, file, shown) else file.read_text(errors="replace"),
        "arguments": arguments(function),
        "path": [str(folder) for folder in shown],
        "inside": [
            str(folder.relative_to(top)) for folder in folders if folder.is_relative_to(top) and folder not in shown
        ],
        "needs": [str(folder) for folder in _outermost(shown)],
    }
    return AgentSpec(name=qualname.replace(".", "-"), adapter="function", script=json.dumps(order))


def _file(function: Callable[..., object]) -> Path | None:
    try:
        found = inspect.getsourcefile(function)
    except TypeError:
        return None
    return Path(found).resolve() if found and Path(found).is_file() else None


def _is_importable(function: Callable[..., object], file: Path, shown: list[Path]) -> bool:
    return function.__module__ != "__main__" and any(file.is_relative_to(folder) for folder in shown)


def arguments(function: Callable[..., object]) -> int:
    """Say how many it takes: the prompt, or the prompt and the path of the workspace."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [parameter for parameter in inspect.signature(function).parameters.values() if parameter.kind in kinds]
    needed = [parameter for parameter in taken if parameter.default is inspect.Parameter.empty]
    if not taken or len(needed) > 2:
        raise BadInput(f"{function.__qualname__} must take the prompt, or the prompt and the workspace's path")
    return min(len(taken), 2)


def _outermost(folders: list[Path]) -> list[Path]:
    real = {folder.resolve() for folder in folders}
    return sorted(
        folder for folder in real if not any(other != folder and folder.is_relative_to(other) for other in real)
    )
