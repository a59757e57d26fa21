"""Gemini CLI without a terminal: the prompt on stdin, the persona as its memory, the rules as its policy."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shoal.adapters.client import Client
from shoal.adapters.events import Calls, argument, event, explain_failure, number, plain, words
from shoal.adapters.gateway_settings import NO_SETTINGS, GatewaySettings
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.adapters.tool_rules import ANY, FILE_TOOLS, alternatives, client_tool_names, expression, rules, unheld
from shoal.model.activity import Act, Activity
from shoal.model.gateway import GatewayAccess
from shoal.model.permissions import Permissions, ToolRule
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.talk import TalkAccess

NO_LOGIN = 41
"""The exit code of a client that was not let ask at all."""
IGNORED_RULES = "Policy file error"
MOST_CHARS = 2**16


@dataclass(slots=True)
class GeminiReader:
    """Reads one session; joins pieces of text until something else follows."""

    login: str
    session: str | None = None
    is_done: bool = False
    usage: dict[str, float] = field(default_factory=dict)
    _text: str = ""
    _calls: Calls = field(default_factory=Calls)
    _failure: str | None = None

    def read(self, line: str) -> list[Activity]:
        """Turn a line into activities."""
        record = event(line)
        if record is None:
            return [*self._flush_text(), *plain(line)]
        match record:
            case {"type": "message", "role": "assistant", "content": str(text)}:
                self._text += text
                return list(self._flush_text()) if len(self._text) > MOST_CHARS else []
            case {"type": str(kind)}:
                return [*self._flush_text(), *self._event(kind, record)]
        return plain(line)

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Trust only its result; without one it did not finish."""
        if IGNORED_RULES in errors:
            return "its tool rules were not all taken: " + errors[errors.index(IGNORED_RULES) :].strip()
        if self.is_done:
            return self._failure
        if exit_code == NO_LOGIN:
            return explain_failure(_last_line(errors) or "it has no login", self.login, is_login=True)
        return explain_failure(_last_line(errors) or f"it ended with {exit_code} and told no result", self.login)

    def _flush_text(self) -> Iterator[Activity]:
        text, self._text = self._text, ""
        if text.strip():
            yield Activity(act=Act.SAID, text=text)

    def _event(self, kind: str, record: Mapping[str, object]) -> Iterator[Activity]:
        match kind:
            case "init":
                self.session = words(record.get("session_id")) or None
                yield Activity(act=Act.BEGAN, text=words(record.get("model")))
            case "tool_use":
                call, tool = words(record.get("tool_id")), words(record.get("tool_name"))
                self._calls.begin(call, tool)
                yield Activity(act=Act.TOOL, tool=tool, call=call, text=argument(record.get("parameters")))
            case "tool_result":
                yield self._result(record)
            case "error":
                yield Activity(act=Act.TROUBLE, text=words(record.get("message")))
            case "result":
                self._end(record)

    def _result(self, record: Mapping[str, object]) -> Activity:
        call, text = words(record.get("tool_id")), words(record.get("output"))
        tool = self._calls.end(call)
        match record.get("error"):
            case {"type": "policy_violation", "message": why}:
                return Activity(act=Act.DENIED, tool=tool, call=call, text=words(why), ok=False)
        return Activity(act=Act.RESULT, tool=tool, call=call, text=text, ok=record.get("status") == "success")

    def _end(self, record: Mapping[str, object]) -> None:
        self.is_done = True
        match record.get("stats"):
            case {"input_tokens": sent, "output_tokens": received}:
                self.usage = {"input_tokens": number(sent), "output_tokens": number(received)}
        if record.get("status") != "success":
            error = record.get("error")
            why = words(error.get("message") if isinstance(error, dict) else error)
            self._failure = explain_failure(why or "it told that it failed, and not why", self.login)


def _last_line(errors: str) -> str:
    """Return the last line of stderr that is no part of a traceback."""
    lines = (line.strip() for line in reversed(errors.splitlines()))
    return next((line for line in lines if line and not line.startswith(("at ", "}", "status:"))), "")


NAMES = {
    "Bash": ("run_shell_command",),
    "Read": ("read_file",),
    "Write": ("write_file",),
    "Edit": ("replace",),
    "Glob": ("glob",),
    "Grep": ("grep_search",),
    "LS": ("list_directory",),
    "WebFetch": ("web_fetch",),
    "WebSearch": ("google_web_search",),
}
KEYS = {"Bash": "command", "Read": "file_path", "Write": "file_path", "Edit": "file_path"}
"""The argument that a rule's glob speaks of."""
NOT_LISTED, LISTED, DENIED = 100, 200, 300
NUL = r"\x00"
ANYTHING = r"[^\x00]*"
LONGEST = 2048
"""A longer expression is passed over by the client."""


def policy(permitted: Permissions, workspace: Path) -> str:
    """Write the rules, if any; raise `Unavailable` for one that Gemini cannot enforce."""
    blocks: list[str] = []
    if permitted.allowed_tools is not None:
        blocks.append(_block(ANY, "deny", NOT_LISTED, message="not listed"))
    for rule in rules(permitted.allowed_tools):
        blocks += _blocks(rule, "allow", LISTED, workspace)
    for rule in rules(permitted.deny):
        blocks += _blocks(rule, "deny", DENIED, workspace)
    return "\n".join(blocks)


