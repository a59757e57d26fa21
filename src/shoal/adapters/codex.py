"""Codex as an agent."""

import json
import shlex
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
from shoal.adapters.gateway_settings import NO_SETTINGS, GatewaySettings
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.adapters.tool_rules import ANY, ToolRules, tool_rules, unheld
from shoal.errors import Unavailable
from shoal.model.activity import Act, Activity
from shoal.model.gateway import GatewayAccess
from shoal.model.permissions import ToolRule
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask

LOGIN = "run `codex login`, or set CODEX_API_KEY"
AGAIN = "Reconnecting..."
NO_NETWORK = f"{AGAIN} waiting for network"
MOST_WAITS = 5
"""After a minute and a half; it would wait for ever. Other retries it counts itself."""
LIMITED = "429"
WAIT_SECONDS = 60.0
"""How long it waits for a network, or for a rate limit, of which it does not say more."""
MISSING = "Missing environment variable"
SILENT = ("reasoning", "todo_list")
MOST_CALLS = 1000


class CodexReader:
    """Reads `codex exec --json`."""

    def __init__(self) -> None:
        self._session: str | None = None
        self._end: Mapping[str, object] | None = None
        self._spent: dict[str, float] = {}
        self._open: set[str] = set()
        self._waits = 0
        self._trouble = ""

    @property
    def is_done(self) -> bool:
        """Whether its turn is over, while Codex still reports to its own hosts, or can never end."""
        return self._end is not None or self._waits >= MOST_WAITS

    @property
    def session(self) -> str | None:
        """Its thread, for `codex exec resume`."""
        return self._session

    @property
    def usage(self) -> Mapping[str, float]:
        """The tokens that it reported; Codex reports no prices."""
        return dict(self._spent)

    def read(self, line: str) -> Iterable[Activity]:
        """Turn one event into activities."""
        record = event(line) or {}
        match record:
            case {"type": "thread.started", "thread_id": str(thread)}:
                self._session = self._session or thread
                return [Activity(act=Act.BEGAN)]
            case {"type": "turn.started"}:
                self._end = None
            case {"type": "item.started" | "item.completed" as kind, "item": dict(item)}:
                return list(self._item(kind, words(item.get("type")), item))
            case {"type": "error", "message": message}:
                return [self._error(words(message))]
            case {"type": "turn.completed" | "turn.failed"}:
                self._end = record
                self._spend(record.get("usage"))
            case {"type": str()}:
                pass
            case _:
                return plain(line)
        return []

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Trust its last event: an error before a completed turn does not count."""
        match self._end:
            case None:
                why = describe_unfinished(self._trouble, last_line(errors))
            case {"type": "turn.completed"}:
                return None
            case {"error": {"message": message}}:
                why = words(message)
            case _:
                why = self._trouble or "its turn failed, and it did not say why"
        return explain_failure(why, LOGIN, is_login=MISSING in why)

    def _error(self, message: str) -> Activity:
        if not message.startswith(AGAIN):
            self._trouble = message
            return Activity(act=Act.TROUBLE, text=message)
        has_no_network = message.startswith(NO_NETWORK)
        if has_no_network:
            self._waits += 1
            self._trouble = message
        is_long = has_no_network or LIMITED in message
        return Activity(act=Act.RETRY, text=message, seconds=WAIT_SECONDS if is_long else 0)

    def _item(self, kind: str, what: str, item: Mapping[str, object]) -> Iterator[Activity]:
        self._waits = self._waits if what == "error" else 0
        is_over, call = kind == "item.completed", name(item.get("id"))
        match what:
            case "agent_message":
                if is_over:
                    yield Activity(act=Act.SAID, text=words(item.get("text")))
            case "error":
                yield Activity(act=Act.TROUBLE, text=words(item.get("message")))
            case _ if what not in SILENT:
                yield from self._call(call, what, item, is_over=is_over)

    def _call(self, call: str, what: str, item: Mapping[str, object], *, is_over: bool) -> Iterator[Activity]:
        """Report a tool call's start and end, even if Codex reports only one of them."""
        if call not in self._open:
            yield Activity(act=Act.TOOL, tool=_tool(what, item), text=_argument(item), call=call)
        if is_over:
            self._open.discard(call)
            yield Activity(act=Act.RESULT, text=_outcome(item), call=call, ok=_is_good(item))
        elif len(self._open) < MOST_CALLS:
            self._open.add(call)

    def _spend(self, used: object) -> None:
        if isinstance(used, dict):
            for key in ("input_tokens", "output_tokens"):
                self._spent[key] = self._spent.get(key, 0) + number(used.get(key))


