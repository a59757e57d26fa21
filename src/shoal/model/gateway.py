"""The models that the gateway asks, and what a sandbox knows about the gateway."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

PORT, CONNECT_PORT = 9917, 9918
"""Of the model and of the proxy, in the network of a sandbox, which nobody else listens in."""
FORMATS = ("anthropic", "openai", "gemini")
USUAL_FORMATS: Mapping[str, str] = {
    **{name: name for name in FORMATS},
    **dict.fromkeys(("openrouter", "deepseek", "groq", "mistral", "xai"), "openai"),
}
"""The wire formats of the providers whose address Shoal knows, by name."""

LOGINS: Mapping[str, str] = {"claude": "anthropic", "codex": "openai"}
"""The clients whose login the gateway can hold, each with the upstream that it is for."""
OAUTH_VARIABLE, OAUTH_PREFIX = "CLAUDE_CODE_OAUTH_TOKEN", "sk-ant-oat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """The address, the wire format and the key of a model; no sandbox ever has the key.

    *key_from* is the host's variable that it comes from: plans that are recorded have that name, and no key.
    *is_bearer* says that the key is sent as `Authorization: Bearer`, whatever is usual for the format.
    With *login*, the name of a client, there is no key: the gateway reads the token from *login_file*, renews it at
    *token_url*, and the sandbox sees of it what is in *profile*.
    """

    name: str
    url: str
    format: str
    key: str = field(default="", repr=False)
    key_from: str = ""
    is_bearer: bool = False
    login: str = ""
    login_file: str = ""
    token_url: str = ""
    profile: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_oauth(self) -> bool:
        """Whether its client has to ask as someone who has logged in, and not with a key."""
        return bool(self.login) or self.key_from == OAUTH_VARIABLE or self.key.startswith(OAUTH_PREFIX)


def with_logins(declared: Sequence[Upstream], logins: Iterable[str]) -> tuple[Upstream, ...]:
    """Add the logins of clients to the models that a file names, whose addresses count for them, too."""
    known = {upstream.name: upstream for upstream in declared if not upstream.login}
    held = {upstream.login for upstream in declared}
    return (*declared, *(_login_upstream(login, known) for login in dict.fromkeys(logins) if login not in held))


def _login_upstream(login: str, known: Mapping[str, Upstream]) -> Upstream:
    name = LOGINS[login]
    addresses = known.get(name) or Upstream(name=name, url="", format=USUAL_FORMATS[name])
    return replace(addresses, format=USUAL_FORMATS[name], key="", key_from="", login=login)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayAccess:
    """What an agent in a sandbox gets of the gateway: an address, and a token in place of every key.

    *formats* are those of the upstreams that it may use, by their names.
    """

    url: str
    token: str = field(repr=False)
    formats: Mapping[str, str]
    bearers: frozenset[str] = frozenset()
    """Upstreams whose key is a bearer token: their clients are to send ours in the same way."""
    profiles: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """What the client may know of the login that is used, by upstream; empty for a token without a file."""
    proxy: str = ""
    """The address of the proxy for the hosts that it may connect to, and no others."""
    grants: tuple[str, ...] = ()
    """Tools of providers that the agent may use."""

    def url_of(self, upstream: str) -> str:
        """Return the address of an upstream, without a version of its wire format."""
        return f"{self.url}/{upstream}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Where the exchanges of sessions with their models are recorded or replayed from.

    *key* names the session in every run of the same plan; *literals* are texts of this run alone, with what stands for
    them, and *secrets* are values by their names.
    """

    folder: str
    is_replay: bool = False
    key: str = ""
    literals: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOrder:
    """What the gateway lets one session do; *hosts* are rules, and *grants* name tools of providers."""

    session: str
    run: str
    step: str
    token: str = field(default_factory=lambda: f"shoal-{secrets.token_hex(24)}", repr=False)
    upstreams: tuple[Upstream, ...]
    hosts: tuple[str, ...] = ()
    grants: tuple[str, ...] = ()
    scopes: tuple[str, ...] = ()
    """What its spending counts towards: the run, its step, its persona, itself."""
    budgets: tuple[Mapping[str, Any], ...] = ()
    """Those of the scopes that have a budget, as JSON, with what was spent so far."""
    recording: Recording | None = None

    @property
    def access(self) -> GatewayAccess:
        """What the sandbox needs to know."""
        return GatewayAccess(
            url=f"http://127.0.0.1:{PORT}",
            proxy=f"http://127.0.0.1:{CONNECT_PORT}",
            token=self.token,
            formats={upstream.name: upstream.format for upstream in self.upstreams},
            bearers=frozenset(upstream.name for upstream in self.upstreams if upstream.is_bearer),
            profiles={upstream.name: upstream.profile for upstream in self.upstreams if upstream.is_oauth},
            grants=self.grants,
        )

    def without_keys(self) -> Self:
        """Return what may leave this machine: who starts the sandbox elsewhere needs no key."""
        bare = None if self.recording is None else replace(self.recording, secrets={})
        keyless = tuple(replace(known, key="", login_file="", token_url="") for known in self.upstreams)
        return replace(self, upstreams=keyless, recording=bare)

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Read an order from its fields, as a process of ours sent them."""
        upstreams = tuple(Upstream(**upstream) for upstream in fields["upstreams"])
        lists = {name: tuple(fields[name]) for name in ("hosts", "grants", "scopes", "budgets")}
        recording = None if fields["recording"] is None else Recording(**fields["recording"])
        return cls(**{**fields, **lists, "upstreams": upstreams, "recording": recording})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswered:
    """A request of an agent to its model ended, counted by the gateway."""

    run: str
    session: str
    upstream: str
    model: str = ""
    """As the model's server names it; empty where it did not answer."""
    status: int = 0
    """The status of the answer in HTTP; 0 where there was none."""
    usage: Mapping[str, float] = field(default_factory=dict)
    """The tokens of this request, by the names of a report."""
    seconds: float = 0.0
    first_token_seconds: float | None = None
    """When the answer began; `None` where it did not."""
    retries: int = 0
    waited_seconds: float = 0.0
    """How long the gateway held the request back for a rate limit."""
    error: str = ""
