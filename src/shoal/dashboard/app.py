"""The routes of the dashboard: the page and its files, documents, live changes, and actions."""

import asyncio
import contextlib
import json
import os
import stat
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from itertools import islice
from pathlib import Path

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from shoal import __version__
from shoal.dashboard.access import NOT_WHOLE, Access, PageGuard, is_ours
from shoal.dashboard.actions import command_words
from shoal.dashboard.documents import error_document, event_document, lane_document, samples_document
from shoal.dashboard.feed import ChangeFeed, SiteFeed
from shoal.errors import BadInput, ShoalError
from shoal.model.events import Recorded
from shoal.proc.own_command import Outcome, run_own
from shoal.store.documents import run_document
from shoal.store.fold import report
from shoal.store.paths import StatePaths
from shoal.store.reader import read_samples, read_session

PAGE = Path(__file__).parent / "page"
EVENTS_AT_ONCE = 500
MAX_ARTIFACT_BYTES = 64 * 2**20
MAX_SESSIONS = 50
MAX_SAMPLES = 120
MAX_STREAMS = 100
SEND_SECONDS = 30.0
"""How long a page may leave unread what it is sent; it can come back for it."""
AT_ONCE = 4
"""How many commands run at a time for the page."""

Handler = Callable[[Request], Awaitable[Response]]


def make_app(feed: ChangeFeed, access: Access, environ: Mapping[str, str]) -> Starlette:
    """Make the dashboard of *feed*, guarded by *access*; its commands run with *environ*."""
    pages = _Pages(feed, environ)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        feed.begin()
        async with asyncio.TaskGroup() as group:
            following = group.create_task(feed.follow())
            yield
            following.cancel()

    routes = [
        Route("/api/sites", _answer(pages.sites)),
        Route("/api/live", _answer(pages.live)),
        Route("/api/run/{site}/{run}", _answer(pages.run)),
        Route("/api/report/{site}/{run}", _answer(pages.report)),
        Route("/api/preview/{site}/{run}", _answer(pages.preview)),
        Route("/api/timeline/{site}/{run}", _answer(pages.timeline)),
        Route("/api/samples/{site}/{run}", _answer(pages.samples)),
        Route("/api/catalogue/{site}", _answer(pages.catalogue)),
        Route("/api/events/{site}/{session}", _answer(pages.events)),
        Route("/api/diff/{site}", _answer(pages.diff)),
        Route("/api/artifact/{site}/{session}/{name:path}", _answer(pages.artifact)),
        Route("/api/act/{site}", _answer(pages.act), methods=["POST"]),
        Mount("/static", StaticFiles(directory=PAGE)),
        Route("/favicon.ico", _icon),
        Route("/", _page),
        Route("/run/{place:path}", _page),
    ]
    return Starlette(routes=routes, middleware=[Middleware(PageGuard, access=access)], lifespan=lifespan)


