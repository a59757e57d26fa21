"""A turn, done on a connection."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import assert_never

from shoal.testing.model.connection import Connection
from shoal.testing.model.conversation import Answer, Event, Wire
from shoal.testing.model.gemini import SIDE, wants_json
from shoal.testing.model.recorded import Request
from shoal.testing.model.tools import call
from shoal.testing.model.turns import Cut, Delay, Fail, Garble, Hang, Say, Spoken, Turn, Usage, Use

CHARACTERS_OF_A_TOKEN = 4


@dataclass(frozen=True, slots=True)
class Performance:
    """A request that is being answered; *answered* is told what the answer reports, before its end is sent."""

    request: Request
    wire: Wire
    connection: Connection
    answered: Callable[[Request, Usage], None]

    async def perform(self, turn: Turn, between: float = 0) -> bool:
        """Do *turn*; tell whether the connection may go on after it."""
        match turn:
            case Say() | Use() | tuple():
                await self._answer(answer(turn, self.request), between)
            case Fail() if turn.is_streamed and self.request.conversation.is_stream:
                await self._stream(event.encoded() for event in self.wire.failure(turn))
            case Fail():
                await self.connection.send(turn.status, self.wire.refusal(turn), _retry(turn))
            case Hang():
                await self.connection.pause(None)
            case Garble():
                await self._stream([b"data: {not json\n\n"])
            case Cut():
                await self._cut(turn, between)
                return False
            case Delay():
                await self.connection.pause(turn.seconds)
                return await self.perform(turn.then, turn.between)
            case _:
                assert_never(turn)
        return True

    async def _answer(self, said: Answer, between: float) -> None:
        if not self.request.conversation.is_stream:
            self.answered(self.request, said.usage)
            await self.connection.send(200, self.wire.whole(said))
            return
        *events, last = self.wire.events(said)
        await self.connection.start_stream()
        for event in events:
            await self._send(event, between)
        self.answered(self.request, said.usage)
        await self.connection.chunk(last.encoded())
        await self.connection.chunk(b"")

    async def _send(self, event: Event, between: float) -> None:
        await self.connection.chunk(event.encoded())
        if between:
            await self.connection.pause(between)

    async def _cut(self, cut: Cut, between: float) -> None:
        said = answer(cut.of, self.request)
        if not self.request.conversation.is_stream:
            await self.connection.send_part(self.wire.whole(said), 10 if cut.after_bytes is None else cut.after_bytes)
            return
        await self.connection.start_stream()
        chunks = [event.encoded() for event in self.wire.events(said)]
        if cut.after_bytes is not None:
            await self.connection.chunk(b"".join(chunks)[: cut.after_bytes] or b"\n")
            return
        for chunk in chunks[: cut.after_chunks]:
            await self.connection.chunk(chunk)
            if between:
                await self.connection.pause(between)

    async def _stream(self, chunks: Iterable[bytes]) -> None:
        await self.connection.start_stream()
        for chunk in (*chunks, b""):
            await self.connection.chunk(chunk)


def answer(turn: Spoken, request: Request) -> Answer:
    """Say what *turn* is to the client that asks."""
    parts = turn if isinstance(turn, tuple) else (turn,)
    text = "\n".join(filter(None, (part.text if isinstance(part, Say) else part.say for part in parts)))
    calls = tuple(call(part, request.tools) for part in parts if isinstance(part, Use))
    if request.protocol == "gemini" and not calls and wants_json(request.body):
        text = json.dumps(SIDE)
    reported = [part.usage for part in parts if part.usage is not None]
    said = len(text) + sum(len(one.text) for one in calls)
    guess = Usage(_tokens(len(request.raw)), _tokens(said))
    return Answer(model=request.model, text=text, calls=calls, usage=sum(reported, Usage()) if reported else guess)


def _tokens(characters: int) -> int:
    return max(1, characters // CHARACTERS_OF_A_TOKEN)


def _retry(fail: Fail) -> dict[str, str]:
    if fail.retry_after is None:
        return {}
    return {"retry-after": f"{fail.retry_after:g}", "retry-after-ms": f"{fail.retry_after * 1000:g}"}
