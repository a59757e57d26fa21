"""`shoal init`: the file that it writes is valid, and runs as it is."""

import json
import re
from pathlib import Path

import jsonschema_rs

from shoal.adapters.client import this_host
from shoal.adapters.registry import adapter
from shoal.cli.init import starter
from shoal.model.agent import CLIENTS
from shoal.pipeline.load import parse
from shoal.pipeline.plan import plan
from shoal.pipeline.tree import plain
from shoal.pipeline.yaml_reader import compose
from shoal.sessions.clients import ClientStatus, FoundClient
from tests.cli.conftest import Shoal, shoal_in
from tests.conftest import git

ANSWERS = """[ "$1" = --version ] && { echo "2.1.325 (Claude Code)"; exit; }
head -n 1 > asked.txt
echo '{"type": "result", "subtype": "success", "is_error": false, "result": "done"}'
"""


def client(folder: Path, name: str, script: str = "cat > asked.txt\n") -> str:
    """Put a program called *name* where the command finds it, and return the PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}")
    (folder / name).chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def test_what_it_writes_is_right_and_runs(shoal: Shoal, repo: Path) -> None:
    written = shoal("init", PATH="/usr/bin:/bin")

    assert written.code == 0, written.err
    assert [line[:2] for line in written.out.splitlines()[-3:]] == ["1.", "2.", "3."]
    assert shoal("validate", "shoal.yaml").code == 0
    ran = shoal("run", "--json")
    assert ran.code == 0, ran.err
    assert [step["status"] for step in json.loads(ran.out)["steps"]] == ["succeeded", "succeeded"]


def test_without_a_commit_it_says_that_a_run_wants_one(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    shoal = shoal_in(tmp_path)

    said = shoal("init")
    refused = shoal("run")
    for words in re.findall(r"`git ([^`]+)`", said.out.splitlines()[-1]):
        git(tmp_path, *words.split())

    assert (refused.code, "there is no commit yet" in refused.err) == (2, True)
    assert "there is none yet" in said.out.splitlines()[-1]
    assert shoal("run").code == 0


def test_an_editor_finds_the_schema_and_git_does_not(shoal: Shoal, repo: Path) -> None:
    shoal("init")
    first = (repo / "shoal.yaml").read_text().splitlines()[0]
    schema = json.loads((repo / first.partition("$schema=")[2]).read_text())

    assert jsonschema_rs.Draft202012Validator(schema).is_valid(
        plain(compose((repo / "shoal.yaml").read_text(), "f").tree)
    )
    assert git(repo, "status", "--short") == "?? shoal.yaml"


def test_it_writes_to_the_top_from_any_folder(shoal: Shoal, repo: Path) -> None:
    assert shoal("init", cwd=repo / "d0").code == 0
    assert (repo / "shoal.yaml").is_file()
    assert not (repo / "d0" / "shoal.yaml").exists()


def test_a_file_that_is_there_stays(shoal: Shoal, repo: Path) -> None:
    (repo / "shoal.yaml").write_text("mine\n")

    said = shoal("init")

    assert said.code == 2
    assert "--force" in said.err
    assert (repo / "shoal.yaml").read_text() == "mine\n"
    assert not (repo / ".shoal").exists()


def test_force_replaces_a_link_and_not_what_it_leads_to(shoal: Shoal, repo: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("mine\n")
    (repo / "shoal.yaml").symlink_to(tmp_path / "precious")

    assert shoal("init").code == 2
    assert shoal("init", "--force").code == 0
    assert (tmp_path / "precious").read_text() == "mine\n"
    assert not (repo / "shoal.yaml").is_symlink()


def test_outside_of_a_repository_nothing_is_written(shoal: Shoal, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()

    assert shoal("init", cwd=tmp_path / "plain").code == 2
    assert list((tmp_path / "plain").iterdir()) == []


def test_an_installed_client_is_an_agent_by_its_name(shoal: Shoal, repo: Path, tmp_path: Path) -> None:
    path = client(tmp_path / "bin", "claude", ANSWERS)
    said = json.loads(shoal("init", "--json", PATH=path, ANTHROPIC_API_KEY="a-long-key").out)

    assert said["clients"] == [{"name": "claude", "ready": True, "lacks": None}]
    ran = shoal("run", "--task", "do it", "--agent", "claude", "--json", PATH=path, ANTHROPIC_API_KEY="a-long-key")
    assert ran.code == 0, ran.err
    (worker,) = json.loads(ran.out)["steps"][0]["worker_results"]
    assert '"do it"' in git(repo, "show", f"{worker['branch']}:asked.txt")


def test_a_client_without_a_login_says_what_it_lacks(shoal: Shoal, repo: Path, tmp_path: Path) -> None:
    path = client(tmp_path / "bin", "codex", "echo codex-cli 0.166.0\n")
    said = shoal("init", PATH=path, CODEX_API_KEY="", OPENAI_API_KEY="", HOME=str(tmp_path))
    text = (repo / "shoal.yaml").read_text()

    assert "codex is installed, but no login" in said.out
    assert "(not yet: no login" in text
    assert shoal("validate", "shoal.yaml").code == 0


def test_every_client_makes_a_file_that_is_right() -> None:
    found = [
        ClientStatus(agent=name, client=facts, found=FoundClient(path=Path("/x"), version=(99, 0), login="$KEY"))
        for name in CLIENTS
        if (facts := adapter(name, this_host()).client)
    ]
    document = parse(starter(found), "shoal.yaml")
    described = re.sub(r"^  # (\w+: \{adapter: \w+, timeout)", r"  \1", starter(found), flags=re.MULTILINE)

    assert len(found) == len(CLIENTS)
    assert plan(document, environ={}).steps
    assert {"stand-in", *CLIENTS} == set(parse(described, "shoal.yaml").shape.agents)
