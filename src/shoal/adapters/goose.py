"""goose as an agent."""

import json
import platform
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shoal.adapters.client import Client
from shoal.adapters.events import (
    argument,
    describe_unfinished,
    event,
    explain_failure,
    name,
    number,
    objects,
    plain,
    words,
)
from shoal.adapters.gateway_settings import NO_SETTINGS, GatewaySettings
from shoal.adapters.kind import Invocation, SessionPaths
from shoal.adapters.tool_rules import ANY, ToolRules, client_tool_names, tool_rules, unheld
from shoal.errors import Unavailable
from shoal.model.activity import Act, Activity
from shoal.model.gateway import GatewayAccess
from shoal.model.permissions import ToolRule
from shoal.model.policy import Network
from shoal.model.resolved_task import ResolvedTask

LOGIN = "run `goose configure`, or set GOOSE_PROVIDER, GOOSE_MODEL and the provider's key"
UNKNOWN = "goose configure"
DECLINED = "The user has declined to run this tool"
MOST_CALLS = 1000
SESSION = "shoal"
"""The name of its session; each private home has only one."""
MOST_ASIDE = 1000
MOST_CHARS = 2**16


class GooseReader:
    """Reads `stream-json`, in which a message arrives word by word."""

    def __init__(self) -> None:
        self._is_done = False
        self._has_begun = False
        self._failure: str | None = None
        self._text = ""
        self._own_words = ""  # goose's own last message, unless the model said something after it
        self._tools: dict[str, str] = {}
        self._spent: dict[str, float] = {}
        self._aside = ""  # the end of its output outside events: why it could not even start

    @property
    def is_done(self) -> bool:
        """Whether it reported its end."""
        return self._is_done

    @property
    def session(self) -> str | None:
        """The name that we gave its session, once it exists."""
        return SESSION if self._has_begun else None

    @property
    def usage(self) -> Mapping[str, float]:
        """The usage that it reported, with a price if it knows one."""
        return dict(self._spent)

    def read(self, line: str) -> Iterable[Activity]:
        """Turn one event into activities."""
        record = event(line) or {}
        match record:
            case {"type": "message", "message": dict(message)}:
                self._has_begun = True
                return list(self._message(message))
            case {"type": "complete"}:
                self._is_done = True
                self._spend(record)
                return list(self._flush_text())
            case {"type": "error"}:
                self._is_done = True
                self._failure = words(record.get("error"))
                return [*self._flush_text(), Activity(act=Act.TROUBLE, text=self._failure)]
            case {"type": str()}:
                return []
            case _:
                self._aside = f"{self._aside} {line.strip()}"[-MOST_ASIDE:]
                return [*self._flush_text(), *plain(line)]

    def verdict(self, exit_code: int | None, errors: str) -> str | None:
        """Check its last message: goose reports a fatal error there, then completes and exits with 0."""
        why = (
            (self._failure or self._own_words)
            if self._is_done
            else describe_unfinished(self._own_words, errors, self._aside)
        )
        return explain_failure(why, LOGIN, is_login=UNKNOWN in why) if why else None

    def _message(self, message: Mapping[str, object]) -> Iterator[Activity]:
        is_models, is_agent = _is_models(message), message.get("role") == "assistant"
        for part in objects(message.get("content")):
            match part:
                case {"type": "text", "text": str(text)} if is_agent:
                    yield from self._piece(text) if is_models else self._own(text)
                case {"type": "systemNotification", "msg": text} | {"type": "error", "message": text}:
                    yield from self._own(words(text))
                case {"type": "toolRequest"}:
                    self._own_words = ""
                    yield from (*self._flush_text(), self._request(part))
                case {"type": "toolResponse"}:
                    yield from (*self._flush_text(), *self._response(part))

    def _piece(self, text: str) -> Iterator[Activity]:
        """Collect pieces of the model's text, and emit whole lines."""
        self._own_words = ""
        whole, newline, self._text = (self._text + text).rpartition("\n")
        if len(self._text) > MOST_CHARS:  # the line may never end
            whole, newline, self._text = f"{whole}{newline}{self._text}", "\n", ""
        if newline:
            yield Activity(act=Act.SAID, text=whole)

    def _own(self, text: str) -> Iterator[Activity]:
        self._own_words = text
        yield from (*self._flush_text(), Activity(act=Act.TROUBLE, text=text))

    def _flush_text(self) -> Iterator[Activity]:
        """Emit the rest of the model's text before something else."""
        text, self._text = self._text, ""
        if text.strip():
            yield Activity(act=Act.SAID, text=text)

    def _request(self, part: Mapping[str, object]) -> Activity:
        call = name(part.get("id"))
        match part.get("toolCall"):
            case {"value": {"name": str(tool)} as value}:
                if len(self._tools) < MOST_CALLS:
                    self._tools[call] = name(tool)
                return Activity(act=Act.TOOL, tool=tool, text=argument(value.get("arguments")), call=call)
            case {"error": error}:
                return Activity(act=Act.TROUBLE, text=words(error), call=call)
            case other:
                return Activity(act=Act.TROUBLE, text=words(other), call=call)

    def _response(self, part: Mapping[str, object]) -> Iterator[Activity]:
        call = name(part.get("id"))
        tool = self._tools.pop(call, "")
        match part.get("toolResult"):
            case {"value": {"content": parts} as value}:
                text = "\n".join(words(item.get("text")) for item in objects(parts))
                if text.startswith(DECLINED):
                    yield Activity(act=Act.DENIED, tool=tool, text="not permitted", call=call)
                yield Activity(act=Act.RESULT, text=text, call=call, ok=value.get("isError") is not True)
            case {"error": error}:
                yield Activity(act=Act.RESULT, text=words(error), call=call, ok=False)
            case other:
                yield Activity(act=Act.RESULT, text=words(other), call=call, ok=False)

    def _spend(self, record: Mapping[str, object]) -> None:
        self._spent = {key: number(record.get(key)) for key in ("input_tokens", "output_tokens")}
        if "cost_usd" in record:
            self._spent["cost_usd"] = number(record["cost_usd"])


