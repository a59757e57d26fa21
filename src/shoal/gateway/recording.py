"""Record agents' requests to their models and the answers, and answer from the recording in a replay."""

import base64
import gzip
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from shoal.errors import BadInput
from shoal.model.gateway import Recording
from shoal.model.masking import Mask, MaskStream

MOST_BYTES = 512 * 2**20
"""What one session may record; what comes after that is not recorded, and a replay says so."""
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
MOST_SHOWN = 160
DIVERGED = "the replay diverged"
"""How the error of a session begins whose replay diverged."""
KEPT_HEADERS = ("content-type", "retry-after", "x-should-retry")
PASSING = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", re.IGNORECASE), "<uuid>"),
    (re.compile(r"\b\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?)?(?!\d)"), "<date>"),
    (re.compile(r"\b(?:\w{3}, )?\d{1,2} \w{3} \d{4} \d\d:\d\d:\d\d(?: \w{3}| [+-]\d{4})?"), "<date>"),
    (re.compile(r"\b\w{3} \w{3} [ \d]\d \d\d:\d\d:\d\d (?:\w{3,4} )?\d{4}(?: [+-]\d{4})?"), "<date>"),
    (re.compile(r"\b\d+(?:\.\d+)? ?(?:ms|s|secs?|seconds|min|minutes)\b"), "<duration>"),
    (re.compile(r"\b[0-9a-f]{40}(?:[0-9a-f]{24})?\b"), "<hash>"),
    (re.compile(r"\bagent/[a-z0-9-]+/[0-9a-f]{6}\b"), "<branch>"),
    (re.compile(r"x-anthropic-billing-header: [^\n]*"), "<billing>"),
)
"""What differs between two runs of the same pipeline and means nothing."""
PASSING_KEYS = frozenset(("user_id", "prompt_cache_key", "safety_identifier", "user", "client_metadata", "session_id"))
"""Members in which clients name themselves or the conversation."""

Json = Any
"""JSON of a client: a parser's edge."""


@dataclass(frozen=True, slots=True)
class Normalizer:
    """Makes requests equal that differ only in what is specific to a run.

    *literals* are texts of this run, such as its name and its folders, with what stands for them.
    """

    literals: Mapping[str, str] = field(default_factory=dict)
    mask: Mask = field(default_factory=Mask)

    def request(self, body: bytes) -> Json:
        """Return the JSON of a request without secrets and without anything specific to this run."""
        try:
            return self._value(json.loads(body))
        except (ValueError, RecursionError):
            return self.text(body.decode(errors="replace"))

    def text(self, text: str) -> str:
        """Return a text without secrets and without anything specific to this run."""
        text = self.mask.text(text)
        for literal in sorted(self.literals, key=len, reverse=True):
            text = text.replace(literal, self.literals[literal])
        for pattern, name in PASSING:
            text = pattern.sub(name, text)
        return text

    def _value(self, value: Json) -> Json:
        match value:
            case str():
                return self.text(value)
            case list():
                return [self._value(item) for item in value]
            case dict():
                return {
                    self.text(key): "<passing>" if key in PASSING_KEYS else self._value(inner)
                    for key, inner in value.items()
                }
            case _:
                return value


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedExchange:
    """A request as it was normalised, and the answer as it came, chunk by chunk."""

    turn: int
    method: str
    target: str
    request: Json
    status: int
    headers: Mapping[str, str]
    chunks: Sequence[bytes]
    is_whole: bool
    """Whether the answer came to its end."""

    @property
    def fingerprint(self) -> str:
        """Equal for requests that mean the same to a model."""
        return fingerprint(self.method, self.target, self.request)

    def document(self) -> Mapping[str, Any]:
        """Write it as JSON."""
        chunks = [_write_chunk(chunk) for chunk in self.chunks]
        fields = ("turn", "method", "target", "request", "status", "is_whole")
        return {name: getattr(self, name) for name in fields} | {"headers": dict(self.headers), "chunks": chunks}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Read what `document` wrote."""
        return cls(**{**document, "chunks": [_read_chunk(chunk) for chunk in document["chunks"]]})


def fingerprint(method: str, target: str, request: Json) -> str:
    """Identify a request by everything in it that does not differ between runs."""
    text = json.dumps([method, target, request], sort_keys=True)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


class Recorder:
    """Appends the exchanges of one session to its file."""

    def __init__(self, folder: Path, key: str, normalizer: Normalizer) -> None:
        self._file = recording_file(folder, key)
        self._normalizer = normalizer
        self._turn = 0
        self._bytes = 0

    def begin(self, method: str, target: str, body: bytes, *, turn: int | None = None) -> "ExchangeRecorder":
        """Begin with a request, which is the next one if *turn* does not say otherwise."""
        self._turn = self._turn + 1 if turn is None else turn
        return ExchangeRecorder(self, self._turn, method, target, self._normalizer.request(body))

    def mask_stream(self) -> MaskStream:
        """Begin to mask an answer."""
        return self._normalizer.mask.stream()

    def append(self, exchange: RecordedExchange) -> None:
        """Write one exchange in a single step: a kill leaves it whole, or cut at the end of the file."""
        line = json.dumps(exchange.document(), ensure_ascii=False).encode(errors="surrogatepass") + b"\n"
        self._bytes += len(line)
        if self._bytes > MOST_BYTES:
            return
        member = gzip.compress(line, compresslevel=3)
        descriptor = os.open(self._file, FLAGS, 0o600)
        try:
            os.write(descriptor, member)
        finally:
            os.close(descriptor)


class ExchangeRecorder:
    """Records an answer as it streams by."""

    def __init__(self, recorder: Recorder, turn: int, method: str, target: str, request: Json) -> None:
        self._recorder = recorder
        self._request = {"turn": turn, "method": method, "target": target, "request": request}
        self._mask = recorder.mask_stream()
        self._chunks: list[bytes] = []
        self._bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next chunk."""
        self._bytes += len(chunk)
        if self._bytes <= MOST_BYTES:
            self._chunks.append(self._mask.feed(chunk))

    def end(self, status: int, headers: Mapping[str, str], *, is_whole: bool) -> None:
        """Write it."""
        kept = {name: value for name, value in headers.items() if name.lower() in KEPT_HEADERS}
        chunks = [chunk for chunk in (*self._chunks, self._mask.close()) if chunk]
        fields: dict[str, Any] = {**self._request, "status": status, "headers": kept, "is_whole": is_whole}
        self._recorder.append(RecordedExchange(**fields, chunks=chunks))


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """Where a replay asked something that is not in the recording."""

    key: str
    turn: int
    field: str
    recorded: str
    now: str

    @property
    def text(self) -> str:
        """One sentence for a person."""
        return f"{DIVERGED}: {self.key}, request {self.turn}: {self.field} was {self.recorded} and is now {self.now}"


