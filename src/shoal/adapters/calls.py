"""Tool calls that have begun: for clients that name the tool only then."""

from dataclasses import dataclass, field

from shoal.adapters.events import NAME_SIGNS

MOST = 1000


@dataclass(slots=True)
class Calls:
    """The tools of the calls that are under way, of so many at most."""

    _tools: dict[str, str] = field(default_factory=dict)

    def begin(self, call: str, tool: str) -> None:
        """Remember which tool *call* is of."""
        if len(self._tools) < MOST:
            self._tools[call[:NAME_SIGNS]] = tool[:NAME_SIGNS]

    def end(self, call: str) -> str:
        """Give the tool of *call*, and forget it; nothing for one that is not known."""
        return self._tools.pop(call[:NAME_SIGNS], "")
