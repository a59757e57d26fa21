"""Claude Code and Codex with only a login, on the gateway: it works, is renewed on the host, and never enters."""

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from shoal.testing.model import ModelServer
from tests.cli import warm
from tests.clients.conftest import MakeScene
from tests.clients.real import CLAUDE, CODEX, Real, Scene, workers
from tests.conftest import git
from tests.gateway.login_server import ACCOUNT, LoginServer

both = pytest.mark.parametrize("real", [CLAUDE, CODEX], ids=lambda real: real.name)

# The words are apart, so that the look does not find itself.
LOOK = """(env; cat /proc/*/environ /proc/*/cmdline; grep -rs "real-""access\\|real-""refresh" "$HOME" /tmp . ) > seen 2>&1; true"""


@pytest.fixture
def login(model: ModelServer) -> Iterator[LoginServer]:
    with LoginServer(model) as server:
        yield server


def write(here: Scene, login: LoginServer, prompt: str, **gateway: object) -> dict[str, Path]:
    """Log the user in, and describe a run whose provider is on loopback."""
    here.write([{"name": "w", "prompt": prompt}])
    document = json.loads((here.repo / "shoal.yaml").read_text())
    addresses = {"url": login.url, "token_url": login.token_url}
    name = {"claude": "anthropic", "codex": "openai"}[here.real.name]
    document["gateway"] = {"upstreams": {name: addresses}, **gateway}
    (here.repo / "shoal.yaml").write_text(json.dumps(document))
    home = Path(here.environ()["HOME"])
    return login.write(home)


def without_key(here: Scene) -> dict[str, str]:
    return {
        name: text for name, text in here.environ().items() if not text.startswith("dummy-key-of") and "URL" not in name
    }


def run(here: Scene, *words: str) -> warm.Said:
    return warm.ran(("run", "shoal.yaml", "--json", *words), cwd=here.repo, env=without_key(here), timeout=90)


@both
def test_a_turn_with_a_login_that_expires_in_the_middle(scene: MakeScene, login: LoginServer, real: Real) -> None:
    here = scene(real)
    look = quote(LOOK, safe="")
    files = write(here, login, f"[[s:shell cmd={look}]]", logins=[real.name])
    login.lasts = 1

    said = run(here)

    worker = workers(json.loads(said.out))["w"]
    assert worker["status"] == "succeeded", (worker, login.headers[-1:])
    assert login.renewals >= 1
    assert login.reused == 0
    seen = git(here.repo, "show", f"{worker['branch']}:seen")
    assert "real-access" not in seen
    assert "real-refresh" not in seen
    assert "127.0.0.1:9917" in seen or "SHOAL_GATEWAY" in seen
    state = [path for path in (here.repo / ".shoal").rglob("*") if path.is_file()]
    assert not [
        path for path in state if b"real-access" in (content := path.read_bytes()) or b"real-refresh" in content
    ]
    assert login.refresh in files[real.name].read_text()
    asked = login.headers[-1]
    if real is CLAUDE:
        assert "oauth-2025-04-20" in asked["anthropic-beta"]
    else:
        assert asked["chatgpt-account-id"] == ACCOUNT


@both
def test_a_login_is_named_on_the_command_line_and_the_refusal_says_so(
    scene: MakeScene, login: LoginServer, real: Real
) -> None:
    here = scene(real)
    write(here, login, "Say hello.")

    accepted = run(here, "--login", real.name)
    here.write([{"name": "w", "prompt": "Say hello."}])
    refused = run(here)

    assert refused.code == 5
    assert f"--login {real.name}" in refused.err
    assert "--network host" in refused.err
    assert workers(json.loads(accepted.out))["w"]["status"] == "no_changes", accepted.out


@both
def test_a_login_that_has_ended_ends_the_session_with_a_word_on_what_to_do(
    scene: MakeScene, login: LoginServer, real: Real
) -> None:
    here = scene(real)
    write(here, login, "Say hello.", logins=[real.name])
    login.serial, login.is_open = 7, False

    said = run(here)

    worker = workers(json.loads(said.out))["w"]
    assert worker["status"] == "failed", worker
    assert f"log in again with `{real.name}`" in worker["error"]


def test_a_token_of_claude_setup_token_is_sent_as_a_login(scene: MakeScene, login: LoginServer) -> None:
    here = scene(CLAUDE)
    write(here, login, f"[[s:shell cmd={quote(LOOK, safe='')}]]")
    env = {**without_key(here), "CLAUDE_CODE_OAUTH_TOKEN": login.access}

    said = warm.ran(("run", "shoal.yaml", "--json"), cwd=here.repo, env=env, timeout=90)

    worker = workers(json.loads(said.out))["w"]
    assert worker["status"] == "succeeded", worker
    assert "oauth-2025-04-20" in login.headers[-1]["anthropic-beta"]
    assert "real-access" not in git(here.repo, "show", f"{worker['branch']}:seen")


@pytest.mark.deep
def test_a_recorded_run_with_a_login_is_replayed_without_it(scene: MakeScene, login: LoginServer) -> None:
    here = scene(CLAUDE)
    files = write(here, login, "[[s:both file=mine.txt]]", logins=["claude"])

    first = run(here, "--record")
    files["claude"].unlink()
    login.serial = 900
    again = warm.ran(("replay",), cwd=here.repo, env=without_key(here), timeout=90)

    assert workers(json.loads(first.out))["w"]["status"] == "succeeded"
    assert again.code == 0, again.out + again.err
    assert "are the same" in again.err
