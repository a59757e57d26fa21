"""Settings of clients that earlier agents wrote: no client starts with them, and none takes them away.

They can name hooks to run, servers to start and an address to send the login to. A client is given the base without
them, by a commit of its own; when it has ended they come back by a merge, so that neither the difference of its
branch nor a later merge shows them as deleted.
"""

from dataclasses import replace

from shoal.engine.job import Job
from shoal.engine.seal import NAMED_AT_MOST
from shoal.engine.site import Site
from shoal.git.difference import changed_paths
from shoal.git.merge import Merged, combined
from shoal.git.refs import Move, move
from shoal.git.set_back import set_back
from shoal.model.aside import Aside
from shoal.model.executable import is_client_config
from shoal.model.results import WorkerResult


async def set_aside(site: Site, job: Job, commit: str) -> Aside | None:
    """Make the commit that *job* starts from in place of *commit*; `None` where nothing has to be set aside."""
    if job.trusts_base or job.adapter.client is None:
        return None
    repository, ground = site.repository, site.base.commit
    paths = [path for path in await changed_paths(repository.git, ground, commit) if is_client_config(path)]
    if not paths:
        return None
    start = await set_back(repository, ground, commit, is_client_config)
    return Aside(commit=commit, start=start, paths=tuple(ascii(path)[1:-1] for path in paths[:NAMED_AT_MOST]))


async def put_back(site: Site, result: WorkerResult) -> WorkerResult:
    """Bring back what was set aside; where the client wrote the same files itself, its own count alone."""
    if (aside := site.aside) is None:
        return result
    result = replace(result, set_back=aside.paths)
    if result.commit is None:  # raw files are sealed on what they began as
        return result if result.raw else replace(result, base=aside.commit)
    repository = site.repository
    again = await set_back(repository, aside.commit, aside.start, lambda _: True)
    whole = await combined(repository, (result.commit, again), "With the settings of clients that were set back\n")
    if not isinstance(whole, Merged):
        return result
    if not await move(repository, [Move(f"refs/heads/{result.branch}", whole.commit, result.commit)]):
        return result
    return replace(result, commit=whole.commit, base=aside.commit)
