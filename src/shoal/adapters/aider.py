"""aider without a terminal: the prompt and the persona are files that it reads."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from shoal.adapters.client import Client
from shoal.adapters.events import describe_unfinished, event, explain_failure, last_line, number, plain, words
from shoal.adapters.gateway_settings import GatewaySettings, assert_provider, usual_settings
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.adapters.tool_rules import ANY, ToolRules, tool_rules, unheld
from shoal.errors import Unavailable
from shoal.model.activity import Act, Activity
from shoal.model.gateway import GatewayAccess
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask

LOGIN = "set the key of your provider, such as ANTHROPIC_API_KEY or OPENAI_API_KEY"
COMPLETED = "Completed --message-file"
_MODEL = re.compile(r"(?:Main m|M)odel: (\S+) with ")
_ERROR = re.compile(r"litellm\.\w*(?:Error|Exception|Timeout)\b.*")
_RETRY = re.compile(r"Retrying in ([\d.]{1,10}) seconds\.\.\.")
_EDIT = re.compile(r"Applied edit to (.+)")


@dataclass(slots=True)
class AiderReader:
    """Reads one session; output before the first message is about aider itself."""

    session: None = None
    is_done: bool = False
    usage: dict[str, float] = field(default_factory=dict)
    _has_begun: bool = False
    _is_asking: bool = False
    """A message was sent, and no answer came yet."""
    _reason: str = ""
    _last: str = ""
    _error: str = ""

    def read(self, line: str) -> list[Activity]:
        """Turn a line into activities."""
        match event(line):
            case {"event": str(name), "properties": dict(fields)}:
                self._event(name, fields)
                return []
        return list(self._read_line(line))

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Check that each message was answered, and that aider ended by itself."""
        if self._is_asking:
            return explain_failure(self._error or "the model gave no answer", LOGIN)
        if not self._has_begun or self._reason != COMPLETED:
            return explain_failure(describe_unfinished(self._error, last_line(errors), self._reason, self._last), LOGIN)
        return None

    def _event(self, name: str, fields: Mapping[str, object]) -> None:
        match name:
            case "message_send_starting":
                self._has_begun = self._is_asking = True
            case "message_send":
                self._is_asking = False
                self._add("input_tokens", fields.get("prompt_tokens"))
                self._add("output_tokens", fields.get("completion_tokens"))
                if number(fields.get("cost")):
                    self._add("cost_usd", fields.get("cost"))
            case "message_send_exception":
                self._error = words(fields.get("exception"))
            case "exit":
                self.is_done, self._reason = True, words(fields.get("reason"))

    def _add(self, name: str, more: object) -> None:
        self.usage[name] = self.usage.get(name, 0) + number(more)

    def _read_line(self, line: str) -> Iterator[Activity]:
        self._last = line.strip() or self._last
        if model := _MODEL.match(line):
            yield Activity(act=Act.BEGAN, text=model[1])
        elif error := _ERROR.match(line):
            self._error = error[0]
            yield Activity(act=Act.TROUBLE, text=error[0])
        elif wait := _RETRY.fullmatch(line.strip()):
            yield Activity(act=Act.RETRY, text=self._error, seconds=_seconds(wait[1]))
        elif edit := _EDIT.fullmatch(line.strip()):
            yield Activity(act=Act.TOOL, tool="edit", text=edit[1])
        elif self._has_begun:
            yield from plain(line)


def _seconds(written: str) -> float:
    try:
        return float(written)
    except ValueError:
        return 0.0


