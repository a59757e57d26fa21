"""What is said when there is a file to start from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.cli.plain import plain
from shoal.cli.render.agents import remedy
from shoal.engine.client_trial import Standing


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What `shoal init` came to: the file, the clients that are installed, and whether there is a commit."""

    file: Path
    clients: Sequence[Standing]
    has_commit: bool


def started_lines(made: Started, program: str) -> Iterator[str]:
    """Say what was written, which clients are here, and what to type next."""
    name = made.file.name
    yield f"wrote {plain(str(made.file))}"
    if ready := [one.agent for one in made.clients if one.is_ready]:
        yield f"agents that are ready: {', '.join(ready)}"
    for one in made.clients:
        if not one.is_ready:
            yield f"{one.agent} is installed, but {plain(remedy(one))}"
    yield ""
    yield f"1. put your agents and steps into it, then `{program} validate {name}`"
    yield f"2. `{program} run --dry-run` shows what would happen"
    yield f"3. `{program} run` does it; the work comes back as branches"
    if not made.has_commit:
        remedied = f"`git add {name}`, then `git commit -m Start`"
        yield f"`{program} run` starts from a commit, and there is none yet: {remedied}"
