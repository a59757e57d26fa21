"""GitHub Copilot CLI, driven without a terminal: the prompt on stdin, the persona as the user's own instructions."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.adapters.client import Client
from shoal.adapters.copilot_events import LOGIN, CopilotReader
from shoal.adapters.kind import Invocation, Place
from shoal.adapters.tool_patterns import ANY, assert_together, named, unheld
from shoal.adapters.tool_rules import ToolRules, tool_rules
from shoal.model.assignment import Assignment
from shoal.model.permissions import ToolRule
from shoal.model.policy import Network

CLIENT = Client(
    program="copilot",
    install="npm install -g @github/copilot",
    login=LOGIN,
    oldest=(1, 0, 0),
    keys=(
        "COPILOT_GITHUB_TOKEN",
        "GH_TOKEN",
        "GITHUB_TOKEN",
        "COPILOT_PROVIDER_API_KEY",
        "COPILOT_PROVIDER_BEARER_TOKEN",
    ),
    settings=(
        "COPILOT_MODEL",
        "COPILOT_OFFLINE",
        "COPILOT_PROVIDER_BASE_URL",
        "COPILOT_PROVIDER_TYPE",
        "COPILOT_PROVIDER_WIRE_API",
        "COPILOT_PROVIDER_TRANSPORT",
        "COPILOT_PROVIDER_AZURE_API_VERSION",
        "COPILOT_PROVIDER_MODEL_ID",
        "COPILOT_PROVIDER_WIRE_MODEL",
        "COPILOT_GH_HOST",
        "GH_HOST",
        "HTTPS_PROXY",
        "NO_PROXY",
    ),
    logins=(".copilot/config.json",),
    knows=("model", "system prompt", "tool rules", "denials", "retries"),
)
ENVIRONMENT = {"COPILOT_AUTO_UPDATE": "false"}
NAMES = {
    "Bash": ("bash", "read_bash", "write_bash", "stop_bash", "list_bash"),
    "Read": ("view",),
    "Write": ("create", "edit", "apply_patch"),
    "Edit": ("create", "edit", "apply_patch"),
    "Glob": ("glob",),
    "Grep": ("grep",),
    "Task": ("task",),
    "WebFetch": ("web_fetch",),
    "WebSearch": ("web_search",),
}
RIGHTS = {"Bash": "shell", "Write": "write", "Edit": "write"}
NONE = "none"
"""No tool is called so: a list of tools that is empty is no list to the client."""
_STEM = re.compile(r"[\w./+-]+(?: [\w./+-]+)?")


@dataclass(frozen=True, slots=True)
class Copilot:
    """Run `copilot` for one turn; nobody is there to approve, so what no rule forbids is allowed."""

    name: str = "copilot"
    default_network: Network = Network.HOST
    client: Client = CLIENT

    def invocation(self, task: Assignment, place: Place) -> Invocation:
        """Hand the prompt over on stdin, which it takes where none is given by `-p`."""
        persona = task.system_prompt.encode(errors="replace")
        return Invocation(
            argv=(*(task.agent.command or (CLIENT.program,)), *_arguments(task, place), *task.agent.args),
            stdin=task.prompt.encode(errors="replace"),
            env=ENVIRONMENT,
            home={".copilot/copilot-instructions.md": persona} if persona.strip() else {},
        )

    def reader(self) -> CopilotReader:
        """Read its stream of JSON."""
        return CopilotReader()


def _arguments(task: Assignment, place: Place) -> Iterator[str]:
    yield from ("--output-format", "json", "--no-color", "--no-ask-user", "--no-auto-update", "--allow-all")
    yield f"--secret-env-vars={','.join(CLIENT.keys)}"  # its shell does not see them
    if task.agent.model:
        yield from ("--model", task.agent.model)
    rules = tool_rules(task)
    if rules.denies_all:
        yield f"--available-tools={NONE}"
        return
    if rules.allow is not None:
        yield f"--available-tools={','.join(_allowed(rules.allow))}"
    yield from _denials(rules, place.workspace)


def _allowed(allow: tuple[ToolRule, ...]) -> Iterable[str]:
    assert_together("copilot", allow)
    for rule in allow:
        if rule.glob not in (None, ANY):
            why = "commands that only read run there unasked, so a list of single uses lets others through"
            raise unheld("copilot", rule, why, f"allow `{rule.tool}`, and deny what it must not be used for")
    return dict.fromkeys(name for rule in allow for name in named("copilot", rule, NAMES))


def _denials(rules: ToolRules, workspace: Path) -> Iterator[str]:
    assert_together("copilot", rules.deny)
    whole = [rule for rule in rules.deny if rule.glob in (None, ANY)]
    if whole:
        names = dict.fromkeys(name for rule in whole for name in named("copilot", rule, NAMES))
        yield f"--excluded-tools={','.join(names)}"
    denied = (_denied(rule, workspace) for rule in rules.deny if rule not in whole or rule.tool in RIGHTS)
    yield from (f"--deny-tool={one}" for one in dict.fromkeys(denied))


def _denied(rule: ToolRule, workspace: Path) -> str:
    right = RIGHTS.get(rule.tool)
    if right is None:
        raise unheld("copilot", rule, f"it can tell uses apart only of {', '.join(RIGHTS)}", f"deny `{rule.tool}`")
    if rule.glob in (None, ANY):
        return right
    return f"{right}({_command(rule, rule.glob) if right == 'shell' else _path(rule, rule.glob, workspace)})"


def _command(rule: ToolRule, glob: str) -> str:
    stem = glob.removesuffix("*").removesuffix(":").removesuffix(" ")
    if not _STEM.fullmatch(stem) or glob not in (f"{stem}:*", f"{stem} *"):
        raise unheld("copilot", rule, "it knows a command by its first words", "write it like `Bash(git push:*)`")
    return f"{stem}:*"


def _path(rule: ToolRule, glob: str, workspace: Path) -> str:
    if ANY in glob or "," in glob or ")" in glob:
        raise unheld("copilot", rule, "it knows files by their whole names", "name each file, or use `writable`")
    return str(workspace / glob)  # a relative one would be a file of that name in any folder
