"""What runs code later is held from merging, in whatever form; what people merge every day is not."""

import subprocess
from pathlib import Path

import pytest

from shoal.git.diff import list_changed_paths
from shoal.model.executable_files import ALWAYS, INSTRUCTIONS, ExecutableRules
from shoal.sessions.executable_config import flag_changes
from tests.acting import worked
from tests.cli.conftest import shoal_in
from tests.cli.flows import ran as ran_file
from tests.conftest import git

BARE = """
mkdir -p {0}/objects {0}/refs; echo 'ref: refs/heads/main' > {0}/HEAD; touch {0}/objects/x {0}/refs/x
printf '[core]\\nrepositoryformatversion=0\\nbare=false\\nworktree=..\\nfsmonitor="touch {1}; false"\\n' > {0}/config
"""


async def flagged(
    repo: Path, before: dict[str, str], after: dict[str, str], rules: ExecutableRules | None = None
) -> tuple[str, ...]:
    commits = []
    for files in (before, after):
        for name, text in files.items():
            (repo / name).parent.mkdir(parents=True, exist_ok=True)
            (repo / name).write_text(text)
        git(repo, "add", "-A", "-f")
        git(repo, "commit", "-qm", "more", "--allow-empty")
        commits.append(git(repo, "rev-parse", "HEAD"))
    base, commit = commits
    found = await flag_changes(
        repo / ".git", base, commit, await list_changed_paths(repo / ".git", base, commit), rules
    )
    return found.held


async def test_an_embedded_repository_is_named_and_its_program_would_have_run(repo: Path, tmp_path: Path) -> None:
    """The second half is the attack itself, without us: were it merged, `git status` in there runs the program."""
    canary = tmp_path / "canary"

    result = await worked(repo, BARE.format("vendor/bare", canary))

    assert result.executable == ("vendor/bare (a nested git repository)",)
    git(repo, "merge", "-q", result.branch or "")
    subprocess.run(["git", "status"], cwd=repo / "vendor/bare", capture_output=True, check=False)
    assert canary.exists()


async def test_a_repository_made_from_what_was_there_before_is_named(repo: Path) -> None:
    there = {"fixture/objects/x": "", "fixture/refs/x": "", "other/HEAD": "x\n", "src/config": "x\n"}

    assert await flagged(
        repo, there, {"fixture/head": "ref: refs/heads/x\n", "src/config": "y\n", "other/objects/x": ""}
    ) == ("fixture (a nested git repository)",)


async def test_folders_that_differ_by_case_are_one(repo: Path) -> None:
    found = await flagged(repo, {}, {"Bare/HEAD": "x\n", "bare/objects/x": "", "BARE/refs/x": ""})

    assert len(found) == 3, found


async def test_only_the_parts_of_manifests_count_that_run_by_themselves(repo: Path) -> None:
    before = {"package.json": '{"version": "1"}', "web/package.json": "{}", "a\nb/package.json": "{}"}
    hook = '{"scripts": {"postinstall": "x"}}'
    after = {"package.json": '{"version": "2"}', "web/package.json": hook, "a\nb/package.json": hook}

    found = await flagged(repo, before, after)

    assert set(found) == {"web/package.json (scripts.postinstall)", "a\nb/package.json (scripts.postinstall)"}


async def test_a_manifest_that_is_too_large_counts_as_a_whole(repo: Path) -> None:
    assert await flagged(repo, {}, {"package.json": f'{{"x": "{"y" * 200_000}"}}'}) == (
        "package.json (it cannot be read)",
    )


async def test_patterns_of_the_user_add_to_the_table_and_except_from_it(repo: Path) -> None:
    rules = ExecutableRules(add=("Makefile", "/scripts"), excepted=("docs/.vscode", "fixtures", "tests/*/package.json"))
    hook = '{"scripts": {"postinstall": "x"}}'
    after = {
        "Makefile": "x",
        "scripts/a": "x",
        "sub/scripts/a": "x",
        "docs/.vscode/tasks.json": "{}",
        ".vscode/tasks.json": "{}",
        "tests/a/package.json": hook,
        "fixtures/bare/HEAD": "x",
        "fixtures/bare/objects/x": "",
        "fixtures/bare/refs/x": "",
    }

    assert set(await flagged(repo, {}, after, rules)) == {"Makefile", "scripts/a", ".vscode/tasks.json"}


async def test_instructions_are_named_and_not_held(repo: Path) -> None:
    result = await worked(repo, "echo x > AGENTS.md; mkdir -p .github; echo x > .github/copilot-instructions.md")

    assert result.executable == ()
    assert result.instructions == (".github/copilot-instructions.md", "AGENTS.md")


EVIL = "{name: evil, command: \"echo .env > .worktreeinclude; echo '{}' > conductor.json; echo x > Makefile\"}"
NEXT = "{name: next, command: 'echo x > y', needs: [evil]}"


def test_a_run_holds_what_would_hand_files_on_and_what_builds_on_it(repo: Path) -> None:
    rules = "executable_config: {add: [Makefile], except: [/conductor.json]}"

    done = ran_file(repo, f"steps:\n  - {EVIL}\n  - {NEXT}\n", runtime=f"{rules}, merge: auto")

    assert done.worker("evil")["executable_config"] == [".worktreeinclude", "Makefile"]
    assert {one["status"] for one in done.report["merge"]["results"]} == {"held"}


@pytest.mark.parametrize("steps", [f"[{EVIL}]", f"[{EVIL}, {NEXT}]"])
def test_no_advice_leads_round_what_is_held(repo: Path, steps: str) -> None:
    (repo / "shoal.yaml").write_text(f"steps: {steps}\n")

    said = shoal_in(repo)("run", "shoal.yaml")

    advice = (said.out + said.err).partition("next:")[2]
    assert "git merge" not in advice
    assert "shoal diff " in advice or "--preview" in advice, said


def test_the_table_is_documented() -> None:
    page = Path(__file__).parents[2].joinpath("docs/executable-config.md").read_text()

    assert [rule for rule in (*ALWAYS, *INSTRUCTIONS) if f"`{rule}`" not in page] == []


@pytest.mark.parametrize("patterns", ["['**']", "['*']", "['a/../b']", "['a*b*c*d']", "['']", "[7]", "x"])
def test_a_pattern_that_cannot_be_meant_is_refused_at_its_place(repo: Path, patterns: str) -> None:
    (repo / "shoal.yaml").write_text(
        f"runtime:\n  executable_config: {{add: {patterns}}}\nsteps: [{{name: a, command: 'true'}}]\n"
    )

    said = shoal_in(repo)("validate", "shoal.yaml")

    assert said.code == 2, said
    assert "shoal.yaml:2:" in said.out + said.err