def _is_models(message: Mapping[str, object]) -> bool:
    """Return whether a message came from the model: only then it says which one was asked."""
    match message.get("metadata"):
        case {"inference": dict()}:
            return True
        case _:
            return False


# Its npm package has the program under the name of the package.
PACKAGED = f"goose-binary-linux-{'arm64' if platform.machine() == 'aarch64' else 'x64'}"
CLIENT = Client(
    program="goose",
    install=f"npm install -g @aaif/{PACKAGED}",
    aliases=(PACKAGED,),
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
    upstreams=("openai", "anthropic", "gemini", "openrouter"),
    elsewhere={"GOOSE_PROVIDER": ("openai", "anthropic", "google", "openrouter")},
    settings_files=(".config/goose/config.yaml",),
    conversations=(".local/share/goose/sessions",),
    knows=("model", "temperature", "system prompt", "tool rules", "usage", "cost", "denials"),
)
QUIET = {
    "GOOSE_DISABLE_KEYRING": "1",
    "GOOSE_TELEMETRY_ENABLED": "false",
    "GOOSE_DISABLE_SESSION_NAMING": "true",  # it would ask the model for a title, and not count the tokens
}
PROVIDERS = {
    "openai": ("OPENAI_HOST", "OPENAI_API_KEY"),
    "anthropic": ("ANTHROPIC_HOST", "ANTHROPIC_API_KEY"),
    "gemini": ("GOOGLE_HOST", "GOOGLE_API_KEY"),
    "openrouter": ("OPENROUTER_HOST", "OPENROUTER_API_KEY"),
}
"""The variables by which it finds each model of the gateway."""
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
    default_network: Network = Network.GATEWAY
    client: Client = CLIENT

    def invocation(self, task: ResolvedTask, place: SessionPaths) -> Invocation:
        """Pass the persona in its system prompt, and rules as its permissions."""
        spec, rules = task.agent, tool_rules(task)
        argv = [*(spec.command or (CLIENT.program,)), "run", "--name", SESSION, "--quiet"]
        argv += ["--resume"] if place.conversation is not None else []
        argv += ["--output-format", "stream-json", "--with-builtin", "developer"]
        # with rules it gets only the tools that we know: using an unlisted one would end it
        argv += [*(("--no-profile",) if rules else ()), *(("--model", spec.model) if spec.model else ())]
        if place.talk is not None and not rules:
            argv += ["--with-extension", f"{place.talk.program} --stdio"]
        argv += [*_persona(task.system_prompt), *spec.args, "--instructions", "-"]
        env = {**QUIET, "GOOSE_MODE": "approve" if rules else "auto"}
        env.update(self.gateway_settings(place.gateway).env)
        if spec.temperature is not None:
            env["GOOSE_TEMPERATURE"] = f"{spec.temperature:g}"
        home = {".config/goose/permission.yaml": _permissions(rules)} if rules else {}
        return Invocation(argv=tuple(argv), stdin=task.prompt.encode(), env=env, home=home)

    def gateway_settings(self, access: GatewayAccess | None) -> GatewaySettings:
        """Set an address and a token for each provider; the user's settings choose one."""
        if access is None:
            return NO_SETTINGS
        env: dict[str, str] = {}
        for upstream, (address, key) in PROVIDERS.items():
            if upstream in access.formats:
                env |= {address: access.url_of(upstream), key: access.token}
        return GatewaySettings(env=env)

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
    """Write which of its tools it may use, as JSON, which is valid YAML."""
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
        found.update(TOOLS if rule.tool == ANY else client_tool_names("goose", rule, NAMES))
    return found
