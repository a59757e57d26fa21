"""goose as an agent."""

import json
from dataclasses import dataclass

from shoal.adapters.client import Client
from shoal.adapters.goose_events import LOGIN, GooseReader
from shoal.adapters.kind import Invocation, Place
from shoal.adapters.tool_patterns import ANY, named, unheld
from shoal.adapters.tool_rules import ToolRules, tool_rules
from shoal.errors import Unavailable
from shoal.model.assignment import Assignment
from shoal.model.permissions import ToolRule
from shoal.model.policy import Network

CLIENT = Client(
    program="goose",
    install="npm install -g @aaif/goose-binary-linux-x64, or see the installation page of goose",
    login=LOGIN,
    oldest=(1, 50, 0),
    keys=("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GOOGLE_API_KEY", "OPENROUTER_API_KEY"),
    settings=(
        "GOOSE_PROVIDER",
        "GOOSE_MODEL",
        "OPENAI_HOST",
        "OPENAI_BASE_PATH",
        "OPENAI_BASE_URL",
        "ANTHROPIC_HOST",
        "OLLAMA_HOST",
    ),
    logins=(".config/goose/config.yaml", ".config/goose/secrets.yaml"),
    knows=("model", "system prompt", "tool rules", "usage", "cost", "denials"),
)
QUIET = {
    "GOOSE_DISABLE_KEYRING": "1",
    "GOOSE_TELEMETRY_ENABLED": "false",
    "GOOSE_DISABLE_SESSION_NAMING": "true",  # it would ask the model for a title, and not count that
}
TOOLS = ("edit", "read_image", "shell", "tree", "write")
"""What its extension `developer` has."""
NAMES = {
    "Bash": ("shell",),
    "Edit": ("edit",),
    "MultiEdit": ("edit",),
    "Write": ("write",),
    "Read": ("read_image", "tree"),
    "Glob": ("tree",),
    "LS": ("tree",),
    **dict.fromkeys(("Grep", "NotebookEdit", "WebFetch", "WebSearch", "Task", "Agent"), ()),
}
MOST_ARGUMENT = 100 * 1024
"""Bytes; Linux takes 128 KiB."""


@dataclass(frozen=True, slots=True)
class Goose:
    """Run `goose run` with the prompt on stdin."""

    name: str = "goose"
    default_network: Network = Network.HOST
    client: Client = CLIENT

    def invocation(self, task: Assignment, place: Place) -> Invocation:
        """Hand the persona over as more of its system prompt, and rules as its own permissions."""
        spec, rules = task.agent, tool_rules(task)
        argv = [*(spec.command or (CLIENT.program,)), "run", "--no-session", "--quiet"]
        argv += ["--output-format", "stream-json", "--with-builtin", "developer"]
        # with rules it has only the tools that we know: one that is not listed would end it
        argv += [*(("--no-profile",) if rules else ()), *(("--model", spec.model) if spec.model else ())]
        argv += [*_persona(task.system_prompt), *spec.args, "--instructions", "-"]
        env = {**QUIET, "GOOSE_MODE": "approve" if rules else "auto"}
        home = {".config/goose/permission.yaml": _permissions(rules)} if rules else {}
        return Invocation(argv=tuple(argv), stdin=task.prompt.encode(), env=env, home=home)

    def reader(self) -> GooseReader:
        """Read its stream of JSON."""
        return GooseReader()


def _persona(words: str) -> tuple[str, ...]:
    if not words.strip():
        return ()
    size = len(words.encode(errors="replace"))
    if size > MOST_ARGUMENT:
        why = f"it is taken as one argument, which may have {MOST_ARGUMENT} bytes"
        raise Unavailable(
            f"a system prompt of {size} bytes for goose", why, "put the rest into a file in the workspace"
        )
    return ("--system", words)


def _permissions(rules: ToolRules) -> bytes:
    """Write which of its tools it may use; YAML reads JSON."""
    denied = set(TOOLS) if rules.denies_all else _own(rules.deny)
    allowed = set(TOOLS) if rules.allow is None else _own(rules.allow)
    lists = {
        "always_allow": sorted(allowed - denied),
        "ask_before": [],
        "never_allow": sorted(denied | set(TOOLS) - allowed),
    }
    return json.dumps({"user": lists}).encode()


def _own(rules: tuple[ToolRule, ...]) -> set[str]:
    found: set[str] = set()
    for rule in rules:
        if rule.glob not in (None, ANY):
            raise unheld("goose", rule, "it has rules for whole tools only", f"write `{rule.tool}`, or leave it out")
        found.update(TOOLS if rule.tool == ANY else named("goose", rule, NAMES))
    return found
