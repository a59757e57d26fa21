"""The logins of agent clients: where they are, what is in them, and how the one of a renewed token is written."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.gateway.find_upstreams import USUAL
from shoal.model.gateway import LOGINS, Upstream

MOST_BYTES = 2**20
TOKEN = re.compile(r"[!-~]{8,16384}")
OPENAI_URL = next(usual.url for usual in USUAL if usual.name == "openai")

Json = Mapping[str, Any]
"""JSON of a client: a parser's edge."""


class LoginUnusable(ShoalError):
    """A login cannot be used: its file is missing or damaged, or its provider does not renew it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginTokens:
    """What is in the file of a login."""

    access: str = field(repr=False)
    refresh: str = field(default="", repr=False)
    expires_at: float | None = None
    headers: tuple[tuple[str, str], ...] = ()
    """What else the model's server wants, such as the account."""

    def is_valid(self, until: float) -> bool:
        """Return whether the token can still be used at that time, as far as the file says."""
        return self.expires_at is None or self.expires_at > until


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """The login of a client: where it is, and how it is renewed."""

    name: str
    url: str
    """The server of the models."""
    url_variable: str | None = None
    token_url: str
    token_url_variable: str | None = None
    client_id: str
    """By which the provider knows the client; it is no secret."""
    folder: str
    folder_variable: str
    file: str
    read: Callable[[Json], LoginTokens | None]
    renewal: Callable[[Json], Json]
    """What a request for new tokens has beside the refresh token."""
    update: Callable[[Json, Json, float], Json]
    """Puts the answer of the token server into the document of the file, at a time."""
    profile: Callable[[Json], Json]
    """What the client in the sandbox needs to know."""

    def find_file(self, environ: Mapping[str, str]) -> Path:
        """Return where the login of the user is, if there is one."""
        home = Path(environ.get("HOME") or "/nowhere")
        return Path(environ.get(self.folder_variable) or home / self.folder) / self.file

    def complete(self, declared: Upstream, environ: Mapping[str, str]) -> Upstream:
        """Fill in what a file leaves open; only the user's own environment counts, never variables of an agent.

        A replay names the null device as the file: it needs no login.
        """
        url = declared.url or environ.get(self.url_variable or "") or self.url
        token_url = declared.token_url or environ.get(self.token_url_variable or "") or self.token_url
        file = Path(declared.login_file or self.find_file(environ))
        found = replace(declared, url=url, token_url=token_url, login_file=str(file), is_bearer=True)
        try:
            document = read_document(file)
        except LoginUnusable:  # reported before the run, and by each request
            return found
        if self.read(document) is None and (key := _text(document.get("OPENAI_API_KEY"))):
            return replace(declared, url=declared.url or OPENAI_URL, key=key, login="", token_url="")
        return replace(found, profile=self.profile(document))


