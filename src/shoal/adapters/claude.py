"""Claude Code as an agent."""

import json
from collections.abc import Iterable
from dataclasses import dataclass

from shoal.adapters.claude_events import LOGIN, ClaudeReader
from shoal.adapters.client import Client
from shoal.adapters.kind import Invocation, Place
from shoal.adapters.tool_patterns import ANY, unheld
from shoal.adapters.tool_rules import ToolRules, tool_rules
from shoal.model.assignment import Assignment
from shoal.model.permissions import ToolRule
from shoal.model.policy import Network

CLIENT = Client(
    program="claude",
    install="npm install -g @anthropic-ai/claude-code",
    login=LOGIN,
    oldest=(2, 1, 197),
    keys=("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "CLAUDE_CODE_OAUTH_TOKEN", "AWS_BEARER_TOKEN_BEDROCK"),
    settings=(
        "ANTHROPIC_BASE_URL",
        "ANTHROPIC_MODEL",
        "ANTHROPIC_SMALL_FAST_MODEL",
        "CLAUDE_CODE_USE_BEDROCK",
        "CLAUDE_CODE_USE_VERTEX",
        "AWS_REGION",
    ),
    logins=(".claude/.credentials.json",),
    knows=("model", "system prompt", "tool rules", "usage", "cost", "denials", "retries"),
)
QUIET = {
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "DISABLE_AUTOUPDATER": "1",
}
MOST_RETRIES = "5"
"""Of its own ten, the last five take minutes: a login that is refused should not."""
WRITERS = ("Write", "MultiEdit", "NotebookEdit")


@dataclass(frozen=True, slots=True)
class Claude:
    """Run `claude -p` with the prompt on stdin; it asks nobody, for it stands behind Shoal's wall."""

    name: str = "claude"
    default_network: Network = Network.HOST
    client: Client = CLIENT

    def invocation(self, task: Assignment, place: Place) -> Invocation:
        """Hand persona and rules over as what they are to Claude: more system prompt, and permissions."""
        spec = task.agent
        argv = [*(spec.command or (CLIENT.program,)), "-p", "--output-format", "stream-json", "--verbose"]
        argv.append("--include-partial-messages")  # each piece is a sign of life of a model that is slow
        if spec.model:
            argv += ["--model", spec.model]
        if task.system_prompt.strip():
            argv += ["--append-system-prompt-file", str(place.system_prompt_file)]
        argv += [*_permissions(tool_rules(task)), *spec.args]
        # as root it refuses to run without asking, unless it is told that something else holds it
        env = {**QUIET, "CLAUDE_CODE_MAX_RETRIES": MOST_RETRIES, "IS_SANDBOX": "1"}
        return Invocation(argv=tuple(argv), stdin=task.prompt.encode(), env=env)

    def reader(self) -> ClaudeReader:
        """Read its stream of JSON."""
        return ClaudeReader()


def _permissions(rules: ToolRules) -> Iterable[str]:
    """Say what it may use: what is not listed is not even there, and what is asked for is denied."""
    mode = "bypassPermissions" if rules.allow is None else "dontAsk"
    yield from ("--permission-mode", mode)
    if rules.denies_all:
        yield from ("--tools", "")
        return
    if rules.allow is not None:
        # neither the project's settings nor any that the agent writes may allow more
        yield from ("--tools", ",".join(_tools(rules.allow)), "--setting-sources", "")
    if rules:
        allow = [_rule(rule) for rule in rules.allow or ()]
        lists = {"allow": allow, "deny": [_rule(rule) for rule in rules.deny]}
        yield from ("--settings", json.dumps({"permissions": lists}))


def _tools(allow: Iterable[ToolRule]) -> Iterable[str]:
    """Name the built-in tools that there are; those of MCP servers are held by the rules alone."""
    return dict.fromkeys(rule.tool for rule in allow if not rule.tool.startswith("mcp__"))


def _rule(rule: ToolRule) -> str:
    """Write a rule in Claude's own grammar, in which paths are looked at by rules for `Read` and `Edit` only."""
    if ANY in rule.tool and not rule.tool.startswith("mcp__"):
        raise unheld("claude", rule, "a tool's name has to be whole", "name each tool")
    if rule.glob is None:
        return rule.tool
    if rule.tool not in (*WRITERS, "Edit", "Read"):
        return rule.pattern
    # an absolute path begins with two slashes there
    path = f"/{rule.glob}" if rule.glob.startswith("/") else rule.glob
    return f"{'Edit' if rule.tool in WRITERS else rule.tool}({path})"
