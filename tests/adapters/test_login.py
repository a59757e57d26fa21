"""A login that was renewed is the same login with newer tokens; anything else is another."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.sessions.credentials import is_refreshed, replace_credentials, tokens

CLAUDE = {"claudeAiOauth": {"accessToken": "a", "refreshToken": "r", "expiresAt": 100, "scopes": ["x"], "plan": "max"}}
CODEX = {
    "OPENAI_API_KEY": None,
    "tokens": {"id_token": "i", "access_token": "a", "refresh_token": "r", "account_id": "me"},
    "last_refresh": "2026-11-01T00:00:00Z",
}


def changed(login: Mapping[str, object], *path: str, to: object) -> bytes:
    copy = json.loads(json.dumps(login))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = to
    return json.dumps(copy).encode()


def test_newer_tokens_of_the_same_login_are_a_refresh() -> None:
    claude = changed(
        json.loads(changed(CLAUDE, "claudeAiOauth", "accessToken", to="b")), "claudeAiOauth", "expiresAt", to=200
    )
    codex = changed(
        json.loads(changed(CODEX, "tokens", "refresh_token", to="s")), "last_refresh", to="2026-11-02T00:00:00Z"
    )

    assert is_refreshed(json.dumps(CLAUDE).encode(), claude)
    assert is_refreshed(json.dumps(CODEX).encode(), codex)


@pytest.mark.parametrize(
    ("login", "new"),
    [
        (CLAUDE, json.dumps(CLAUDE).encode()),
        (CLAUDE, changed(CLAUDE, "claudeAiOauth", "accessToken", to="b")),
        (CLAUDE, changed(CLAUDE, "claudeAiOauth", "expiresAt", to=50)),
        (
            CLAUDE,
            changed(
                json.loads(changed(CLAUDE, "claudeAiOauth", "plan", to="mine")), "claudeAiOauth", "expiresAt", to=200
            ),
        ),
        (
            CLAUDE,
            changed(json.loads(changed(CLAUDE, "claudeAiOauth", "more", to=1)), "claudeAiOauth", "expiresAt", to=200),
        ),
        (CLAUDE, changed(CLAUDE, "claudeAiOauth", "expiresAt", to="200")),
        (CODEX, changed(json.loads(changed(CODEX, "tokens", "account_id", to="you")), "last_refresh", to="2027")),
        (CODEX, b"{}"),
        (CODEX, b"["),
        (CODEX, b""),
    ],
)
def test_anything_else_is_another_login(login: Mapping[str, object], new: bytes) -> None:
    assert not is_refreshed(json.dumps(login).encode(), new)


@given(st.binary(max_size=200))
def test_no_bytes_are_a_refresh_or_raise(new: bytes) -> None:
    assert not is_refreshed(json.dumps(CLAUDE).encode(), new)
    tokens(new)


def test_tokens_are_found_wherever_they_are() -> None:
    assert tokens(json.dumps(CODEX).encode()) == {"id_token": "i", "access_token": "a", "refresh_token": "r"}


@pytest.mark.parametrize(
    "line",
    [
        "openai-api-key: KEY",
        "api-key:\n  - gemini=KEY\n  - openrouter=KEY",
        "api-key: [gemini=KEY, openai=KEY]",
        'set-env: ["OPENAI_API_KEY=KEY"]',
        '{"options": {"apiKey": "KEY", "headers": {"Authorization": "Bearer KEY"}}}',
        '{"headers": {"x-auth": "bearer KEY"}, "passwd": "KEY"}',
        '{"command": ["serve", "--with", "sk-KEY"]}',
        "GITHUB_PERSONAL_ACCESS_TOKEN: KEY",
    ],
)
def test_settings_come_along_without_their_keys(line: str) -> None:
    key = "abcdef0123456789ABCDEF"
    shown = replace_credentials(line.replace("KEY", key, 9).replace(f"API_{key}", "API_KEY").encode(), "shoal-1")

    assert key.encode() not in shown
    assert b"shoal-1" in shown


def test_other_settings_stay() -> None:
    text = b"model: openai/gpt-5\nmap-tokens: 1024\nargs: [--root=/home/me/projects/long-name, --level=info]\n"

    assert replace_credentials(text, "t") == text
