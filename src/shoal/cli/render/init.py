"""What is said when there is a file to start from."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from shoal.cli.plain import plain
from shoal.cli.render.agents import remedy
from shoal.engine.client_trial import Standing


def started_lines(file: Path, found: Sequence[Standing], program: str) -> Iterator[str]:
    """Say what was written, which clients are here, and what to type next."""
    yield f"wrote {plain(str(file))}"
    if ready := [one.agent for one in found if one.is_ready]:
        yield f"agents that are ready: {', '.join(ready)}"
    for one in found:
        if not one.is_ready:
            yield f"{one.agent} is installed, but {plain(remedy(one))}"
    yield ""
    yield f"1. put your agents and steps into it, then `{program} validate {file.name}`"
    yield f"2. `{program} run --dry-run` shows what would happen"
    yield f"3. `{program} run` does it; the work comes back as branches"
