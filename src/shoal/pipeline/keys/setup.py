"""The key `setup`: commands that make a workspace ready, as a text, a list of texts, or a mapping."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from shoal.model.policy import Network
from shoal.model.setup import USUAL_SECONDS, Setup
from shoal.pipeline.fields import Duration, NetworkName, Shape, wrong
from shoal.pipeline.problems import show_value

EXAMPLE = "`npm ci`"


def _commands(value: object) -> object:
    written = [value] if isinstance(value, str) else value
    if not isinstance(written, list) or not all(isinstance(command, str) and command.strip() for command in written):
        raise wrong(f"set-up is a command like {EXAMPLE}, or a list of commands, not {show_value(value)}")
    return written


class SetupShape(Shape):
    """How to prepare a workspace before its agent starts."""

    run: Annotated[list[str], BeforeValidator(_commands, json_schema_input_type=str | list[str])]
    """Shell commands, run in order; the first failure fails the session."""
    network: NetworkName | None = None
    """Their network: `none`, `gateway` or `host`; default: the agent's, or `host` for a client's usual one."""
    timeout: Duration | None = None
    """Time limit for all of them together, in seconds or like `10m`; default: 10 minutes."""
    each: bool | None = None
    """Run them in every workspace; default: only if they use a variable that differs, like `SHOAL_PORT`."""

    def to_setup(self, timeout: float | None) -> Setup:
        """Build the setup; *timeout* is given beside it."""
        return Setup(
            commands=tuple(self.run),
            network=Network(self.network) if self.network else None,
            timeout=self.timeout or timeout or USUAL_SECONDS,
            each=self.each,
        )


def _as_mapping(value: object) -> object:
    return value if isinstance(value, dict) else {"run": _commands(value)}


SetupField = Annotated[
    SetupShape, BeforeValidator(_as_mapping, json_schema_input_type=str | list[str] | SetupShape), Field()
]
