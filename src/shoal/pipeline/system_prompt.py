"""What an agent is told about its role: the persona's words, then a section for each thing that it must know."""

from shoal.model.permissions import Permissions


def system_prompt(words: str, compliance: str, sub_agents: int, permissions: Permissions | None) -> str:
    """Put the sections together in their order: contract compliance, concurrency (seed 001), restrictions."""
    sections = (
        words.rstrip(),
        compliance,
        _section("Concurrency", _offer(sub_agents)),
        _section("Restrictions", _restrictions(permissions)),
    )
    told = [one for one in sections if one]
    return words if told == [words.rstrip()] else "\n\n".join(told)


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}" if text else ""


def _offer(sub_agents: int) -> str:
    if sub_agents <= 1:
        return ""
    return f"You may spawn up to {sub_agents} concurrent sub-agents or workers for this step."


def _restrictions(permissions: Permissions | None) -> str:
    """Say which tools are out of reach; what the wall holds needs no words."""
    if permissions is None:
        return ""
    lines = []
    if permissions.allowed_tools is not None:
        lines.append(f"- Tools that you may use: {', '.join(permissions.allowed_tools) or 'none'}.")
    if permissions.deny:
        lines.append(f"- Tools that you may not use: {', '.join(permissions.deny)}.")
    return "\n".join(lines)
