"""The protocol of a server that gives each session a database of its own."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from shoal.databases.session_database import SessionDatabase


class Databases(Protocol):
    """A server that all sessions of a run share, and on which none can reach what another has."""

    def hold_session(self, session: str, most_bytes: int | None) -> AbstractAsyncContextManager[SessionDatabase]:
        """Make what *session* has on the server, and remove it at the end; it may be at most that large."""

    async def export(self, database: SessionDatabase, most: int) -> bytes | None:
        """End the connections of a session whose agent has ended, and write what it has as SQL; `None` if nothing."""
