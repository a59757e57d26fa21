"""The key `notify`: how a person hears of a run, as a mapping, a way like `bell`, or a list of ways."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from shoal.model.plan import NOTIFY_EVENTS, Notify
from shoal.pipeline.fields import Argv, Shape, one_of, wrong
from shoal.pipeline.problems import nearest, show_value

WAYS = ("bell", "desktop")
Event = Annotated[str, one_of("on", *NOTIFY_EVENTS)]


class NotifyShape(Shape):
    """How to notify you of a run; it never delays or fails the run."""

    on: list[Event] = Field(default_factory=lambda: list(NOTIFY_EVENTS))
    """When: the run has reached its `end`, it `needs_person` for a gate or a merge, or work is in `conflict`."""
    bell: bool = False
    """Ring the terminal's bell."""
    desktop: bool = False
    """Show a desktop notification by `notify-send`, where that is installed."""
    command: Argv | None = None
    """A program, as a list or one line; it runs outside every sandbox, and gets the facts in variables and on stdin."""
    apprise: list[str] = Field(default_factory=list)
    """Names of environment variables that hold Apprise addresses; needs the extra `notify`."""

    def to_notify(self) -> Notify:
        """Build the value."""
        return Notify(
            on=tuple(self.on),
            has_bell=self.bell,
            has_desktop=self.desktop,
            command=tuple(self.command or ()),
            apprise=tuple(self.apprise),
        )


def _as_mapping(value: object) -> object:
    if not isinstance(value, str | list):
        return value
    ways = [value] if isinstance(value, str) else value
    for way in ways:
        if way not in WAYS:
            raise wrong(f"`notify` cannot be {show_value(way)}; {nearest(str(way), WAYS)}, or a mapping")
    return dict.fromkeys(ways, True)


NotifyField = Annotated[NotifyShape, BeforeValidator(_as_mapping, json_schema_input_type=str | list[str] | NotifyShape)]
