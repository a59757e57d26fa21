"""A client that is missing, too old or not logged in: one line with what to run, exit code 5, and nothing is created."""

from pathlib import Path

import pytest

from shoal.adapters.goose import PACKAGED
from tests.cli import warm
from tests.cli.conftest import Shoal
from tests.cli.warm import Said

SYSTEM = "/usr/bin:/bin"
CLIENTS = {
    "claude": ("ANTHROPIC_API_KEY", "2.1.325 (Claude Code)", "npm install -g @anthropic-ai/claude-code"),
    "codex": ("CODEX_API_KEY", "codex-cli 0.166.0", "npm install -g @openai/codex"),
    "goose": ("OPENAI_API_KEY", " 1.52.0", "npm install -g @aaif/goose-binary-linux-x64"),
}
EACH = pytest.mark.parametrize("name", CLIENTS)


def asked(repo: Path, name: str, path: str, *words: str, **env: str) -> Said:
    home = repo.parent / "home"
    home.mkdir(exist_ok=True)
    environ = {"PATH": path, "HOME": str(home), "NO_COLOR": "1", **env}
    return warm.ran(("run", "--task", "x", "--agent", name, *words), cwd=repo, env=environ, timeout=60)


def program(folder: Path, name: str, says: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text(f"#!/bin/sh\necho '{says}'\n")
    file.chmod(0o755)
    return f"{folder}:{SYSTEM}"


def assert_refused(repo: Path, said: Said, *words: str) -> None:
    assert said.code == 5, said.err
    lines = [line for line in said.err.splitlines() if line.strip()]
    assert len(lines) == 1, said.err
    assert all(word in lines[0] for word in words), lines
    assert not (repo / ".shoal").exists()


@EACH
def test_a_client_that_is_missing_is_told_with_how_it_is_installed(repo: Path, name: str) -> None:
    key, _, install = CLIENTS[name]

    said = asked(repo, name, SYSTEM, **{key: "k"})

    assert_refused(repo, said, f"{name!r} is not on PATH", install)


def test_gooses_own_package_is_found_under_the_name_that_it_installs(repo: Path, tmp_path: Path) -> None:
    path = program(tmp_path / "bin", PACKAGED, " 1.52.0")

    said = asked(repo, "goose", path, OPENAI_API_KEY="k")

    assert said.code == 1, "it ran, and is no goose"
    assert "1.52.0" in said.out + said.err or "goose" in said.out


@EACH
def test_a_client_that_is_too_old_is_told_with_its_version(repo: Path, tmp_path: Path, name: str) -> None:
    key, _, install = CLIENTS[name]

    said = asked(repo, name, program(tmp_path / "bin", name, f"{name} 0.0.9"), **{key: "k"})

    assert_refused(repo, said, "is 0.0.9", "at least", install)


@EACH
def test_a_client_without_a_login_is_told_with_how_to_log_in(repo: Path, tmp_path: Path, name: str) -> None:
    key, version, _ = CLIENTS[name]

    said = asked(repo, name, program(tmp_path / "bin", name, version))

    assert_refused(repo, said, "it is not logged in on this host", "run `", "configure" if name == "goose" else key)


@EACH
def test_a_login_file_is_for_the_hosts_network_and_lies_in_the_private_home(
    repo: Path, tmp_path: Path, name: str
) -> None:
    files = {"claude": ".claude/.credentials.json", "codex": ".codex/auth.json", "goose": ".config/goose/config.yaml"}
    login = repo.parent / "home" / files[name]
    login.parent.mkdir(parents=True)
    login.write_text("the login of the user")
    path = program(tmp_path / "bin", name, f'1000.1.0\'; [ "$1" = --version ] || cat "$HOME/{files[name]}"; : \'')

    refused = asked(repo, name, path)
    assert_refused(repo, refused, files[name], "only a login", "use `--network host`")
    said = asked(repo, name, path, "--network", "host")

    assert said.code == 1, said.err  # the program is no agent, but it was let in
    assert "it ended before it was done" in said.out
    assert "the login of the user" in warm.ran(("logs",), cwd=repo, env={"PATH": SYSTEM}, timeout=60).out


def test_a_version_that_nobody_can_tell_is_let_in(repo: Path, tmp_path: Path) -> None:
    said = asked(repo, "claude", program(tmp_path / "bin", "claude", "no number"), ANTHROPIC_API_KEY="k")

    assert said.code == 1, said.err
    assert "it ended before it was done" in said.out


@EACH
def test_a_rule_that_a_client_cannot_keep_is_refused_before_anything_is_made(
    repo: Path, tmp_path: Path, name: str
) -> None:
    key, version, _ = CLIENTS[name]
    (repo / "shoal.yaml").write_text(
        f"personas: {{p: {{agent: {name}, permissions: {{deny: ['Ba*']}}}}}}\n"
        "steps: [{name: w, persona: p, prompt: x}]\n"
    )
    path = program(tmp_path / "bin", name, version)
    environ = {"PATH": path, "HOME": str(tmp_path), "NO_COLOR": "1", key: "k"}

    said = warm.ran(("run", "shoal.yaml"), cwd=repo, env=environ, timeout=60)

    assert_refused(repo, said, "'Ba*'", name)


def test_a_client_that_is_misspelt_is_told_with_the_nearest(shoal: Shoal) -> None:
    said = shoal("run", "--task", "x", "--agent", "cluade")

    assert (said.code, "did you mean 'claude'?" in said.err) == (2, True)


@pytest.mark.parametrize(("login", "name"), [("claude", "claude"), ("codex", "codex")])
def test_a_login_that_is_not_there_or_damaged_is_refused_before_the_run(
    repo: Path, tmp_path: Path, login: str, name: str
) -> None:
    path = program(tmp_path / "bin", name, "1000.1.0")

    assert_refused(repo, asked(repo, name, path, "--login", login), "there is no login at", f"log in with `{login}`")


def test_an_unknown_login_is_bad_input(repo: Path, tmp_path: Path) -> None:
    said = asked(repo, "claude", program(tmp_path / "bin", "claude", "1000.1.0"), "--login", "claud")

    assert said.code == 2
    assert "did you mean 'claude'" in said.err
