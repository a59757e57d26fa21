"""Real clients in tests: the pinned programs, a model on loopback, and the command as a person runs it."""

import functools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shoal.testing.model import ModelServer
from tests.cli import warm
from tests.cli.conftest import SHOAL

ROOT = Path(__file__).parents[2]
SYSTEM = "/usr/local/bin:/usr/bin:/bin"
Worker = dict[str, Any]
"""What a report says of one worker."""


@functools.cache
def client_path(*names: str) -> str:
    """Have clients installed, and give a PATH that has them."""
    words = [sys.executable, str(ROOT / "scripts" / "clients"), "--path", *names]
    return f"{subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()}:{SYSTEM}"


@dataclass(frozen=True)
class Real:
    """A client as it is described in a document, with few retries, and what it needs from the host's environment."""

    name: str
    model: str
    keys: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def document(self) -> dict[str, object]:
        """Give what it needs at the top of a document."""
        return {}

    def agent(self, url: str) -> dict[str, object]:
        """Describe it as an agent that asks the model at *url*."""
        return {"adapter": self.name, "model": self.model, "env": dict(self.env)}

    def environ(self, url: str) -> dict[str, str]:
        """Give what a person would have set."""
        addresses = {
            "claude": {"ANTHROPIC_BASE_URL": url},
            "codex": {"OPENAI_BASE_URL": f"{url}/v1"},
            "goose": {"GOOSE_PROVIDER": "openai", "OPENAI_HOST": url},
        }
        return {**dict.fromkeys(self.keys, f"dummy-key-of-{self.name}"), **addresses.get(self.name, {})}


CLAUDE = Real("claude", "claude-sonnet-4-5", ("ANTHROPIC_API_KEY",), {"CLAUDE_CODE_MAX_RETRIES": "2"})
CODEX = Real("codex", "gpt-5", ("CODEX_API_KEY",))
GOOSE = Real("goose", "gpt-4o", ("OPENAI_API_KEY",), {"GOOSE_PROVIDER_SKIP_BACKOFF": "true"})
EVERY = (CLAUDE, CODEX, GOOSE)


@dataclass(frozen=True)
class Scene:
    """A repository, a model, and the client that works there."""

    real: Real
    repo: Path
    model: ModelServer

    def environ(self, **more: str) -> dict[str, str]:
        """Give a cleared environment with the client in it."""
        home = self.repo.parent / "user"
        home.mkdir(exist_ok=True)
        clean = {"HOME": str(home), "PATH": client_path(self.real.name), "NO_COLOR": "1", "LANG": "C.UTF-8"}
        return {**clean, "GIT_CONFIG_GLOBAL": "/dev/null", **self.real.environ(self.model.url), **more}

    def write(self, steps: Sequence[Mapping[str, object]], **persona: object) -> None:
        """Write a document of these steps, which one persona works on."""
        document = {
            "runtime": {"max_concurrent_workers": 8},
            "agents": {"real": self.real.agent(self.model.url)},
            "personas": {"tester": {"agent": "real", "system_prompt": "You are the tester of wells.", **persona}},
            "steps": [{"persona": "tester", **step} for step in steps],
            **json.loads(json.dumps(self.real.document).replace("{url}", self.model.url)),
        }
        (self.repo / "shoal.yaml").write_text(json.dumps(document))

    def run(self, *words: str, timeout: float = 90, **environ: str) -> dict[str, Any]:
        """Run the document, and give the report."""
        command, env = ("run", "shoal.yaml", "--json", *words), self.environ(**environ)
        said = warm.ran(command, cwd=self.repo, env=env, timeout=timeout)
        assert said.out, said.err
        report: dict[str, Any] = json.loads(said.out)
        return report

    def logs(self) -> str:
        """Give every event of the last run."""
        return warm.ran(("logs", "--json"), cwd=self.repo, env=self.environ(), timeout=60).out

    def left(self) -> list[str]:
        """Name the processes that stand in the repository, or know of it."""
        return [pid for pid in os.listdir("/proc") if pid.isdigit() and _knows(Path("/proc") / pid, self.repo)]


def _knows(process: Path, repo: Path) -> bool:
    try:
        words = process.joinpath("environ").read_bytes() + process.joinpath("cmdline").read_bytes()
        return bytes(repo / ".shoal") in words or process.joinpath("cwd").readlink().is_relative_to(repo / ".shoal")
    except OSError:
        return False


def workers(report: Mapping[str, Any]) -> dict[str, Worker]:
    """Give the only worker of each step, by the step's name."""
    return {step["step"]: step["worker_results"][0] for step in report["steps"]}


def interrupted(here: Scene) -> dict[str, Any]:
    """Send Ctrl-C to a run while its client's tool is at work, and give what became of its worker."""
    work = "echo%20half%20%3E%20half.txt%3B%20echo%20%24%24%20%3E%20pid%3B%20tail%20-f%20%2Fdev%2Fnull"
    here.write([{"name": "w", "prompt": f"[[s:shell cmd={work}]]"}])
    command = [str(SHOAL), "run", "shoal.yaml", "--json"]
    with subprocess.Popen(command, cwd=here.repo, env=here.environ(), stdout=subprocess.PIPE, text=True) as running:
        here.model.wait(1, timeout=60)
        while not any((here.repo / ".shoal").rglob("pid")):  # the test's own time ends a wait for nothing
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        out, _ = running.communicate(timeout=60)
    return workers(json.loads(out))["w"]
