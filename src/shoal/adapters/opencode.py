"""opencode, driven without a terminal: the prompt on stdin, persona and rules in a configuration of its own."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from shoal.adapters.client import Client
from shoal.adapters.kind import Invocation, Place
from shoal.adapters.opencode_events import LOGIN, OpencodeReader
from shoal.adapters.tool_patterns import ANY, alternatives, assert_together, named, unheld
from shoal.adapters.tool_rules import ToolRules, tool_rules
from shoal.model.assignment import Assignment
from shoal.model.permissions import ToolRule
from shoal.model.policy import Network

CLIENT = Client(
    program="opencode",
    install="npm install -g opencode-ai",
    login=LOGIN,
    oldest=(1, 1, 0),
    keys=(
        "OPENCODE_API_KEY",
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "OPENROUTER_API_KEY",
        "GEMINI_API_KEY",
        "GOOGLE_GENERATIVE_AI_API_KEY",
        "GROQ_API_KEY",
        "DEEPSEEK_API_KEY",
        "MISTRAL_API_KEY",
        "XAI_API_KEY",
    ),
    settings=("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL", "HTTPS_PROXY", "NO_PROXY", "NODE_EXTRA_CA_CERTS"),
    logins=(
        ".local/share/opencode/auth.json",
        ".config/opencode/opencode.json",
        ".config/opencode/opencode.jsonc",
    ),
    knows=("model", "system prompt", "tool rules", "usage", "cost", "denials", "session"),
    needs_login=False,  # it has models that ask for none
)
ENVIRONMENT = {"OPENCODE_DISABLE_AUTOUPDATE": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}
CONFIG = "OPENCODE_CONFIG_CONTENT"
"""What is said here counts more than the user's file, and than one in the workspace, which an agent may write."""
NAMES = {
    "Bash": ("bash",),
    "Read": ("read",),
    "Write": ("edit",),
    "Edit": ("edit",),
    "Glob": ("glob",),
    "Grep": ("grep",),
    "LS": ("list",),
    "Task": ("task",),
    "WebFetch": ("webfetch",),
    "WebSearch": ("websearch",),
}
TOLD_APART = ("Bash", "Read", "Write", "Edit")
"""Those whose single uses a pattern can name."""


@dataclass(frozen=True, slots=True)
class Opencode:
    """Run `opencode run` for one turn; its providers are those of the user's own configuration."""

    name: str = "opencode"
    default_network: Network = Network.HOST
    client: Client = CLIENT

    def invocation(self, task: Assignment, place: Place) -> Invocation:
        """Hand the prompt over on stdin, which it takes where no message is given."""
        config: dict[str, object] = {"autoupdate": False, "share": "disabled", "snapshot": False}
        config["permission"] = permission(tool_rules(task))
        if task.system_prompt.strip():
            config["instructions"] = [str(place.system_prompt_file)]
        return Invocation(
            argv=(*(task.agent.command or (CLIENT.program,)), *_arguments(task), *task.agent.args),
            stdin=task.prompt.encode(errors="replace"),
            env={**ENVIRONMENT, CONFIG: json.dumps(config)},
        )

    def reader(self) -> OpencodeReader:
        """Read its stream of JSON."""
        return OpencodeReader()


def _arguments(task: Assignment) -> Iterator[str]:
    yield from ("run", "--format", "json")
    yield f"--title={task.name}"  # without one it asks a model for it, and does not tell what that took
    if task.agent.model:
        yield from ("--model", task.agent.model)


def permission(rules: ToolRules) -> Mapping[str, object]:
    """Write the rules as opencode has them: of those that fit, the last one decides."""
    if rules.denies_all:
        return {ANY: "deny"}
    usual = "allow" if rules.allow is None else "deny"
    tables: dict[str, dict[str, str]] = {}
    for listed, decision in ((rules.allow or (), "allow"), (rules.deny, "deny")):
        assert_together("opencode", listed)
        for rule in listed:
            (name,) = named("opencode", rule, NAMES)
            table = tables.setdefault(name, {ANY: usual})
            for glob in _globs(rule):
                if glob != ANY or decision == "deny":
                    table.pop(glob, None)  # so that it comes last
                table[glob] = decision
    return {ANY: usual, **tables}


def _globs(rule: ToolRule) -> Iterator[str]:
    if rule.glob in (None, ANY):
        yield ANY
        return
    if rule.tool not in TOLD_APART:
        why = f"it can tell uses apart only of {', '.join(TOLD_APART)}"
        raise unheld("opencode", rule, why, f"write `{rule.tool}` alone")
    if "?" in rule.glob or (rule.tool != "Bash" and rule.glob.startswith("/")):
        why = "a `?` means any sign there, and paths are named from the workspace's top"
        raise unheld("opencode", rule, why, "write it with `*`, from the top of the workspace")
    yield from alternatives(rule.glob)
