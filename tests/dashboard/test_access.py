"""Who may use the dashboard: nobody without its link, no other page, and only by the right host name."""

import contextlib
import os
import resource
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import pytest
from starlette.routing import Match, Mount, Route

from shoal.dashboard.access import Access, find_owner
from shoal.dashboard.app import make_app
from shoal.dashboard.feed import ChangeFeed
from tests.cli.conftest import SHOAL, environment, shoal_in
from tests.dashboard.serving import SECONDS, Dashboard, serving

ROUTES = (
    *(
        "/",
        "/api/sites",
        "/static/app.js",
        "/static/vendor/diff2html.js",
        "/run/repo/x",
        "/run/repo/x/y",
        "/favicon.ico",
    ),
    *("/api/live", "/api/live?site=repo&run=x", "/api/catalogue/repo", "/api/diff/repo?a=x"),
    *(f"/api/{kind}/repo/x" for kind in ("run", "report", "preview", "timeline", "samples", "events")),
    *("/api/artifact/repo/x/y", "/open/x", "/login"),
)
FOREIGN: tuple[Mapping[str, str], ...] = (
    {"Host": "evil.test"},
    {"Host": "evil.test:80"},
    {"Host": "127.0.0.1"},
    {"Host": "127.0.0.1:1"},
    {"Host": "127.0.0.1.evil.test"},
    {"Origin": "http://evil.test"},
    {"Origin": "null"},
    {"Origin": "https://127.0.0.1"},
    {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors"},
    {"Sec_Fetch_Site": "same-site", "Sec_Fetch_Mode": "cors"},
    {"Cookie": "x=y"},
    {"Cookie": "shoal=forged"},
    {"Cookie": '"; ='},
)


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_foreign_request_is_refused_on_every_route(dashboard: Dashboard, headers: Mapping[str, str]) -> None:
    answers = [dashboard.ask("GET", route, None, **headers).status for route in ROUTES]
    written = dashboard.ask("POST", "/api/act/repo", b"{}", X_Shoal="1", **headers).status

    assert all(status in (403, 421) for status in (*answers, written)), answers


def test_every_route_is_tried() -> None:
    app = make_app(ChangeFeed([]), Access(hosts=frozenset(), cookie="c"), {})
    routes = [route for route in app.routes if isinstance(route, Route | Mount) and route.path != "/api/act/{site}"]

    assert [route.path for route in routes if not any(_is_for(route, asked) for asked in ROUTES)] == []


def _is_for(route: Route | Mount, asked: str) -> bool:
    scope = {"type": "http", "method": "GET", "path": asked.partition("?")[0], "root_path": "", "headers": []}
    return route.matches(scope)[0] is Match.FULL


def test_a_link_opens_one_browser_once(repo: Path) -> None:
    with serving(repo) as dashboard:
        path = dashboard.link.partition(f":{dashboard.port}")[2]
        without, guessed = dashboard.ask("GET", "/").status, dashboard.ask("GET", "/open/guess").status
        opened, again = dashboard.ask("GET", path), dashboard.ask("GET", path)

        assert (without, guessed) == (403, 403)
        assert (opened.status, opened.headers["refresh"]) == (200, "0; url=/")
        cookie = opened.headers["set-cookie"].lower()
        assert all(part in cookie for part in ("httponly", "samesite=strict", "path=/"))
        assert (again.status, again.headers["set-cookie"]) == (403, None)


def test_every_answer_forbids_scripts_of_others_and_frames(dashboard: Dashboard) -> None:
    for route in (*ROUTES[:2], "/static/style.css", "/open/x"):
        headers = dashboard.ask("GET", route).headers
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("POST", {}, 403),
        ("POST", {"Content_Type": "application/x-www-form-urlencoded"}, 403),
        ("GET", {"X_Shoal": "1"}, 405),
        ("PUT", {"X_Shoal": "1"}, 405),
        ("DELETE", {"X_Shoal": "1"}, 405),
    ],
)
def test_a_write_needs_what_only_our_page_sends(
    dashboard: Dashboard, method: str, headers: Mapping[str, str], status: int
) -> None:
    assert dashboard.ask(method, "/api/act/repo", b'{"action": "run"}', **headers).status == status


@pytest.mark.parametrize(
    "path",
    [
        "/api/run/repo/..",
        "/api/run/repo/%2e%2e%2f%2e%2e",
        "/api/run/repo/%00",
        "/api/run/..%2f..%2fetc/passwd",
        "/api/report/repo/-x",
        "/api/events/repo/..%2f..%2fledger",
        "/api/events/repo/%00",
        "/api/events/repo/" + "x" * 5000,
        "/api/timeline/repo/%2fetc?sessions=..%2f..%2fx",
        "/api/samples/repo/..?sessions=..%2fledger",
        "/api/artifact/repo/x/..%2f..%2f..%2fetc%2fpasswd",
        "/api/artifact/repo/..%2fx//etc/passwd",
        "/static/%2e%2e/app.py",
        "/static/..%5c..%5capp.py",
        "/static//etc/passwd",
        "/static/vendor",
    ],
    ids=lambda path: path[:40],
)
def test_no_path_leads_out(dashboard: Dashboard, path: str) -> None:
    answer = dashboard.ask("GET", path)

    assert answer.status in (400, 404), answer.content[:200]


