"""Run a pipeline like a user, and find things in its report."""

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cli.conftest import shoal_in
from tests.cli.warm import Said
from tests.conftest import git

OBEDIENT = 'eval "$(head -n 1 "$SHOAL_PROMPT_FILE")"'
"""An agent called `do`, which does what the first line of its prompt says."""

CHEAP = "sandbox: none, network: host"
"""For tests of the flow of work: a sandbox would take time, and has tests of its own."""


@dataclass(frozen=True)
class Ran:
    """A run that has ended."""

    repo: Path
    said: Said
    report: dict[str, Any]

    def __getitem__(self, step: str) -> dict[str, Any]:
        """Give a step by its name."""
        return next(one for one in self.report["steps"] if one["step"] == step)

    @property
    def statuses(self) -> dict[str, str]:
        """Return the status of each step."""
        return {one["step"]: one["status"] for one in self.report["steps"]}

    def worker(self, step: str, index: int = 0) -> dict[str, Any]:
        """Give one worker of a step."""
        found: dict[str, Any] = self[step]["worker_results"][index]
        return found

    def workers(self, step: str) -> list[str]:
        """Return the status of each worker of a step."""
        return [one["status"] for one in self[step]["worker_results"]]

    def shown(self, step: str, path: str, index: int = 0) -> str:
        """Return a file on a worker's branch."""
        worker = self.worker(step, index)
        assert worker["branch"], worker
        return git(self.repo, "show", f"{worker['branch']}:{path}")

    def tree(self, step: str, index: int = 0) -> set[str]:
        """Return the paths of a worker's branch."""
        branch = self.worker(step, index)["branch"]
        return set(git(self.repo, "ls-tree", "-r", "--name-only", branch).splitlines())


def written(repo: Path, steps: str, *, runtime: str = CHEAP, more: str = "", **agents: str) -> str:
    """Write a file of *steps*, with the agent `do` and others that are shell scripts; give its name."""
    scripts: Mapping[str, str] = {"do": OBEDIENT, **agents}
    known = {name: {"adapter": "command", "command": ["sh", "-c", script]} for name, script in scripts.items()}
    listed = "".join(f"  {name}: {json.dumps(one)}\n" for name, one in known.items())
    text = f"runtime: {{{runtime}}}\nagents:\n{listed}{more}\n{textwrap.dedent(steps)}"
    (repo / "p.yaml").write_text(text)
    return "p.yaml"


def ran(repo: Path, steps: str, *words: str, runtime: str = CHEAP, more: str = "", **agents: str) -> Ran:
    """Run such a file to its end."""
    file = written(repo, steps, runtime=runtime, more=more, **agents)
    said = shoal_in(repo)("run", file, "--json", *words)
    assert said.out, said.err
    return Ran(repo, said, json.loads(said.out))
