"""Count the tokens of any provider's answer as it streams by, in bounded memory."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

MOST_EVENT = 8 * 2**20
"""The largest event of a stream that is read; a larger one passes uncounted."""
MOST_DOCUMENT = 32 * 2**20
MOST_TOKENS = 2**40
MOST_NAME = 200
BYTES_PER_TOKEN = 4
BYTES_PER_EVENT = 100
"""What a token of a stream takes on the wire, about."""
LINE_END = re.compile(rb"\r\n|\n|\r")

Body = Mapping[str, Any]
"""JSON of a provider: a parser's edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """The tokens of one answer; the four counts do not overlap."""

    model: str = ""
    input: int = 0
    """Input that no cache knew."""
    cached_input: int = 0
    cache_write: int = 0
    cache_write_1h: int = 0
    """Input that was written to a cache for an hour, which some providers charge more for."""
    output: int = 0
    is_estimated: bool = False
    """Whether the provider never said it, because the answer was cut off."""

    @property
    def total(self) -> int:
        """All tokens."""
        return self.total_input + self.output

    @property
    def total_input(self) -> int:
        """The input, cached or not."""
        return self.input + self.cached_input + self.cache_write + self.cache_write_1h


Reader = Callable[[TokenUsage, Body], TokenUsage]
"""Takes what is known and one document of the answer, and returns what is known now."""


class UsageMeter:
    """Reads the body of one answer in chunks of any size: server-sent events, a document, or a list of them."""

    def __init__(self, read: Reader) -> None:
        self._read = read
        self._known = TokenUsage()
        self._is_counted = False
        self._is_stream: bool | None = None
        self._held = bytearray()
        self._data: list[bytes] = []
        self._data_bytes = 0
        self._skips = False
        self._after_return = False
        self._streamed = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the body."""
        self._streamed += len(chunk)
        self._held += chunk
        if self._is_stream is None:
            self._sniff()
            chunk = bytes(self._held)
        if self._is_stream and (b"\n" in chunk or b"\r" in chunk):
            self._split_lines()
        if len(self._held) > (MOST_EVENT if self._is_stream else MOST_DOCUMENT):
            self._skip()

    @property
    def usage(self) -> TokenUsage | None:
        """What the provider has counted so far, or `None` if it said nothing."""
        unread = bytes(self._held)
        if self._is_stream:
            last = unread[5:] if unread.startswith(b"data:") else b""
            unread = b"\n".join([*self._data, last])
        return self._fold(b"" if self._skips else unread)[0]

    def estimate(self, request_bytes: int, model: str) -> TokenUsage:
        """Estimate the cost of *model*'s answer, which came without a count, by the sizes of both ways."""
        known = self.usage or TokenUsage()
        said = self._streamed // (BYTES_PER_EVENT if self._is_stream else BYTES_PER_TOKEN)
        unsaid = 0 if known.total_input else request_bytes // BYTES_PER_TOKEN
        counts = {"input": known.input + unsaid, "output": max(known.output, said)}
        return replace(known, **counts, model=known.model or model, is_estimated=True)

    def _sniff(self) -> None:
        """Tell a stream from a document by its beginning, because content types can be wrong."""
        self._held[:] = self._held.lstrip(b"\xef\xbb\xbf \t\r\n")
        if self._held:
            self._is_stream = self._held[:1] not in (bytearray(b"{"), bytearray(b"["))

    def _split_lines(self) -> None:
        if self._after_return and self._held[:1] == b"\n":  # the other half of an end of line
            del self._held[:1]
        self._after_return = False
        *lines, rest = LINE_END.split(bytes(self._held))
        self._after_return = self._held[-1:] == b"\r"
        self._held[:] = rest
        for line in lines:
            self._read_line(line)

    def _read_line(self, line: bytes) -> None:
        if not line:
            self._end_event()
        elif line.startswith(b"data:") and not self._skips:
            self._data.append(line[5:])
            self._data_bytes += len(line)
            if self._data_bytes > MOST_EVENT:
                self._skip()

    def _skip(self) -> None:
        """Skip to the end of the event or the document."""
        del self._held[:]
        self._data, self._data_bytes, self._skips = [], 0, True

    def _end_event(self) -> None:
        content = b"\n".join(self._data)
        self._data, self._data_bytes, self._skips = [], 0, False
        usage, self._known = self._fold(content)
        self._is_counted = usage is not None

    def _fold(self, content: bytes) -> tuple[TokenUsage | None, TokenUsage]:
        """Add the documents in *content* to the known counts; return the usage, if counted, and all known counts."""
        known, is_counted = self._known, self._is_counted
        for document in _documents(content):
            if isinstance(document, dict):
                latest = self._read(known, document)
                is_counted |= latest is not known
                known = latest
        return known if is_counted else None, known


