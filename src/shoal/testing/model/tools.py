"""Find the client's tool for a turn, and the arguments that the tool's schema requires."""

import shlex
from collections.abc import Mapping

from shoal.testing.model.conversation import Body, ModelCall, Tools
from shoal.testing.model.turns import Arguments, Use

KINDS = {
    "shell": "Bash bash exec_command shell_command shell local_shell container.exec run_shell_command execute_command "
    "run_commands run_command developer__shell execute_bash",
    "write": "Write write write_file create_file create write_to_file write_new_file editor developer__text_editor "
    "text_editor",
    "read": "Read read read_file read_text_file view open_file",
    "edit": "Edit edit apply_patch replace str_replace str_replace_editor edit_file replace_in_file editor "
    "developer__text_editor text_editor",
}
"""The names of clients' tools of each kind, the most likely first."""

WORDS = {
    "path": "path file_path filepath absolute_path absolutepath target_file filename file",
    "content": "content contents file_text text new_text",
    "command": "command cmd commands",
    "old": "old old_string old_str oldstring oldtext old_text before search",
    "new": "new new_string new_str newstring newtext new_text after replace",
}
MEANT = {
    "shell": ("command",),
    "write": ("path", "content"),
    "read": ("path",),
    "edit": ("path", "old", "new"),
}
REPLACE = "import sys; p, o, n = sys.argv[1:]; t = open(p).read(); open(p, 'w').write(t.replace(o, n, 1))"
DEFAULTS = {
    "path": "hello.txt",
    "content": "hello from the model\n",
    "command": "echo shell-ran > shell.txt && cat shell.txt",
    "old": "hello",
    "new": "goodbye",
}


def call(use: Use, tools: Tools) -> ModelCall:
    """Make the call for *use* to a client that has *tools*."""
    if use.tool not in KINDS or isinstance(use.arguments, str):
        return ModelCall(use.tool, use.arguments, is_custom=tools.get(use.tool, {}) is None)
    given = {**DEFAULTS, **use.arguments, **_rename_arguments(use)}
    name = _find_tool(use.tool, tools)
    if name is not None:
        return _fit_call(use.tool, name, tools[name], given)
    shell = _find_tool("shell", tools)
    if shell is None:
        return ModelCall(use.tool, use.arguments)
    return _fit_call("shell", shell, tools[shell], {**given, "command": _by_shell(use.tool, given)})


def _rename_arguments(use: Use) -> dict[str, object]:
    """Accept synonyms of arguments, like `cmd` for the command."""
    assert not isinstance(use.arguments, str)  # noqa: S101 - told apart before
    given = {name.lower(): value for name, value in use.arguments.items()}
    known = {meaning: [word for word in WORDS[meaning].split() if word in given] for meaning in MEANT[use.tool]}
    return {meaning: given[names[0]] for meaning, names in known.items() if names}


def _find_tool(kind: str, tools: Tools) -> str | None:
    return next((name for name in KINDS[kind].split() if name in tools), None)


def _fit_call(kind: str, name: str, schema: Body | None, given: Mapping[str, object]) -> ModelCall:
    if schema is None:
        return ModelCall(name, _patch(given) if kind == "edit" else str(given[MEANT[kind][0]]), is_custom=True)
    return ModelCall(name, _arguments(kind, schema, given))


def _arguments(kind: str, schema: Body, given: Mapping[str, object]) -> Arguments:
    """Return each property whose meaning we know, and each required one."""
    required = _as_list(schema.get("required"))
    found: dict[str, object] = {}
    for name, shape in (schema.get("properties") or {}).items():
        meaning = next((word for word in MEANT[kind] if name.lower() in WORDS[word].split()), None)
        if meaning is not None:
            found[name] = _fit_value(given[meaning], name, shape)
        elif name in given and name not in DEFAULTS:
            found[name] = given[name]
        elif name in required:
            found[name] = _fill_value(name, shape, kind)
    return found


def _fit_value(value: object, name: str, shape: Body) -> object:
    if shape.get("type") != "array":
        return value
    return [value] if name.lower() == "commands" else ["bash", "-lc", value]


def _fill_value(name: str, shape: Body, kind: str) -> object:
    if choices := _as_list(shape.get("enum")):
        wanted = {"write": "create", "edit": "str_replace", "read": "view"}.get(kind)
        return wanted if wanted in choices else choices[0]
    fillers: dict[str, object] = {"boolean": False, "number": 1000, "integer": 1000, "array": [], "object": {}}
    kinds = [kind for kind in (*_as_list(shape.get("type")), shape.get("type")) if isinstance(kind, str)]
    return fillers.get(kinds[0] if kinds else "string", f"any {name}")


def _as_list(value: object) -> list[object]:
    """Return a list as it is: a schema is what a client sends."""
    return value if isinstance(value, list) else []


def _by_shell(kind: str, given: Mapping[str, object]) -> str:
    """Write as a shell command what a client without such a tool can do in no other way."""
    path, content, old, new = (shlex.quote(str(given[word])) for word in ("path", "content", "old", "new"))
    if kind == "write":
        return f"printf %s {content} > {path}"
    if kind == "read":
        return f"cat -- {path}"
    return f"python3 -c {shlex.quote(REPLACE)} {path} {old} {new}"


def _patch(given: Mapping[str, object]) -> str:
    lines = [*(f"-{line}" for line in str(given["old"]).splitlines())]
    lines += [*(f"+{line}" for line in str(given["new"]).splitlines())]
    return "\n".join(["*** Begin Patch", f"*** Update File: {given['path']}", "@@", *lines, "*** End Patch", ""])
