"""Logins that the gateway holds: renewed once, on the host, written back whole, and never shown to a sandbox."""

import asyncio
import contextlib
import json
import os
import stat
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shoal.gateway.gateway import open_gateway
from shoal.gateway.logins import CLAUDE, CODEX, KNOWN, LoginUnusable, read_tokens
from shoal.gateway.renew_login import HeldLogin, Logins
from shoal.gateway.upstream_connection import UpstreamFailed, UpstreamPool
from shoal.model.gateway import LOGINS, SessionOrder, Upstream, with_logins
from shoal.testing.model import ModelServer
from tests.gateway.login_server import ACCOUNT, LoginServer

TOO_LATE = 60.0


@contextlib.asynccontextmanager
async def holding(server: LoginServer, file: Path, name: str = "claude") -> AsyncIterator[HeldLogin]:
    pool = UpstreamPool({})
    async with asyncio.TaskGroup() as group:
        upstream = Upstream(
            name="m", url="", format=LOGINS[name], login=name, login_file=str(file), token_url=server.token_url
        )
        yield Logins(pool, group).find(upstream)
    pool.close()


@pytest.fixture
def server() -> Any:  # noqa: ANN401 - a generator
    with ModelServer() as model, LoginServer(model) as found:
        yield found


@pytest.mark.parametrize("name", KNOWN)
async def test_a_valid_login_is_used_as_it_is(server: LoginServer, tmp_path: Path, name: str) -> None:
    file = server.write(tmp_path)[name]

    async with holding(server, file, name) as held:
        tokens = await held.tokens()

    assert tokens.access == server.access
    assert tokens.headers == ((("chatgpt-account-id", ACCOUNT),) if name == "codex" else ())
    assert not server.renewals


@pytest.mark.parametrize("name", KNOWN)
async def test_what_was_refused_is_renewed_and_everything_else_in_the_file_stays(
    server: LoginServer, tmp_path: Path, name: str
) -> None:
    file = server.write(tmp_path)[name]
    before = json.loads(file.read_text())

    async with holding(server, file, name) as held:
        tokens = await held.tokens(refused=server.access)

    after = json.loads(file.read_text())
    assert tokens.access == server.access == read_tokens(KNOWN[name], file).access
    assert read_tokens(KNOWN[name], file).refresh == server.refresh
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    inner = "claudeAiOauth" if name == "claude" else "tokens"
    new = {"accessToken", "refreshToken", "expiresAt", "access_token", "refresh_token"}
    assert {key: value for key, value in after[inner].items() if key not in new} == {
        key: value for key, value in before[inner].items() if key not in new
    }
    assert {key for key in before if before[key] != after[key]} <= {inner, "last_refresh"}
    assert [path.name for path in file.parent.iterdir() if path.name.endswith(".new")] == []


async def test_an_expired_login_is_renewed_before_it_is_used(server: LoginServer, tmp_path: Path) -> None:
    file = server.write(tmp_path, expires_in=30)["claude"]

    async with holding(server, file) as held:
        assert (await held.tokens()).access == server.access

    assert server.renewals == 1


async def test_fifty_requests_renew_once(server: LoginServer, tmp_path: Path) -> None:
    file = server.write(tmp_path)["claude"]
    old = server.access

    async with holding(server, file) as held, asyncio.TaskGroup() as group:
        asked = [group.create_task(held.tokens(refused=old)) for _ in range(50)]

    assert {task.result().access for task in asked} == {server.access}
    assert (server.renewals, server.reused) == (1, 0)


RENEW = """
import asyncio, sys
from pathlib import Path
from shoal.gateway.renew_login import Logins
from shoal.gateway.upstream_connection import UpstreamPool
from shoal.model.gateway import Upstream
async def main(file, url, refused):
    async with asyncio.TaskGroup() as group:
        upstream = Upstream(name="m", url="", format="anthropic", login="claude", login_file=file, token_url=url)
        print((await Logins(UpstreamPool({}), group).find(upstream).tokens(refused)).access)
asyncio.run(main(*sys.argv[1:]))
"""


async def test_processes_take_turns_and_only_one_of_them_renews(server: LoginServer, tmp_path: Path) -> None:
    file = server.write(tmp_path)["claude"]
    words = (sys.executable, "-c", RENEW, str(file), server.token_url, server.access)

    started = [await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE) for _ in range(6)]
    said = {(await process.communicate())[0].decode().strip() for process in started}

    assert said == {server.access}
    assert (server.renewals, server.reused) == (1, 0)


async def test_what_the_user_s_own_client_has_renewed_is_used_and_not_overwritten(
    server: LoginServer, tmp_path: Path
) -> None:
    file = server.write(tmp_path)["claude"]
    old, own = server.access, server.claude()
    own["claudeAiOauth"] |= {"accessToken": "renewed-by-the-user", "refreshToken": "refresh-of-the-user"}
    server.pause.clear()

    async with holding(server, file) as held, asyncio.TaskGroup() as group:
        asked = group.create_task(held.tokens(refused=old))
        await asyncio.to_thread(server.asked.wait, TOO_LATE)
        file.write_text(json.dumps(own))
        server.pause.set()
        assert (await asked).access == "renewed-by-the-user"

    assert json.loads(file.read_text()) == own