def _tool(what: str, item: Mapping[str, object]) -> str:
    match what:
        case "command_execution":
            return "shell"
        case "file_change":
            return "apply_patch"
        case "mcp_tool_call":
            return f"{words(item.get('server'))}.{words(item.get('tool'))}"
        case _:
            return what


def _argument(item: Mapping[str, object]) -> str:
    match item:
        case {"command": command}:
            return words(command)
        case {"changes": changes}:
            return ", ".join(words(change.get("path")) for change in objects(changes))
        case {"query": query}:
            return words(query)
        case _:
            return argument(item.get("arguments"))


def _outcome(item: Mapping[str, object]) -> str:
    for key in ("aggregated_output", "error", "result"):
        if item.get(key):
            return words(item[key])
    return ""


def _is_good(item: Mapping[str, object]) -> bool:
    return item.get("status") in (None, "completed") and item.get("exit_code") in (None, 0)


CLIENT = Client(
    program="codex",
    install="npm install -g @openai/codex",
    login=LOGIN,
    oldest=(0, 150, 0),
    keys=("CODEX_API_KEY",),
    logins=(".codex/auth.json",),
    held_login="codex",
    upstreams=("openai",),
    conversations=(".codex/sessions",),
    knows=("model", "system prompt", "rules for commands", "usage", "retries"),
    heartbeat="codex_otel.log_only: ",
)
HUMMING = "error,codex_otel.log_only=info"
"""What it logs; it says nothing while its model speaks, but this gives a line for each piece that comes."""
SETTINGS = 'approval_policy = "never"\ncheck_for_update_on_startup = false\n'
TABLES = "[analytics]\nenabled = false\n[feedback]\nenabled = false\n"
CONFIG = ".codex/config.toml"
TOKEN = "SHOAL_GATEWAY_TOKEN"  # noqa: S105 - a variable's name
TABLE = "[model_providers.shoal]"
PROVIDER = (
    f'model_provider = "shoal"\n{TABLE}\nname = "Shoal"\nbase_url = {{url}}\nenv_key = {{variable}}\n'
    'wire_api = "responses"\nsupports_websockets = false\n'
)
NO_SHELL = "[features]\nshell_tool = false\nunified_exec = false\n"
TALK = (
    '[mcp_servers.shoal]\nurl = {url}\nbearer_token_env_var = "SHOAL_MCP_TOKEN"\nrequired = true\n'
    "tool_timeout_sec = 660\n"
)
"""The tools of an agent that may talk; Codex would begin before they are there, and stop a call after a minute."""
NO_SEARCH = 'web_search = "disabled"\n'
SHELL = ("Bash", "shell", "exec_command")
SEARCH = ("WebSearch", "web_search")
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:@+, ")
INSTEAD = "leave the rule out, or hold it by `writable` and `network`"


