"""Files that run code on a person's machine are recognised by name, however these are disguised."""

import time
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model.executable_files import ALWAYS, OPTIONAL, executable_paths

ANYWHERE = [
    ".gitattributes",
    ".gitmodules",
    ".gitconfig",
    ".claude/settings.json",
    ".claude/settings.local.json",
    ".claude/hooks/a/b.sh",
    ".mcp.json",
    ".codex/config.toml",
    ".cursor/mcp.json",
    ".gemini/settings.json",
    ".opencode/plugin/x.ts",
    "opencode.json",
    ".goosehints",
    ".goose/config.yaml",
    ".aider.conf.yml",
    ".vscode/tasks.json",
    ".vscode/launch.json",
    ".vscode/settings.json",
    "all.code-workspace",
    ".idea/runConfigurations/x.xml",
    ".envrc",
    ".husky/pre-commit",
    ".githooks/post-checkout",
    ".pre-commit-config.yaml",
    "lefthook.yml",
    "lefthook.yaml",
    "Jenkinsfile",
    ".devcontainer/devcontainer.json",
    ".npmrc",
    ".yarnrc",
    ".yarnrc.yml",
    "shoal.yaml",
    ".shoal/x",
    ".shoalrc",
]
AT_THE_TOP = [
    ".github/workflows/ci.yml",
    ".github/actions/a/action.yml",
    ".gitlab-ci.yml",
    ".circleci/config.yml",
    "azure-pipelines.yml",
]
HARMLESS = [
    "README.md",
    "CLAUDE.md",
    "AGENTS.md",
    "src/claude/settings.json",
    "claude/settings.json",
    ".gitignore",
    ".github/ISSUE_TEMPLATE/bug.md",
    ".github/CODEOWNERS",
    ".vscode/extensions.json",
    "x.envrc",
    ".envrc.example",
    "docs/gitattributes",
    "src/shoal/__init__.py",
    "my-shoal.yaml",
    "tasks.json",
    "a.gitmodules",
    "",
]
STRICT = ["package.json", "Makefile", "GNUmakefile", "web/package.json", "lib/rules.mk", ".cargo/config.toml"]


@pytest.mark.parametrize("path", ANYWHERE)
def test_they_are_known_at_any_depth(path: str) -> None:
    assert executable_paths([path, f"packages/web/{path}"]) == (path, f"packages/web/{path}")


@pytest.mark.parametrize("path", AT_THE_TOP)
def test_what_a_server_runs_counts_at_the_top_only(path: str) -> None:
    assert executable_paths([path, f"templates/{path}"]) == (path,)


@pytest.mark.parametrize("path", HARMLESS)
def test_others_are_not_flagged(path: str) -> None:
    assert executable_paths([path], strict=True) == ()


@pytest.mark.parametrize("path", STRICT)
def test_build_files_are_flagged_on_request(path: str) -> None:
    assert executable_paths([path]) == ()
    assert executable_paths([path], strict=True) == (path,)


@pytest.mark.parametrize("path", [".claude", ".vscode", ".github", ".github/workflows", "a/.husky", ".yarn"])
def test_a_link_in_the_place_of_a_folder_is_flagged(path: str) -> None:
    assert executable_paths([path]) == (path,)


@pytest.mark.parametrize(
    "path",
    [
        ".CLAUDE/Settings.JSON",
        ".GitAttributes",
        ".git\u200cattributes",
        "\ufeff.envrc",
        ".cl\u202eaude/settings.json",
        ".v\u017fcode/tasks.json",
        ".hus\u212ay/pre-commit",
        ".envrc.",
        ".claude . /settings.json",
        ".gitattributes::$DATA",
        ".vscode\\tasks.json",
        "a\nb/.envrc",
        ".claude/a\nb",
        "\udcff/.mcp.json",
    ],
)
def test_disguises_that_a_checkout_looks_through_are_flagged(path: str) -> None:
    assert executable_paths([path]) == (path,)


@given(st.sampled_from(ANYWHERE), st.data())
def test_case_and_unseen_signs_never_matter(path: str, data: st.DataObject) -> None:
    unseen = st.sampled_from(["", "", "", "\u200c", "\u200f", "\u202a", "\u206f", "\ufeff"])
    cased = (data.draw(st.sampled_from([sign, sign.upper()])) + data.draw(unseen) for sign in path)
    disguised = "".join(cased)

    assert executable_paths([disguised]) == (disguised,)


@given(st.lists(st.text(st.characters(), max_size=20)))
def test_any_name_can_be_asked_about(paths: list[str]) -> None:
    found = executable_paths(paths, strict=True)

    assert [path for path in paths if path in found] == list(found)


def test_the_order_and_the_spelling_are_kept() -> None:
    assert executable_paths(iter(["z/.envrc", "a.py", ".Envrc"])) == ("z/.envrc", ".Envrc")


def test_rules_are_distinct_and_plainly_written() -> None:
    rules = (*ALWAYS, *OPTIONAL)

    assert len(rules) == len(set(rules))
    assert all(rule == unicodedata.normalize("NFC", rule) and "**" not in rule for rule in rules)


@pytest.mark.parametrize("path", ["a/" * 3000 + "x", ".goose" * 10_000, "/.claude" * 2000 + "x/", ".yarn/" * 5000])
def test_a_hostile_name_takes_no_time(path: str) -> None:
    began = time.process_time()
    executable_paths([path] * 10, strict=True)

    assert time.process_time() - began < 5
