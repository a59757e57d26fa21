"""Codex as an agent."""

import json
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from shoal.adapters.client import Client
from shoal.adapters.codex_events import LOGIN, CodexReader
from shoal.adapters.kind import Invocation, Place
from shoal.adapters.tool_patterns import ANY, unheld
from shoal.adapters.tool_rules import ToolRules, tool_rules
from shoal.model.assignment import Assignment
from shoal.model.permissions import ToolRule
from shoal.model.policy import Network

CLIENT = Client(
    program="codex",
    install="npm install -g @openai/codex",
    login=LOGIN,
    oldest=(0, 150, 0),
    keys=("CODEX_API_KEY",),
    logins=(".codex/auth.json",),
    knows=("model", "system prompt", "rules for commands", "usage", "retries"),
    hum="codex_otel.log_only: ",
)
HUMMING = "error,codex_otel.log_only=info"
"""What it logs; it says nothing while its model speaks, but this gives a line for each piece that comes."""
SETTINGS = 'approval_policy = "never"\ncheck_for_update_on_startup = false\n'
TABLES = "[analytics]\nenabled = false\n[feedback]\nenabled = false\n"
NO_SHELL = "[features]\nshell_tool = false\nunified_exec = false\n"
NO_SEARCH = 'web_search = "disabled"\n'
SHELL = ("Bash", "shell", "exec_command")
SEARCH = ("WebSearch", "web_search")
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:@+, ")
INSTEAD = "leave the rule out, or hold it by `writable` and `network`"


@dataclass(frozen=True, slots=True)
class Codex:
    """Run `codex exec` with the prompt on stdin; its own sandbox is off, for it stands behind Shoal's wall."""

    name: str = "codex"
    default_network: Network = Network.HOST
    client: Client = CLIENT

    def invocation(self, task: Assignment, place: Place) -> Invocation:
        """Hand the persona over as instructions of the developer's, in a settings file of its private home."""
        spec, rules = task.agent, tool_rules(task)
        argv = [*(spec.command or (CLIENT.program,)), "exec", "--json", "--sandbox", "danger-full-access"]
        argv += ["--skip-git-repo-check", *(("--model", spec.model) if spec.model else ()), *spec.args, "-"]
        home = {".codex/config.toml": _settings(task.system_prompt, rules)}
        if forbidden := "".join(_forbidden(rules.deny)):
            home[".codex/rules/shoal.rules"] = forbidden
        files = {path: text.encode(errors="replace") for path, text in home.items()}
        return Invocation(argv=tuple(argv), stdin=task.prompt.encode(), env={"RUST_LOG": HUMMING}, home=files)

    def reader(self) -> CodexReader:
        """Read its lines of JSON."""
        return CodexReader()


def _settings(system_prompt: str, rules: ToolRules) -> str:
    _assert_held(rules)
    named = {rule.tool for rule in rules.deny if rule.glob is None}
    parts = [SETTINGS]
    if rules.denies_all or named & set(SEARCH):
        parts.append(NO_SEARCH)
    if system_prompt.strip():
        parts.append(f"developer_instructions = {_text(system_prompt)}\n")
    parts.append(TABLES)
    if named & set(SHELL):
        parts.append(NO_SHELL)
    return "".join(parts)


def _assert_held(rules: ToolRules) -> None:
    """Refuse what Codex has no way to keep to: it can forbid commands by their first words, and little else."""
    for rule in rules.allow or ():
        raise unheld("codex", rule, "it has no list of tools that may be used", f"use `deny`, {INSTEAD}")
    if rules.denies_all:
        rule = ToolRule.of(ANY)
        raise unheld("codex", rule, "it always has tools", INSTEAD)
    for rule in rules.deny:
        if rule.tool not in (*SHELL, *SEARCH) or (rule.tool in SEARCH and rule.glob is not None):
            raise unheld("codex", rule, "only commands and the search on the web can be denied it", INSTEAD)


def _forbidden(deny: Iterable[ToolRule]) -> Iterator[str]:
    """Write rules for commands; Codex looks at the first words of each command of a line."""
    for rule in deny:
        if rule.tool in SHELL and rule.glob is not None:
            words = json.dumps(_words(rule, rule.glob))
            yield f'prefix_rule(pattern={words}, decision="forbidden", justification="denied by {rule.tool} rule")\n'


def _words(rule: ToolRule, glob: str) -> list[str]:
    """Give the whole words that a command may not begin with."""
    for ending in (":*", " *"):
        if glob.endswith(ending) and (stem := glob.removesuffix(ending)) and set(stem) <= PLAIN:
            return shlex.split(stem)
    raise unheld("codex", rule, "it knows commands by their first words only", "write it like `Bash(git push *)`")


def _text(words: str) -> str:
    """Write a text as TOML does, which is as JSON does but for one sign."""
    return json.dumps(words, ensure_ascii=False).replace("\x7f", "\\u007f")
