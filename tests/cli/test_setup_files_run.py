"""A repository's own set-up in other tools' files, and `.worktreeinclude`, from the command line."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Shoal
from tests.cli.test_setup_run import committed, document, files_of, got, ran, workers
from tests.conftest import git

PAGE = Path(__file__).parents[2] / "docs" / "setup.md"
IGNORED = {".gitignore": ".env*\nconfig/*.local\nnode_modules/\n"}


def test_included_files_are_there_and_never_in_a_commit(shoal: Shoal, repo: Path) -> None:
    include = "# what agents need\n.env*\n!.env.prod\nconfig/*.local\nREADME.md\nuntracked\nlink.local\n"
    committed(repo, {**IGNORED, ".worktreeinclude": include, "config/a": "a"})
    for name in (".env", ".env.prod", "config/db.local", "untracked"):
        (repo / name).write_text(f"{name}\n")
    (repo / "config/link.local").symlink_to("/etc/hostname")
    agent = "ls -A . config > got; cat .env config/db.local >> got; echo X >> .env; git add -A; git commit -qm own"
    for strategy in ("overlay", "worktree", "directory"):
        report = ran(shoal, repo, document(None, agent, isolation_strategy=strategy))
        (worker,) = workers(report)

        said = got(repo, worker).splitlines()
        assert ".worktreeinclude: 2 files of your checkout are copied into each workspace" in report["notes"]
        assert said[-2:] == [".env", "config/db.local"]
        assert {".env.prod", "untracked", "link.local"}.isdisjoint(said)
        assert files_of(repo, worker) == {"got"}
    assert (repo / ".env").read_text() == ".env\n"
    assert list((repo / ".shoal/setup").glob("files-*")) == []


def test_a_file_that_only_the_users_own_exclude_ignores_is_not_committed_either(shoal: Shoal, repo: Path) -> None:
    committed(repo, {".worktreeinclude": "secret\n"})
    with (repo / ".git/info/exclude").open("a") as file:
        file.write("secret\n")
    (repo / "secret").write_text("s\n")
    for strategy in ("overlay", "worktree"):
        (worker,) = workers(
            ran(shoal, repo, document(None, "cat secret > got; echo more >> secret", isolation_strategy=strategy))
        )

        assert files_of(repo, worker) == {"got"}


def test_too_much_is_refused_before_anything_starts(shoal: Shoal, repo: Path) -> None:
    committed(repo, {".gitignore": "big\n", ".worktreeinclude": "big\n"})
    with (repo / "big").open("wb") as file:
        file.truncate(200 * 2**20)
    (repo / "shoal.yaml").write_text(document(None, "true"))

    said = shoal("run", "shoal.yaml")

    assert said.code == 2
    assert ".worktreeinclude names more than" in said.err


@pytest.mark.parametrize("copy", ["cp", "ln -s"])
def test_a_conductor_script_finds_the_files_of_the_checkout(shoal: Shoal, repo: Path, copy: str) -> None:
    scripts = {
        "setup": f'set -e\n[[ -n $CONDUCTOR_ROOT_PATH ]]\n{copy} "$CONDUCTOR_ROOT_PATH/.env" .env.local\n./bin/prepare',
        "run": "npm run dev -- --port $CONDUCTOR_PORT",
        "archive": "rm -rf /nowhere",
    }
    prepare = '#!/bin/sh\necho "$CONDUCTOR_DEFAULT_BRANCH $CONDUCTOR_WORKSPACE_PATH" > prepared\ntest "$PWD" = "$CONDUCTOR_WORKSPACE_PATH"\n'
    committed(repo, {**IGNORED, ".worktreeinclude": ".env\n", "bin/prepare": prepare})
    (repo / "bin/prepare").chmod(0o755)
    committed(repo, {"conductor.json": json.dumps({"scripts": scripts, "runScriptMode": "nonconcurrent"}, indent=2)})
    (repo / ".env").write_text("KEY=1\n")

    report = ran(shoal, repo, document(None, 'cat .env.local prepared > got; ls -A "$CONDUCTOR_ROOT_PATH" >> got'))
    (worker,) = workers(report)

    assert worker["error"] is None
    first, second, *root = got(repo, worker).splitlines()
    assert (first, second.split()[0]) == ("KEY=1", "main")
    assert set(root) == {".env", ".shoal", ".git"} - ({".git"} if ".git" not in root else set())
    assert files_of(repo, worker) == {"got"}
    assert "set-up comes from conductor.json; `setup` in `runtime` overrides it" in report["notes"]


def test_a_script_that_misses_a_file_is_told_how_to_name_it(shoal: Shoal, repo: Path) -> None:
    committed(repo, {"conductor.json": json.dumps({"scripts": {"setup": "cp $CONDUCTOR_ROOT_PATH/.env .env"}})})
    (repo / ".env").write_text("KEY=1\n")

    (worker,) = workers(ran(shoal, repo, document(None, "true")))

    assert worker["error"].startswith("setup failed: it exited with 1 (conductor.json)\n")
    assert "named in .worktreeinclude" in worker["error"]


@pytest.mark.parametrize(
    "said",
    [
        {"setup-worktree": ["echo one > one", "cp $ROOT_WORKTREE_PATH/.env .env.copy"]},
        {"setup-worktree": ["false"], "setup-worktree-unix": "setup.sh", "setup-worktree-windows": ["dir"]},
        {"setup-worktree-unix": "echo one > one && cp $ROOT_WORKTREE_PATH/.env .env.copy"},
    ],
)
def test_cursors_file_is_honoured(shoal: Shoal, repo: Path, said: dict[str, object]) -> None:
    script = 'echo one > one\ncp "$ROOT_WORKTREE_PATH/.env" .env.copy\n'
    files = {".cursor/worktrees.json": json.dumps(said), ".cursor/setup.sh": script}
    committed(repo, {**IGNORED, ".worktreeinclude": ".env\n", **files})
    (repo / ".env").write_text("KEY=1\n")

    report = ran(shoal, repo, document(None, "cat one .env.copy > got"))

    assert got(repo, workers(report)[0]) == "one\nKEY=1"
    assert any("set-up comes from .cursor/worktrees.json" in note for note in report["notes"])


@pytest.mark.parametrize(("number", "name"), [(0, "conductor.json"), (1, ".cursor/worktrees.json")])
def test_the_files_in_the_docs_are_read(shoal: Shoal, repo: Path, number: int, name: str) -> None:
    block = re.findall(r"^```json\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)[number]
    committed(repo, {**IGNORED, ".worktreeinclude": ".env\n", name: block})
    (repo / ".env").write_text("KEY=1\n")

    report = ran(shoal, repo, document(None, "cat .env.local ready > got"))

    assert got(repo, workers(report)[0]) == "KEY=1\nready"


def test_what_a_repository_brings_does_not_run_without_a_wall(shoal: Shoal, repo: Path) -> None:
    outside = repo.parent / "outside"
    committed(repo, {"conductor.json": json.dumps({"scripts": {"setup": f"echo x > {outside} && echo y > in"}})})

    behind = ran(shoal, repo, document(None, "echo 1 > got"))
    without = ran(shoal, repo, document(None, "ls in || echo 1 > got", sandbox="none"))

    assert workers(behind)[0]["status"] == "failed"
    assert workers(without)[0]["status"] == "succeeded"
    assert not outside.exists()
    assert any("runs only in a sandbox, and is left out" in note for note in without["notes"])


def test_only_the_bases_file_counts(shoal: Shoal, repo: Path) -> None:
    (repo / "conductor.json").write_text(json.dumps({"scripts": {"setup": "exit 9"}}))

    (worker,) = workers(ran(shoal, repo, document(None, "ls > got")))

    assert worker["status"] == "succeeded"
    git(repo, "rev-parse", str(worker["branch"]))


def test_a_file_that_cannot_be_read_is_named_unless_a_document_says_what_to_do(shoal: Shoal, repo: Path) -> None:
    committed(repo, {"conductor.json": "{"})

    (bad,) = workers(ran(shoal, repo, document(None, "true")))
    (good,) = workers(ran(shoal, repo, document([], "echo 1 > got")))

    assert bad["error"].startswith("setup failed: conductor.json cannot be read")
    assert good["status"] == "succeeded"
