"""A bounded record of the server's requests and answers."""

import json
import re
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.testing.model.conversation import Body, Conversation, Tools
from shoal.testing.model.turns import Usage

SECRET = re.compile(r"key|auth|token|cookie|secret", re.IGNORECASE)
KEY_IN_URL = re.compile(r"([?&](?:key|access_token)=)[^&]*")
MOST_REQUESTS = 1000
MOST_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request for an answer, without the client's key."""

    protocol: str
    path: str
    headers: Mapping[str, str]
    raw: bytes = field(repr=False)
    conversation: Conversation = field(repr=False)
    at: float = field(default_factory=time.time)

    @property
    def model(self) -> str:
        """The model that was asked for."""
        return self.conversation.model

    @property
    def system(self) -> str:
        """The whole system prompt."""
        return self.conversation.system

    @property
    def user(self) -> str:
        """What the person said last."""
        return self.conversation.user

    @property
    def results(self) -> tuple[str, ...]:
        """What the tools gave so far, oldest first."""
        return self.conversation.results

    @property
    def tools(self) -> Tools:
        """The tools that the client has, with their schemas."""
        return self.conversation.tools

    @property
    def position(self) -> int:
        """How many answers the conversation holds already."""
        return self.conversation.position

    @property
    def body(self) -> Body:
        """The JSON that was sent."""
        body: Body = json.loads(self.raw)
        return body


@dataclass(frozen=True, slots=True)
class Answered:
    """A request with a complete answer, and the tokens that the answer reported."""

    request: Request
    usage: Usage


class RequestLog:
    """The newest requests and answers, limited in number and bytes."""

    def __init__(self, most_requests: int = MOST_REQUESTS, most_bytes: int = MOST_BYTES) -> None:
        self._most_requests = most_requests
        self._most_bytes = most_bytes
        self._requests: deque[Request] = deque()
        self._answers: deque[Answered] = deque()
        self._bytes = 0
        self.total = 0
        self.usage = Usage()

    def add(self, request: Request) -> None:
        """Keep *request*, and let the oldest go with its answer."""
        self.total += 1
        self._requests.append(request)
        self._bytes += len(request.raw)
        while len(self._requests) > 1 and self._is_full:
            oldest = self._requests.popleft()
            self._bytes -= len(oldest.raw)
            self._answers = deque(answer for answer in self._answers if answer.request is not oldest)

    @property
    def _is_full(self) -> bool:
        return len(self._requests) > self._most_requests or self._bytes > self._most_bytes

    def note_answer(self, request: Request, usage: Usage) -> None:
        """Keep what the answer to *request* reported."""
        self.usage += usage
        self._answers.append(Answered(request, usage))

    def newest(self) -> list[Request]:
        """Return the requests that are kept, oldest first."""
        return list(self._requests)

    def answers(self) -> list[Answered]:
        """Return the answers that are kept, oldest first."""
        return list(self._answers)


def without_keys(headers: Mapping[str, str]) -> dict[str, str]:
    """Leave out the headers that carry a secret."""
    return {name: value for name, value in headers.items() if not SECRET.search(name)}


def without_key(path: str) -> str:
    """Hide the key that one client puts into the address."""
    return KEY_IN_URL.sub(r"\1…", path)
