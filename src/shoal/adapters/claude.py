"""Claude Code as an agent."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shoal.adapters.client import Client
from shoal.adapters.events import (
    argument,
    describe_unfinished,
    event,
    explain_failure,
    last_line,
    name,
    number,
    objects,
    plain,
    words,
)
from shoal.adapters.gateway_settings import NO_SETTINGS, GatewaySettings, anthropic_variables
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.adapters.tool_rules import ANY, ToolRules, tool_rules, unheld
from shoal.model.activity import Act, Activity
from shoal.model.gateway import GatewayAccess
from shoal.model.permissions import ToolRule
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask
from shoal.model.talk import TalkAccess

LOGIN = "run `claude` and log in, or set ANTHROPIC_API_KEY"
ITS_OWN = "<synthetic>"
"""The model of messages that Claude Code wrote itself."""
REFUSED = (401, 403)
MOST_CALLS = 1000
READ = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
WRITTEN = "output_tokens"


class ClaudeReader:
    """Reads `stream-json`; there may be several turns, because background work wakes it again."""

    def __init__(self) -> None:
        self._session: str | None = None
        self._result: Mapping[str, object] | None = None
        self._is_refused = False
        self._is_woken = False  # by a task that has ended: another turn is about to begin
        self._behind = 0  # tasks in the background
        self._spent: dict[str, Mapping[str, float]] = {}
        self._streams: dict[str, str] = {}  # the current message of the agent, and of each sub-agent
        self._denied: set[str] = set()
        self._trouble = ""

    @property
    def is_done(self) -> bool:
        """Whether its turn has ended and nothing will begin another."""
        if self._result is None or self._is_woken or self._behind:
            return False
        return not number(self._result.get("queued_turn_count"))

    @property
    def is_between_turns(self) -> bool:
        """Whether a turn has ended and nothing runs in the background."""
        return self.is_done

    def begin_turn(self) -> None:
        """Wait for the result of another turn."""
        self._result, self._is_woken = None, False

    @property
    def session(self) -> str | None:
        """Its session, for `--resume`."""
        return self._session

    @property
    def usage(self) -> Mapping[str, float]:
        """The tokens of all models together, cached ones included."""
        match self._result:
            case {"modelUsage": dict(models), "total_cost_usd": cost}:
                return {**_by_model(models), "cost_usd": number(cost)}
            case _:
                return _total(self._spent.values())

    def read(self, line: str) -> Iterable[Activity]:
        """Turn one event into activities."""
        record = event(line) or {}
        match record:
            case {"type": "system", "subtype": str(kind)}:
                return list(self._system(kind, record))
            case {"type": "assistant", "message": dict(message)}:
                self._result = None
                return list(self._assistant(message, record))
            case {"type": "stream_event", "event": dict(piece)}:
                self._stream(piece, words(record.get("parent_tool_use_id")))
                return []
            case {"type": "user", "message": {"content": blocks}}:
                return [_tool_result(block) for block in objects(blocks) if block.get("type") == "tool_result"]
            case {"type": "result"}:
                self._result, self._is_woken = record, False
                return list(self._late_denials(record))
            case {"type": str()}:
                return []
            case _:
                return plain(line)

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Trust the result's own flag; a subtype `success` may still be an error."""
        result = self._result
        if result is None:
            return explain_failure(
                describe_unfinished(self._trouble, last_line(errors)), LOGIN, is_login=self._is_refused
            )
        is_good = result.get("is_error") is False and result.get("subtype") == "success"
        if is_good and not words(result.get("result")).startswith("API Error"):
            return None
        is_login = self._is_refused or result.get("api_error_status") in REFUSED
        return explain_failure(self._why(result), LOGIN, is_login=is_login)

    def _why(self, result: Mapping[str, object]) -> str:
        listed = result.get("errors")
        named = "; ".join(map(words, listed)) if isinstance(listed, list) else ""
        return words(result.get("result")) or named or self._trouble or words(result.get("subtype")) or "it failed"

    def _system(self, kind: str, record: Mapping[str, object]) -> Iterator[Activity]:
        match kind, record:
            case "init", {"session_id": str(session)}:
                self._result = None
                if self._session is None:
                    self._session = session
                    yield Activity(act=Act.BEGAN, text=words(record.get("model")))
            case "api_retry", _:
                why = f"{words(record.get('error_status'))} {words(record.get('error'))}".strip()
                yield Activity(act=Act.RETRY, text=why, seconds=number(record.get("retry_delay_ms")) / 1000)
            case "permission_denied", _:
                yield from self._denial(name(record.get("tool_use_id")), record, words(record.get("message")))
            case "background_tasks_changed", {"tasks": list(tasks)}:
                self._behind = len(tasks)
            case "task_started", {"task_id": str(task)}:
                yield Activity(act=Act.TOOL, tool="background", text=words(record.get("description")), call=task)
            case "task_notification", {"task_id": str(task)}:
                self._is_woken, is_good = True, record.get("status") == "completed"
                yield Activity(act=Act.RESULT, text=words(record.get("summary")), call=task, ok=is_good)

    def _assistant(self, message: Mapping[str, object], record: Mapping[str, object]) -> Iterator[Activity]:
        is_its_own = message.get("model") == ITS_OWN
        self._is_refused = is_its_own and record.get("error") == "authentication_failed"
        self._count(message)
        for block in objects(message.get("content")):
            match block:
                case {"type": "text", "text": str(text)} if is_its_own:
                    self._trouble = text
                    yield Activity(act=Act.TROUBLE, text=text)
                case {"type": "text", "text": str(text)} if not record.get("parent_tool_use_id"):
                    yield Activity(act=Act.SAID, text=text)
                case {"type": "tool_use", "name": str(tool)}:
                    call = words(block.get("id"))
                    yield Activity(act=Act.TOOL, tool=tool, text=argument(block.get("input")), call=call)

    def _count(self, message: Mapping[str, object]) -> None:
        """Remember a message's usage, for a session without a result; each message has several events."""
        used, message_id = message.get("usage"), name(message.get("id"))
        if isinstance(used, dict) and (len(self._spent) < MOST_CALLS or message_id in self._spent):
            known = self._spent.get(message_id, {})
            self._spent[message_id] = {key: max(number(used.get(key)), known.get(key, 0)) for key in (*READ, WRITTEN)}

    def _stream(self, piece: Mapping[str, object], parent: str) -> None:
        """Follow a streamed message: only its last piece has its token count."""
        match piece:
            case {"type": "message_start", "message": dict(message)} if len(self._streams) < MOST_CALLS:
                self._streams[parent] = name(message.get("id"))
                self._count(message)
            case {"type": "message_delta", "usage": dict(used)} if parent in self._streams:
                self._count({"id": self._streams[parent], "usage": used})

    def _late_denials(self, result: Mapping[str, object]) -> Iterator[Activity]:
        for denial in objects(result.get("permission_denials")):
            yield from self._denial(name(denial.get("tool_use_id")), denial, argument(denial.get("tool_input")))

    def _denial(self, call: str, denial: Mapping[str, object], why: str) -> Iterator[Activity]:
        if call not in self._denied and len(self._denied) < MOST_CALLS:
            self._denied.add(call)
            yield Activity(act=Act.DENIED, tool=words(denial.get("tool_name")), text=why, call=call)