@dataclass(frozen=True, slots=True)
class Codex:
    """Run `codex exec` with the prompt on stdin; its own sandbox is off, because it is sandboxed by Shoal."""

    name: str = "codex"
    default_network: Network = Network.GATEWAY
    client: Client = CLIENT

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Pass the persona as developer instructions, in a settings file in its private home."""
        spec, rules = task.agent, tool_rules(task)
        if place.gateway is not None and any(word.startswith("model_provider") for word in spec.args):
            what = "a `model_provider` in the `args` of codex on `network: gateway`"
            remedy = "name the model in `gateway: {upstreams: {openai: {url: …}}}`, or use `network: host`"
            raise Unavailable(what, "its address cannot be reached from the sandbox", remedy)
        argv = [*(spec.command or (CLIENT.program,)), "exec", "--json", "--sandbox", "danger-full-access"]
        argv += ["--skip-git-repo-check", *(("--model", spec.model) if spec.model else ()), *spec.args]
        argv += ["-"] if place.conversation is None else ["resume", place.conversation, "-"]
        model = self.gateway_settings(place.gateway)
        provider = model.home.get(CONFIG, b"").decode()
        # Codex offers web search to every model, and the gateway refuses it unless granted.
        has_no_search = place.gateway is not None and not {*place.gateway.grants} & {*SEARCH}
        home = {CONFIG: _settings(task.system_prompt, rules, provider=provider, has_no_search=has_no_search)}
        if place.talk is not None:
            home[CONFIG] += TALK.format(url=_text(place.talk.url))
        if forbidden := "".join(_forbidden(rules.deny)):
            home[".codex/rules/shoal.rules"] = forbidden
        files = {path: text.encode(errors="replace") for path, text in home.items()}
        return Invocation(
            argv=tuple(argv), stdin=task.prompt.encode(), env={"RUST_LOG": HUMMING, **model.env}, home=files
        )

    def gateway_settings(self, access: GatewayAccess | None) -> GatewaySettings:
        """Describe the gateway as a provider, without WebSockets, which Codex would try first."""
        if access is None:
            return NO_SETTINGS
        url = f"{access.url_of('openai')}/v1"
        home = {CONFIG: PROVIDER.format(url=_text(url), variable=_text(TOKEN)).encode()}
        return GatewaySettings(env={TOKEN: access.token}, home=home)

    def reader(self) -> CodexReader:
        """Read its lines of JSON."""
        return CodexReader()


def _settings(system_prompt: str, rules: ToolRules, *, provider: str = "", has_no_search: bool = False) -> str:
    _assert_held(rules)
    named = {rule.tool for rule in rules.deny if rule.glob is None}
    parts = [SETTINGS]
    if has_no_search or rules.denies_all or named & set(SEARCH):
        parts.append(NO_SEARCH)
    if system_prompt.strip():
        parts.append(f"developer_instructions = {_text(system_prompt)}\n")
    parts[:0] = [provider.partition(TABLE)[0]]  # top-level keys must come before all tables
    parts.append("".join(provider.partition(TABLE)[1:]))
    parts.append(TABLES)
    if named & set(SHELL):
        parts.append(NO_SHELL)
    return "".join(parts)


def _assert_held(rules: ToolRules) -> None:
    """Refuse rules that Codex cannot enforce: it can forbid commands by their first words, and little else."""
    for rule in rules.allow or ():
        raise unheld("codex", rule, "it has no list of tools that may be used", f"use `deny`, {INSTEAD}")
    if rules.denies_all:
        rule = ToolRule.of(ANY)
        raise unheld("codex", rule, "it always has tools", INSTEAD)
    for rule in rules.deny:
        if rule.tool not in (*SHELL, *SEARCH) or (rule.tool in SEARCH and rule.glob is not None):
            raise unheld("codex", rule, "only commands and the search on the web can be denied it", INSTEAD)


def _forbidden(deny: Iterable[ToolRule]) -> Iterator[str]:
    """Write rules for commands; Codex checks the first words of each command in a line."""
    for rule in deny:
        if rule.tool in SHELL and rule.glob is not None:
            words = json.dumps(_split_glob(rule, rule.glob))
            yield f'prefix_rule(pattern={words}, decision="forbidden", justification="denied by {rule.tool} rule")\n'


def _split_glob(rule: ToolRule, glob: str) -> list[str]:
    """Return the words that a command may not begin with."""
    for ending in (":*", " *"):
        if glob.endswith(ending) and (stem := glob.removesuffix(ending)) and set(stem) <= PLAIN:
            return shlex.split(stem)
    raise unheld("codex", rule, "it knows commands by their first words only", "write it like `Bash(git push *)`")


def _text(words: str) -> str:
    """Quote a text for TOML, which differs from JSON in one character."""
    return json.dumps(words, ensure_ascii=False).replace("\x7f", "\\u007f")
