"""What is said when there is a file to start from."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shoal.cli.clients import Client
from shoal.cli.plain import plain


def started_lines(file: Path, found: Sequence[Client], environ: Mapping[str, str], program: str) -> Iterator[str]:
    """Say what was written, which clients are here, and what to type next."""
    ready = [client.name for client in found if client.can_run(environ)]
    others = [client.name for client in found if client.name not in ready]
    yield f"wrote {plain(str(file))}"
    if ready:
        yield f"agents that are ready: {', '.join(ready)}"
    if others:
        yield f"also installed, see the comments in the file: {', '.join(others)}"
    yield ""
    yield f"1. put your agents and steps into it, then `{program} validate {file.name}`"
    yield f"2. `{program} run --dry-run` shows what would happen"
    yield f"3. `{program} run` does it; the work comes back as branches"
