"""`gateway`: the models that agents ask through it, by name."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, PlainValidator

from shoal.model.gateway import FORMATS, LOGINS, USUAL_FORMATS, Upstream
from shoal.pipeline.fields import Shape, one_of, wrong
from shoal.pipeline.problems import show_value
from shoal.pipeline.value_types import FromHost, read_variable

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good or parts.username or parts.query or parts.fragment:
        raise wrong(f"`url` cannot be {show_value(value)}; write it like `https://llm.example.com/v1`")
    return value.rstrip("/")


def _upstream_names(value: dict[str, object]) -> dict[str, object]:
    for name in value:
        if not _NAME.fullmatch(name):
            raise wrong(f"{show_value(name)} cannot be the name of a model; use small letters, digits, `_` and `-`")
    return value


class UpstreamShape(Shape):
    """Where a model is, by which wire format, and with which key."""

    url: Annotated[str, AfterValidator(_url)] | None = None
    """Its address, with the version that OpenAI's format has in it; default: that of the provider of this name."""
    key: Annotated[str | FromHost, PlainValidator(read_variable)] | None = None
    """Its key, as `{from: HOST_NAME}`; default: the provider's usual variable."""
    format: Annotated[str, one_of("format", *FORMATS)] | None = None
    """`anthropic`, `openai` (chat and responses) or `gemini`; default: that of the provider of this name."""
    token_url: Annotated[str, AfterValidator(_url)] | None = None
    """Where a login for it is renewed; default: at its provider."""

    def to_upstream(self, name: str) -> Upstream:
        """Build the value, without a key that comes from the host."""
        return Upstream(
            name=name,
            url=self.url or "",
            format=self.format or USUAL_FORMATS[name],
            key=self.key if isinstance(self.key, str) else "",
            key_from=self.key.variable if isinstance(self.key, FromHost) else "",
            token_url=self.token_url or "",
        )


class GatewayShape(Shape):
    """How agents on `network: gateway` reach their models."""

    upstreams: Annotated[dict[str, UpstreamShape], AfterValidator(_upstream_names)] = Field(default_factory=dict)
    """Models by name: those of providers, such as `anthropic`, and your own."""
    logins: list[Annotated[str, one_of("logins", *LOGINS)]] = Field(default_factory=list)
    """Clients whose login the gateway uses, `claude` and `codex`; it never enters a sandbox. Default: none."""
