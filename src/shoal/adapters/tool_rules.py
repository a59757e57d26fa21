"""The tool rules of a task."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shoal.errors import Unavailable
from shoal.model.permissions import ToolRule
from shoal.model.resolved_task import ResolvedTask

ANY = "*"
FILE_TOOLS = frozenset({"Read", "Write", "Edit"})
"""What these are used with is a path; a relative one lies in the workspace."""


def rules(patterns: Iterable[str] | None) -> tuple[ToolRule, ...]:
    """Read the patterns of a list, if it is given."""
    return tuple(ToolRule.of(pattern) for pattern in patterns or ())


def unheld(client: str, rule: ToolRule, why: str, remedy: str) -> Unavailable:
    """Return the error that *client* cannot enforce *rule*, which the user must know before anything runs."""
    return Unavailable(f"the tool rule {rule.pattern!r} for {client}", why, remedy)


def client_tool_names(client: str, rule: ToolRule, names: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the client's own names of the tool; an unknown name is returned as it is."""
    if rule.tool == ANY:
        return (ANY,)
    if ANY in rule.tool:
        raise unheld(client, rule, "a tool's name has to be whole, or `*`", "name each tool")
    return names.get(rule.tool, (rule.tool,))


def alternatives(glob: str) -> Iterator[str]:
    """Split a glob that has two meanings: `git:*` is `git` alone or followed by anything."""
    head, colon, tail = glob.rpartition(":*")
    if colon and not tail:
        yield from (head, f"{head} *")
    else:
        yield glob


def expression(glob: str, anything: str) -> str:
    """Write a glob as a regular expression over a value in JSON; *anything* is what `*` stands for."""
    return anything.join(re.escape(json.dumps(piece, ensure_ascii=False)[1:-1]) for piece in glob.split(ANY))


def assert_together(client: str, listed: Iterable[ToolRule]) -> None:
    """Refuse rules that treat writing and editing differently, for a client that does not."""
    globs: dict[str, set[str | None]] = {"Write": set(), "Edit": set()}
    for rule in listed:
        globs.get(rule.tool, set()).add(rule.glob)
    for rule in listed:
        if rule.tool in globs and globs["Write"] != globs["Edit"]:
            raise unheld(client, rule, "to write and to edit are one right there", "say the same of `Write` and `Edit`")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules:
    """The allowed tools; *allow* is `None` if everything is allowed that *deny* does not list."""

    allow: tuple[ToolRule, ...] | None
    deny: tuple[ToolRule, ...]

    def __bool__(self) -> bool:
        return self.allow is not None or bool(self.deny)

    @property
    def denies_all(self) -> bool:
        """Return whether no tool at all may be used."""
        return self.allow == () or any(map(is_every, self.deny))


def tool_rules(task: ResolvedTask) -> ToolRules:
    """Read the rules of *task*; a list that allows every tool is none."""
    listed = task.permitted.allowed_tools
    allow = None if listed is None or any(map(is_every, rules(listed))) else rules(listed)
    return ToolRules(allow=allow, deny=rules(task.permitted.deny))


def is_every(rule: ToolRule) -> bool:
    """Return whether *rule* is about every tool, with any argument."""
    return rule.tool == ANY and rule.glob in (None, ANY)