def read_document(file: Path) -> Json:
    """Read the file of a login."""
    try:
        with file.open("rb") as opened:
            document = json.loads(opened.read(MOST_BYTES))
    except FileNotFoundError:
        raise LoginUnusable(f"there is no login at {file}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise LoginUnusable(f"the login at {file} cannot be read: {type(error).__name__}") from None
    if not isinstance(document, dict):
        raise LoginUnusable(f"the login at {file} cannot be read: it is no JSON object")
    return document


def read_tokens(login: Login, file: Path) -> LoginTokens:
    """Read the tokens of a login."""
    tokens = login.read(read_document(file))
    if tokens is None:
        raise LoginUnusable(f"there is no login in {file}")
    return tokens


def _read_claude(document: Json) -> LoginTokens | None:
    given = _mapping(document.get("claudeAiOauth"))
    if not (access := _text(given.get("accessToken"))):
        return None
    expires_at = given.get("expiresAt")
    seconds = expires_at / 1000 if isinstance(expires_at, int | float) else None
    return LoginTokens(access=access, refresh=_text(given.get("refreshToken")), expires_at=seconds)


def _renew_claude(document: Json) -> Json:
    given = _mapping(document.get("claudeAiOauth"))
    scopes = [scope for scope in given.get("scopes") or () if isinstance(scope, str)]
    client = _text(given.get("clientId"))
    return {**({"client_id": client} if client else {}), **({"scope": " ".join(scopes)} if scopes else {})}


def _update_claude(document: Json, answer: Json, now: float) -> Json:
    given = _mapping(document.get("claudeAiOauth"))
    renewed = {**given, "accessToken": answer["access_token"], "expiresAt": int((now + _lifetime(answer)) * 1000)}
    renewed["refreshToken"] = _text(answer.get("refresh_token")) or given.get("refreshToken")
    if isinstance(seconds := answer.get("refresh_token_expires_in"), int | float):
        renewed["refreshTokenExpiresAt"] = int((now + seconds) * 1000)
    if scopes := _words(answer.get("scope")):
        renewed["scopes"] = scopes
    return {**document, "claudeAiOauth": renewed}


def _profile_claude(document: Json) -> Json:
    given = _mapping(document.get("claudeAiOauth"))
    return {name: given[name] for name in ("scopes", "subscriptionType", "rateLimitTier") if name in given}


def _read_codex(document: Json) -> LoginTokens | None:
    given = _mapping(document.get("tokens"))
    if not (access := _text(given.get("access_token"))):
        return None
    account = _text(given.get("account_id"))
    headers = (("chatgpt-account-id", account),) if account else ()
    refresh = _text(given.get("refresh_token"))
    return LoginTokens(access=access, refresh=refresh, expires_at=_expiry(access), headers=headers)


def _update_codex(document: Json, answer: Json, now: float) -> Json:
    named = ("access_token", "refresh_token", "id_token")
    renewed = {name: answer[name] for name in named if _text(answer.get(name))}
    last = datetime.fromtimestamp(now, UTC).isoformat().replace("+00:00", "Z")
    return {**document, "tokens": {**_mapping(document.get("tokens")), **renewed}, "last_refresh": last}


def _expiry(token: str) -> float | None:
    """Read when a token ends that says so itself, as a JSON Web Token does; it is not verified."""
    part = token.split(".")[1] if token.count(".") == 2 else ""
    try:
        claims = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
        return float(claims["exp"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _lifetime(answer: Json) -> float:
    seconds = answer.get("expires_in")
    return float(seconds) if isinstance(seconds, int | float) and 0 < seconds < 10**9 else 3600.0


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) and TOKEN.fullmatch(value) else ""


def _words(value: object) -> list[str]:
    return value.split() if isinstance(value, str) else []


CLAUDE = Login(
    name="claude",
    url="https://api.anthropic.com",
    url_variable="ANTHROPIC_BASE_URL",
    token_url="https://platform.claude.com/v1/oauth/token",  # noqa: S106 - an address
    client_id="9d1c250a-e61b-44d9-88ed-5944d1962f5e",
    folder=".claude",
    folder_variable="CLAUDE_CONFIG_DIR",
    file=".credentials.json",
    read=_read_claude,
    renewal=_renew_claude,
    update=_update_claude,
    profile=_profile_claude,
)
CODEX = Login(
    name="codex",
    url="https://chatgpt.com/backend-api/codex",
    token_url="https://auth.openai.com/oauth/token",  # noqa: S106 - an address
    token_url_variable="CODEX_REFRESH_TOKEN_URL_OVERRIDE",  # noqa: S106 - a variable's name
    client_id="app_EMoamEEZ73f0CkXaXp7hrann",
    folder=".codex",
    folder_variable="CODEX_HOME",
    file="auth.json",
    read=_read_codex,
    renewal=lambda _: {},
    update=_update_codex,
    profile=lambda _: {},
)
KNOWN: Mapping[str, Login] = {login.name: login for login in (CLAUDE, CODEX) if login.name in LOGINS}
