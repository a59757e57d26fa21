"""`shoal mcp install`: the settings of a client get our entry, and keep all the rest."""

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from shoal.mcp.clients import CLIENTS
from tests.cli.conftest import Shoal

FILES = {
    "claude": ".claude.json",
    "codex": ".codex/config.toml",
    "gemini": ".gemini/settings.json",
    "goose": ".config/goose/config.yaml",
    "opencode": ".config/opencode/opencode.json",
    "copilot": ".copilot/mcp-config.json",
    "cursor": ".cursor/mcp.json",
}
JSON = '{\n    "theme": "dark",\n    "mcpServers": {\n        "other": {\n            "command": "o"\n        }\n    }\n}\n'
TOML = """\
# my settings
model = "gpt-5"  # the best

[mcp_servers.shoal]
command = "/old/shoal"
[mcp_servers.shoal.env]
KEEP = "this"

# about the other
[mcp_servers.other]
command = "o"
note = '''
[mcp_servers.no-header]
'''
"""
YAML_TEXT = """\
# my settings
GOOSE_PROVIDER: openai  # the best
extensions:
  developer:
    enabled: true
    type: 'builtin'
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home without settings."""
    return tmp_path / "home of a user"


def env(home: Path) -> dict[str, str]:
    return {"HOME": str(home), "XDG_CONFIG_HOME": "", "CODEX_HOME": "", "CLAUDE_CONFIG_DIR": ""}


def server(home: Path, client: str) -> Any:  # noqa: ANN401 - what a client writes
    """Read back what the file says of us."""
    text, key = (home / FILES[client]).read_text(), CLIENTS[client].servers
    found = tomllib.loads(text) if client == "codex" else YAML(typ="safe").load(text)
    return found[key]["shoal"]


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_without_settings_gets_them_and_loses_them_again(shoal: Shoal, home: Path, client: str) -> None:
    assert shoal("mcp", "install", client, **env(home)).code == 0

    entry = server(home, client)
    words = entry["command"] if client == "opencode" else [entry.get("cmd") or entry["command"], *entry["args"]]
    assert words[-1] == "mcp"
    assert os.access(words[0], os.X_OK)
    assert (home / FILES[client]).stat().st_mode & 0o777 == 0o600
    again = shoal("mcp", "install", client, **env(home))
    assert "needs no change" in again.out
    assert shoal("mcp", "uninstall", client, **env(home)).code == 0
    assert "shoal" not in (home / FILES[client]).read_text()


def test_what_is_in_json_stays_with_its_rights_and_its_indent(shoal: Shoal, home: Path) -> None:
    file = home / ".claude.json"
    home.mkdir()
    file.write_text(JSON)
    file.chmod(0o640)

    shoal("mcp", "install", "claude", **env(home))
    added = json.loads(file.read_text())
    shoal("mcp", "uninstall", "claude", **env(home))

    assert list(added["mcpServers"]) == ["other", "shoal"]
    assert added["theme"] == "dark"
    assert file.read_text() == JSON
    assert file.stat().st_mode & 0o777 == 0o640


def test_what_is_in_toml_stays_with_its_comments(shoal: Shoal, home: Path) -> None:
    file = home / ".codex" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(TOML)

    shoal("mcp", "install", "codex", **env(home))
    once = file.read_text()
    shoal("mcp", "install", "codex", **env(home))

    assert file.read_text() == once
    assert server(home, "codex")["env"] == {"KEEP": "this"}
    assert server(home, "codex")["command"] != "/old/shoal"
    assert "# about the other\n[mcp_servers.other]" in once
    assert "# the best" in once
    assert tomllib.loads(once)["mcp_servers"]["other"] == tomllib.loads(TOML)["mcp_servers"]["other"]


def test_what_is_in_yaml_stays_with_its_comments(shoal: Shoal, home: Path) -> None:
    file = home / FILES["goose"]
    file.parent.mkdir(parents=True)
    file.write_text(YAML_TEXT)

    shoal("mcp", "install", "goose", **env(home))
    added = file.read_text()
    shoal("mcp", "uninstall", "goose", **env(home))

    assert added.startswith(YAML_TEXT)
    assert "timeout: 3700" in added
    assert file.read_text() == YAML_TEXT


@pytest.mark.parametrize(
    ("client", "text", "words"),
    [
        ("claude", "{ // mine\n}", "no plain JSON"),
        ("claude", '{"a": 1, "a": 2}', "a key is there twice"),
        ("claude", '{"mcpServers": []}', "`mcpServers` is no object"),
        ("cursor", "[]", "is no object"),
        ("codex", "a = ", "is no TOML"),
        ("codex", "mcp_servers = {}\n", "form that cannot be changed"),
        ("codex", "x = '''\n[mcp_servers.shoal]\n'''\n", "cannot be changed"),
        ("goose", "a: [", "is no YAML"),
        ("goose", "extensions: 3", "`extensions` is no map"),
        ("goose", "a: &b [*b]\na: 2", "is no YAML"),
    ],
)
def test_settings_that_cannot_be_changed_safely_stay_as_they_are(
    shoal: Shoal, home: Path, client: str, text: str, words: str
) -> None:
    file = home / FILES[client]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)

    said = shoal("mcp", "install", client, **env(home))

    assert said.code == 2, said
    assert words in said.err
    assert "'shoal': {" in said.err  # what to add by hand
    assert file.read_text() == text


def test_nothing_is_written_by_print_or_when_one_of_several_cannot_be(shoal: Shoal, home: Path) -> None:
    shown = shoal("mcp", "install", "claude", "codex", "--print", **env(home))
    assert not home.exists()
    assert '"mcpServers"' in shown.out
    assert "[mcp_servers.shoal]" in shown.out

    (home / ".codex").mkdir(parents=True)
    (home / FILES["codex"]).write_text("a = ")
    refused = shoal("mcp", "install", "claude", "codex", **env(home))

    assert refused.code == 2
    assert not (home / FILES["claude"]).exists()


def test_a_link_to_the_settings_stays_one(shoal: Shoal, home: Path, tmp_path: Path) -> None:
    home.mkdir()
    kept = tmp_path / "dotfiles.json"
    kept.write_text("{}")
    (home / ".claude.json").symlink_to(kept)

    shoal("mcp", "install", "claude", **env(home))

    assert (home / ".claude.json").is_symlink()
    assert "shoal" in kept.read_text()


def test_the_entry_can_name_a_repository(shoal: Shoal, home: Path, repo: Path) -> None:
    shoal("mcp", "install", "cursor", "--repo", str(repo), **env(home))

    assert server(home, "cursor")["args"][-3:] == ["mcp", "--repo", str(repo)]


@pytest.mark.parametrize("words", [("install",), ("install", "codx"), ("claude",), ("install", "claude", "--http")])
def test_mistakes_are_refused(shoal: Shoal, home: Path, words: tuple[str, ...]) -> None:
    assert shoal("mcp", *words, **env(home)).code == 2
    assert not home.exists()
