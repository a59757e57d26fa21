"""Parse YAML text into a tree: limited in size, depth, nodes and aliases, so that no document can harm us."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    Event,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from shoal.pipeline.problems import BadDocument, Position, Problem, key, printable, show_value
from shoal.pipeline.tree import Fields, Items, Node, Plain, Scalar, TreeEntry

MAX_DIGITS = 300  # Python itself refuses integers of more than 4,300 digits, with an error that has no position

_WORDS: dict[str, Plain] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def resolve(written: str) -> Plain:
    """Return the value of a plain scalar; a number that is too long stays text."""
    if written in _WORDS:
        return _WORDS[written]
    if len(written) > MAX_DIGITS:
        return written
    if _INTEGER.fullmatch(written):
        return int(written)
    if _BASED.fullmatch(written):
        return int(written, 0)
    if _FLOAT.fullmatch(written):
        return float(written)
    return written


SHOWN = 200
OPENING = {"'": "quote", '"': "quote", "[": "bracket", "{": "brace"}


def not_yaml(error: YAMLError, text: str, name: str) -> Problem:
    """Make a problem from the parser's error."""
    if not isinstance(error, MarkedYAMLError):
        return Problem(name, None, "this is not YAML: it cannot be read")
    at, began = _position(error.problem_mark), _position(error.context_mark)
    why = " ".join(part for part in (error.context, error.problem) if part)
    hint = _hint(text.split("\n"), at, began or at) if at else None
    what = f"this is not YAML: {printable(why)[:SHOWN] or 'it cannot be read'}"
    return Problem(name, at or began, f"{what}; {hint}" if hint else what)


def _position(mark: object) -> Position | None:
    return Position(mark.line + 1, mark.column + 1) if isinstance(mark, StringMark) else None


def _hint(lines: list[str], at: Position, began: Position) -> str | None:
    """Suggest a fix from the characters at the position: the parser's own message is not for users."""
    sign, before = _sign(lines, at), _line(lines, at)[: at.column - 1]
    if sign == "\t":
        return "indent with spaces, not with tabs"
    if began.line < at.line and (what := OPENING.get(_sign(lines, began))):
        return f"close the {what} that opens in line {began.line}, column {began.column}"
    if began.line < at.line and ":" not in _line(lines, began):
        return f"line {began.line} has no `:`"
    if sign == ":":
        return "quote a text that contains `: `, and align keys of one mapping"
    if sign and sign in "@`%":
        return f"a text that starts with {sign!r} goes in quotes"
    return _hint_by_what_is_before(before)


def _hint_by_what_is_before(before: str) -> str | None:
    if before.endswith("\\"):
        return "in double quotes a backslash is written twice; in single ones it is not"
    if before.rstrip().endswith(("'", '"')):
        return "put all of the text in quotes, of the other kind where it has some inside"
    if not before.strip(" -"):
        return "check the indentation: it matches neither the line before nor a block inside it"
    return None


def _sign(lines: list[str], at: Position) -> str:
    return _line(lines, at)[at.column - 1 : at.column]


def _line(lines: list[str], at: Position) -> str:
    return lines[at.line - 1] if at.line <= len(lines) else ""


MAX_BYTES = 1024 * 1024
MAX_DEPTH = 50
MAX_ALIASES = 100
MAX_NODES = 100_000  # with aliases expanded: nine levels of nine aliases are 81 uses and 387 million nodes

UNREADABLE = "what comes next cannot be read as YAML; write it in another way"

