"""Logins in private homes: copied, masked, and copied back only as newer tokens of the same login, on request."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Shoal

OLD = {
    "claudeAiOauth": {"accessToken": "old-access-token", "refreshToken": "old-refresh", "expiresAt": 100, "plan": "x"}
}
FILE = ".claude/.credentials.json"
CLIENT = """#!/bin/sh
[ "$1" = --version ] && { echo "2.1.325 (Claude Code)"; exit; }
cat "$HOME/.claude/.credentials.json"
echo
NEW
echo '{"type": "result", "subtype": "success", "is_error": false, "result": "done"}'
"""


def renewed(**fields: object) -> str:
    new = {"claudeAiOauth": {**OLD["claudeAiOauth"], "accessToken": "new", "expiresAt": 200, **fields}}
    return f"cat > \"$HOME/.claude/.credentials.json\" <<'X'\n{json.dumps(new)}\nX"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    file = tmp_path / "home" / FILE
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(OLD))
    file.chmod(0o600)
    return tmp_path / "home"


def run(shoal: Shoal, home: Path, does: str, agent: str = "") -> str:
    """Run a client that *does* something with its login, and give its log."""
    program = home.parent / "bin" / "claude"
    program.parent.mkdir()
    program.write_text(CLIENT.replace("NEW", does))
    program.chmod(0o755)
    text = f"agents: {{c: {{adapter: claude, network: host{agent}}}}}\nsteps: [{{name: a, agent: c, prompt: go}}]\n"
    (home.parent / "repo" / "shoal.yaml").write_text(text)
    said = shoal("run", HOME=str(home), PATH=f"{program.parent}:/usr/bin:/bin", ANTHROPIC_API_KEY="")
    assert said.code == 0, said.err
    return shoal("logs").out


def kept(home: Path) -> object:
    return json.loads((home / FILE).read_text())


def test_a_login_is_there_and_never_seen(shoal: Shoal, repo: Path, home: Path) -> None:
    log = run(shoal, home, "true")

    assert "accessToken" in log
    assert "old-access-token" not in log
    assert kept(home) == OLD


def test_a_renewed_login_stays_in_the_box_and_that_is_said(shoal: Shoal, repo: Path, home: Path) -> None:
    log = run(shoal, home, renewed())

    assert "renewed its login" in log
    assert "refresh_login: true" in log
    assert kept(home) == OLD


def test_a_renewed_login_comes_back_where_that_is_asked_for(shoal: Shoal, repo: Path, home: Path) -> None:
    log = run(shoal, home, renewed(), ", refresh_login: true")

    assert "renewed its login" not in log
    assert kept(home) == {"claudeAiOauth": {**OLD["claudeAiOauth"], "accessToken": "new", "expiresAt": 200}}
    assert (home / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "does",
    [
        renewed(plan="another account"),
        "echo nonsense > $HOME/.claude/.credentials.json",
        "rm $HOME/.claude/.credentials.json; ln -s /etc/hostname $HOME/.claude/.credentials.json",
        "rm -r $HOME/.claude; ln -s / $HOME/.claude",
    ],
)
def test_what_is_no_renewal_never_comes_back(shoal: Shoal, repo: Path, home: Path, does: str) -> None:
    run(shoal, home, does, ", refresh_login: true")

    assert kept(home) == OLD
