"""Add our entry to the text of a client's settings, or remove it, and keep all the rest."""

import json
import re
import tomllib
from collections.abc import Sequence
from typing import Any

from shoal.errors import BadInput

Settings = dict[str, Any]
_HEADER = re.compile(r"\s*\[")


def edit_json(text: str, servers: str, name: str, entry: Settings | None) -> str:
    """Return *text* with *entry* as the server *name*; `None` removes it."""
    settings = read_json(text) if text.strip() else {}
    changed = change_server(settings, servers, name, entry)
    if changed == settings:
        return text
    indent = re.search(r"\n([ \t]+)\S", text)
    return json.dumps(changed, indent=indent[1] if indent else 2, ensure_ascii=False) + "\n"


def read_json(text: str) -> Settings:
    """Read settings; raise `BadInput` for what could not be written back as it is."""
    try:
        settings = json.loads(text, object_pairs_hook=_assert_single)
    except ValueError as error:
        raise BadInput(f"is no plain JSON ({error})") from None
    if not isinstance(settings, dict):
        raise BadInput("is no object")
    return settings


def _assert_single(pairs: Sequence[tuple[str, Any]]) -> Settings:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a key is there twice")
    return dict(pairs)


def change_server(settings: Settings, servers: str, name: str, entry: Settings | None) -> Settings:
    """Return *settings* with *entry* as the server *name*; `None` removes it. What the user added to it stays."""
    known = settings.get(servers)
    if known is not None and not isinstance(known, dict):
        raise BadInput(f"`{servers}` is no object")
    kept = {key: value for key, value in (known or {}).items() if key != name or entry is not None}
    if entry is not None:
        old = kept.get(name)
        kept[name] = {**(old if isinstance(old, dict) else {}), **entry}
    if known is None and not kept:
        return settings
    return {**settings, servers: kept}


def edit_toml(text: str, servers: str, name: str, entry: Settings | None) -> str:
    """Return *text* with the table `[servers.name]`; `None` removes it. Comments and order stay."""
    before = read_toml(text)
    wanted = change_server(before, servers, name, entry)
    if _is_same(before, wanted, servers):
        return text
    changed = _without_table(text, servers, name)
    if entry is not None:
        lines = [f"{key} = {_write_value(value)}" for key, value in wanted[servers][name].items()]
        table = "\n".join([f"[{servers}.{name}]", *lines, ""])
        changed = f"{changed.rstrip()}\n\n{table}" if changed.strip() else table
    if not _says(changed, wanted, servers):
        raise BadInput(f"has `{servers}` in a form that cannot be changed safely")
    return changed


def _says(text: str, wanted: Settings, servers: str) -> bool:
    """Say whether *text* means what it should: a header inside a text of several lines is none, for example."""
    try:
        return _is_same(read_toml(text), wanted, servers)
    except BadInput:
        return False


def _without_table(text: str, servers: str, name: str) -> str:
    own = re.compile(rf'\s*\[\s*"?{re.escape(servers)}"?\s*\.\s*"?{re.escape(name)}"?\s*[.\]]')
    kept: list[str] = []
    dropped: list[str] = []
    for line in text.splitlines(keepends=True):
        if own.match(line):
            dropped = [line]
        elif _HEADER.match(line) and dropped:  # the comments above a table belong to it
            kept += [*_trailing_comments(dropped), line]
            dropped = []
        elif dropped:
            dropped.append(line)
        else:
            kept.append(line)
    return "".join([*kept, *_trailing_comments(dropped)])


def _trailing_comments(lines: Sequence[str]) -> list[str]:
    last = next((at for at in range(len(lines), 0, -1) if not lines[at - 1].lstrip().startswith("#")), 0)
    return list(lines[last:])


def read_toml(text: str) -> Settings:
    """Read settings; raise `BadInput` for what is no TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"is no TOML ({error})") from None


def _is_same(found: Settings, wanted: Settings, servers: str) -> bool:
    """Compare, where no server and an empty list of them are the same."""
    return {**found, servers: found.get(servers) or {}} == {**wanted, servers: wanted.get(servers) or {}}


def _write_value(value: object) -> str:
    # the strings and numbers of JSON are those of TOML, except that TOML wants DEL escaped
    if isinstance(value, dict):
        return f"{{{', '.join(f'{json.dumps(key)} = {_write_value(inner)}' for key, inner in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_write_value, value))}]"
    return json.dumps(value).replace("\x7f", "\\u007f")
