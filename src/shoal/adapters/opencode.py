"""opencode without a terminal: the prompt on stdin, persona and rules in its own configuration."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoal.adapters.client import Client
from shoal.adapters.events import argument, describe_unfinished, event, explain_failure, last_line, number, plain, words
from shoal.adapters.gateway_settings import NO_SETTINGS, GatewaySettings, assert_provider
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.adapters.tool_rules import (
    ANY,
    ToolRules,
    alternatives,
    assert_together,
    client_tool_names,
    tool_rules,
    unheld,
)
from shoal.model.activity import Act, Activity
from shoal.model.gateway import GatewayAccess
from shoal.model.permissions import ToolRule
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask

LOGIN = "run `opencode auth login`, or set the key of your provider, such as ANTHROPIC_API_KEY"
UNFINISHED = {
    "tool-calls": "it ended before it was done",
    "length": "the model's answer was cut off, for it was too long",
    "content-filter": "the model's provider held its answer back",
    "error": "the model's answer ended with an error",
}
RULE = "specified a rule which prevents you"


@dataclass(slots=True)
class OpencodeReader:
    """Reads one session; it has no event for its end, so the reason of its last step is used."""

    session: str | None = None
    is_done: bool = False
    usage: dict[str, float] = field(default_factory=dict)
    _reason: str | None = None
    _error: str | None = None

    def read(self, line: str) -> list[Activity]:
        """Turn a line into activities."""
        record = event(line)
        if record is None or not isinstance(kind := record.get("type"), str):
            return plain(line)
        if self.session is None and isinstance(name := record.get("sessionID"), str):
            self.session = name
            return [Activity(act=Act.BEGAN), *self._event(kind, record)]
        return list(self._event(kind, record))

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Trust the reason of its last step, unless an error came after it."""
        if self._error is not None:
            return explain_failure(self._error, LOGIN)
        if self._reason is None:
            return explain_failure(describe_unfinished(last_line(errors)), LOGIN)
        return UNFINISHED.get(self._reason)

    def _event(self, kind: str, record: Mapping[str, object]) -> Iterator[Activity]:
        part = record.get("part")
        match kind, part:
            case "text", {"text": str(text)} if text.strip():
                yield Activity(act=Act.SAID, text=text)
            case "tool_use", {"tool": tool, "state": dict(state)}:
                call = words(part.get("callID")) if isinstance(part, dict) else ""
                yield Activity(act=Act.TOOL, tool=words(tool), call=call, text=argument(state.get("input")))
                yield _result(words(tool), call, state)
            case "step_finish", dict():
                self._error = None
                self._spend(part)
            case "error", _:
                self._error = _why(record.get("error"))
                yield Activity(act=Act.TROUBLE, text=self._error)

    def _spend(self, part: Mapping[str, object]) -> None:
        self._reason = words(part.get("reason"))
        match part.get("tokens"):
            case {"input": sent, "output": received, **rest}:
                self._add("input_tokens", number(sent) + _count_cached(rest.get("cache")))
                self._add("output_tokens", number(received) + number(rest.get("reasoning")))
        if cost := number(part.get("cost")):
            self._add("cost_usd", cost)

    def _add(self, name: str, more: float) -> None:
        self.usage[name] = self.usage.get(name, 0) + more


def _count_cached(cache: object) -> float:
    return number(cache.get("read")) + number(cache.get("write")) if isinstance(cache, dict) else 0


def _result(tool: str, call: str, state: Mapping[str, object]) -> Activity:
    if state.get("status") == "completed":
        return Activity(act=Act.RESULT, tool=tool, call=call, text=words(state.get("output")))
    why = words(state.get("error"))
    return Activity(act=Act.DENIED if RULE in why else Act.RESULT, tool=tool, call=call, text=why, ok=False)


def _why(error: object) -> str:
    match error:
        case {"data": {"message": str(text), "statusCode": int(status)}}:
            return f"{text} ({status})"
        case {"data": {"message": str(text)}}:
            return text
    return words(error) or "it told of an error, and not which"


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
    conversations=tuple(f".local/share/opencode/{name}" for name in ("storage", "opencode.db", "opencode.db-wal")),
    knows=("model", "temperature", "system prompt", "tool rules", "usage", "cost", "denials", "session"),
    upstreams=("anthropic", "openai", "gemini", "openrouter", "deepseek", "groq", "mistral", "xai"),
    settings_files=(".config/opencode/opencode.json", ".config/opencode/opencode.jsonc"),
    needs_login=False,  # it has models that need none
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
    default_network: Network = Network.GATEWAY
    client: Client = CLIENT

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Pass the prompt on stdin, which it reads without a message argument."""
        config: dict[str, object] = {"autoupdate": False, "share": "disabled", "snapshot": False}
        config["permission"] = permission(tool_rules(task))
        if task.system_prompt.strip():
            config["instructions"] = [str(place.system_prompt_file)]
        if task.agent.temperature is not None:
            config["agent"] = {"build": {"temperature": task.agent.temperature}}
        assert_provider(self.name, task.agent.model, place.gateway)
        model = self.gateway_settings(place.gateway)
        config.update(json.loads(model.env.get(CONFIG, "{}")))
        if place.talk is not None:
            headers = {"Authorization": f"Bearer {place.talk.token}"}
            config["mcp"] = {"shoal": {"type": "remote", "url": place.talk.url, "headers": headers, "enabled": True}}
        return Invocation(
            argv=(*(task.agent.command or (CLIENT.program,)), *_arguments(task, place), *task.agent.args),
            stdin=task.prompt.encode(errors="replace"),
            env={**ENVIRONMENT, **model.env, CONFIG: json.dumps(config)},
        )

    def gateway_settings(self, access: GatewayAccess | None) -> GatewaySettings:
        """Describe every model of the gateway as a provider."""
        if access is None:
            return NO_SETTINGS
        config = {"provider": dict(_providers(access))}
        return GatewaySettings(env={CONFIG: json.dumps(config), "OPENCODE_DISABLE_MODELS_FETCH": "1"})

    def reader(self) -> OpencodeReader:
        """Read its stream of JSON."""
        return OpencodeReader()


def _providers(access: GatewayAccess) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the settings of each provider, by opencode's own name for it."""
    for upstream, wire in access.formats.items():
        version = {"anthropic": "v1", "openai": "v1", "gemini": "v1beta"}[wire]
        options = {"baseURL": f"{access.url_of(upstream)}/{version}", "apiKey": access.token}
        yield {"gemini": "google"}.get(upstream, upstream), {"options": options}


def _arguments(task: ResolvedTask, place: SessionPaths) -> Iterator[str]:
    yield from ("run", "--format", "json")
    if place.conversation is None:
        yield f"--title={task.name}"  # without a title it asks a model for one, and does not report those tokens
    else:
        yield from ("--session", place.conversation)
    if task.agent.model:
        yield from ("--model", task.agent.model)


def permission(rules: ToolRules) -> Mapping[str, object]:
    """Write the rules in opencode's order: the last one that matches decides."""
    if rules.denies_all:
        return {ANY: "deny"}
    usual = "allow" if rules.allow is None else "deny"
    tables: dict[str, dict[str, str]] = {}
    for listed, decision in ((rules.allow or (), "allow"), (rules.deny, "deny")):
        assert_together("opencode", listed)
        for rule in listed:
            (name,) = client_tool_names("opencode", rule, NAMES)
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
