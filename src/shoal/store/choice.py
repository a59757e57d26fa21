"""Which store a repository has: its own files, or a PostgreSQL server that `.shoal/store.json` names."""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from shoal.errors import BadInput, Broken, Unavailable
from shoal.model.store import StoreSettings
from shoal.store.paths import StatePaths

if TYPE_CHECKING:
    from shoal.store.postgres import PostgresStore

VARIABLE = "SHOAL_STORE"
"""The host's variable with the address of a ledger, where no file names one."""


@dataclass(frozen=True, slots=True)
class StoreChoice:
    """What is recorded: an address without a password or the variable that has it, and the repository's name there."""

    url: str
    url_from: str
    repository: str


def read_choice(paths: StatePaths) -> StoreChoice | None:
    """Read which server has the ledger; `None` means the repository's own files."""
    try:
        text = paths.store_choice.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Broken(f"{paths.store_choice} cannot be read: {error.strerror}") from error
    try:
        fields = json.loads(text)
        return StoreChoice(
            url=str(fields["url"]), url_from=str(fields["url_from"]), repository=str(fields["repository"])
        )
    except (ValueError, KeyError, TypeError):
        raise Broken(f"{paths.store_choice} is damaged; run again with `runtime.store`, or remove it") from None


def choose_store(paths: StatePaths, settings: StoreSettings | None, environ: Mapping[str, str]) -> None:
    """Record the ledger that *settings* or the environment name; one that is recorded stays without any.

    Raises `BadInput` where the repository has its history elsewhere: it would seem lost.
    """
    if settings is None and environ.get(VARIABLE):
        settings = StoreSettings(url_from=VARIABLE)
    if settings is None:
        return
    recorded = read_choice(paths)
    known = recorded.repository if recorded else secrets.token_hex(8)
    choice = StoreChoice(settings.url, settings.url_from, settings.repository or known)
    if choice == recorded:
        return
    if recorded is None and paths.ledger.exists():
        raise BadInput(
            f"{paths.root} has a ledger of its own, {paths.ledger.name}, which another store would hide;"
            " remove `store`, or use a fresh clone"
        )
    if recorded is not None and choice.repository != recorded.repository:
        raise BadInput(
            f"this repository is {recorded.repository!r} in its ledger, not {choice.repository!r}; its history would"
            f" seem lost: keep `repository: {recorded.repository}`, or use a fresh clone"
        )
    open_chosen(choice, environ).list_runs()  # what does not answer is not recorded
    draft = paths.store_choice.with_suffix(".part")
    draft.write_text(json.dumps(asdict(choice)))
    draft.replace(paths.store_choice)


def open_chosen(choice: StoreChoice, environ: Mapping[str, str] = os.environ) -> "PostgresStore":
    """Open the store on the server of *choice*."""
    url = choice.url
    if choice.url_from:
        url = environ.get(choice.url_from, "")
        if not url:
            what, remedy = "the ledger of this repository", f"set {choice.url_from} to `postgresql://…`"
            raise Unavailable(what, f"it is on the server that ${choice.url_from} names, which is not set", remedy)
    return _open(url, choice.repository)


def _open(url: str, repository: str) -> "PostgresStore":
    try:
        from shoal.store.postgres import PostgresStore  # imports psycopg, for its users only
    except ImportError as missing:
        remedy = "run: pip install 'shoal[postgres]'"
        raise Unavailable("a ledger on PostgreSQL", f"{missing.name} is not installed", remedy) from None
    return PostgresStore(url, repository)
