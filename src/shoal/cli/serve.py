"""`shoal serve`: the dashboard in a browser."""

import asyncio
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shoal.cli import output
from shoal.cli.output import escape
from shoal.cli.repository import find_place
from shoal.errors import BadInput, Unavailable

if TYPE_CHECKING:
    from shoal.dashboard.feed import SiteFeed
    from shoal.dashboard.server import Listening

VARIABLE = "SHOAL_SERVE_PASSWORD"
LOOPBACK = ("127.0.0.1", "::1", "localhost")
SHORTEST_PASSWORD = 12

Folders = Annotated[
    list[Path] | None,
    typer.Argument(metavar="FOLDER", help="The repositories to show; default: this one.", show_default=False),
]
Port = Annotated[int, typer.Option(metavar="N", min=0, max=65535, help="The port; 0 takes any free one.")]
Host = Annotated[
    str,
    typer.Option(
        metavar="ADDRESS",
        help=f"Listen on an address other than 127.0.0.1; needs the password in ${VARIABLE}.",
    ),
]
Socket = Annotated[Path | None, typer.Option(metavar="PATH", help="Listen on a unix socket instead.")]
NoBrowser = Annotated[bool, typer.Option("--no-browser", help="Only print the link.")]


def command(
    folders: Folders = None,
    port: Port = 0,
    host: Host = LOOPBACK[0],
    socket: Socket = None,
    no_browser: NoBrowser = False,
) -> int:
    """Show runs and agents in a browser, live, and act on them.

    Prints a link that opens one browser, once; press Enter for another. Without --host, only this machine can reach it.
    Ctrl-C ends it.
    """
    password = os.environ.get(VARIABLE) or None
    if host in ("", "0.0.0.0", "::"):  # noqa: S104 - refused here
        raise BadInput("name one address to listen on; on all addresses, the page could not check its own host name")
    if socket is None and host not in LOOPBACK and (password is None or len(password) < SHORTEST_PASSWORD):
        raise BadInput(
            f"others can reach {escape(host)}: set a password of at least {SHORTEST_PASSWORD} characters in ${VARIABLE}"
        )
    try:
        from shoal.dashboard import server
    except ImportError as missing:
        raise Unavailable(
            "shoal serve", f"{missing.name} is not installed", "run: pip install 'shoal[serve]'"
        ) from None
    place: AbstractContextManager[Listening]
    if socket is not None:
        place = server.listen_on_socket(socket)
    else:
        place = server.listen_on_port("127.0.0.1" if host == "localhost" else host, port, password)
    with place as listening:
        asyncio.run(_serve(listening, folders or [Path()], is_opening=not no_browser and socket is None))
    return 0


async def _serve(listening: "Listening", folders: Sequence[Path], *, is_opening: bool) -> None:
    from shoal.dashboard.feed import ChangeFeed
    from shoal.dashboard.server import serve

    sites = [await _open_site(folder) for folder in folders]
    link = listening.make_link()
    output.print_out(f"dashboard of {', '.join(escape(str(site.folder)) for site in sites)}: {link}")
    output.print_out("the link opens one browser, once; press Enter for a new one, Ctrl-C to end")
    if is_opening:
        _open_browser(link)
    await serve(listening, ChangeFeed(_name_apart(sites)), os.environ, output.print_out)


async def _open_site(folder: Path) -> "SiteFeed":
    from shoal.dashboard.feed import SiteFeed

    place = await find_place(folder)
    home = place.paths.root.parent
    return SiteFeed(home.name or "repository", home, place.paths)


def _name_apart(sites: Sequence["SiteFeed"]) -> list["SiteFeed"]:
    """Drop duplicate repositories, and distinguish those with the same name."""
    found: dict[Path, SiteFeed] = {site.folder: site for site in sites}
    names: set[str] = set()
    for site in found.values():
        plain, number = site.name, 2
        while site.name in names:
            site.name, number = f"{plain}-{number}", number + 1
        names.add(site.name)
    return list(found.values())


def _open_browser(link: str) -> None:
    import webbrowser

    has_display = bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
    if has_display:  # elsewhere it would start a browser in this terminal
        webbrowser.open(link)
