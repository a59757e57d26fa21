"""The providers of models: which calls pass, where the key goes, and how an answer is counted."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from shoal.gateway import meters, provider_tools
from shoal.gateway.meters import Reader, UsageMeter
from shoal.gateway.reservations import find_most_output, find_surcharge
from shoal.model.gateway import OAUTH_PREFIX

Headers = list[tuple[bytes, bytes]]

MOST_TARGET = 2048
TARGET = re.compile(r"(/[A-Za-z0-9._:~-]+)+|/")
QUERY = re.compile(r"[A-Za-z0-9._~=&-]*")
QUERY_VALUES: Mapping[str, Collection[str]] = {"alt": ("sse", "json"), "beta": ("true", "false")}
NAME = r"[A-Za-z0-9][A-Za-z0-9._:-]*"
MODEL_PATH = rf"{NAME}(?:/{NAME})*"

CREDENTIALS = {
    *("authorization", "x-api-key", "api-key", "x-goog-api-key", "proxy-authorization", "cookie", "x-auth-token"),
    *("openai-organization", "openai-project", "x-goog-user-project", "chatgpt-account-id"),  # they choose who pays
}
UNSAFE = {
    *("x-http-method-override", "x-http-method", "x-method-override", "x-original-url", "x-rewrite-url"),
    *("x-goog-fieldmask", "x-goog-encode-response-if-executable"),  # they hide the count of tokens
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip", "accept-encoding"),
}
HOP_BY_HOP = {
    *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "expect"),
    *("host", "content-length"),
}
BODY_KIND = {"content-type", "content-encoding", "content-language", "content-md5", "digest"}
"""What says how a body is to be read: we say it ourselves, as we have read it."""
DROPPED = frozenset(name.encode() for name in CREDENTIALS | UNSAFE | HOP_BY_HOP | BODY_KIND)
REDIRECTING = re.compile(rb"^(x-portkey|x-litellm|helicone|cf-aig)-|-(url|host|upstream|endpoint|api-base)$")
"""Headers by which some servers are told to ask another one, and would take the key there."""
TOKEN_HEADERS = (b"x-api-key", b"api-key", b"x-goog-api-key")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A call that may pass."""

    method: str
    path: str
    query: str
    is_answer: bool
    """Whether it asks a model for an answer: it costs tokens, and its body is checked."""

    @property
    def target(self) -> str:
        """The path and the query, without a credential."""
        return f"{self.path}?{self.query}" if self.query else self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """A request that may pass: the model that it asks, its body as it is sent on, and how long its answer may be."""

    model: str
    body: bytes
    most_output: int
    surcharge: str = ""
    """What of it makes it cost something else than the list price."""


@dataclass(frozen=True, slots=True)
class RoutePattern:
    """Which calls match a route: the method, the whole path, and the names allowed in the query."""

    method: str
    path: str
    is_answer: bool = False
    query: tuple[str, ...] = ()

    def fits(self, method: str, path: str, names: Iterable[str]) -> bool:
        """Return whether a call matches this route."""
        return method == self.method and re.fullmatch(self.path, path) is not None and {*names} <= {*self.query}


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """A wire format, with everything that differs between providers."""

    format: str
    url: str
    """Where it is, unless a user says something else."""
    routes: tuple[RoutePattern, ...]
    key_header: bytes
    read: Reader
    tools_of: Callable[[Mapping[str, Any]], provider_tools.Items]
    write_error: Callable[[int, str], Mapping[str, Any]]
    key_query: str | None = None

    def find_route(self, method: str, target: str) -> Route | None:
        """Return the route of a call, or `None` if it must not pass or is in any doubt."""
        path, mark, query = target.partition("?")
        if len(target) > MOST_TARGET or not TARGET.fullmatch(path) or not QUERY.fullmatch(query):
            return None
        if (mark and not query) or any(part in (".", "..") for part in path.split("/")):
            return None
        pairs = [pair for pair in parse_qsl(query, keep_blank_values=True) if pair[0] != self.key_query]
        names = [name for name, _ in pairs]
        for pattern in self.routes:
            if pattern.fits(method, path, names) and _are_plain(pairs):
                kept = "&".join(f"{name}={value}" for name, value in pairs)
                return Route(method=method, path=path, query=kept, is_answer=pattern.is_answer)
        return None

    def session_token(self, headers: Headers, target: str) -> str | None:
        """Return what the client sent as its key, or `None` if it sent none or two different ones."""
        given = {value for name, value in headers if name.lower() in TOKEN_HEADERS}
        for name, value in headers:
            if name.lower() == b"authorization":
                scheme, _, token = value.partition(b" ")
                given.add(token.strip() if scheme.lower() == b"bearer" else b"")
        if self.key_query is not None:
            query = target.partition("?")[2]
            given |= {value.encode() for name, value in parse_qsl(query) if name == self.key_query}
        return given.pop().decode("latin-1") if len(given) == 1 else None

    def set_key(self, headers: Headers, key: str, *, is_bearer: bool = False) -> Headers:
        """Return the headers for the upstream: its key in place of any credential, and no hop-by-hop headers."""
        named = {
            name.strip().lower() for at, value in headers if at.lower() == b"connection" for name in value.split(b",")
        }
        kept = [
            (name, value)
            for name, value in headers
            if name.lower() not in DROPPED | named and not REDIRECTING.search(name.lower())
        ]
        header = b"authorization" if is_bearer or key.startswith(OAUTH_PREFIX) else self.key_header
        scheme = b"Bearer " if header == b"authorization" else b""
        # A compressed answer cannot be counted as it streams.
        credential = [(header, scheme + key.encode())] if key else []
        return [*kept, *credential, (b"content-type", b"application/json"), (b"accept-encoding", b"identity")]

    def upstream_target(self, base_path: str, route: Route) -> str:
        """Return the target at an upstream whose URL has *base_path*, without repeating the version."""
        base = base_path.rstrip("/")
        version, _, rest = route.target[1:].partition("/")
        if base and self.format == "openai" and version == "v1":
            return f"{base}/{rest}"
        return base + route.target

    def check(self, route: Route, body: bytes, grants: Collection[str]) -> "CheckedRequest | str":
        """Return what a request asks for, or why it must not pass."""
        if (why := self.refusal(body, grants)) is not None:
            return why
        document = json.loads(body)
        model, prepared = self.find_model(route, document), self.prepare(route, body, document)
        return CheckedRequest(
            model=model, body=prepared, most_output=find_most_output(document), surcharge=find_surcharge(document)
        )

    def refusal(self, body: bytes, grants: Collection[str]) -> str | None:
        """Return why the body of a request must not pass, or `None`."""
        return provider_tools.find_refusal(self.tools_of, body, grants)

    def find_model(self, route: Route, document: Mapping[str, Any]) -> str:
        """Return the model that a checked request asks for."""
        if self.format == "gemini":
            return route.path.rpartition("/")[2].partition(":")[0]
        return str(document.get("model") or "")[: meters.MOST_NAME]

    def meter(self) -> UsageMeter:
        """Return a meter for the tokens of one answer."""
        return UsageMeter(self.read)

    def error(self, status: int, message: str) -> bytes:
        """Write an error as this provider does, so that every client can show it."""
        return json.dumps(self.write_error(status, message)).encode()

    def prepare(self, route: Route, body: bytes, document: Mapping[str, Any]) -> bytes:
        """Return the body for the upstream; a streaming chat is made to report its usage."""
        if self.format != "openai" or not route.path.endswith("/chat/completions"):
            return body
        options = document.get("stream_options")
        if not document.get("stream") or (isinstance(options, dict) and options.get("include_usage")):
            return body
        given = options if isinstance(options, dict) else {}
        return json.dumps({**document, "stream_options": {**given, "include_usage": True}}).encode()


