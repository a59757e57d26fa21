"""The work of a `directory` session as a patch, for projects that are no repositories."""

from shoal.engine.keep import Kept
from shoal.engine.site import Site
from shoal.git.run import git

LARGEST_BYTES = 64 * 2**20


async def patch(site: Site, session: str, work: Kept) -> dict[str, str]:
    """Write the patch beside the other results and name it; other kinds of workspace have a branch instead."""
    if site.kind.name != "directory" or work.commit is None:
        return {}
    options = ("--binary", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all")
    done = await git(site.repository.git, "diff", *options, site.base.commit, work.commit, limit=LARGEST_BYTES)
    if done.dropped:
        return {}
    target = site.paths.results / f"{session}.patch"
    target.write_bytes(done.stdout)
    return {"patch": str(target)}
