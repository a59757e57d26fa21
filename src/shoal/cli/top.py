"""`shoal top`: runs and agents of this repository in the whole terminal, live and past, with keys to act on them."""

import asyncio
import os

from shoal.cli import output
from shoal.cli.options import HERE, Repo
from shoal.cli.repository import find_place
from shoal.errors import BadInput, Unavailable


def command(repo: Repo = HERE) -> int:
    """Watch all runs in one screen, and act on them.

    `/` filters, `l` shows a log, `d` a diff, `s` sends a message, `x` stops, `a` answers a gate, `p` previews a merge,
    `m` merges, `q` leaves. Runs go on without it.
    """
    try:
        from shoal.cli.live.top_app import TopApp
    except ImportError as missing:
        if (missing.name or "").split(".")[0] == "shoal":
            raise
        raise Unavailable("shoal top", f"{missing.name} is not installed", "run: pip install 'shoal[top]'") from None
    if not output.is_terminal() or os.environ.get("TERM", "dumb") == "dumb":
        raise BadInput("`shoal top` needs a terminal; `shoal runs`, `status` and `logs` print lines")
    from shoal.dashboard.feed import SiteFeed

    place = asyncio.run(find_place(repo))
    folder = place.paths.root.parent
    TopApp(SiteFeed(folder.name or "repository", folder, place.paths), place.repository.top).run()
    return 0
