"""The user's own folders of programs: held against what this repository and this wall keep from agents."""

from collections.abc import Iterator
from pathlib import Path

from shoal.engine.site import Site
from shoal.engine.toolchain import given
from shoal.errors import BadInput
from shoal.model.command import Command


def assert_tool_folders(site: Site) -> None:
    """Refuse a folder that would show what must stay hidden, or that the wall cannot show, where it was written."""
    for folder in site.toolchains:
        if hidden := next(_revealed(site, folder.path.resolve()), None):
            raise BadInput(f"{folder.at}: {folder.path} cannot be shown to agents: {hidden} stays hidden from them")
        policy = site.policy(token="", read=given([folder]).read, write=())
        try:  # without any effect: better now than when an agent starts
            site.sandbox.wrap(Command(argv=("true",), cwd=Path("/")), policy)
        except BadInput as error:
            raise BadInput(f"{folder.at}: {error}") from None


def _revealed(site: Site, real: Path) -> Iterator[Path]:
    """Name what would be seen: the checkout as a whole, and anything of git's or of ours."""
    repository = site.repository
    yield from (one for one in (repository.top, repository.home) if one.is_relative_to(real))
    for kept in (repository.git, site.paths.root, *site.hidden):
        if kept.is_relative_to(real) or real.is_relative_to(kept):
            yield kept