def _are_plain(pairs: list[tuple[str, str]]) -> bool:
    names = [name for name, _ in pairs]
    return len(names) == len({*names}) and all(value in QUERY_VALUES.get(name, (value,)) for name, value in pairs)


ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}
GEMINI_STATUSES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}
GEMINI_STATUSES |= {429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}


def _anthropic_error(status: int, message: str) -> Mapping[str, Any]:
    return {"type": "error", "error": {"type": ANTHROPIC_KINDS.get(status, "api_error"), "message": message}}


def _openai_error(status: int, message: str) -> Mapping[str, Any]:
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": None}}


def _gemini_error(status: int, message: str) -> Mapping[str, Any]:
    return {"error": {"code": status, "message": message, "status": GEMINI_STATUSES.get(status, "INTERNAL")}}


ANTHROPIC = Provider(
    format="anthropic",
    url="https://api.anthropic.com",
    routes=(
        RoutePattern("POST", "/v1/messages", is_answer=True, query=("beta",)),
        RoutePattern("POST", "/v1/messages/count_tokens", query=("beta",)),
        RoutePattern("GET", rf"/v1/models(?:/{NAME})?", query=("limit", "after_id", "before_id", "beta")),
        RoutePattern("HEAD", "/"),
    ),
    key_header=b"x-api-key",
    read=meters.read_anthropic,
    tools_of=provider_tools.anthropic_tools,
    write_error=_anthropic_error,
)
OPENAI = Provider(
    format="openai",
    url="https://api.openai.com/v1",
    routes=(
        RoutePattern("POST", "/v1/chat/completions", is_answer=True, query=("api-version",)),
        RoutePattern("POST", "/v1/responses", is_answer=True, query=("api-version",)),
        RoutePattern("POST", "/v1/responses/compact", is_answer=True, query=("api-version",)),
        RoutePattern("POST", "/v1/responses/input_tokens", query=("api-version",)),
        RoutePattern("POST", "/v1/embeddings", is_answer=True, query=("api-version",)),
        RoutePattern("GET", rf"/v1/models(?:/{MODEL_PATH})?", query=("client_version",)),
    ),
    key_header=b"authorization",
    read=meters.read_openai,
    tools_of=provider_tools.openai_tools,
    write_error=_openai_error,
)
GEMINI = Provider(
    format="gemini",
    url="https://generativelanguage.googleapis.com",
    routes=(
        RoutePattern(
            "POST", r"/v1(?:beta)?/models/[\w.-]+:(?:g|streamG)enerateContent", is_answer=True, query=("alt",)
        ),
        RoutePattern("POST", r"/v1(?:beta)?/models/[\w.-]+:countTokens"),
        RoutePattern("POST", r"/v1(?:beta)?/models/[\w.-]+:(?:e|batchE)mbedContents?", is_answer=True),
        RoutePattern("GET", r"/v1(?:beta)?/models(?:/[\w.-]+)?", query=("pageSize", "pageToken")),
    ),
    key_header=b"x-goog-api-key",
    read=meters.read_gemini,
    tools_of=provider_tools.gemini_tools,
    write_error=_gemini_error,
    key_query="key",
)
PROVIDERS: Mapping[str, Provider] = {provider.format: provider for provider in (ANTHROPIC, OPENAI, GEMINI)}
