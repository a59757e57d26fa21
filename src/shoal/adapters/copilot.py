"""GitHub Copilot CLI without a terminal: the prompt on stdin, the persona as custom instructions."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from shoal.adapters.client import Client
from shoal.adapters.events import (
    Calls,
    argument,
    describe_unfinished,
    event,
    explain_failure,
    last_line,
    number,
    plain,
    words,
)
from shoal.adapters.gateway_settings import NO_SETTINGS, GatewaySettings
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.adapters.tool_rules import ANY, ToolRules, assert_together, client_tool_names, tool_rules, unheld
from shoal.model.activity import Act, Activity
from shoal.model.gateway import GatewayAccess
from shoal.model.permissions import ToolRule
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask

LOGIN = "run `copilot login`, or set COPILOT_GITHUB_TOKEN, or COPILOT_PROVIDER_BASE_URL and COPILOT_PROVIDER_API_KEY"
NO_LOGIN = "No authentication information found"


@dataclass(slots=True)
class CopilotReader:
    """Reads one session; Copilot reports no tokens, so *usage* stays empty."""

    session: str | None = None
    is_done: bool = False
    usage: dict[str, float] = field(default_factory=dict)
    _has_begun: bool = False
    _error: str | None = None
    _exit: float = 0
    _calls: Calls = field(default_factory=Calls)

    def read(self, line: str) -> list[Activity]:
        """Turn a line into activities."""
        record = event(line)
        if record is None:
            return plain(line)
        match record:
            case {"type": "result"}:
                self._end(record)
                return []
            case {"type": str(kind), "data": dict(data)}:
                return list(self._event(kind, data))
            case {"type": str()}:
                return []
        return plain(line)

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Trust its result, unless its last event was an error."""
        if self._error is not None:
            return explain_failure(self._error, LOGIN)
        if NO_LOGIN in errors:
            return explain_failure(NO_LOGIN, LOGIN, is_login=True)
        if not self.is_done:
            return explain_failure(describe_unfinished(last_line(errors)), LOGIN)
        return f"it ended with {self._exit:g} and did not say why" if self._exit else None

    def _end(self, record: Mapping[str, object]) -> None:
        self.is_done = True
        self.session = words(record.get("sessionId")) or None
        self._exit = number(record.get("exitCode"))

    def _event(self, kind: str, fields: Mapping[str, object]) -> Iterator[Activity]:
        call, tool = words(fields.get("toolCallId")), words(fields.get("toolName"))
        match kind:
            case "model.call_start" if not self._has_begun:
                self._has_begun = True
                yield Activity(act=Act.BEGAN, text=words(fields.get("model")))
            case "assistant.message":
                self._error = None
                if (text := words(fields.get("content"))).strip():
                    yield Activity(act=Act.SAID, text=text)
            case "tool.execution_start":
                self._calls.begin(call, tool)
                yield Activity(act=Act.TOOL, tool=tool, call=call, text=argument(fields.get("arguments")))
            case "tool.execution_complete":
                yield replace(_result(fields), call=call, tool=self._calls.end(call))
            case "assistant.turn_retry":
                yield Activity(act=Act.RETRY, text=words(fields.get("reason")))
            case "session.error":
                self._error = words(fields.get("message")) or "it told of an error, and not which"
                yield Activity(act=Act.TROUBLE, text=self._error)


def _result(fields: Mapping[str, object]) -> Activity:
    match fields:
        case {"error": {"code": "denied", "message": why}}:
            return Activity(act=Act.DENIED, text=words(why), ok=False)
        case {"error": {"message": why}}:
            return Activity(act=Act.RESULT, text=words(why), ok=False)
        case {"result": {"content": text}}:
            return Activity(act=Act.RESULT, text=words(text), ok=fields.get("success") is True)
    return Activity(act=Act.RESULT, ok=fields.get("success") is True)


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
    upstreams=("copilot",),
    elsewhere={"COPILOT_PROVIDER_TYPE": ("openai", "anthropic")},
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
    """Run `copilot` for one turn; nobody can approve anything, so everything that no rule forbids is allowed."""

    name: str = "copilot"
    default_network: Network = Network.GATEWAY
    client: Client = CLIENT

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Pass the prompt on stdin, which it reads without `-p`."""
        persona = task.system_prompt.encode(errors="replace")
        return Invocation(
            argv=(*(task.agent.command or (CLIENT.program,)), *_arguments(task, place), *task.agent.args),
            stdin=task.prompt.encode(errors="replace"),
            env={**ENVIRONMENT, **self.gateway_settings(place.gateway).env},
            home={".copilot/copilot-instructions.md": persona} if persona.strip() else {},
        )

    def gateway_settings(self, access: GatewayAccess | None) -> GatewaySettings:
        """Set the address and the token of the user's own model; the gateway does not pass requests to GitHub's."""
        if access is None:
            return NO_SETTINGS
        is_anthropic = access.formats.get("copilot") == "anthropic"
        env = {
            "COPILOT_PROVIDER_BASE_URL": access.url_of("copilot") + ("" if is_anthropic else "/v1"),
            "COPILOT_PROVIDER_API_KEY": access.token,
            "COPILOT_OFFLINE": "true",
        }
        return GatewaySettings(env=env)

    def reader(self) -> CopilotReader:
        """Read its stream of JSON."""
        return CopilotReader()


def _arguments(task: ResolvedTask, place: SessionPaths) -> Iterator[str]:
    yield from ("--output-format", "json", "--no-color", "--no-ask-user", "--no-auto-update", "--allow-all")
    yield f"--secret-env-vars={','.join(CLIENT.keys)}"  # its shell does not see them
    if task.agent.model:
        yield from ("--model", task.agent.model)
    rules = tool_rules(task)
    if rules.denies_all:
        yield f"--available-tools={NONE}"
        return
    if rules.allow is not None:
        yield f"--available-tools={','.join(_allow_flags(rules.allow))}"
    yield from _denials(rules, place.workspace)


def _allow_flags(allow: tuple[ToolRule, ...]) -> Iterable[str]:
    assert_together("copilot", allow)
    for rule in allow:
        if rule.glob not in (None, ANY):
            why = "commands that only read run there unasked, so a list of single uses lets others through"
            raise unheld("copilot", rule, why, f"allow `{rule.tool}`, and deny what it must not be used for")
    return dict.fromkeys(name for rule in allow for name in client_tool_names("copilot", rule, NAMES))


def _denials(rules: ToolRules, workspace: Path) -> Iterator[str]:
    assert_together("copilot", rules.deny)
    whole = [rule for rule in rules.deny if rule.glob in (None, ANY)]
    if whole:
        names = dict.fromkeys(name for rule in whole for name in client_tool_names("copilot", rule, NAMES))
        yield f"--excluded-tools={','.join(names)}"
    denied = (_deny_flag(rule, workspace) for rule in rules.deny if rule not in whole or rule.tool in RIGHTS)
    yield from (f"--deny-tool={flag}" for flag in dict.fromkeys(denied))


def _deny_flag(rule: ToolRule, workspace: Path) -> str:
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
    return str(workspace / glob)  # a relative path would match a file of that name in any folder
