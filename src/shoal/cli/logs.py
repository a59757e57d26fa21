"""`shoal logs`: what an agent said."""

import asyncio
import time
from collections.abc import Iterator
from typing import Annotated

import typer

from shoal.cli import output
from shoal.cli.document import event_line
from shoal.cli.options import HERE, Repo, Session
from shoal.cli.place import Place, found, run_of
from shoal.cli.render.logs import asked_line, ended_line, log_line, removed_line
from shoal.model.events import Recorded, SessionEnded
from shoal.model.results import WorkerResult
from shoal.store.find import find_session
from shoal.store.fold import SessionState
from shoal.store.lock import is_locked
from shoal.store.read import events, session_events

POLL_SECONDS = 0.2


def command(
    session: Session = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the session has ended.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One JSON object per line, for each event.")] = False,
    repo: Repo = HERE,
) -> int:
    """Show what an agent said, the latest or another."""
    place = asyncio.run(found(repo))
    state = place.state()
    chosen = find_session(state, session)
    watch = Watch(place, run_of(state, chosen).run, chosen)
    paint = output.paint()
    if not json and chosen.prompt:
        output.say(asked_line(chosen.prompt, paint))
    if chosen.result is not None and not place.paths.session_db(chosen.session).exists():
        output.tell(removed_line(chosen.session))
    for recorded in watch.followed() if follow else session_events(place.paths, chosen.session):
        line = event_line(recorded) if json else log_line(recorded.event, paint)
        if line is not None:
            output.say(line)
    if not json and (result := watch.result) is not None:
        output.say(ended_line(result, paint))
    return 0


class Watch:
    """Looks at one session until it has ended, or its Shoal is dead."""

    def __init__(self, place: Place, run: str, session: SessionState) -> None:
        self._place = place
        self._run = run
        self._session = session.session
        self._seen = session.seq
        self.result: WorkerResult | None = session.result

    def followed(self) -> Iterator[Recorded]:
        """Give its events, those to come too."""
        after = 0
        while True:
            # Asked first: a session ends after its last event is on disk, so what is read then is all there is.
            is_over = self._is_over()
            for recorded in session_events(self._place.paths, self._session, after):
                after = recorded.seq
                yield recorded
            if is_over:
                return
            time.sleep(POLL_SECONDS)

    def _is_over(self) -> bool:
        is_alive = is_locked(self._place.paths.run_lock(self._run))
        for recorded in events(self._place.paths, self._run, self._seen):
            self._seen = recorded.seq
            match recorded.event:
                case SessionEnded(session=session, result=result) if session == self._session:
                    self.result = result
        return self.result is not None or not is_alive
