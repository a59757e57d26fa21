"""A script, and the position of a conversation in it."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, JsonValue, RootModel, model_validator

from shoal.errors import BadInput
from shoal.pipeline.fields import Shape, wrong
from shoal.pipeline.problems import BadDocument
from shoal.pipeline.tree import plain
from shoal.pipeline.validation_errors import shape_problems
from shoal.pipeline.yaml_reader import compose
from shoal.testing.model.conversation import Conversation
from shoal.testing.model.directives import directive
from shoal.testing.model.recorded import Request
from shoal.testing.model.turns import Cut, Delay, Fail, Garble, Hang, Say, Turn, Usage, Use, is_spoken, uses_a_tool

Script = Sequence[Turn] | Callable[[Request], Turn | None]
"""A list of turns, or a function called for each; `None` leaves it to the directive in the prompt."""

PLAIN = Say("ok")
MOST_REMEMBERED = 10_000


class Player:
    """Finds the turn for a request, by the answers in its conversation, never by the number of requests."""

    def __init__(self, script: Script | None) -> None:
        self._script = script
        self._attempts: OrderedDict[str, int] = OrderedDict()

    def turn(self, request: Request) -> Turn:
        """Return what the model does now; a client without tools (for a title, say) never gets a tool call."""
        turn = self._next_scripted(request)
        if request.tools or not uses_a_tool(turn):
            return turn
        return PLAIN

    def _next_scripted(self, request: Request) -> Turn:
        if callable(self._script):
            try:
                return self._script(request) or self._next_directed(request.conversation)
            except Exception as error:
                return Fail(500, f"the script raised {error!r}")
        if self._script is None:
            return self._next_directed(request.conversation)
        if not request.tools and any(map(uses_a_tool, self._script)):
            return PLAIN
        return self._pick_turn(self._script, request.conversation, request.conversation.position)

    def _next_directed(self, conversation: Conversation) -> Turn:
        found = directive(conversation)
        return PLAIN if found is None else self._pick_turn(found.turns(), conversation, found.position)

    def _pick_turn(self, turns: Sequence[Turn], conversation: Conversation, position: int) -> Turn:
        before, turn = _at(turns, position)
        if not before:
            return turn or PLAIN
        attempt = self._attempt(conversation.fingerprint)
        if attempt < len(before):
            return before[attempt]
        return turn or before[-1]

    def _attempt(self, fingerprint: str) -> int:
        """Count the attempts of one request; only a limited number of requests is remembered."""
        attempt = self._attempts.pop(fingerprint, 0)
        self._attempts[fingerprint] = attempt + 1
        if len(self._attempts) > MOST_REMEMBERED:
            self._attempts.popitem(last=False)
        return attempt


def _at(turns: Sequence[Turn], position: int) -> tuple[list[Turn], Turn | None]:
    """Return the answer at *position*, and what goes wrong before it."""
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


VERBS = ("say", "use", "together", "fail", "cut", "hang", "garble")
Count = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, le=24 * 3600, allow_inf_nan=False)]


def script_of(path: Path) -> tuple[Turn, ...]:
    """Read a file of turns; raise `BadInput` with the position of a mistake."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path}: the script cannot be read: {error}") from None
    composed = compose(text, str(path))
    if problems := [*composed.problems, *shape_problems(_Script, composed.tree, str(path))]:
        raise BadDocument(problems)
    return tuple(item.turn() for item in _Script.model_validate(plain(composed.tree)).root)


class _Tokens(Shape):
    input: Count = 0
    output: Count = 0
    cached: Count = 0


class _Spoken(Shape):
    say: str | None = None
    use: str | None = None
    arguments: dict[str, JsonValue] | str = Field(default_factory=dict)
    usage: _Tokens | None = None

    def as_turn(self) -> Say | Use:
        """Return the text or the tool that it names."""
        usage = Usage(**self.usage.model_dump()) if self.usage else None
        if self.use is None:
            return Say(self.say or "", usage)
        return Use(self.use, self.arguments, self.say or "", usage)


class _Item(_Spoken):
    together: list[_Spoken] | None = None
    fail: Annotated[int, Field(ge=400, le=599)] | None = None
    message: str = ""
    retry_after: Seconds | None = None
    times: Annotated[int, Field(ge=1)] = 1
    code: str | None = None
    is_streamed: bool = False
    cut: Count | None = None
    after_bytes: Count | None = None
    hang: bool = False
    garble: bool = False
    delay: Seconds = 0
    between: Seconds = 0

    @model_validator(mode="after")
    def _one_verb(self) -> Self:
        given = [verb for verb in VERBS if getattr(self, verb) not in (None, False)]
        if given != ["say", "use"] and len(given) != 1:
            found = " and ".join(f"`{verb}`" for verb in given) or "no turn"
            raise wrong(f"{found} in one item; give exactly one of {', '.join(VERBS)} (`say` goes with `use`)")
        return self

    def turn(self) -> Turn:
        """Return the turn that it means."""
        turn = self._turn()
        if isinstance(turn, Hang | Garble | Delay) or not (self.delay or self.between):
            return turn
        return Delay(self.delay, turn, self.between)

    def _turn(self) -> Turn:
        if self.fail is not None:
            return Fail(self.fail, self.message, self.retry_after, self.times, self.code, self.is_streamed)
        if self.cut is not None:
            return Cut(self.cut, self.after_bytes)
        if self.hang or self.garble:
            return Hang() if self.hang else Garble()
        if self.together is not None:
            return tuple(turn.as_turn() for turn in self.together)
        return self.as_turn()


class _Script(RootModel[list[_Item]]):
    """A whole script."""
