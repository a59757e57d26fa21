"""`shoal agents`: which clients are installed, and what each still needs."""

import itertools
import json
from pathlib import Path

import pytest

from shoal.adapters.claude import CLIENT
from tests.cli.conftest import Shoal


@pytest.fixture
def bin_(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def put(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def listed(shoal: Shoal, bin_: Path, *words: str, **env: str) -> dict[str, dict[str, object]]:
    env = {"HOME": str(bin_.parent), "ANTHROPIC_API_KEY": "", "CODEX_API_KEY": "", "OPENAI_API_KEY": ""} | env
    said = shoal("agents", "--json", *words, PATH=f"{bin_}:/usr/bin:/bin", **env)
    assert said.code == 0, said.err
    return {one["agent"]: one for one in json.loads(said.out)["agents"]}


def test_a_client_that_is_here_is_tried_behind_the_wall(shoal: Shoal, bin_: Path) -> None:
    put(bin_, "claude", "echo 2.1.325 from $HOME")

    claude = listed(shoal, bin_, ANTHROPIC_API_KEY="a-key")["claude"]

    assert (claude["ready"], claude["version"], claude["login"]) == (True, "2.1.325", "$ANTHROPIC_API_KEY")
    assert (claude["path"], claude["trouble"]) == (str(bin_ / "claude"), None)


def test_one_that_does_not_run_there_says_so(shoal: Shoal, bin_: Path) -> None:
    (bin_.parent / "needed").write_text("x")
    put(bin_, "claude", f"cat {bin_.parent / 'needed'} >/dev/null && echo 2.1.325")

    claude = listed(shoal, bin_, ANTHROPIC_API_KEY="a-key")["claude"]

    assert not claude["ready"]
    assert "does not run in the sandbox" in str(claude["trouble"])


def test_what_is_missing_is_named_with_what_to_run(shoal: Shoal, bin_: Path) -> None:
    put(bin_, "claude", "echo 1.0.9")
    put(bin_, "codex", "echo codex-cli 0.166.0")
    said = shoal("agents", "--quick", PATH=f"{bin_}:/usr/bin:/bin", HOME=str(bin_.parent), CODEX_API_KEY="")
    lines = said.out.splitlines()
    below = {line.partition(" ")[0]: after.strip() for line, after in itertools.pairwise(lines)}

    assert below["claude"].startswith(f"older than {'.'.join(map(str, CLIENT.oldest))}: npm install")
    assert below["codex"].startswith("no login: run `codex login`")
    assert below["gemini"].startswith("not installed: npm install")


def test_a_login_file_is_a_login(shoal: Shoal, bin_: Path) -> None:
    put(bin_, "claude", "echo 2.1.325")
    (bin_.parent / ".claude").mkdir()
    (bin_.parent / ".claude" / ".credentials.json").write_text("{}")

    assert listed(shoal, bin_, "--quick")["claude"]["login"] == "~/.claude/.credentials.json"


def test_a_client_with_only_a_login_says_how_to_run_it(shoal: Shoal, bin_: Path) -> None:
    put(bin_, "claude", "echo 2.1.325")
    (bin_.parent / ".claude").mkdir()
    (bin_.parent / ".claude" / ".credentials.json").write_text("{}")

    said = shoal("agents", "--quick", PATH=f"{bin_}:/usr/bin:/bin", HOME=str(bin_.parent), ANTHROPIC_API_KEY="")

    assert "a login without an API key: run it with `--login claude`, or set a key" in said.out
