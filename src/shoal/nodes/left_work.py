"""Work on a node that no coordinator has taken: of sessions whose coordinator was gone when they ended."""

from shoal.errors import GitFailed
from shoal.executors.wire.messages import LeftWork
from shoal.git.refs import ABSENT, Move, list_refs, move
from shoal.model.events import SessionStarted
from shoal.sessions.context import RunContext
from shoal.store.lock import is_locked
from shoal.store.reader import read_events

MAX_LISTED = 200
BRANCHES = "refs/heads/agent"


async def list_left_work(context: RunContext) -> tuple[LeftWork, ...]:
    """List the work in the mirror whose node has ended; what a living one has is its own to send."""
    refs = await list_refs(context.repository, BRANCHES)
    if not refs:
        return ()
    found = []
    for recorded in read_events(context.paths):
        started = recorded.event
        if not isinstance(started, SessionStarted) or f"refs/heads/{started.branch}" not in refs:
            continue
        if started.run == context.run or is_locked(context.paths.run_lock(started.run)):
            continue
        found.append(
            LeftWork(
                session=started.session,
                run=started.run.rpartition("-")[0],  # what follows is the node's own
                branch=started.branch,
                base=started.base,
                tip=refs[f"refs/heads/{started.branch}"],
            )
        )
    return tuple(found[:MAX_LISTED])


async def forget_work(context: RunContext, session: str) -> None:
    """Remove the refs of a session, whose coordinator has what it wants."""
    step, _, digits = session.rpartition("-")
    branch = f"{BRANCHES}/{step}/{digits}"
    refs = {
        **await list_refs(context.repository, branch),
        **await list_refs(context.repository, f"refs/shoal/kept/{step}/{digits}"),
    }
    try:
        await move(context.repository, [Move(ref, ABSENT, commit) for ref, commit in refs.items()])
    except GitFailed:
        return  # the next coordinator says so again
