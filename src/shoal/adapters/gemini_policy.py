"""Tool rules as a policy of Gemini CLI: TOML, where the rule with the highest priority decides."""

import json
from collections.abc import Iterator
from pathlib import Path

from shoal.adapters.tool_patterns import ANY, FILE_TOOLS, alternatives, expression, named, rules, unheld
from shoal.model.permissions import Permissions, ToolRule

NAMES = {
    "Bash": ("run_shell_command",),
    "Read": ("read_file",),
    "Write": ("write_file",),
    "Edit": ("replace",),
    "Glob": ("glob",),
    "Grep": ("grep_search",),
    "LS": ("list_directory",),
    "WebFetch": ("web_fetch",),
    "WebSearch": ("google_web_search",),
}
KEYS = {"Bash": "command", "Read": "file_path", "Write": "file_path", "Edit": "file_path"}
"""The argument that a rule's glob speaks of."""
NOT_LISTED, LISTED, DENIED = 100, 200, 300
NUL = r"\x00"
ANYTHING = r"[^\x00]*"
LONGEST = 2048
"""A longer expression is passed over by the client."""


def policy(permitted: Permissions, workspace: Path) -> str:
    """Write the rules; nothing where all is allowed. Raises `Unavailable` for one that it could not hold."""
    blocks: list[str] = []
    if permitted.allowed_tools is not None:
        blocks.append(_block(ANY, "deny", NOT_LISTED, message="not listed"))
    for rule in rules(permitted.allowed_tools):
        blocks += _blocks(rule, "allow", LISTED, workspace)
    for rule in rules(permitted.deny):
        blocks += _blocks(rule, "deny", DENIED, workspace)
    return "\n".join(blocks)


def _blocks(rule: ToolRule, decision: str, priority: int, workspace: Path) -> Iterator[str]:
    (tool,) = named("gemini", rule, NAMES)
    if rule.glob is None:
        yield _block(tool, decision, priority, message=rule.pattern)
        return
    if rule.tool not in KEYS:
        raise unheld("gemini", rule, "it can tell uses apart only of " + ", ".join(KEYS), f"write `{rule.tool}` alone")
    for glob in _globs(rule.tool, rule.glob, workspace):
        pattern = _pattern(KEYS[rule.tool], glob)
        if len(pattern) > LONGEST:
            raise unheld("gemini", rule, "it passes over so long a pattern", "write a shorter one")
        yield _block(tool, decision, priority, message=rule.pattern, pattern=pattern)


def _globs(tool: str, glob: str, workspace: Path) -> Iterator[str]:
    for one in alternatives(glob):
        yield one
        if tool in FILE_TOOLS and not one.startswith(("/", ANY)):
            yield f"{workspace}/{one}"


def _pattern(key: str, glob: str) -> str:
    """Say it over the arguments as the client writes them: JSON, each of them between two NULs."""
    return rf'{NUL}"{key}":"{expression(glob, ANYTHING)}"{NUL}'


def _block(tool: str, decision: str, priority: int, *, message: str, pattern: str = "") -> str:
    lines = ["[[rule]]", f"toolName = {_quoted(tool)}", f'decision = "{decision}"', f"priority = {priority}"]
    if pattern:
        lines.append(f"argsPattern = {_quoted(pattern)}")
    lines.append("allowRedirection = true" if decision == "allow" else f"denyMessage = {_quoted(message)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """Write a text as TOML does: as JSON, but for surrogates and one sign."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")
