"""Sessions that the ledger does not know, though their own logs do."""

from collections.abc import Iterable

from shoal.model.events import SessionStarted
from shoal.store.fold import fold
from shoal.store.ledger import Ledger
from shoal.store.paths import StatePaths
from shoal.store.reader import read_events
from shoal.store.rebuild import find_lost


async def adopt_lost(paths: StatePaths, ledger: Ledger, sessions: Iterable[str]) -> tuple[str, ...]:
    """Record those *sessions* that only their own logs know: power, or a deleted `-wal`, took the ledger's last words.

    Their runs then look killed, or ended, like any other; the names of the sessions are returned.
    """
    wanted = set(sessions)
    if not wanted:
        return ()
    runs = fold(read_events(paths)).runs
    lost = wanted.difference(*(step.sessions for run in runs.values() for step in run.steps.values()))
    events = find_lost(paths, lost, runs)
    await ledger.append(*events)
    return tuple(sorted({event.session for event in events if isinstance(event, SessionStarted)}))
