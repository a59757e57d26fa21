"""The clients that `shoal mcp install` knows: the file of each, and what it says there."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

NAME = "shoal"
CALL_SECONDS = 3700
"""How long a call may take: longer than the longest `wait`."""
Environ = Mapping[str, str]
Entry = dict[str, Any]


class Form(Enum):
    """How a client writes its settings."""

    JSON = "json"
    TOML = "toml"
    YAML = "yaml"


@dataclass(frozen=True, slots=True, kw_only=True)
class McpClient:
    """A client, the file of its settings, and the servers in it."""

    title: str
    form: Form
    servers: str
    """The key under which the file lists its servers."""
    file: Callable[[Environ], Path]
    describe: Callable[[Sequence[str]], Entry]
    """Turn the words of our command into the client's entry."""


def find_home(environ: Environ) -> Path:
    """Return the home of the user."""
    return Path(environ.get("HOME") or Path.home())


def _in_home(*parts: str) -> Callable[[Environ], Path]:
    return lambda environ: find_home(environ).joinpath(*parts)


def _in_config(*parts: str) -> Callable[[Environ], Path]:
    def find(environ: Environ) -> Path:
        given = Path(environ.get("XDG_CONFIG_HOME") or "")
        return (given if given.is_absolute() else find_home(environ) / ".config").joinpath(*parts)

    return find


def _claude_file(environ: Environ) -> Path:
    return Path(environ.get("CLAUDE_CONFIG_DIR") or find_home(environ)) / ".claude.json"


def _codex_file(environ: Environ) -> Path:
    return Path(environ.get("CODEX_HOME") or find_home(environ) / ".codex") / "config.toml"


def _opencode_file(environ: Environ) -> Path:
    """Return the file that exists, for there are two names."""
    folder = _in_config("opencode")(environ)
    return next((file for name in ("opencode.jsonc",) if (file := folder / name).exists()), folder / "opencode.json")


def _plain(words: Sequence[str]) -> Entry:
    return {"command": words[0], "args": list(words[1:])}


def _goose(words: Sequence[str]) -> Entry:
    about = {"description": "Run agents in parallel, each in a sandbox", "enabled": True, "type": "stdio"}
    run = {"name": NAME, "cmd": words[0], "args": list(words[1:])}
    return {**about, **run, "envs": {}, "timeout": CALL_SECONDS}


def _opencode(words: Sequence[str]) -> Entry:
    return {"type": "local", "command": list(words), "enabled": True, "timeout": CALL_SECONDS * 1000}


CLIENTS: Mapping[str, McpClient] = {
    "claude": McpClient(
        title="Claude Code",
        form=Form.JSON,
        servers="mcpServers",
        file=_claude_file,
        describe=lambda words: {"type": "stdio", **_plain(words), "env": {}},
    ),
    "codex": McpClient(
        title="Codex",
        form=Form.TOML,
        servers="mcp_servers",
        file=_codex_file,
        describe=lambda words: {**_plain(words), "startup_timeout_sec": 60, "tool_timeout_sec": CALL_SECONDS},
    ),
    "gemini": McpClient(
        title="Gemini",
        form=Form.JSON,
        servers="mcpServers",
        file=_in_home(".gemini", "settings.json"),
        describe=lambda words: {**_plain(words), "timeout": CALL_SECONDS * 1000},
    ),
    "goose": McpClient(
        title="goose", form=Form.YAML, servers="extensions", file=_in_config("goose", "config.yaml"), describe=_goose
    ),
    "opencode": McpClient(title="opencode", form=Form.JSON, servers="mcp", file=_opencode_file, describe=_opencode),
    "copilot": McpClient(
        title="Copilot CLI",
        form=Form.JSON,
        servers="mcpServers",
        file=_in_home(".copilot", "mcp-config.json"),
        describe=lambda words: {"type": "local", **_plain(words), "tools": ["*"]},
    ),
    "cursor": McpClient(
        title="Cursor", form=Form.JSON, servers="mcpServers", file=_in_home(".cursor", "mcp.json"), describe=_plain
    ),
}
