"""How agents get their databases."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from shoal.errors import BadInput, Unavailable, UnknownName

SHARED = "shared"
DATABASES = ("per_agent", SHARED)
SCHEMES = ("postgresql://", "postgres://")


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """Where agents have their databases: each in a SQLite file of its own, or all on one PostgreSQL server.

    *url_from* is the host's variable with the address of the server: plans that are recorded have that name, and no
    password. Without an address, Shoal starts a server of its own for the run.
    """

    is_shared: bool = False
    url: str = field(default="", repr=False)
    url_from: str = ""

    @classmethod
    def of(cls, strategy: str, given: object) -> Self:
        """Read what a program gives: an address, `{"from": NAME}`, or nothing."""
        if strategy not in DATABASES:
            raise UnknownName("database_strategy", str(strategy), DATABASES)
        if given is not None and strategy != SHARED:
            raise BadInput("database names a server: add database_strategy='shared'")
        match given:
            case None:
                return cls(is_shared=strategy == SHARED)
            case str() if given.startswith(SCHEMES):
                return cls(is_shared=True, url=given)
            case {"from": str(variable), **rest} if not rest:
                return cls(is_shared=True, url_from=variable)
            case _:
                raise BadInput("database is the address of a PostgreSQL server, `postgresql://…`, or {'from': NAME}")

    def find_url(self, environ: Mapping[str, str]) -> str:
        """Return the address of the user's server, or an empty text."""
        if not self.url_from:
            return self.url
        found = environ.get(self.url_from, "")
        if not found:
            what, remedy = f"the database server of ${self.url_from}", f"set {self.url_from} to `postgresql://…`"
            raise Unavailable(what, "the variable is not set", remedy)
        if not found.startswith(SCHEMES):
            raise BadInput(f"{self.url_from} is no address of a PostgreSQL server; write it as `postgresql://…`")
        return found
