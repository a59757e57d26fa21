"""aider, driven without a terminal: the prompt from a file, the persona as a file that it reads along."""

from collections.abc import Iterator
from dataclasses import dataclass

from shoal.adapters.aider_events import LOGIN, AiderReader
from shoal.adapters.client import Client
from shoal.adapters.kind import Invocation, Place
from shoal.adapters.tool_patterns import ANY, unheld
from shoal.adapters.tool_rules import ToolRules, tool_rules
from shoal.errors import Unavailable
from shoal.model.assignment import Assignment
from shoal.model.policy import Network

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
    litter=(".aider.tags.cache.v*",),
    knows=("model", "usage", "cost", "retries"),
)
ENVIRONMENT = {
    "COLUMNS": "1000",  # it breaks its lines there
    "PYTHONUNBUFFERED": "1",  # its log goes where its words go, and must not land within one
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
    "--no-auto-commits",  # sealing commits; a message by a model would cost, and not be told
)
PROMPT = ".aider.prompt.md"
ITS_OWN = ("Read", "Write", "Edit", ANY)
"""What it does whatever it is told; it has none of the other tools."""
HABIT = "it reads and edits files by itself, without tools"


@dataclass(frozen=True, slots=True)
class Aider:
    """Run `aider` for one message; it edits by text and has no tools, and its log tells how it went."""

    name: str = "aider"
    default_network: Network = Network.HOST
    client: Client = CLIENT

    def invocation(self, task: Assignment, place: Place) -> Invocation:
        """Keep all that it writes for itself in its private home."""
        return Invocation(
            argv=(*(task.agent.command or (CLIENT.program,)), *_arguments(task, place), *task.agent.args),
            stdin=b"",
            env=ENVIRONMENT,
            home={PROMPT: _words(task.prompt).encode(errors="replace")},
        )

    def reader(self) -> AiderReader:
        """Read its words, and the log that stands between them."""
        return AiderReader()


def _arguments(task: Assignment, place: Place) -> Iterator[str]:
    yield from QUIET
    yield from ("--analytics-log", "/dev/stdout")
    for history in ("input", "chat", "llm"):
        yield from (f"--{history}-history-file", str(place.home / f".aider.{history}.history"))
    if task.agent.model:
        yield from ("--model", task.agent.model)
    if task.system_prompt.strip():
        yield from ("--read", str(place.system_prompt_file))
    if rules := tool_rules(task):
        _assert_held(rules)
        yield from ("--no-auto-lint", "--no-auto-test")  # a project can name commands for them
    yield from ("--message-file", str(place.home / PROMPT))


def _words(prompt: str) -> str:
    """Keep a prompt from being taken for a command: aider runs `/run …` and `!…`."""
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
