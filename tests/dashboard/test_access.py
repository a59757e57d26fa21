"""Who may use the dashboard: nobody without its link, no other page, and nobody by another name."""

import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import SHOAL, environment, shoal_in
from tests.dashboard.serving import SECONDS, Dashboard, serving

ROUTES = ("/", "/api/sites", "/api/live", "/static/app.js", "/api/run/repo/x", "/run/repo/x")
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


def test_a_link_opens_one_browser_once(repo: Path) -> None:
    with serving(repo) as dashboard:
        path = dashboard.link.partition(f":{dashboard.port}")[2]
        without, guessed = dashboard.ask("GET", "/").status, dashboard.ask("GET", "/open/guess").status
        opened, again = dashboard.ask("GET", path), dashboard.ask("GET", path)

        assert (without, guessed) == (403, 403)
        assert (opened.status, opened.headers["location"]) == (303, "/")
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

    assert (mode, answer.split()[1]) == (0o600, b"303")
    assert not path.exists()
