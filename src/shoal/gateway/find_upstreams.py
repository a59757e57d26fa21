"""Which models a session may ask: those that the user's file names, and those that the environment has a key for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.gateway.providers import PROVIDERS
from shoal.model.gateway import OAUTH_VARIABLE, USUAL_FORMATS, Upstream
from shoal.model.masking import CERTAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class UsualUpstream:
    """A provider that clients know by name, with the usual variables for its address and key."""

    name: str
    format: str
    url: str
    keys: tuple[str, ...]
    bearers: tuple[str, ...] = ()
    """Variables with a token that is sent as `Authorization: Bearer`."""
    urls: tuple[str, ...] = ()

    def find(self, variables: Mapping[str, str]) -> Upstream | None:
        """Return it with the key and the address in *variables*; `None` if they have neither."""
        url = next((variables[name] for name in self.urls if variables.get(name)), None)
        source = next((name for name in (*self.keys, *self.bearers) if variables.get(name)), "")
        if not source and url is None:
            return None
        return Upstream(
            name=self.name,
            url=_with_scheme(url or self.url),
            format=self.format,
            key=variables.get(source, ""),
            key_from=source,
            is_bearer=source in self.bearers,
        )


USUAL = (
    UsualUpstream(
        name="anthropic",
        format="anthropic",
        url=PROVIDERS["anthropic"].url,
        keys=("ANTHROPIC_API_KEY",),
        bearers=("ANTHROPIC_AUTH_TOKEN", OAUTH_VARIABLE),
        urls=("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE", "ANTHROPIC_HOST"),
    ),
    UsualUpstream(
        name="openai",
        format="openai",
        url=PROVIDERS["openai"].url,
        keys=("OPENAI_API_KEY", "CODEX_API_KEY"),
        urls=("OPENAI_BASE_URL", "OPENAI_API_BASE", "OPENAI_HOST"),
    ),
    UsualUpstream(
        name="gemini",
        format="gemini",
        url=PROVIDERS["gemini"].url,
        keys=("GEMINI_API_KEY", "GOOGLE_API_KEY", "GOOGLE_GENERATIVE_AI_API_KEY"),
        urls=("GOOGLE_GEMINI_BASE_URL",),
    ),
    *(
        UsualUpstream(name=name, format=USUAL_FORMATS[name], url=url, keys=(f"{name.upper()}_API_KEY",))
        for name, url in (
            ("openrouter", "https://openrouter.ai/api/v1"),
            ("deepseek", "https://api.deepseek.com/v1"),
            ("groq", "https://api.groq.com/openai/v1"),
            ("mistral", "https://api.mistral.ai/v1"),
            ("xai", "https://api.x.ai/v1"),
        )
    ),
)
COPILOT = UsualUpstream(
    name="copilot",
    format="openai",
    url="",
    keys=("COPILOT_PROVIDER_API_KEY",),
    bearers=("COPILOT_PROVIDER_BEARER_TOKEN",),
    urls=("COPILOT_PROVIDER_BASE_URL",),
)
"""The user's own model of GitHub Copilot's client, which always has an address."""
WITHHELD = frozenset(name for usual in (*USUAL, COPILOT) for name in (*usual.keys, *usual.bearers, *usual.urls))
"""The variables that no sandbox gets on `network: gateway`: it gets an address and a token of ours in their place."""
ADDRESSES = frozenset(name for usual in (*USUAL, COPILOT) for name in usual.urls)
"""The variables that say where a key is sent."""

SHORTEST_KEY = 8
"""A shorter one is a stand-in, such as `none`, for a server that asks for no key."""


def find_upstreams(declared: Sequence[Upstream], variables: Mapping[str, str]) -> tuple[Upstream, ...]:
    """Return all models that *variables* have a key or an address for; models *declared* in a file take precedence."""
    found = {usual.name: upstream for usual in USUAL if (upstream := usual.find(variables))}
    if variables.get(COPILOT.urls[0]) and (copilot := COPILOT.find(variables)):
        kind = "anthropic" if variables.get("COPILOT_PROVIDER_TYPE") == "anthropic" else "openai"
        found[copilot.name] = replace(copilot, format=kind)
    for upstream in declared:
        found[upstream.name] = _complete(upstream, found.get(upstream.name), variables)
    return tuple(found.values())


def without_keys(env: Mapping[str, str], upstreams: Sequence[Upstream]) -> dict[str, str]:
    """Take what the gateway holds out of the variables of a sandbox: by its usual names, and by its value."""
    keys = [upstream.key for upstream in upstreams if len(upstream.key) >= SHORTEST_KEY]
    return {
        name: value
        for name, value in env.items()
        if name not in WITHHELD and not any(value == key or (len(key) >= CERTAIN and key in value) for key in keys)
    }


def _complete(declared: Upstream, usual: Upstream | None, variables: Mapping[str, str]) -> Upstream:
    """Fill in what a file leaves open: the address of a known provider, and the key from the environment."""
    known = next((provider for provider in USUAL if provider.name == declared.name), None)
    url = declared.url or (usual.url if usual else known.url if known else "")
    if declared.key_from:
        return replace(declared, url=url, key=variables.get(declared.key_from, ""))
    if declared.key or usual is None:
        return replace(declared, url=url)
    return replace(declared, url=url, key=usual.key, key_from=usual.key_from, is_bearer=usual.is_bearer)


def _with_scheme(url: str) -> str:
    return url if "://" in url else f"https://{url}"
