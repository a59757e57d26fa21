"""How clients are pointed at the gateway: an address and a token in the variables that each of them reads."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from shoal.errors import Unavailable
from shoal.model.gateway import GatewayAccess


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What points a client at the gateway: variables, and files in its private home."""

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    home: Mapping[str, bytes] = field(default_factory=dict, repr=False)


NO_SETTINGS = GatewaySettings()


@runtime_checkable
class UsesGateway(Protocol):
    """An adapter whose client can be pointed at the gateway."""

    def gateway_settings(self, access: GatewayAccess | None) -> GatewaySettings:
        """Return what leads the client there; nothing without *access*."""


def usual_settings(access: GatewayAccess | None) -> GatewaySettings:
    """Set the variables that most programs read, for every available model."""
    return NO_SETTINGS if access is None else GatewaySettings(env=dict(_usual(access)))


def _usual(access: GatewayAccess) -> Iterator[tuple[str, str]]:
    yield "SHOAL_GATEWAY_URL", access.url
    yield "SHOAL_GATEWAY_TOKEN", access.token
    if "anthropic" in access.formats:
        yield from anthropic_variables(access)
        yield "ANTHROPIC_API_BASE", access.url_of("anthropic")
        yield "ANTHROPIC_HOST", access.url_of("anthropic")
    if "openai" in access.formats:
        yield "OPENAI_API_KEY", access.token
        yield "OPENAI_BASE_URL", f"{access.url_of('openai')}/v1"
        yield "OPENAI_API_BASE", f"{access.url_of('openai')}/v1"
    if "gemini" in access.formats:
        yield "GEMINI_API_KEY", access.token
        yield "GOOGLE_GEMINI_BASE_URL", access.url_of("gemini")
        yield "GEMINI_API_BASE", f"{access.url_of('gemini')}/v1beta"
    for name in ("openrouter", "deepseek", "groq", "mistral", "xai"):
        if name in access.formats:
            yield f"{name.upper()}_API_KEY", access.token
            yield f"{name.upper()}_API_BASE", f"{access.url_of(name)}/v1"


def assert_provider(client: str, model: str | None, access: GatewayAccess | None) -> None:
    """Refuse a model like `provider/name` whose provider the gateway cannot ask."""
    provider, slash, _ = (model or "").partition("/")
    name = {"google": "gemini"}.get(provider, provider)
    if access is not None and slash and name not in access.formats:
        remedy = f"add `gateway: {{upstreams: {{{name}: {{url: …, format: openai}}}}}}`, or use `network: host`"
        raise Unavailable(f"the provider {name!r} for {client} on `network: gateway`", "no model has that name", remedy)


def anthropic_variables(access: GatewayAccess) -> Iterator[tuple[str, str]]:
    """Yield the variables of Anthropic's own clients; our token is sent in the same header as the user's credential."""
    yield "ANTHROPIC_BASE_URL", access.url_of("anthropic")
    if "anthropic" in access.profiles:  # Claude Code asks in another way if it has logged in
        yield "CLAUDE_CODE_OAUTH_TOKEN", access.token
    else:
        yield "ANTHROPIC_AUTH_TOKEN" if "anthropic" in access.bearers else "ANTHROPIC_API_KEY", access.token
