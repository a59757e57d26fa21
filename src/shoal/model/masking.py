"""Mask known secret values: replace them by their names in text.

Masking guards against accidents: an agent with a secret can always encode it in an unknown way.
"""

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import AnyStr, Generic, NamedTuple, Self
from urllib.parse import quote, quote_plus

SHORTEST = 4
"""Shorter values would match in any text, and every replacement would reveal them."""

LONG = 8
"""From this length on, a value is searched in more encodings: hex, UTF-16, and base64 among other bytes."""
CERTAIN = 12
"""From this length on, a value in a file is there because somebody wrote it."""
CASELESS = 16
"""From this length on, a value is also searched in upper case and in lower case."""

_WRAPPED = 8  # a shorter last line of wrapped base64 matches in any text: `Cg==` is a line end
_QUOTED_SAFE = ("", "/", "!'()*")  # strict, a path, JavaScript's encodeURIComponent
_HTML_SAFE = str.maketrans({"<": r"\u003c", ">": r"\u003e", "&": r"\u0026"})  # as Go writes JSON


@dataclass(frozen=True, slots=True)
class _Needle(Generic[AnyStr]):
    """One encoding of a secret, and its replacement."""

    form: AnyStr
    label: AnyStr


class _Hit(NamedTuple):
    """A match; the lower its rank, the longer its needle."""

    start: int
    rank: int
    end: int