def _tool_result(block: Mapping[str, object]) -> Activity:
    content = block.get("content")
    if isinstance(content, list):
        content = "\n".join(words(part.get("text")) for part in objects(content))
    is_good = block.get("is_error") is not True
    return Activity(act=Act.RESULT, text=words(content), call=words(block.get("tool_use_id")), ok=is_good)


def _by_model(models: Mapping[str, object]) -> dict[str, float]:
    used = [usage for usage in models.values() if isinstance(usage, dict)]
    read = ("inputTokens", "cacheReadInputTokens", "cacheCreationInputTokens")
    return {
        "input_tokens": sum(number(usage.get(key)) for usage in used for key in read),
        "output_tokens": sum(number(usage.get("outputTokens")) for usage in used),
    }


def _total(messages: Iterable[Mapping[str, float]]) -> dict[str, float]:
    used = list(messages)
    if not used:
        return {}
    return {
        "input_tokens": sum(usage[key] for usage in used for key in READ),
        "output_tokens": sum(usage[WRITTEN] for usage in used),
    }


LOGIN_FILE = ".claude/.credentials.json"
NEVER = 4_102_444_800_000
"""When the token of a sandbox expires, in milliseconds: the gateway renews the login, not the client."""
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
    logins=(LOGIN_FILE,),
    held_login="claude",
    upstreams=("anthropic",),
    elsewhere={"CLAUDE_CODE_USE_BEDROCK": ("0",), "CLAUDE_CODE_USE_VERTEX": ("0",), "AWS_BEARER_TOKEN_BEDROCK": ()},
    conversations=(".claude/projects",),
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
TALK_CONFIG = ".shoal-mcp.json"
WRITERS = ("Write", "MultiEdit", "NotebookEdit")


