"""A script, and where in it a conversation stands."""

from collections import OrderedDict
from collections.abc import Callable, Sequence

from shoal.testing.model.conversation import Conversation
from shoal.testing.model.directives import directive
from shoal.testing.model.recorded import Request
from shoal.testing.model.turns import Delay, Fail, Say, Turn, is_spoken, uses_a_tool

Script = Sequence[Turn] | Callable[[Request], Turn | None]
"""Turns in their order, or a function that is asked for each; `None` leaves it to the directive in the prompt."""

PLAIN = Say("ok")
MOST_REMEMBERED = 10_000


class Player:
    """Finds the turn for a request: by the answers that its conversation holds, never by the number of requests."""

    def __init__(self, script: Script | None) -> None:
        self._script = script
        self._attempts: OrderedDict[str, int] = OrderedDict()

    def turn(self, request: Request) -> Turn:
        """Give what the model does now; a client without tools (for a title, say) is never told to use one."""
        turn = self._scripted(request)
        if request.tools or not uses_a_tool(turn):
            return turn
        return PLAIN

    def _scripted(self, request: Request) -> Turn:
        if callable(self._script):
            try:
                return self._script(request) or self._directed(request.conversation)
            except Exception as error:
                return Fail(500, f"the script raised {error!r}")
        if self._script is None:
            return self._directed(request.conversation)
        if not request.tools and any(map(uses_a_tool, self._script)):
            return PLAIN
        return self._played(self._script, request.conversation, request.conversation.position)

    def _directed(self, conversation: Conversation) -> Turn:
        found = directive(conversation)
        return PLAIN if found is None else self._played(found.turns(), conversation, found.position)

    def _played(self, turns: Sequence[Turn], conversation: Conversation, position: int) -> Turn:
        before, turn = _at(turns, position)
        if not before:
            return turn or PLAIN
        attempt = self._attempt(conversation.fingerprint)
        if attempt < len(before):
            return before[attempt]
        return turn or before[-1]

    def _attempt(self, fingerprint: str) -> int:
        """Count the tries of one request, of so many requests at most."""
        attempt = self._attempts.pop(fingerprint, 0)
        self._attempts[fingerprint] = attempt + 1
        if len(self._attempts) > MOST_REMEMBERED:
            self._attempts.popitem(last=False)
        return attempt


def _at(turns: Sequence[Turn], position: int) -> tuple[list[Turn], Turn | None]:
    """Give the answer at *position*, and what goes wrong before it."""
    before: list[Turn] = []
    for turn in turns:
        if not is_spoken(turn):
            before += [turn] * _times(turn)
        elif position == 0:
            return before, turn
        else:
            before, position = [], position - 1
    return before, None


def _times(turn: Turn) -> int:
    inner = turn.then if isinstance(turn, Delay) else turn
    return max(1, inner.times) if isinstance(inner, Fail) else 1
