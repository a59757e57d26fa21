"""Pages of docs/ that are written from the code: `python -m scripts.reference` writes them again."""

from collections.abc import Callable, Mapping
from pathlib import Path

from scripts.reference import commands, errors, events, library, yaml_keys

DOCS = Path(__file__).parents[2] / "docs"
PAGES: Mapping[Path, Callable[[], str]] = {
    DOCS / "yaml.md": yaml_keys.page,
    DOCS / "cli.md": commands.page,
    DOCS / "events.md": events.page,
    DOCS / "errors.md": errors.page,
    DOCS / "python.md": library.page,
}
"""What writes each page."""
