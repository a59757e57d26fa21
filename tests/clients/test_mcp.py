"""A person's own Claude Code, Codex and goose, with a scripted model, use `shoal mcp` as `shoal mcp install` set it up."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from shoal.testing.model import ModelServer, Request, Say, Turn, Use
from tests.cli.conftest import SHOAL
from tests.clients.real import CLAUDE, CODEX, EVERY, GOOSE, Real, Scene
from tests.conftest import git

PROMPT = "Let three agents work."
WORK = [f"echo {number} > made-{number}.txt" for number in range(3)]
WORDS = {
    CLAUDE.name: ("claude", "-p", PROMPT, "--allowedTools", "mcp__shoal"),
    CODEX.name: ("codex", "exec", "--model", CODEX.model, "--dangerously-bypass-approvals-and-sandbox", PROMPT),
    GOOSE.name: ("goose", "run", "--no-session", "-t", PROMPT),
}


class Person:
    """What the model of the person's client does: start three, wait, read a diff, merge one, and say so."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        """What each tool gave, by its name."""

    def __call__(self, request: Request) -> Turn | None:
        if not any(PROMPT in message.text for message in request.conversation.messages):
            return None
        steps = ("run", "wait", "diff", "merge")
        results = request.results
        if "ToolSearch" in request.tools:  # Claude Code shows its model only the names of such tools, until it asks
            if not results:
                return Use("ToolSearch", {"query": f"select:{','.join(f'mcp__shoal__{step}' for step in steps)}"})
            results = results[1:]
        for name, result in zip(steps, results, strict=False):
            self.said[name] = result
        done = len(results)
        if done >= len(steps) or not request.tools:
            return Say("All is merged.")
        return Use(find_tool(request, steps[done]), self._arguments(steps[done]))

    def _arguments(self, tool: str) -> Mapping[str, object]:
        run = re.findall(r'"run\\*": \\*"([\w-]+)', self.said.get("run", ""))
        sessions = re.findall(r'"session\\*": \\*"([\w-]+)', self.said.get("wait", ""))
        arguments: dict[str, Mapping[str, object]] = {
            "run": {"tasks": WORK, "command": "sh -s"},
            "wait": {"run": (run or [""])[0]},
            "diff": {"session": (sessions or [""])[-1]},
            "merge": {"run": (run or [""])[0], "sessions": sessions[-1:], "into": "main"},
        }
        return arguments[tool]


def find_tool(request: Request, name: str) -> str:
    """Find the name that the client gives to our tool."""
    return next((tool for tool in request.tools if re.search(rf"shoal\W*_*{name}$", tool)), f"mcp__shoal__{name}")


@pytest.mark.parametrize(
    "real",
    [pytest.param(real, id=real.name, marks=() if real.name == "claude" else pytest.mark.deep) for real in EVERY],
)
def test_a_persons_client_starts_three_workers_reads_a_diff_and_merges_it(repo: Path, real: Real) -> None:
    person = Person()
    with ModelServer(person) as model:
        here = Scene(real, repo, model)
        env = here.environ(GOOSE_MODEL=GOOSE.model, GOOSE_MODE="auto", GOOSE_DISABLE_KEYRING="1")
        installed = subprocess.run([str(SHOAL), "mcp", "install", real.name], env=env, capture_output=True, text=True)
        if real == CODEX:  # it has no variable for the address of its model, and begins before its servers are ready
            provider = f'[model_providers.test]\nname = "t"\nbase_url = "{model.url}/v1"\nenv_key = "CODEX_API_KEY"'
            settings = Path(env["HOME"]) / ".codex" / "config.toml"
            settings.write_text(f'model_provider = "test"\n{settings.read_text()}required = true\n{provider}')
        done = subprocess.run(
            WORDS[real.name], cwd=repo, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=110
        )

    said = (person.said, done.stdout[-3000:], done.stderr[-3000:])
    assert installed.returncode == 0, installed
    assert done.returncode == 0, said
    assert set(person.said) == {"run", "wait", "diff", "merge"}, said
    made = git(repo, "ls-tree", "--name-only", "main").splitlines()
    merged = [name for name in made if name.startswith("made-")]
    assert len(merged) == 1, said
    assert f"+{merged[0][5]}" in person.said["diff"]
    assert len(json.loads(json.dumps(person.said["wait"])).split("succeeded")) >= 4, said
    assert here.left() == []