def _documents(content: bytes) -> Iterator[object]:
    """Read a document or a list of them, even if it is cut off; hostile text yields none."""
    try:
        text = content.decode(errors="replace").strip()
        if not text.startswith("["):
            yield json.loads(text) if text.startswith("{") else None
            return
        decoder, at = json.JSONDecoder(), 1
        while (start := text.find("{", at)) >= 0 and not text[at:start].strip(", \t\r\n"):
            document, at = decoder.raw_decode(text, start)
            yield document
    except (ValueError, RecursionError):
        return


def read_anthropic(known: TokenUsage, document: Body) -> TokenUsage:
    """Read a message, or an event of one; counts are cumulative."""
    message = _mapping(document.get("message")) or document
    usage = _mapping(message.get("usage")) or _mapping(document.get("usage"))
    if not usage:
        return known
    by_age = _mapping(usage.get("cache_creation"))
    long = _count(by_age, "ephemeral_1h_input_tokens", known.cache_write_1h)
    written = _count(usage, "cache_creation_input_tokens", known.cache_write + known.cache_write_1h)
    return replace(
        known,
        model=_name(message.get("model"), known.model),
        input=_count(usage, "input_tokens", known.input),
        cached_input=_count(usage, "cache_read_input_tokens", known.cached_input),
        cache_write=max(0, written - long),
        cache_write_1h=min(long, written),
        output=_count(usage, "output_tokens", known.output),
    )


def read_openai(known: TokenUsage, document: Body) -> TokenUsage:
    """Read a completion, a response, or an event of either."""
    answer = _mapping(document.get("response")) or document
    usage = _mapping(answer.get("usage"))
    if not usage:
        return known
    asked = _count(usage, "input_tokens", _count(usage, "prompt_tokens", known.total_input))
    details = _mapping(usage.get("input_tokens_details")) or _mapping(usage.get("prompt_tokens_details"))
    cached = min(asked, _count(details, "cached_tokens", 0))
    written = min(asked - cached, _count(details, "cache_write_tokens", 0))
    return replace(
        known,
        model=_name(answer.get("model"), known.model),
        input=asked - cached - written,
        cached_input=cached,
        cache_write=written,
        output=_count(usage, "output_tokens", _count(usage, "completion_tokens", known.output)),
    )


def read_gemini(known: TokenUsage, document: Body) -> TokenUsage:
    """Read an answer, or a piece of one; counts are cumulative."""
    usage = _mapping(document.get("usageMetadata"))
    if not usage:
        return known
    asked = _count(usage, "promptTokenCount", known.total_input) + _count(usage, "toolUsePromptTokenCount", 0)
    cached = min(asked, _count(usage, "cachedContentTokenCount", 0))
    said = _count(usage, "candidatesTokenCount", 0) + _count(usage, "thoughtsTokenCount", 0)
    model = _name(document.get("modelVersion"), known.model)
    return replace(known, model=model, input=asked - cached, cached_input=cached, output=max(said, known.output))


def _mapping(value: object) -> Body:
    return value if isinstance(value, dict) else {}


def _name(value: object, known: str) -> str:
    return value[:MOST_NAME] if isinstance(value, str) and value else known


def _count(usage: Body, key: str, known: int) -> int:
    """Read a count of tokens; anything else keeps the known count."""
    value = usage.get(key)
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_TOKENS
    return value if is_count else known  # type: ignore[return-value]  # an int, by the line above
