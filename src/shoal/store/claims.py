"""The claims of a run's agents, computed from its events."""

from collections.abc import Iterable

from shoal.model.claims import ClaimEvent, ClaimMade, ClaimState


class ClaimFold:
    """The claims during folding: they end by a release, with their session, or by their time."""

    def __init__(self) -> None:
        self._held: dict[str, dict[str, ClaimState]] = {}

    def take(self, event: ClaimEvent, at: float) -> None:
        """Fold one event."""
        if isinstance(event, ClaimMade):
            own = self._held.setdefault(event.session, {})
            until = at + event.seconds
            for pattern in event.patterns:
                own[pattern] = ClaimState(
                    agent=event.agent, session=event.session, pattern=pattern, why=event.why, until=until
                )
        else:
            own = self._held.get(event.session, {})
            for pattern in event.patterns or list(own):
                own.pop(pattern, None)

    def end_session(self, session: str) -> None:
        """End the claims of a session."""
        self._held.pop(session, None)

    def list_held(self) -> Iterable[ClaimState]:
        """Return the claims that were not ended, in order; their time may be over."""
        return (claim for own in self._held.values() for claim in own.values())
