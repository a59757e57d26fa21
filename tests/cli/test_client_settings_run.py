"""Client settings that one agent writes, and the client that builds on its work: catalogue B2.20 and B6.53."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from shoal import Task
from tests.cli.conftest import Shoal
from tests.conftest import git
from tests.runs.coordinating import coordinator

DONE = '{"type":"result","is_error":false,"subtype":"success","result":"x"}'
WRITE = """mkdir -p .claude sub/.codex; echo evil > .claude/settings.json; echo evil > .mcp.json; rm .codex/config.toml
echo evil > sub/.codex/config.toml; echo evil > .env; echo words > AGENTS.md; echo one > one"""
LOOK = "cat .claude/settings.json .mcp.json sub/.codex/config.toml .env .codex/config.toml AGENTS.md one > seen 2>/dev/null"
KEY = "a-secret-key-of-mine"
SET_BACK = [".claude/settings.json", ".codex/config.toml", ".env", ".mcp.json", "sub/.codex/config.toml"]


@pytest.fixture
def based(repo: Path) -> Path:
    """A repository with settings of the user's own."""
    (repo / ".codex").mkdir()
    (repo / ".codex/config.toml").write_text("mine\n")
    (repo / ".mcp.json").write_text("mine\n")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "settings")
    return repo


def client(folder: Path, script: str) -> str:
    """Make a `claude` that runs *script*, and give a PATH with it."""
    folder.mkdir(exist_ok=True)
    (folder / "claude").write_text(
        f"#!/bin/sh\n[ \"$1\" = --version ] && echo 1000.0.0 && exit\n{script}\necho '{DONE}'\n"
    )
    (folder / "claude").chmod(0o755)
    return f"{folder}:/usr/bin:/bin"


def document(*more: Mapping[str, object], write: str = WRITE, **runtime: object) -> str:
    agents = {"w": {"adapter": "command", "command": ["sh", "-c", write]}}
    steps = [{"name": "first", "agent": "w", "prompt": "go"}, *more]
    return json.dumps({"runtime": runtime, "agents": agents, "steps": steps})


def second(**more: object) -> dict[str, object]:
    return {"name": "second", "needs": ["first"], "agent": "claude", "prompt": "go", "network": "none", **more}


def ran(shoal: Shoal, repo: Path, text: str, path: str) -> dict[str, dict[str, Any]]:
    (repo / "p.yaml").write_text(text)
    said = shoal("run", "p.yaml", "--json", PATH=path, ANTHROPIC_API_KEY=KEY)
    assert said.code == 0, said
    return {one["step"]: one["worker_results"][0] for one in json.loads(said.out)["steps"]}


def changed(repo: Path, before: str, after: str) -> list[str]:
    return git(repo, "diff", "--name-only", before, after).splitlines()


@pytest.mark.parametrize("strategy", ["overlay", "worktree", "directory"])
def test_a_client_starts_without_them_and_takes_none_of_them_away(
    shoal: Shoal, based: Path, tmp_path: Path, strategy: str
) -> None:
    script = f"{LOOK}; git status --porcelain | grep -v seen >&2; echo two > two; git add two; git commit -qm own"
    steps = ran(shoal, based, document(second(), isolation_strategy=strategy), client(tmp_path / "bin", script))

    first, last = steps["first"], steps["second"]
    assert git(based, "show", f"{last['branch']}:seen").split() == ["mine", "mine", "words", "one"], "as on the base"
    assert (first["set_back"], last["set_back"]) == ([], SET_BACK)
    assert changed(based, first["commit"], last["branch"]) == ["seen", "two"], "what the client did, and nothing else"
    assert git(based, "rev-parse", str(last["branch"])) == last["commit"]
    assert (last["files_changed"], last["executable_config"]) == (2, [])
    assert shoal("diff", "second", "--json").out.count('"path"') == 2
    assert set(git(based, "log", "--format=%s", f"{first['commit']}..{last['branch']}").splitlines()) >= {"own"}


def test_who_builds_on_it_has_all_of_it_and_so_has_the_merge(shoal: Shoal, based: Path, tmp_path: Path) -> None:
    third = {"name": "third", "needs": ["second"], "agent": "w", "prompt": "go"}
    write = "[ -e one ] && { cat .claude/settings.json > third; exit; }\n" + WRITE
    path = client(tmp_path / "bin", "echo two > two")
    steps = ran(shoal, based, document(second(), third, write=write), path)

    merged = shoal("merge", "--allow-executable-config", "--json")
    tip = json.loads(merged.out)["branch"]

    assert git(based, "show", f"{steps['third']['branch']}:third") == "evil", "no client, no settings to heed"
    assert sorted(changed(based, "main", tip)) == sorted([*SET_BACK, "AGENTS.md", "one", "two", "third"]), merged
    assert git(based, "show", f"{tip}:.mcp.json") == "evil"


def test_a_client_that_changes_nothing_hands_on_what_it_was_given(shoal: Shoal, based: Path, tmp_path: Path) -> None:
    third = {"name": "third", "needs": ["second"], "agent": "w", "prompt": "go"}
    write = "[ -e one ] && { cat .claude/settings.json > third; exit; }\n" + WRITE
    steps = ran(shoal, based, document(second(), third, write=write), client(tmp_path / "bin", "true"))

    assert (steps["second"]["status"], steps["second"]["branch"]) == ("no_changes", None)
    assert git(based, "show", f"{steps['third']['branch']}:third") == "evil"


def test_what_the_client_writes_there_itself_is_its_own(shoal: Shoal, based: Path, tmp_path: Path) -> None:
    path = client(tmp_path / "bin", "mkdir .claude; echo own > .claude/settings.json")
    steps = ran(shoal, based, document(second()), path)

    last = steps["second"]
    assert git(based, "show", f"{last['branch']}:.claude/settings.json") == "own"
    assert last["executable_config"] == [".claude/settings.json"]


def test_it_can_be_allowed_and_is_the_users_own_where_he_names_the_base(
    shoal: Shoal, based: Path, tmp_path: Path
) -> None:
    path = client(tmp_path / "bin", LOOK)
    allowed = ran(shoal, based, document(second(allow_executable_config=True)), path)["second"]
    git(based, "branch", "mine", str(allowed["commit"]))
    named = ran(shoal, based, document(second(base="mine")), path)["second"]

    assert git(based, "show", f"{allowed['branch']}:seen").split() == ["evil"] * 4 + ["words", "one"]
    assert (allowed["set_back"], named["set_back"]) == ([], [])


def test_the_report_says_so(shoal: Shoal, based: Path, tmp_path: Path) -> None:
    (based / "p.yaml").write_text(document(second()))
    said = shoal("run", "p.yaml", PATH=client(tmp_path / "bin", LOOK), ANTHROPIC_API_KEY=KEY)

    assert (
        "ignored settings that earlier agents wrote (`allow_executable_config: true` allows them): .claude" in said.out
    )


async def test_a_program_that_hands_work_on_is_held_to_it_too(
    based: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", client(tmp_path / "bin", LOOK))
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    async with coordinator(based) as task_run:
        (first,) = await task_run.run_agents([Task(prompt=WRITE.replace("\n", "; "), name="first")])
        (last,) = await task_run.run_agents(
            [Task(prompt="go", agent="claude", name="last", base=first, network="none")]
        )

    assert list(last.set_back) == SET_BACK, last
    assert changed(based, str(first.commit), str(last.branch)) == ["seen"]
