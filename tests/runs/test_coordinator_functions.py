"""Functions as agents: whatever one does is its own result, and it finds what it imports."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shoal import AgentCoordinator, Task
from shoal.errors import BadInput
from shoal.model.status import Status
from tests.acting import shown
from tests.conftest import git
from tests.runs.coordinating import statuses


def write_prompt(prompt: str, workspace: Path) -> str:
    """Serve as an agent."""
    (workspace / "said").write_text(prompt)
    return f"wrote {len(prompt)}"


def peek(prompt: str) -> str:
    """Try to see the host's home."""
    return str(os.path.exists(prompt))


@pytest.mark.parametrize("mode", ["process", "thread"])
async def test_a_function_is_an_agent(repo: Path, mode: str) -> None:
    task_run = AgentCoordinator(repo, agent=write_prompt, execution_mode=mode, isolation_strategy="worktree")

    (result,) = await task_run.run_agents(["hello"])

    assert result.status is Status.SUCCEEDED, result
    assert (shown(repo, result, "said"), result.output.strip()) == ("hello", "wrote 5")


async def test_a_function_in_a_process_is_sandboxed(repo: Path) -> None:
    (result,) = await AgentCoordinator(repo, agent=peek).run_agents([str(repo / "README.md")])

    assert result.output.strip() == "False"
    with pytest.raises(BadInput, match="def"):
        await AgentCoordinator(repo, agent=lambda prompt: prompt).run_agents(["x"])


def raising(prompt: str) -> None:
    raise ValueError(f"no {prompt}")


def leaving(prompt: str) -> None:
    sys.exit(3)


def sleeping(prompt: str, workspace: Path) -> None:
    (workspace / "w").write_text("half")
    time.sleep(60)


def shouting(prompt: str) -> str:
    return "x" * 5_000_000 + f"\n{prompt}"


async def waiting(prompt: str) -> str:
    await asyncio.sleep(0.01)
    return f"awaited {prompt}"


class Unspeakable:
    """Cannot be said."""

    def __repr__(self) -> str:
        raise RuntimeError("never")

    def method(self, prompt: str) -> str:
        """Serve as no agent: another process could not find its object again."""
        return prompt


def unspeakable(prompt: str) -> Unspeakable:
    return Unspeakable()


@pytest.mark.deep
@pytest.mark.parametrize("mode", ["process", "thread"])
async def test_whatever_a_function_does_is_its_own_result(repo: Path, mode: str) -> None:
    def task(function: object, **more: object) -> Task:
        return Task("end", agent=function, **more)  # type: ignore[arg-type]

    task_run = AgentCoordinator(repo, 3, execution_mode=mode, isolation_strategy="worktree", grace=0.5)
    functions = [raising, leaving, shouting, waiting, unspeakable]
    results = await task_run.run_agents([*map(task, functions), task(sleeping, timeout=10.0)])

    assert statuses(results) == ["failed", "failed", "no_changes", "no_changes", "failed", "timed_out"], results
    assert results[0].error == "it exited with 1: ValueError: no end"
    assert results[1].exit_code == (3 if mode == "process" else 1)
    assert results[2].output.rstrip().endswith("\nend")
    assert len(results[2].output) < 1_000_000
    assert results[3].output.strip() == "awaited end"
    assert shown(repo, results[5], "w") == "half"


async def test_what_another_process_could_not_find_is_no_agent(repo: Path) -> None:
    for function in (Unspeakable().method, print, lambda prompt: prompt):
        with pytest.raises(BadInput, match="def"):
            await AgentCoordinator(repo, agent=function).run_agents(["x"])


SCRIPT = """
import sys
from pathlib import Path
from shoal import AgentCoordinator
from helper import word
from pack.inner import said

def work(prompt, workspace):
    (workspace / "w").write_text(f"{word()} {prompt} {__name__ == '__main__'}")
    return "main " + word()

if __name__ == "__main__":
    crew = AgentCoordinator(sys.argv[1])
    for function in (work, said):
        (result,) = AgentCoordinator(sys.argv[1], agent=function).run_agents_sync(["hello"])
        print(result.status.value, result.output.strip(), result.error)
"""


@pytest.mark.deep
@pytest.mark.parametrize("inside", [True, False])
def test_functions_of_a_script_and_of_a_package_find_what_they_import(repo: Path, tmp_path: Path, inside: bool) -> None:
    """Inside of the repository, what they import comes from the agent's own workspace."""
    folder = repo if inside else tmp_path / "elsewhere"
    (folder / "pack").mkdir(parents=True)
    (folder / "script.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("def word(): return 'word'\n")
    (folder / "pack/__init__.py").write_text("")
    (folder / "pack/other.py").write_text("WORD = 'relative'\n")
    (folder / "pack/inner.py").write_text("from .other import WORD\ndef said(prompt): return f'{WORD} {prompt}'\n")
    if inside:
        git(repo, "add", "-A")
        git(repo, "commit", "-qm", "program")

    done = subprocess.run(
        [sys.executable, str(folder / "script.py"), str(repo)], capture_output=True, text=True, check=False
    )

    assert done.stdout.splitlines() == ["succeeded main word None", "no_changes relative hello None"], done.stderr
