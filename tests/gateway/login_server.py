"""A provider that demands a login: tokens that expire, refresh tokens that work once, and a model behind them."""

import base64
import http.client
import http.server
import json
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from shoal.testing.model import ModelServer

ACCOUNT = "account-of-the-user"


class LoginServer:
    """Demands the latest access token of every request, and passes it on to a scripted model."""

    def __init__(self, model: ModelServer, *, lasts: int = 0) -> None:
        self.model = model
        self.lasts = lasts
        """After so many answers a token has expired; 0 means never."""
        self.serial = 1
        self.answered = 0
        self.renewals = 0
        self.refused = 0
        self.reused = 0
        self.is_open = True
        """Whether tokens are renewed."""
        self.pause = threading.Event()
        self.pause.set()
        self.asked = threading.Event()
        """Set when somebody has asked for new tokens."""
        self.headers: list[Mapping[str, str]] = []
        self.lock = threading.Lock()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                owner.serve(self)

            do_GET = do_HEAD = do_POST

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.pause.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def token_url(self) -> str:
        return f"{self.url}/oauth/token"

    @property
    def access(self) -> str:
        return self._access(self.serial)

    @property
    def refresh(self) -> str:
        return f"real-refresh-token-{self.serial:04}"

    def _access(self, serial: int) -> str:
        claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() // 1000 * 1000 + 10**6}).encode()).decode()
        return f"real-access-token-{serial:04}.{claims.rstrip('=')}.signature"

    def claude(self, *, expires_in: float = 10**6) -> dict[str, Any]:
        """Return what Claude Code would have written."""
        tokens = {"accessToken": self.access, "refreshToken": self.refresh}
        known = {"scopes": ["user:inference", "user:profile"], "subscriptionType": "max", "other": [1, {"a": None}]}
        return {"claudeAiOauth": {**tokens, "expiresAt": int((time.time() + expires_in) * 1000), **known}, "mcp": {}}

    def codex(self) -> dict[str, Any]:
        """Return what Codex would have written."""
        tokens = {"id_token": "a.b.c", "access_token": self.access, "refresh_token": self.refresh}
        last = "2026-01-01T00:00:00Z"
        return {"OPENAI_API_KEY": None, "tokens": {**tokens, "account_id": ACCOUNT}, "last_refresh": last}

    def write(self, home: Path, **claude: float) -> dict[str, Path]:
        """Log a user in."""
        files = {"claude": home / ".claude" / ".credentials.json", "codex": home / ".codex" / "auth.json"}
        for name, document in (("claude", self.claude(**claude)), ("codex", self.codex())):
            files[name].parent.mkdir(parents=True, exist_ok=True)
            files[name].write_text(json.dumps(document))
            files[name].chmod(0o600)
        return files

    def serve(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("content-length") or 0))
        if request.path == "/oauth/token":
            self._renew(request, json.loads(body))
            return
        with self.lock:
            is_good = request.headers.get("authorization") == f"Bearer {self.access}"
            if is_good and self.lasts and self.answered >= self.lasts:
                self.serial, self.answered, is_good = self.serial + 1000, 0, False  # nobody has that one
            self.answered += is_good
            self.refused += not is_good
            self.headers.append({name.lower(): value for name, value in request.headers.items()})
        if is_good:
            self._pass_on(request, body)
        else:
            _answer(request, 401, {"error": {"type": "authentication_error", "message": "the token has expired"}})

    def _renew(self, request: http.server.BaseHTTPRequestHandler, asked: Mapping[str, str]) -> None:
        self.asked.set()
        self.pause.wait(30)
        with self.lock:
            known = f"real-refresh-token-{self.serial % 1000:04}"
            if not self.is_open or asked.get("grant_type") != "refresh_token" or asked["refresh_token"] != known:
                self.reused += 1
                _answer(request, 400, {"error": "invalid_grant"})
                return
            self.serial = self.serial % 1000 + 1
            self.answered, self.renewals = 0, self.renewals + 1
            said = {"access_token": self.access, "refresh_token": self.refresh, "expires_in": 3600}
        _answer(request, 200, said)

    def _pass_on(self, request: http.server.BaseHTTPRequestHandler, body: bytes) -> None:
        place = urlsplit(self.model.url)
        away = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
        kept = ("content-type", "anthropic-version", "anthropic-beta", "accept")
        headers = {name: value for name in kept if (value := request.headers.get(name))}
        path = request.path if request.path.startswith("/v1") else f"/v1{request.path}"
        away.request(request.command, path, body, headers)
        found = away.getresponse()
        request.send_response(found.status)
        request.send_header("content-type", found.headers.get("content-type", ""))
        request.end_headers()
        while chunk := found.read1(65536):
            request.wfile.write(chunk)
        away.close()


def _answer(request: http.server.BaseHTTPRequestHandler, status: int, document: object) -> None:
    content = json.dumps(document).encode()
    request.send_response(status)
    request.send_header("content-type", "application/json")
    request.send_header("content-length", str(len(content)))
    request.end_headers()
    request.wfile.write(content)