CLIENT = Client(
    program="aider",
    install="python -m pip install aider-install && aider-install",
    login=LOGIN,
    oldest=(0, 80, 0),
    keys=(
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "OPENROUTER_API_KEY",
        "GEMINI_API_KEY",
        "DEEPSEEK_API_KEY",
        "GROQ_API_KEY",
        "MISTRAL_API_KEY",
        "XAI_API_KEY",
        "AZURE_API_KEY",
        "OLLAMA_API_BASE",  # an address that stands in for a login
    ),
    settings=(
        "AIDER_MODEL",
        "ANTHROPIC_API_BASE",
        "OPENAI_API_BASE",
        "AZURE_API_BASE",
        "AZURE_API_VERSION",
        "HTTPS_PROXY",
        "SSL_CERT_FILE",
    ),
    logins=(".aider.conf.yml", ".aider.model.settings.yml", ".aider.model.metadata.json", ".aider/oauth-keys.env"),
    upstreams=("anthropic", "openai", "gemini", "openrouter", "deepseek", "groq", "mistral", "xai"),
    elsewhere={"AZURE_API_KEY": (), "OLLAMA_API_BASE": ()},
    settings_files=(".aider.conf.yml", ".aider.model.settings.yml", ".aider.model.metadata.json"),
    scratch_files=(".aider.tags.cache.v*",),
    knows=("model", "temperature", "usage", "cost", "retries"),
)
ENVIRONMENT = {
    "COLUMNS": "1000",  # aider wraps its lines at that width
    "PYTHONUNBUFFERED": "1",  # its log goes to the same stream as its text, and must not split a word
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}
QUIET = (
    "--yes-always",
    "--no-check-update",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--analytics-disable",
    "--no-gitignore",
    "--no-pretty",
    "--no-stream",
    "--no-fancy-input",
    "--no-detect-urls",
    "--no-suggest-shell-commands",
    "--no-auto-commits",  # sealing commits; a commit message by a model would cost unreported tokens
)
PROMPT = ".aider.prompt.md"
MODEL_SETTINGS = ".aider.temperature.yml"
ITS_OWN = ("Read", "Write", "Edit", ANY)
"""What it does whatever it is told; it has none of the other tools."""
HABIT = "it reads and edits files by itself, without tools"


@dataclass(frozen=True, slots=True)
class Aider:
    """Run `aider` for one message; it edits by text and has no tools, and its log shows how it went."""

    name: str = "aider"
    default_network: Network = Network.GATEWAY
    client: Client = CLIENT

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Keep aider's own files in its private home."""
        assert_provider(self.name, task.agent.model, place.gateway)
        return Invocation(
            argv=(*(task.agent.command or (CLIENT.program,)), *_arguments(task, place), *task.agent.args),
            stdin=b"",
            env={**ENVIRONMENT, **self.gateway_settings(place.gateway).env},
            home={
                PROMPT: _escape_prompt(task.prompt).encode(errors="replace"),
                **_model_settings(task.agent.temperature),
            },
        )

    def gateway_settings(self, access: GatewayAccess | None) -> GatewaySettings:
        """Set an address and a token for each provider, in the variables that litellm reads."""
        return usual_settings(access)

    def reader(self) -> AiderReader:
        """Read its words, and the log that stands between them."""
        return AiderReader()


def _arguments(task: ResolvedTask, place: SessionPaths) -> Iterator[str]:
    yield from QUIET
    yield from ("--analytics-log", "/dev/stdout")
    for history in ("input", "chat", "llm"):
        yield from (f"--{history}-history-file", str(place.home / f".aider.{history}.history"))
    if task.agent.model:
        yield from ("--model", task.agent.model)
    if task.agent.temperature is not None:
        yield from ("--model-settings-file", str(place.home / MODEL_SETTINGS))
    if task.system_prompt.strip():
        yield from ("--read", str(place.system_prompt_file))
    if rules := tool_rules(task):
        _assert_held(rules)
        yield from ("--no-auto-lint", "--no-auto-test")  # a project can name commands for them
    yield from ("--message-file", str(place.home / PROMPT))


def _model_settings(temperature: float | None) -> dict[str, bytes]:
    """Write the file with parameters for every model; aider's own flags have no temperature."""
    if temperature is None:
        return {}
    rows = [{"name": "aider/extra_params", "extra_params": {"temperature": temperature}}]
    return {MODEL_SETTINGS: json.dumps(rows).encode()}


def _escape_prompt(prompt: str) -> str:
    """Keep aider from running a prompt as a command: `/run …` and `!…`."""
    return f"\n{prompt}" if prompt.startswith(("/", "!")) else prompt


def _assert_held(rules: ToolRules) -> None:
    for rule in rules.deny:
        if rule.tool in ITS_OWN or ANY in rule.tool:
            raise unheld("aider", rule, HABIT, "use `writable`, which the kernel holds")
    listed = {rule.tool: rule for rule in rules.allow or () if rule.glob in (None, ANY)}
    for tool in ("Read", "Write", "Edit"):
        if rules.allow is not None and tool not in listed:
            what = "a list of tools for aider that does not allow " + tool
            raise Unavailable(what, HABIT, "list Read, Write and Edit, and use `writable`, which the kernel holds")