@dataclass(frozen=True, slots=True)
class Mask:
    """The known secrets; made by `Mask.of`. `Mask()` has none and changes nothing."""

    unmasked: tuple[str, ...] = ()
    """Names whose values are too short to be masked, which a person must be told."""
    _texts: tuple[_Needle[str], ...] = field(default=(), repr=False)
    _bytes: tuple[_Needle[bytes], ...] = field(default=(), repr=False)
    _long: Mapping[bytes, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, *secrets: Mapping[str, str]) -> Self:
        """Make a mask for the values in *secrets*, by name; if two names have the same value, the first is shown."""
        named = [(name, value) for some in secrets for name, value in some.items()]
        short = {name for name, value in named if value and not _is_maskable(value)}
        forms: dict[str, str] = {}
        for name, value in named:
            for form in _forms(value) if _is_maskable(value) else ():
                forms.setdefault(form, name)
        raw = {_raw(form): name for form, name in forms.items()}
        labels = {name: _label(name, (*forms, *raw)) for name in set(forms.values())}
        in_bytes = {name: label.encode() for name, label in labels.items()}
        sure = {_raw(form) for _, value in named if len(value.strip()) >= CERTAIN for form in _forms(value)}
        long = {form: name for form, name in raw.items() if form in sure and len(form) >= CERTAIN}
        return cls(tuple(sorted(short)), _needles(forms, labels), _needles(raw, in_bytes), long)

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to mask."""
        return not self._texts

    @property
    def has_long(self) -> bool:
        """Return whether there is a secret that is long enough to search in files."""
        return bool(self._long)

    def names_in(self, content: bytes) -> tuple[str, ...]:
        """Name the secrets in *content* that are too long to occur by chance."""
        return tuple(sorted({name for form, name in self._long.items() if form in content}))

    def text(self, text: str) -> str:
        """Replace every secret in *text*."""
        if not self._texts:
            return text
        return _mask(text, self._texts).text

    def stream(self) -> "MaskStream":
        """Begin to mask a stream of bytes."""
        return MaskStream(self._bytes)


class MaskStream:
    """A stream through a mask: its output does not depend on how the input is split into chunks.

    Only an end that could be the beginning of a secret is held back, at most the longest encoding.
    """

    def __init__(self, needles: tuple[_Needle[bytes], ...]) -> None:
        self._needles = needles
        self._tips = frozenset(needle.form[:size] for needle in needles for size in range(1, SHORTEST))
        self._held = b""
        self._covered = 0  # how much of the held text is masked already, though more matches may overlap with it

    def feed(self, chunk: bytes) -> bytes:
        """Take a chunk, and return what is certain now."""
        text = self._held + chunk
        return self._say(text, self._find_undecided(text))

    def close(self) -> bytes:
        """Return the text that was held back, which is not a secret after all."""
        return self._say(self._held, len(self._held))

    def _find_undecided(self, text: bytes) -> int:
        """Return from where on *text* could be the beginning of an incomplete secret."""
        last = range(max(0, len(text) - SHORTEST + 1), len(text))
        tip = next((at for at in last if text[at:] in self._tips), len(text))
        return min([tip, *(_find_tip(text, needle.form) for needle in self._needles)])

    def _say(self, text: bytes, until: int) -> bytes:
        done = _mask(text, self._needles, covered=self._covered, until=until)
        self._held = text[until:]
        self._covered = done.settled - until
        return done.text


@dataclass(frozen=True, slots=True)
class _Masked(Generic[AnyStr]):
    """Masked text, and how much of the input is final."""

    text: AnyStr
    settled: int


def _mask(
    text: AnyStr, needles: Sequence[_Needle[AnyStr]], *, covered: int = 0, until: int | None = None
) -> _Masked[AnyStr]:
    """Replace matches that begin before *until*; overlapping ones are replaced once, by the first name."""
    until = len(text) if until is None else until
    pieces: list[AnyStr] = []
    settled = covered
    for hit in _hits(text, needles):
        if hit.start < settled:
            settled = max(settled, hit.end)
        elif hit.start < until:
            pieces += (text[settled : hit.start], needles[hit.rank].label)
            settled = hit.end
    pieces.append(text[settled:until])
    return _Masked(text[:0].join(pieces), max(settled, until))


def _hits(text: AnyStr, needles: Sequence[_Needle[AnyStr]]) -> list[_Hit]:
    return sorted(hit for rank, needle in enumerate(needles) for hit in _find_form(text, needle.form, rank))


def _find_form(text: AnyStr, form: AnyStr, rank: int) -> Iterator[_Hit]:
    """Find *form*, skipping to the last overlapping match, because `aaaa` in a long row of `a` is everywhere."""
    size = len(form)
    start = text.find(form)
    while start >= 0:
        end = start + size
        while (last := text.rfind(form, end - size + 1, end + size - 1)) >= 0:
            end = last + size
        yield _Hit(start, rank, end)
        start = text.find(form, end)


def _find_tip(text: bytes, form: bytes) -> int:
    """Return from where on *text* ends with the beginning of *form*."""
    head = form[:SHORTEST]
    at = text.find(head, max(0, len(text) - len(form) + 1))
    while at >= 0 and not form.startswith(text[at:]):
        at = text.find(head, at + 1)
    return at if at >= 0 else len(text)


def _needles(forms: Mapping[AnyStr, str], labels: Mapping[str, AnyStr]) -> tuple[_Needle[AnyStr], ...]:
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    return tuple(_Needle(form, labels[forms[form]]) for form in longest_first)


def _is_maskable(value: str) -> bool:
    return len(value.strip()) >= SHORTEST


def _forms(value: str) -> Iterator[str]:
    """Yield the common encodings of *value* and of its lines, since output is split into lines later."""
    lines = (line.strip() for line in value.split("\n"))
    for piece in (value, *(line for line in lines if len(line) >= SHORTEST)):
        yield from (piece, _raw(piece).decode(errors="replace"), *_in_json(piece))
    for written in _in_json(value):
        yield from (written.translate(_HTML_SAFE), written.replace("/", r"\/"))
    for whole in (value, value.strip()):
        yield from _in_urls(whole)
        yield from _in_base64(_raw(whole))
        yield from _in_base64(_raw(whole) + b"\n")  # `echo "$SECRET" | base64`
    if len(value.strip()) >= LONG:
        yield from _encode(value.strip())


def _encode(value: str) -> Iterator[str]:
    """Yield encodings that match in no other text, because *value* is long."""
    raw = _raw(value)
    yield from (raw.hex(), raw.hex().upper())
    yield from _inside_base64(raw)
    if value.isascii():
        yield "\0".join(value)  # UTF-16 in either byte order
    if len(value) >= CASELESS:
        yield from (value.upper(), value.lower())


def _inside_base64(raw: bytes) -> Iterator[str]:
    """Yield the base64 of *raw* in the middle of other bytes: the characters that do not depend on them."""
    for shift in range(3):
        first, last = -(-shift * 8 // 6), (shift + len(raw)) * 8 // 6
        for encode in (base64.standard_b64encode, base64.urlsafe_b64encode):
            yield encode(bytes(shift) + raw).decode()[first:last]


def _in_json(piece: str) -> tuple[str, ...]:
    return tuple(json.dumps(piece, ensure_ascii=ascii_only)[1:-1] for ascii_only in (True, False))


def _in_urls(whole: str) -> Iterator[str]:
    yield from (quote(_raw(whole), safe=safe) for safe in _QUOTED_SAFE)
    yield quote_plus(_raw(whole))


def _in_base64(raw: bytes) -> Iterator[str]:
    for encoded in (base64.standard_b64encode(raw).decode(), base64.urlsafe_b64encode(raw).decode()):
        yield from (encoded, encoded.rstrip("="))
    lines = base64.encodebytes(raw).decode().splitlines()
    yield from (line for line in lines if len(line) >= _WRAPPED)


def _raw(text: str) -> bytes:
    """Return the bytes of *text*; a host variable may contain bytes that are not UTF-8."""
    try:
        return text.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        return text.encode(errors="surrogatepass")


def _label(name: str, forms: Iterable[str | bytes]) -> str:
    """Choose the replacement of a secret, such that it contains none, and none can arise next to other text."""
    raw = [form if isinstance(form, bytes) else form.encode(errors="surrogatepass") for form in forms]
    wanted = (f"[secret {name}]", "[secret]", "***", *map(chr, range(0x21, 0x7F)), *map(chr, range(0x2580, 0x2800)))
    return next((label for label in wanted if not any(_meets(_raw(label), form) for form in raw)), "")


def _meets(label: bytes, form: bytes) -> bool:
    if label in form or form in label:
        return True
    sizes = range(1, min(len(label), len(form)))
    return any(label.endswith(form[:size]) or label.startswith(form[-size:]) for size in sizes)


def name_short_secrets(mask: Mask) -> tuple[str, ...]:
    """List the secrets that are too short to be masked."""
    return tuple(f"the value of {name} is too short to be masked in output" for name in mask.unmasked)