@dataclass(frozen=True, slots=True)
class Claude:
    """Run `claude -p` with its messages on stdin; it asks for no permissions, because it is sandboxed."""

    name: str = "claude"
    default_network: Network = Network.GATEWAY
    client: Client = CLIENT

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Pass the persona as an appended system prompt, and rules as permissions."""
        spec = task.agent
        argv = [*(spec.command or (CLIENT.program,)), "-p", "--verbose"]
        argv += ["--input-format", "stream-json", "--output-format", "stream-json"]
        argv.append("--include-partial-messages")  # each piece shows that a slow model is alive
        if spec.model:
            argv += ["--model", spec.model]
        if task.system_prompt.strip():
            argv += ["--append-system-prompt-file", str(place.system_prompt_file)]
        if place.conversation is not None:
            argv += ["--resume", place.conversation]
        talk = talk_files(place.talk)
        if place.talk is not None:
            argv += ["--mcp-config", str(place.home / TALK_CONFIG)]
        argv += [*_permissions(tool_rules(task), has_talk=place.talk is not None), *spec.args]
        # as root it refuses to skip permissions unless this says that it is sandboxed
        env = {**QUIET, "CLAUDE_CODE_MAX_RETRIES": MOST_RETRIES, "IS_SANDBOX": "1"}
        model = self.gateway_settings(place.gateway)
        env.update(model.env)
        return Invocation(
            argv=tuple(argv), stdin=self.message(task.prompt), env=env, home={**model.home, **talk}, is_live=True
        )

    def gateway_settings(self, access: GatewayAccess | None) -> GatewaySettings:
        """Set the address and the token; for a login, a file like the user's, of which it chooses its model."""
        if access is None:
            return NO_SETTINGS
        profile = access.profiles.get("anthropic")
        if not profile:
            return GatewaySettings(env=dict(anthropic_variables(access)))
        login = {**profile, "accessToken": access.token, "refreshToken": None, "expiresAt": NEVER}
        home = {LOGIN_FILE: json.dumps({"claudeAiOauth": login}).encode()}
        return GatewaySettings(env={"ANTHROPIC_BASE_URL": access.url_of("anthropic")}, home=home)

    def reader(self) -> ClaudeReader:
        """Read its stream of JSON."""
        return ClaudeReader()

    def takes_messages(self, task: ResolvedTask) -> bool:
        """Take them after each turn."""
        return True

    def message(self, text: str) -> bytes:
        """Format a message as one line of `stream-json`."""
        record = {"type": "user", "message": {"role": "user", "content": [{"type": "text", "text": text}]}}
        return json.dumps(record).encode() + b"\n"

    def turn_reader(self) -> ClaudeReader:
        """Read its stream of JSON."""
        return ClaudeReader()


def talk_files(access: TalkAccess | None) -> Mapping[str, bytes]:
    """Write the server of an agent that may talk, in a file, because every user of a host can read arguments."""
    if access is None:
        return {}
    server = {"type": "http", "url": access.url, "headers": {"Authorization": f"Bearer {access.token}"}}
    return {TALK_CONFIG: json.dumps({"mcpServers": {"shoal": server}}).encode()}


def _permissions(rules: ToolRules, *, has_talk: bool = False) -> Iterable[str]:
    """Return what it may use: what is not listed is not even there, and what is asked for is denied."""
    mode = "bypassPermissions" if rules.allow is None else "dontAsk"
    yield from ("--permission-mode", mode)
    if rules.denies_all:
        yield from ("--tools", "")
        return
    if rules.allow is not None:
        # neither the project's settings nor any that the agent writes may allow more
        yield from ("--tools", ",".join(_tools(rules.allow)), "--setting-sources", "")
    if rules:
        talk = ("mcp__shoal",) if has_talk and rules.allow is not None else ()
        allow = [*(_rule(rule) for rule in rules.allow or ()), *talk]
        lists = {"allow": allow, "deny": [_rule(rule) for rule in rules.deny]}
        yield from ("--settings", json.dumps({"permissions": lists}))


def _tools(allow: Iterable[ToolRule]) -> Iterable[str]:
    """List the built-in tools to enable; tools of MCP servers are limited by the rules alone."""
    return dict.fromkeys(rule.tool for rule in allow if not rule.tool.startswith("mcp__"))


def _rule(rule: ToolRule) -> str:
    """Write a rule in Claude's own grammar, in which only `Read` and `Edit` rules apply to paths."""
    if ANY in rule.tool and not rule.tool.startswith("mcp__"):
        raise unheld("claude", rule, "a tool's name has to be whole", "name each tool")
    if rule.glob is None:
        return rule.tool
    if rule.tool not in (*WRITERS, "Edit", "Read"):
        return rule.pattern
    # an absolute path begins with two slashes there
    path = f"/{rule.glob}" if rule.glob.startswith("/") else rule.glob
    return f"{'Edit' if rule.tool in WRITERS else rule.tool}({path})"