_CORE = "tag:yaml.org,2002:"
_UNFIT = re.compile("[\0\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Composed:
    """A tree, and problems of its form that did not prevent parsing."""

    tree: Node
    problems: tuple[Problem, ...]


def compose(text: str, name: str) -> Composed:
    """Parse one YAML document, or raise `BadDocument` if its form makes that impossible or unsafe."""
    _refuse_unfit(text, name)
    builder = _Builder(name, text)
    try:
        tree = builder.document(YAML(typ="safe", pure=True).parse(text))
    except YAMLError as error:
        raise BadDocument([*builder.problems, _unread(error, text, name)]) from None
    except (ValueError, OverflowError, TypeError, AttributeError, IndexError, KeyError):
        # ruamel does not catch these, such as OverflowError of chr() for "\\UFFFFFFFF"
        raise BadDocument([*builder.problems, Problem(name, builder.at, UNREADABLE)]) from None
    return Composed(tree, tuple(builder.problems))


class _Builder:
    """Walks the parser's events; collects problems, and raises where continuing is unsafe."""

    def __init__(self, name: str, text: str) -> None:
        self.name = name
        self.lines = text.split("\n")
        self.problems: list[Problem] = []
        self.anchors: dict[str, tuple[Node, int] | None] = {}
        self.aliases = 0
        self.nodes = 0
        self.at = Position()

    def document(self, events: Iterator[Event]) -> Node:
        """Build the only document that there is."""
        tree: Node | None = None
        for event in events:
            if isinstance(event, DocumentStartEvent):
                if tree is not None:
                    self._stop(event, "a second document; keep one document in one file")
                self._check_version(event)
                tree = self._node(next(events), events, 0)
        if tree is None:
            raise BadDocument([Problem(self.name, Position(), "the file is empty; write something into it")])
        return tree

    def _node(self, event: Event, events: Iterator[Event], depth: int) -> Node:
        self._count(event, 1)
        if depth > MAX_DEPTH:
            self._stop(event, f"nested deeper than {MAX_DEPTH} levels; make it flatter")
        if isinstance(event, AliasEvent):
            return self._alias(event, depth)
        before = self.nodes
        self._open(event)
        node = self._content(event, events, depth)
        if isinstance(event, NodeEvent) and event.anchor is not None:
            self.anchors[event.anchor] = (node, self.nodes - before + 1)
        return node

    def _content(self, event: Event, events: Iterator[Event], depth: int) -> Node:
        if isinstance(event, SequenceStartEvent):
            return self._items(event, events, depth)
        if isinstance(event, MappingStartEvent):
            return self._fields(event, events, depth)
        assert isinstance(event, ScalarEvent)  # noqa: S101 - a parser gives no fourth kind of node
        return self._scalar(event)

    def _items(self, start: Event, events: Iterator[Event], depth: int) -> Items:
        found: list[Node] = []
        while not isinstance(event := next(events), SequenceEndEvent):
            found.append(self._node(event, events, depth + 1))
        return Items(_at(start), tuple(found), _height(found))

    def _fields(self, start: Event, events: Iterator[Event], depth: int) -> Fields:
        found: dict[str, TreeEntry] = {}
        while not isinstance(event := next(events), MappingEndEvent):
            label = self._node(event, events, depth + 1)
            value = self._node(next(events), events, depth + 1)
            self._add_entry(found, event, label, value)
        return Fields(_at(start), found, _height([entry.value for entry in found.values()]))

    def _add_entry(self, found: dict[str, TreeEntry], event: Event, label: Node, value: Node) -> None:
        if not isinstance(label, Scalar) or not isinstance(label.value, str):
            written = printable(label.text)[:60] if isinstance(label, Scalar) else "a list or mapping"
            remedy = "put all of `{{ … }}` in quotes" if isinstance(label, Fields) else "put it in quotes"
            self._note(event, f"a key must be text, not {written or 'nothing'}; {remedy}")
        elif label.value in found:
            first = found[label.value].at
            what = f"{key(label.value)} is given twice, first in line {first.line}, column {first.column}; keep one"
            self._note(event, what)
        else:
            found[label.value] = TreeEntry(_at(event), _place_null(value, _at(event)))

    def _scalar(self, event: ScalarEvent) -> Scalar:
        written = str(event.value)
        if _UNFIT.search(written):
            self._note(event, "a NUL or half a surrogate pair in a text; remove it")
        is_plain = event.style is None and event.tag is None
        return Scalar(_at(event), written, resolve(written) if is_plain else written, self._inside(event, written))

    def _inside(self, event: ScalarEvent, written: str) -> Position | None:
        """Find the position of the text itself, to report problems in it; folded and escaped texts are not traced."""
        at = _at(event)
        if event.style == "|":
            return self._inside_block(written, at.line)
        start = at.column - 1 + bool(event.style)
        is_as_written = at.line <= len(self.lines) and self.lines[at.line - 1].startswith(written, start)
        return Position(at.line, start + 1) if is_as_written else None

    def _inside_block(self, written: str, header: int) -> Position | None:
        for number, line in enumerate(written.split("\n")[: len(self.lines) - header]):
            if line.strip():
                source = self.lines[header + number].rstrip("\r")
                return Position(header + 1, len(source) - len(line) + 1) if source.endswith(line) else None
        return None

    def _alias(self, event: AliasEvent, depth: int) -> Node:
        self.aliases += 1
        if self.aliases > MAX_ALIASES:
            self._stop(event, f"more than {MAX_ALIASES} aliases; write the values out")
        if event.anchor not in self.anchors:
            self._stop(event, f"no anchor `&{printable(str(event.anchor))[:60]}` before this alias")
        anchored = self.anchors[event.anchor]
        if anchored is None:
            self._stop(event, f"`*{printable(str(event.anchor))[:60]}` refers to a value that contains it; remove it")
        node, size = anchored
        self._count(event, size)
        if depth + node.height > MAX_DEPTH:
            self._stop(event, f"nested deeper than {MAX_DEPTH} levels; make it flatter")
        return node

    def _open(self, event: Event) -> None:
        if not isinstance(event, NodeEvent):
            return
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        tag = getattr(event, "tag", None)
        if tag is not None and str(tag) not in _TAGS[type(event)]:
            self._note(event, f"the tag {show_value(str(tag).replace(_CORE, '!!'))} is refused; write the plain value")

    def _check_version(self, event: DocumentStartEvent) -> None:
        if event.version is not None and tuple(event.version) != (1, 2):
            self._note(event, "only YAML 1.2 is read; take the %YAML line out")

    def _count(self, event: Event, nodes: int) -> None:
        self.nodes += nodes
        self.at = _at(event)
        if self.nodes > MAX_NODES:
            self._stop(event, f"more than {MAX_NODES} values, aliases spelt out; make it smaller")

    def _note(self, event: Event, what: str) -> None:
        self.problems.append(Problem(self.name, _at(event), what))

    def _stop(self, event: Event, what: str) -> NoReturn:
        raise BadDocument([*self.problems, Problem(self.name, _at(event), what)])


_TAGS: dict[type[Event], tuple[str, ...]] = {
    ScalarEvent: ("!", f"{_CORE}str"),
    SequenceStartEvent: ("!", f"{_CORE}seq"),
    MappingStartEvent: ("!", f"{_CORE}map"),
}


def _refuse_unfit(text: str, name: str) -> None:
    if len(text) > MAX_BYTES or len(text.encode(errors="replace")) > MAX_BYTES:
        raise BadDocument([Problem(name, None, "larger than 1 MiB; move long texts to files of their own")])
    if found := _UNFIT.search(text):
        raise BadDocument(
            [Problem(name, _place(text, found.start()), "a NUL or broken character; save the file as UTF-8")]
        )


def _unread(error: YAMLError, text: str, name: str) -> Problem:
    if isinstance(error, ReaderError):
        return Problem(name, _place(text, int(error.position)), "a control character; remove or escape it")
    return not_yaml(error, text, name)


def _place(text: str, offset: int) -> Position:
    before = text[:offset]
    return Position(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def _at(event: Event) -> Position:
    mark = event.start_mark
    return Position(mark.line + 1, mark.column + 1)


def _place_null(value: Node, key_at: Position) -> Node:
    """Report a missing value at its key: the parser reports the next key."""
    is_left_out = isinstance(value, Scalar) and not value.text and value.value is None
    return Scalar(key_at, "", None) if is_left_out else value


def _height(children: list[Node]) -> int:
    return 1 + max((child.height for child in children), default=0)