def _blocks(rule: ToolRule, decision: str, priority: int, workspace: Path) -> Iterator[str]:
    (tool,) = client_tool_names("gemini", rule, NAMES)
    if rule.glob is None:
        yield _block(tool, decision, priority, message=rule.pattern)
        return
    if rule.tool not in KEYS:
        raise unheld("gemini", rule, "it can tell uses apart only of " + ", ".join(KEYS), f"write `{rule.tool}` alone")
    for glob in _globs(rule.tool, rule.glob, workspace):
        pattern = _pattern(KEYS[rule.tool], glob)
        if len(pattern) > LONGEST:
            raise unheld("gemini", rule, "it passes over so long a pattern", "write a shorter one")
        yield _block(tool, decision, priority, message=rule.pattern, pattern=pattern)


def _globs(tool: str, glob: str, workspace: Path) -> Iterator[str]:
    for pattern in alternatives(glob):
        yield pattern
        if tool in FILE_TOOLS and not pattern.startswith(("/", ANY)):
            yield f"{workspace}/{pattern}"


def _pattern(key: str, glob: str) -> str:
    """Write the pattern for arguments as the client formats them: JSON, each between two NULs."""
    return rf'{NUL}"{key}":"{expression(glob, ANYTHING)}"{NUL}'


def _block(tool: str, decision: str, priority: int, *, message: str, pattern: str = "") -> str:
    lines = ["[[rule]]", f"toolName = {_quote_toml(tool)}", f'decision = "{decision}"', f"priority = {priority}"]
    if pattern:
        lines.append(f"argsPattern = {_quote_toml(pattern)}")
    lines.append("allowRedirection = true" if decision == "allow" else f"denyMessage = {_quote_toml(message)}")
    return "\n".join(lines) + "\n"


def _quote_toml(text: str) -> str:
    """Quote a text for TOML, which differs from JSON in surrogates and one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


LOGIN = "run `gemini` once and log in there, or set GEMINI_API_KEY"
CLIENT = Client(
    program="gemini",
    install="npm install -g @google/gemini-cli",
    login=LOGIN,
    oldest=(0, 61, 0),  # for older versions, it is unknown how policy patterns match a call
    keys=("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    settings=(
        "GEMINI_MODEL",
        "GOOGLE_GEMINI_BASE_URL",
        "GOOGLE_VERTEX_BASE_URL",
        "GOOGLE_GENAI_USE_VERTEXAI",
        "GOOGLE_GENAI_USE_GCA",
        "GOOGLE_CLOUD_PROJECT",
        "GOOGLE_CLOUD_LOCATION",
        "HTTPS_PROXY",
        "NODE_EXTRA_CA_CERTS",
    ),
    logins=(".gemini/settings.json", ".gemini/oauth_creds.json", ".gemini/google_accounts.json", ".gemini/.env"),
    upstreams=("gemini",),
    elsewhere={"GOOGLE_GENAI_USE_VERTEXAI": ("false",), "GOOGLE_GENAI_USE_GCA": ("false",)},
    knows=("model", "system prompt", "tool rules", "usage", "session"),
)
SETTINGS = ".gemini/settings.json"
BY_KEY = b'{"security": {"auth": {"selectedType": "gemini-api-key"}}}'
ENVIRONMENT = {
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
    "GEMINI_TELEMETRY_ENABLED": "false",
    "GEMINI_SANDBOX": "false",  # it is already in a sandbox
}


@dataclass(frozen=True, slots=True)
class Gemini:
    """Run `gemini` for one turn, with the user's settings, which have the kind of login."""

    name: str = "gemini"
    default_network: Network = Network.GATEWAY
    client: Client = CLIENT

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Pass the prompt on stdin; nobody can approve anything, so everything that no rule forbids is allowed."""
        model = self.gateway_settings(place.gateway)
        return Invocation(
            argv=(*(task.agent.command or (CLIENT.program,)), *_arguments(task), *task.agent.args),
            stdin=task.prompt.encode(errors="replace"),
            env={**ENVIRONMENT, **model.env},
            home={**model.home, **_talk(place.talk, model.home), **dict(_files(task, place.workspace))},
        )

    def gateway_settings(self, access: GatewayAccess | None) -> GatewaySettings:
        """Set the address and the token, and choose login by key."""
        if access is None:
            return NO_SETTINGS
        env = {"GEMINI_API_KEY": access.token, "GOOGLE_GEMINI_BASE_URL": access.url_of("gemini")}
        return GatewaySettings(env=env, home={SETTINGS: BY_KEY})

    def reader(self) -> GeminiReader:
        """Read its stream of JSON."""
        return GeminiReader(LOGIN)


def _talk(access: TalkAccess | None, home: Mapping[str, bytes]) -> dict[str, bytes]:
    """Add the server of an agent that may talk to settings of ours; the user's own stay as they are."""
    if access is None or SETTINGS not in home:
        return {}
    headers = {"Authorization": f"Bearer {access.token}"}
    server = {"httpUrl": access.url, "headers": headers, "trust": True, "timeout": 660_000}
    return {SETTINGS: json.dumps({**json.loads(home[SETTINGS]), "mcpServers": {"shoal": server}}).encode()}


def _arguments(task: ResolvedTask) -> Iterator[str]:
    yield from ("--output-format", "stream-json", "--approval-mode", "yolo")
    if task.agent.model:
        yield from ("--model", task.agent.model)


def _files(task: ResolvedTask, workspace: Path) -> Iterator[tuple[str, bytes]]:
    if task.system_prompt:
        yield ".gemini/GEMINI.md", task.system_prompt.encode(errors="replace")
    if rules := policy(task.permitted, workspace):
        yield ".gemini/policies/shoal.toml", rules.encode()
