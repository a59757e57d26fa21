"""Set-up as other tools' files describe it: Conductor's, and Cursor's."""

import json
from collections.abc import Callable, Mapping

from shoal.errors import BadInput
from shoal.model.setup import Setup

LARGEST = 64 * 1024
MOST_COMMANDS = 100

Exists = Callable[[str], bool]
"""Say whether the base has a file of that name."""


def setup_in(name: str, content: bytes, exists: Exists) -> Setup | None:
    """Read the set-up of the file *name*; `None` where it says nothing. Raises `BadInput` for what cannot be meant."""
    try:
        said = _toml(content.decode()) if name.endswith(".toml") else json.loads(content)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{name} cannot be read: {str(error)[:200]}; mend it, or say `setup: []` in `runtime`") from None
    found = KNOWN[name](said if isinstance(said, dict) else {})
    commands = _texts(name, found)
    if name == CURSOR and isinstance(found, str):
        commands = tuple(_script(one, exists) for one in commands)
    return Setup(commands=commands, source=name) if commands else None


def _toml(text: str) -> object:
    import tomllib  # takes 10 ms, and hardly a repository has such a file

    return tomllib.loads(text)


def _conductor(said: Mapping[str, object]) -> object:
    scripts = said.get("scripts")
    return scripts.get("setup") if isinstance(scripts, dict) else None


def _cursor(said: Mapping[str, object]) -> object:
    own = said.get("setup-worktree-unix")
    return said.get("setup-worktree") if own is None else own


def _texts(name: str, found: object) -> tuple[str, ...]:
    listed = [found] if isinstance(found, str) else found if found is not None else []
    if not isinstance(listed, list) or len(listed) > MOST_COMMANDS or not all(isinstance(one, str) for one in listed):
        raise BadInput(f"{name}: its set-up is neither a text nor a list of texts; mend it")
    if any("\0" in one for one in listed):
        raise BadInput(f"{name}: its set-up holds a NUL sign; take it out")
    return tuple(one for one in listed if one.strip())


def _script(text: str, exists: Exists) -> str:
    """Run a text that is the path of a script, from the folder of its file, as one; any other is a command."""
    path = f".cursor/{text.strip().removeprefix('./')}"
    if any(sign.isspace() or sign in "'\"$;|&<>" for sign in text.strip()) or not exists(path):
        return text
    return f"if [ -x '{path}' ]; then './{path}'; else sh '{path}'; fi"


CURSOR = ".cursor/worktrees.json"
KNOWN: Mapping[str, Callable[[Mapping[str, object]], object]] = {
    # Conductor itself passes the older file by where the newer one is there.
    ".conductor/settings.toml": _conductor,
    "conductor.json": _conductor,
    CURSOR: _cursor,
}
