"""Secrets enter only by name, and appear in no output of a run."""

from dataclasses import replace
from pathlib import Path

from shoal.model.agent import AgentSpec
from shoal.model.plan import Step
from shoal.model.resolved_task import ResolvedTask
from shoal.store.paths import StatePaths
from tests.acting import ran, shown, worked

SECRET = "s3cr3t-value-0123456789"
SCRIPT = """
printf '%s' "${TOKEN%0123456789}"; sleep 0.2; echo "0123456789 and more"; echo "$TOKEN" >&2; echo "$TOKEN" > kept; exit 1
"""


async def test_a_secret_is_masked_in_output_errors_and_databases_also_in_two_chunks(repo: Path) -> None:
    agent = AgentSpec(name="a", adapter="command", command=("/bin/sh", "-c", SCRIPT))
    task = ResolvedTask(
        name="work", prompt=f"use {SECRET}", agent=agent, env={"TOKEN": SECRET}, secrets=frozenset({"TOKEN"})
    )

    report = await ran(repo, Step(name="work", task=task))

    result = report.steps[0].worker_results[0]
    assert result.output == "[secret TOKEN] and more\n"
    assert result.error == "it exited with 1: [secret TOKEN]"
    state = StatePaths.of(repo)
    for database in (state.ledger, state.session_db(result.session)):
        assert SECRET.encode() not in database.read_bytes()
    assert shown(repo, result, "kept") == SECRET, "the work itself is not changed"


async def test_a_literal_is_no_secret(repo: Path) -> None:
    agent = AgentSpec(name="a", adapter="command", command=("/bin/sh", "-c", 'echo "$MODE"'))
    task = ResolvedTask(name="work", prompt="", agent=agent, env={"MODE": "literal-value"})

    report = await ran(repo, Step(name="work", task=replace(task)))

    assert report.steps[0].worker_results[0].output == "literal-value\n"


async def test_changes_to_files_that_run_code_later_are_named(repo: Path) -> None:
    result = await worked(
        repo, "mkdir -p .husky .github/workflows; echo x > .husky/pre-commit; echo x > .envrc; echo y > y"
    )

    assert result.executable == (".envrc", ".husky/pre-commit")
