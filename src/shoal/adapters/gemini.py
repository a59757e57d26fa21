"""Gemini CLI, driven without a terminal: the prompt on stdin, the persona as its memory, the rules as its policy."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shoal.adapters.client import Client
from shoal.adapters.gemini_events import GeminiReader
from shoal.adapters.gemini_policy import policy
from shoal.adapters.kind import Invocation, Place
from shoal.model.assignment import Assignment
from shoal.model.policy import Network

LOGIN = "run `gemini` once and log in there, or set GEMINI_API_KEY"
CLIENT = Client(
    program="gemini",
    install="npm install -g @google/gemini-cli",
    login=LOGIN,
    oldest=(0, 61, 0),  # how a policy's patterns see a call is known of no older one
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
    knows=("model", "system prompt", "tool rules", "usage", "session"),
)
ENVIRONMENT = {
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
    "GEMINI_TELEMETRY_ENABLED": "false",
    "GEMINI_SANDBOX": "false",  # it stands behind a wall already
}


@dataclass(frozen=True, slots=True)
class Gemini:
    """Run `gemini` for one turn; its own settings are the user's, for they say how he logs in."""

    name: str = "gemini"
    default_network: Network = Network.HOST
    client: Client = CLIENT

    def invocation(self, task: Assignment, place: Place) -> Invocation:
        """Hand the prompt over on stdin; nobody is there to approve, so what no rule forbids is allowed."""
        return Invocation(
            argv=(*(task.agent.command or (CLIENT.program,)), *_arguments(task), *task.agent.args),
            stdin=task.prompt.encode(errors="replace"),
            env=ENVIRONMENT,
            home=dict(_files(task, place.workspace)),
        )

    def reader(self) -> GeminiReader:
        """Read its stream of JSON."""
        return GeminiReader(LOGIN)


def _arguments(task: Assignment) -> Iterator[str]:
    yield from ("--output-format", "stream-json", "--approval-mode", "yolo")
    if task.agent.model:
        yield from ("--model", task.agent.model)


def _files(task: Assignment, workspace: Path) -> Iterator[tuple[str, bytes]]:
    if task.system_prompt:
        yield ".gemini/GEMINI.md", task.system_prompt.encode(errors="replace")
    if rules := policy(task.permitted, workspace):
        yield ".gemini/policies/shoal.toml", rules.encode()