class Replayer:
    """Answers the requests of one session from the recording; each answer is given once, in order."""

    def __init__(self, folder: Path, key: str, normalizer: Normalizer) -> None:
        self._key = key
        self._normalizer = normalizer
        self._left = list(read_exchanges(recording_file(folder, key)))
        self._used: list[RecordedExchange] = []

    def answer(self, method: str, target: str, body: bytes, *, is_answer: bool = True) -> RecordedExchange | Divergence:
        """Return the answer to a request; counts and lists may be asked for again."""
        request = self._normalizer.request(body)
        wanted = fingerprint(method, target, request)
        for exchange in self._left:
            if exchange.fingerprint == wanted:
                self._left.remove(exchange)
                self._used.append(exchange)
                return exchange
        if not is_answer:
            for exchange in self._used:
                if exchange.fingerprint == wanted:
                    return exchange
        return self._diverge(method, target, request)

    @property
    def unasked(self) -> int:
        """How many recorded requests were not asked again."""
        return len(self._left)

    def _diverge(self, method: str, target: str, request: Json) -> Divergence:
        alike = [exchange for exchange in self._left if (exchange.method, exchange.target) == (method, target)]
        if not alike:
            why = "an end" if self._used or self._left else "nothing at all"
            return Divergence(
                key=self._key, turn=len(self._used) + 1, field="it", recorded=why, now=f"{method} {target}"
            )
        # A client has several requests under way, so the most similar one is the one that changed.
        nearest = min(alike, key=lambda exchange: _distance(exchange.request, request))
        where, recorded, now = next(find_differences(nearest.request, request), ("it", "the same", "the same"))
        return Divergence(key=self._key, turn=nearest.turn, field=where, recorded=recorded, now=now)


def open_recording(recording: Recording) -> Recorder | Replayer:
    """Record a session, or answer it from the recording."""
    normalizer = Normalizer(recording.literals, Mask.of(recording.secrets))
    kind = Replayer if recording.is_replay else Recorder
    return kind(Path(recording.folder), recording.key, normalizer)


def recording_file(folder: Path, key: str) -> Path:
    """Return the file of a session, whose key may contain any characters."""
    return folder / f"{quote(key, safe='')}.jsonl.gz"


def read_exchanges(file: Path) -> Iterator[RecordedExchange]:
    """Read the recorded exchanges of a session; one that a kill cut off is left out."""
    try:
        with gzip.open(file) as lines:
            for line in lines:
                yield RecordedExchange.of(json.loads(line))
    except FileNotFoundError:
        return
    except EOFError:
        return
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise BadInput(f"{file}: this is no recording of Shoal: {error}") from None


def find_differences(recorded: Json, now: Json, where: str = "") -> Iterator[tuple[str, str, str]]:
    """Name the members that differ, in order, each with both values."""
    if isinstance(recorded, dict) and isinstance(now, dict):
        for key in [*recorded, *(key for key in now if key not in recorded)]:
            yield from find_differences(recorded.get(key), now.get(key), f"{where}.{key}" if where else key)
    elif isinstance(recorded, list) and isinstance(now, list):
        for index in range(max(len(recorded), len(now))):
            before, after = (values[index] if index < len(values) else None for values in (recorded, now))
            yield from find_differences(before, after, f"{where}[{index}]")
    elif recorded != now:
        yield where or "the body", *_show_both(recorded, now)


def _distance(recorded: Json, now: Json) -> int:
    return sum(1 for _ in find_differences(recorded, now))


def _show_both(recorded: Json, now: Json) -> tuple[str, str]:
    """Show two values around the place where they begin to differ."""
    before, after = (value if isinstance(value, str) else json.dumps(value) for value in (recorded, now))
    pairs = enumerate(zip(before, after, strict=False))
    same = next((index for index, (left, right) in pairs if left != right), min(len(before), len(after)))
    start = max(0, same - 40)
    return _show(before, start), _show(after, start)


def _show(text: str, start: int) -> str:
    part = text[start : start + MOST_SHOWN]
    return f"{'…' * (start > 0)}{ascii(part)[1:-1]}{'…' * (start + MOST_SHOWN < len(text))}".join("``")


def _write_chunk(chunk: bytes) -> str | list[str]:
    try:
        return chunk.decode()
    except UnicodeDecodeError:
        return [base64.b64encode(chunk).decode()]


def _read_chunk(chunk: str | list[str]) -> bytes:
    return chunk.encode() if isinstance(chunk, str) else base64.b64decode(chunk[0])
