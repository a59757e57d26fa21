"""Client settings that earlier agents wrote: no client starts with them, and none deletes them.

They can name hooks to run, servers to start, and an address that receives the login. A client starts from a commit
without them. After it has ended, a merge brings them back, so that neither the diff of its branch nor a later merge
shows them as deleted.
"""

from dataclasses import replace

from shoal.git.diff import list_changed_paths
from shoal.git.merge import Merged, combine_commits
from shoal.git.refs import Move, move
from shoal.git.snapshot import revert_paths
from shoal.model.executable_files import is_client_config
from shoal.model.results import WorkerResult
from shoal.model.setup import Aside
from shoal.sessions.context import RunContext
from shoal.sessions.seal import NAMED_AT_MOST
from shoal.sessions.worker import WorkerSpec


async def set_aside_settings(context: RunContext, worker: WorkerSpec, commit: str) -> Aside | None:
    """Make the commit that *worker* starts from instead of *commit*; `None` if nothing has to be set aside."""
    if worker.trusts_base or worker.adapter.client is None:
        return None
    repository, base = context.repository, context.base.commit
    paths = [path for path in await list_changed_paths(repository.git, base, commit) if is_client_config(path)]
    if not paths:
        return None
    start = await revert_paths(repository, base, commit, is_client_config)
    return Aside(commit=commit, start=start, paths=tuple(ascii(path)[1:-1] for path in paths[:NAMED_AT_MOST]))


async def restore_client_settings(context: RunContext, result: WorkerResult) -> WorkerResult:
    """Bring back what was set aside; where the client wrote the same files itself, its version counts."""
    if (aside := context.aside) is None:
        return result
    result = replace(result, set_back=aside.paths)
    if result.commit is None:  # raw files are sealed on the commit that they started from
        return result if result.raw else replace(result, base=aside.commit)
    repository = context.repository
    again = await revert_paths(repository, aside.commit, aside.start, lambda _: True)
    whole = await combine_commits(
        repository, (result.commit, again), "Restore the client settings that were set aside\n"
    )
    if not isinstance(whole, Merged):
        return result
    if not await move(repository, [Move(f"refs/heads/{result.branch}", whole.commit, result.commit)]):
        return result
    return replace(result, commit=whole.commit, base=aside.commit)
