"""Agent clients that people have installed, and how each is run as a plain command; see also `shoal doctor`."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A program that is an agent; *command* takes the prompt on stdin, where that is known to work.

    Its home is a private one, so what it has to know of you must come from the environment: *keys*.
    """

    name: str
    command: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)

    def can_run(self, environ: Mapping[str, str]) -> bool:
        """Say whether all is there that it needs to run as a command."""
        return bool(self.command) and all(environ.get(key) for key in self.keys)


CLIENTS = (
    Client(
        name="claude",
        command=("claude", "-p", "--permission-mode", "acceptEdits"),
        keys=("ANTHROPIC_API_KEY",),
        settings={"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1"},
    ),
    # its own sandbox is off, for it stands behind Shoal's wall
    Client(name="codex", command=("codex", "exec", "--sandbox", "danger-full-access", "-"), keys=("CODEX_API_KEY",)),
    Client(
        name="goose",
        command=("goose", "run", "--no-session", "--quiet", "--with-builtin", "developer", "-i", "-"),
        keys=("GOOSE_PROVIDER", "GOOSE_MODEL", "OPENAI_API_KEY"),
        settings={"GOOSE_MODE": "auto", "GOOSE_DISABLE_KEYRING": "1"},
    ),
    # these need files in their home, or take no prompt on stdin: they wait for adapters of their own
    Client(name="gemini"),
    Client(name="opencode"),
    Client(name="copilot"),
    Client(name="aider"),
)


def installed(environ: Mapping[str, str]) -> tuple[Client, ...]:
    """Find the clients on the PATH of *environ*."""
    path = environ.get("PATH", "")
    return tuple(client for client in CLIENTS if shutil.which(client.name, path=path))