async def test_a_login_that_has_ended_says_so_and_is_not_asked_for_again(server: LoginServer, tmp_path: Path) -> None:
    file = server.write(tmp_path)["codex"]
    before, server.is_open = file.read_bytes(), False

    async with holding(server, file, "codex") as held:
        for _ in range(3):
            with pytest.raises(LoginUnusable, match="log in again with `codex`"):
                await held.tokens(refused=server.access)

    assert server.reused == 1
    assert file.read_bytes() == before


async def test_a_valid_token_is_used_while_its_renewal_fails(server: LoginServer, tmp_path: Path) -> None:
    file = server.write(tmp_path, expires_in=100)["claude"]

    async with holding(server, file) as held:
        held._token_url = "http://127.0.0.1:9/token"
        assert (await held.tokens()).access == server.access
        with pytest.raises(UpstreamFailed, match="could not be renewed"):
            await held.tokens(refused=server.access)


async def test_who_stops_waiting_does_not_stop_a_renewal(server: LoginServer, tmp_path: Path) -> None:
    file = server.write(tmp_path)["claude"]
    server.pause.clear()

    async with holding(server, file) as held, asyncio.TaskGroup() as group:
        asked = group.create_task(held.tokens(refused=server.access))
        await asyncio.to_thread(server.asked.wait, TOO_LATE)
        asked.cancel()
        await asyncio.wait([asked])
        server.pause.set()
        await held.settle()

    assert read_tokens(CLAUDE, file).access == server.access


async def test_a_written_login_that_a_kill_kept_from_its_place_is_recovered(
    server: LoginServer, tmp_path: Path
) -> None:
    file = server.write(tmp_path)["claude"]
    old, server.serial = server.access, 2
    file.with_name(f".{file.name}.shoal.new").write_text(json.dumps(server.claude()))

    async with holding(server, file) as held:
        assert (await held.tokens(refused=old)).access == server.access

    assert not server.renewals
    assert read_tokens(CLAUDE, file).refresh == server.refresh


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"claudeAiOauth": 3}', b'{"claudeAiOauth": {}}', b"\xff" * 9])
async def test_a_damaged_login_is_refused(server: LoginServer, tmp_path: Path, content: bytes) -> None:
    file = server.write(tmp_path)["claude"]
    file.write_bytes(content)

    async with holding(server, file) as held:
        with pytest.raises(LoginUnusable, match="login"):
            await held.tokens()


@pytest.mark.parametrize(
    "answer", [{}, {"access_token": 3}, {"access_token": "with space"}, {"access_token": "x" * 20000}]
)
def test_only_tokens_that_fit_a_header_are_taken(answer: dict[str, Any]) -> None:
    for login in (CLAUDE, CODEX):
        document = login.update({}, {"access_token": "", **answer}, 0)

        assert login.read(document) is None


def test_a_codex_login_by_key_is_a_key(tmp_path: Path) -> None:
    file = tmp_path / ".codex" / "auth.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"OPENAI_API_KEY": "sk-of-the-user", "tokens": None}))

    found = CODEX.complete(with_logins((), ["codex"])[0], {"HOME": str(tmp_path)})

    assert (found.key, found.login, found.url) == ("sk-of-the-user", "", "https://api.openai.com/v1")


def test_an_agent_s_order_has_no_token_of_a_login(server: LoginServer, tmp_path: Path) -> None:
    server.write(tmp_path)
    upstream = CLAUDE.complete(with_logins((), ["claude"])[0], {"HOME": str(tmp_path)})

    order = SessionOrder(session="s", run="r", step="w", upstreams=(upstream,))

    assert "real-" not in repr(order) + repr(order.access.profiles)
    assert order.access.profiles == {
        "anthropic": {"scopes": ["user:inference", "user:profile"], "subscriptionType": "max"}
    }


async def test_a_gateway_that_is_ended_finishes_the_renewal_first(server: LoginServer, tmp_path: Path) -> None:
    file = server.write(tmp_path)["claude"]
    old = server.access
    server.pause.clear()
    upstream = CLAUDE.complete(
        Upstream(name="anthropic", url=server.url, format="anthropic", login="claude", token_url=server.token_url),
        {"HOME": str(tmp_path)},
    )
    server.lasts, server.answered = 1, 1
    order = SessionOrder(session="s", run="r", step="w", upstreams=(upstream,))

    async with open_gateway({**os.environ, "HOME": str(tmp_path)}) as gateway:
        async with gateway.hold_session(order, lambda _: None) as session:
            _, writer = await session.connect(session.ports[0])
            body = b'{"model": "claude-sonnet-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}]}'
            head = f"POST /anthropic/v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {order.token}\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            await asyncio.to_thread(server.asked.wait, TOO_LATE)
            writer.close()
        asyncio.get_running_loop().call_later(0.2, server.pause.set)

    assert server.renewals == 1
    assert read_tokens(CLAUDE, file).access == server.access != old
