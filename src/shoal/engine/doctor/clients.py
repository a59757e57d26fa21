"""Which agent programs are there: each is asked for its version, with a home of its own and a cleared environment."""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

from shoal import proc
from shoal.errors import ShoalError
from shoal.model.command import Command
from shoal.model.finding import Finding

AREA = "clients"
SECONDS = 3.0
SAID_BYTES = 4096
SHOWN = 60
CLIENTS: Mapping[str, str] = {
    "claude": "npm install -g @anthropic-ai/claude-code",
    "codex": "npm install -g @openai/codex",
    "goose": "npm install -g @aaif/goose-binary-linux-x64",
    "gemini": "npm install -g @google/gemini-cli",
    "copilot": "npm install -g @github/copilot",
    "opencode": "npm install -g opencode-ai",
    "aider": "pip install aider-chat",
}


async def clients(search: str, home: Path) -> tuple[Finding, ...]:
    """Ask all of them at once; none has to be there."""
    home.mkdir()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_client(name, search, home)) for name in CLIENTS]
    return tuple(task.result() for task in tasks)


async def _client(name: str, search: str, home: Path) -> Finding:
    found = shutil.which(name, path=search)
    tried = "--version"
    if found is None:
        return Finding(area=AREA, name=name, held=None, tried=tried, said="not on PATH", remedy=f"`{CLIENTS[name]}`")
    env = {"PATH": search, "HOME": str(home), "LANG": "C.UTF-8", "TERM": "dumb"}
    try:
        done = await proc.run(Command(argv=(found, "--version"), cwd=home, env=env), timeout=SECONDS, limit=SAID_BYTES)
    except TimeoutError:
        return _broken(name, tried, f"it said nothing within {SECONDS:.0f} s")
    except (ShoalError, OSError) as error:
        return _broken(name, tried, str(error))
    said = " ".join(done.stdout.decode(errors="replace").split())[:SHOWN]
    if not done.ok or not said:
        complaint = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        return _broken(name, tried, f"it ended with {done.exit.code}: {' '.join(complaint)[:SHOWN]}")
    return Finding(area=AREA, name=name, held=True, tried=tried, said=f"{said}, {found}")


def _broken(name: str, tried: str, said: str) -> Finding:
    remedy = f"install it again: `{CLIENTS[name]}`"
    return Finding(area=AREA, name=name, held=False, tried=tried, said=said, remedy=remedy)
