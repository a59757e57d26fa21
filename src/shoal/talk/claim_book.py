"""The claims of a run's agents: advice, which hinders nobody."""

import asyncio
import time
from collections.abc import Sequence

from shoal.model.claims import MOST_CLAIMED, MOST_PATTERNS, ClaimState, is_overlapping
from shoal.talk.kind import CallRefused


class ClaimBook:
    """The claims that hold; each ends with its time, or with its session."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], ClaimState] = {}

    def list_held(self) -> list[ClaimState]:
        """Return all claims that hold."""
        now = time.time()
        self._claims = {key: claim for key, claim in self._claims.items() if claim.until > now}
        return list(self._claims.values())

    async def add(self, claims: Sequence[ClaimState]) -> list[tuple[ClaimState, ClaimState]]:
        """Keep *claims* of one session, and return with which of others each overlaps."""
        held = self.list_held()
        own = {claim.pattern for claim in (*held, *claims) if claim.session == claims[0].session}
        if len(own) > MOST_CLAIMED:
            raise CallRefused(f"you may claim {MOST_CLAIMED} patterns, and this would make {len(own)}; `release` some")
        if len(held) + len(claims) > MOST_PATTERNS:
            raise CallRefused(f"the agents of this run claim {len(held)} patterns; there is no room for more")
        others = [claim for claim in held if claim.session != claims[0].session]
        for claim in claims:
            self._claims[claim.session, claim.pattern] = claim
        found = []
        for claim in claims:
            found += [(claim, other) for other in others if is_overlapping(claim.pattern, other.pattern)]
            await asyncio.sleep(0)  # a thousand comparisons may take a while, and others wait
        return found

    def remove(self, session: str, patterns: Sequence[str] = ()) -> list[str]:
        """Remove claims of a session, or all; return what was removed."""
        gone = [key for key in self._claims if key[0] == session and (not patterns or key[1] in patterns)]
        for key in gone:
            del self._claims[key]
        return [pattern for _, pattern in gone]