def _answer(handler: Handler) -> Handler:
    """Answer with the message of an error if one is raised."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except BadInput as error:
            return JSONResponse(error_document(error), 404 if request.method == "GET" else 400)
        except ShoalError as error:
            return JSONResponse(error_document(error), 500)
        except ClientDisconnect:
            return PlainTextResponse(NOT_WHOLE, 400)

    return answer


async def _page(request: Request) -> Response:
    """Serve the page itself at every address that a person may bookmark."""
    return FileResponse(PAGE / "index.html", media_type="text/html")


async def _icon(request: Request) -> Response:
    return FileResponse(PAGE / "icon.svg", media_type="image/svg+xml")


class _Pages:
    """The requests of the page."""

    def __init__(self, feed: ChangeFeed, environ: Mapping[str, str]) -> None:
        self._feed = feed
        self._environ = environ
        self._streams = 0
        self._turns = asyncio.Semaphore(AT_ONCE)  # each starts a process with its own interpreter

    async def sites(self, request: Request) -> Response:
        """List the repositories on show."""
        sites = [{"name": site.name, "folder": str(site.folder)} for site in self._feed.sites.values()]
        return JSONResponse({"sites": sites, "version": __version__})

    async def live(self, request: Request) -> Response:
        """Send documents as they change, until the page goes away."""
        site, run = request.query_params.get("site", ""), request.query_params.get("run", "")
        after = request.headers.get("last-event-id") or request.query_params.get("after", "")
        if self._streams >= MAX_STREAMS:
            return PlainTextResponse("too many pages are open\n", 503)
        stream = self._stream(after, (site, run) if run else None)
        return EventSourceResponse(stream, ping=3600, send_timeout=SEND_SECONDS)

    async def _stream(self, after: str, run: tuple[str, str] | None) -> AsyncIterator[ServerSentEvent]:
        self._streams += 1
        try:
            async for number, messages in self._feed.listen(after, run):
                yield ServerSentEvent(f"[{','.join(message.text for message in messages)}]", event="changes", id=number)
        finally:
            self._streams -= 1

    async def run(self, request: Request) -> Response:
        """Describe a whole run."""
        return JSONResponse(self._site(request).page(request.path_params["run"]))

    async def report(self, request: Request) -> Response:
        """Give the document of `shoal status --json`."""
        run = self._site(request).run(request.path_params["run"])
        return JSONResponse(run_document(report(run)))

    async def preview(self, request: Request) -> Response:
        """Show which sessions of a run merge cleanly."""
        words = ["merge", "--preview", "--json", "--", request.path_params["run"]]
        return _outcome(await self._run(self._site(request), words))

    async def timeline(self, request: Request) -> Response:
        """Return when some sessions of a run did what."""
        site, run, wanted = self._site(request), request.path_params["run"], _sessions(request)
        found: dict[str, object] = {}
        for session in wanted:
            found |= {name: lane_document(lane) for name, lane in site.lanes(run, {session}).items()}
            await asyncio.sleep(0)  # so that other requests are served in between
        return JSONResponse(found)

    async def samples(self, request: Request) -> Response:
        """Return what some sessions of a run used of the machine over time."""
        site = self._site(request)
        known = {session for step in site.run(request.path_params["run"]).steps.values() for session in step.sessions}
        found: dict[str, object] = {}
        for session in _sessions(request):
            if session in known:
                found[session] = samples_document(read_samples(site.paths, session, MAX_SAMPLES))
                await asyncio.sleep(0)
        return JSONResponse(found)

    async def events(self, request: Request) -> Response:
        """Give a part of the log of a session: after an event, or its end."""
        site, session = self._site(request), request.path_params["session"]
        after = _number(request, "after")
        found = await asyncio.to_thread(_read_log, site.paths, site.session(session).session, after)
        return JSONResponse([event_document(recorded) for recorded in found])

    async def catalogue(self, request: Request) -> Response:
        """List the agents and pipelines that new work can name."""
        site = self._site(request)
        async with asyncio.TaskGroup() as group:
            agents = group.create_task(self._run(site, ["agents", "--json"]))
            pipelines = group.create_task(self._run(site, ["validate", "--json"]))
        return JSONResponse({"agents": agents.result().document, "pipelines": pipelines.result().document})

    async def diff(self, request: Request) -> Response:
        """Give what sessions changed, as a patch, with the files that need a careful look."""
        site, asked = self._site(request), request.query_params
        names = ["--", *(asked[name] for name in ("a", "b") if asked.get(name))]
        if run := asked.get("run"):
            names = ["--combined", "--", run]
        async with asyncio.TaskGroup() as group:
            about = group.create_task(self._run(site, ["diff", "--json", *names]))
            patch = group.create_task(self._run(site, ["diff", *names]))
        text = patch.result().output.decode(errors="replace")
        return JSONResponse({"about": about.result().as_fields(), "patch": text, "cut": patch.result().is_cut})

    async def artifact(self, request: Request) -> Response:
        """Serve an artifact as a download, whatever it contains."""
        site, session = self._site(request), request.path_params["session"]
        result, name = site.session(session).result, request.path_params["name"]
        if result is None or name not in result.artifacts:
            raise BadInput(f"no artifact {name[:80]!r} of {session[:80]!r}")
        path = Path(result.artifacts[name])
        content = _read_plain_file(path, site.paths.results)
        headers = {"content-disposition": f'attachment; filename="{_safe_name(path.name)}"'}
        return Response(content, media_type="application/octet-stream", headers=headers)

    async def act(self, request: Request) -> Response:
        """Do what a person asks for, by the command that does it."""
        if not is_ours(request):
            return PlainTextResponse("not from our page\n", 403)
        try:
            fields = json.loads(await request.body())
        except ValueError:
            raise BadInput("the request is not JSON") from None
        if not isinstance(fields, Mapping):
            raise BadInput("the request is not an object")
        return _outcome(await self._run(self._site(request), command_words(fields)))

    def _site(self, request: Request) -> SiteFeed:
        return self._feed.site(request.path_params["site"])

    async def _run(self, site: SiteFeed, words: list[str]) -> Outcome:
        """Run a command; if the server ends first, the command is ended too."""
        async with self._turns, asyncio.TaskGroup() as group:
            command = group.create_task(run_own(site.folder, words, self._environ))
            closing = group.create_task(self._feed.wait_closed())
            await asyncio.wait((command, closing), return_when=asyncio.FIRST_COMPLETED)
            command.cancel()
            closing.cancel()
        return Outcome(130, b"", "`shoal serve` was ended") if command.cancelled() else command.result()


def _outcome(outcome: Outcome) -> Response:
    return JSONResponse(outcome.as_fields())


def _sessions(request: Request) -> list[str]:
    names = request.query_params.get("sessions", "").split(",")
    return [name for name in names if name][:MAX_SESSIONS]


def _read_log(paths: StatePaths, session: str, after: int) -> Collection[Recorded]:
    """Read the log of a session after an event, or its end, because the page shows the latest first."""
    events = read_session(paths, session, after)
    return list(islice(events, EVENTS_AT_ONCE)) if after else deque(events, maxlen=EVENTS_AT_ONCE)


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "0")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def _read_plain_file(path: Path, top: Path) -> bytes:
    """Read a plain file below *top*, through no link."""
    if not path.is_relative_to(top) or ".." in path.parts:
        raise BadInput("this is not an artifact of ours")
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadInput("this artifact is not a plain file")
            return file.read(MAX_ARTIFACT_BYTES)
    except OSError as error:
        raise BadInput(f"the artifact cannot be read: {error.strerror}") from None


def _safe_name(name: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in name)
