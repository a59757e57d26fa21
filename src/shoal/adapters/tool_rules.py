"""The rules about tools that one task is held to."""

from dataclasses import dataclass

from shoal.adapters.tool_patterns import ANY, rules
from shoal.model.assignment import Assignment
from shoal.model.permissions import ToolRule


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules:
    """What may be used; *allow* is `None` where all is allowed that *deny* does not name."""

    allow: tuple[ToolRule, ...] | None
    deny: tuple[ToolRule, ...]

    def __bool__(self) -> bool:
        return self.allow is not None or bool(self.deny)

    @property
    def denies_all(self) -> bool:
        """Say whether no tool at all may be used."""
        return self.allow == () or any(map(is_every, self.deny))


def tool_rules(task: Assignment) -> ToolRules:
    """Read the rules of *task*; a list that allows every tool is none."""
    listed = task.permitted.allowed_tools
    allow = None if listed is None or any(map(is_every, rules(listed))) else rules(listed)
    return ToolRules(allow=allow, deny=rules(task.permitted.deny))


def is_every(rule: ToolRule) -> bool:
    """Say whether *rule* is about every tool, with any argument."""
    return rule.tool == ANY and rule.glob in (None, ANY)
