"""Which server has the ledger of a repository."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSettings:
    """A ledger on a PostgreSQL server: its address without a password, or the host's variable that has all of it.

    *repository* is the name of this repository there, the same for every clone that shares its history; by default
    each clone has one of its own.
    """

    url: str = field(default="", repr=False)
    url_from: str = ""
    repository: str = ""
