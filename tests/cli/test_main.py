"""Arguments that belong to no command: version, help, mistakes, and our own bugs."""

import subprocess
import sys
from pathlib import Path

import pytest

import shoal as package
from tests.cli.conftest import SHOAL, Shoal, environment


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_the_version_is_said_without_loading_anything(word: str) -> None:
    script = f"import sys; sys.argv = ['shoal', '{word}']; from shoal.cli.main import main; main(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    version, modules = done.stdout.split("\n", 1)

    assert version == f"shoal {package.__version__}"
    assert {"typer", "rich", "pydantic", "asyncio", "sqlite3"} & set(modules.split()) == set()


@pytest.mark.parametrize("words", ["'status'", "'runs', '-n', '5'", "'resume'", "'clean', '--dry-run'"])
def test_a_command_that_only_reads_starts_without_what_it_does_not_need(words: str, repo: Path) -> None:
    script = f"import sys; sys.argv = ['shoal', {words}]; from shoal.cli.main import exit_code;"
    script += " exit_code(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=repo, env=environment(), capture_output=True, text=True, check=True
    )
    modules = set(done.stdout.splitlines()[-1].split())

    assert {"shoal.cli.main", "sqlite3"} <= modules
    assert {"rich", "pydantic", "ruamel", "jinja2", "shoal.runs.run", "shoal.sessions.session"} & modules == set()


def test_help_names_the_commands(shoal: Shoal) -> None:
    said = shoal("--help")

    assert said.code == 0
    for command in ("run", "status", "logs", "diff", "open", "clean", "validate", "demo"):
        assert f"\n  {command}" in said.out


def test_no_command_is_told_by_half_a_sentence(shoal: Shoal) -> None:
    assert "..." not in shoal("--help", COLUMNS="80").out.partition("Commands:")[2]


@pytest.mark.parametrize("words", [(), ("help",)])
def test_who_asks_for_nothing_is_helped(shoal: Shoal, words: tuple[str, ...]) -> None:
    said = shoal(*words)

    assert (said.code, said.out, said.err) == (0, shoal("--help").out, "")


def test_help_is_a_word_too(shoal: Shoal) -> None:
    assert shoal("help", "run").out == shoal("run", "--help").out


def test_a_missing_value_points_at_the_commands_own_help(shoal: Shoal) -> None:
    assert shoal("run", "--task").err.endswith("see `shoal run --help`\n")


@pytest.mark.parametrize(
    ("word", "answer"), [("ls", "`shoal runs`"), ("tail", "`shoal attach`"), ("kill", "shoal stop"), ("gc", "clean")]
)
def test_the_words_of_other_tools_are_answered_with_ours(shoal: Shoal, word: str, answer: str) -> None:
    said = shoal(word)

    assert (said.code, said.out) == (2, "")
    assert answer in said.err


@pytest.mark.parametrize("words", [("nonsense",), ("run", "--nonsense"), ("validate",), ("\x1b[2J",)])
def test_wrong_words_are_exit_2_on_one_line(shoal: Shoal, words: tuple[str, ...]) -> None:
    said = shoal(*words)

    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("shoal: ")
    assert said.err.count("\n") == 1
    assert "\x1b" not in said.err


def test_our_bug_is_exit_3_and_owned_up_to(repo: Path) -> None:
    script = (
        "import sys; sys.argv = ['shoal', 'status']; import shoal.cli.app;"
        "shoal.cli.app.call_command = lambda words: 1 // 0; from shoal.cli.main import main; main()"
    )

    def said(**env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", script],
            cwd=repo,
            env=environment(**env),
            capture_output=True,
            text=True,
            check=False,
        )

    assert said().returncode == 3
    assert said().stderr.startswith("shoal: this is a bug in Shoal: ZeroDivisionError")
    assert "Traceback" not in said().stderr
    assert "Traceback" in said(SHOAL_DEBUG="1").stderr


def test_output_that_cannot_be_written_is_told(repo: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [SHOAL, "clean"], cwd=repo, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )

    assert done.returncode == 3
    assert "could not be written" in done.stderr
    assert "Traceback" not in done.stderr