@pytest.mark.parametrize("name", ["--repo=/", "--json", "..", "$(id)", "x\ny"])
def test_no_word_of_a_request_becomes_an_option(dashboard: Dashboard, name: str) -> None:
    asked = quote(name, safe="")
    about = dashboard.get(f"/api/diff/repo?a={asked}")["about"]
    combined = dashboard.get(f"/api/diff/repo?run={asked}")["about"]
    preview = dashboard.get(f"/api/preview/repo/{asked}") if "/" not in name else about
    stopped = dashboard.act("repo", action="stop", target=name)[1]

    assert {about["code"], combined["code"], preview["code"], stopped["code"]} == {2}


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: PLACE\r\nHost: PLACE\r\nCookie: COOKIE\r\n\r\n",
        b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\nCookie: COOKIE\r\n\r\n",
        b"GET / HTTP/1.0\r\nCookie: COOKIE\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: PLACE\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: PLACE\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: PLACE\r\nCookie: COOKIE\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: PLACE\r\nCookie: COOKIE\r\n\r\n",
        b"CONNECT evil.test:80 HTTP/1.1\r\nHost: PLACE\r\nCookie: COOKIE\r\n\r\n",
        b"GET /api/live HTTP/1.1\r\nHost: PLACE\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
        b"POST /api/act/repo HTTP/1.1\r\nHost: PLACE\r\nCookie: COOKIE\r\nX-Shoal: 1\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n5dc00\r\n" + b"x" * 0x5DC00 + b"\r\n0\r\n\r\n",
    ],
    ids=lambda sent: repr(sent[:40]),
)
def test_an_odd_request_is_refused(dashboard: Dashboard, sent: bytes) -> None:
    sent = sent.replace(b"PLACE", f"127.0.0.1:{dashboard.port}".encode()).replace(b"COOKIE", dashboard.cookie.encode())
    with socket.create_connection(("127.0.0.1", dashboard.port), timeout=SECONDS) as client:
        client.sendall(sent)
        status = int(client.recv(65536).split()[1])

    assert 400 <= status < 500
    assert dashboard.ask("GET", "/").status == 200


def test_who_connects_is_known_by_the_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        owner = find_owner(client.getsockname(), server.getsockname())
        nobody = find_owner(("127.0.0.1", 1), server.getsockname())

    assert (owner, nobody) == (os.getuid(), None)


def test_passwords_are_not_guessed() -> None:
    access = Access(hosts=frozenset(), cookie="c", password="correct horse battery")

    assert not any(access.use_password(f"guess {number}") for number in range(20))
    assert not access.use_password("correct horse battery")


def test_a_large_body_is_refused_before_it_is_read(dashboard: Dashboard) -> None:
    assert dashboard.ask("POST", "/api/act/repo", b"x" * 300_000, X_Shoal="1").status == 413


@pytest.mark.parametrize("words", [("--host", "0.0.0.0"), ("--host", "192.0.2.1"), ("--host", "example.test")])
def test_another_address_needs_a_password(repo: Path, words: tuple[str, ...]) -> None:
    said = shoal_in(repo)("serve", "--no-browser", *words)

    assert (said.code, said.out) == (2, "")


def test_a_port_in_use_is_refused(repo: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = shoal_in(repo)("serve", "--no-browser", "--port", str(taken.getsockname()[1]))

    assert (said.code, "cannot be used: Address already in use" in said.err) == (2, True)


def test_a_unix_socket_is_for_its_owner_alone(repo: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with subprocess.Popen(
        [str(SHOAL), "serve", "--socket", str(path)], cwd=repo, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdout is not None
        link = process.stdout.readline().split()[-1]
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(SECONDS)
            client.connect(str(path))
            client.sendall(f"GET /{link.split('/', 3)[3]} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            answer = client.recv(65536)
        mode = path.stat().st_mode & 0o777
        process.terminate()
        process.wait(SECONDS)

    assert (mode, answer.split()[1]) == (0o600, b"200")
    assert not path.exists()


@pytest.mark.deep
@pytest.mark.timeout(180)
def test_a_thousand_connections_do_not_end_the_dashboard(dashboard: Dashboard) -> None:
    """Idle ones, unfinished requests and pages that read nothing: those are let go, and the dashboard answers again."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    host, cookie = f"127.0.0.1:{dashboard.port}", dashboard.cookie
    begun = f"GET /api/live HTTP/1.1\r\nHost: {host}\r\nCookie: {cookie}\r\n".encode()
    with contextlib.ExitStack() as stack:
        for number in range(1000):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", dashboard.port), timeout=SECONDS))
            client.sendall((b"", begun, begun + b"\r\n")[number % 3])
        due = time.monotonic() + SECONDS
        while (status := dashboard.ask("GET", "/").status) != 200:
            assert time.monotonic() < due, status
            time.sleep(0.5)
        streams = Path(f"/proc/{dashboard.process.pid}/fd")

        assert len(list(streams.iterdir())) < 300
    assert dashboard.ask("GET", "/api/sites").status == 200
