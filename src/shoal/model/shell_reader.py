"""Parse shell text: comments, words, commands and here-documents, and the quotes around each placeholder.

Shells differ. A placeholder is accepted only where sh, dash and bash agree; after the first construct that they read
differently, every further one is refused.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from shoal.model.shell_quotes import Quotes
from shoal.model.shell_text import EXPANSION, MASK, STDIN, Context, Doubt, Edit, Reading, ShellText, Word

RESERVED = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time"})
ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=.*", re.DOTALL)

_BLANKS = (" ", "\t")
_SUBSCRIPT = re.compile(r"(?:[A-Za-z_][A-Za-z0-9_]*)?\[[^\]]*")
_PLAIN_END = re.compile(r"[A-Za-z0-9_]+")
_GROUP_END = frozenset({"}", "done", "fi", "esac"})
_DESCRIPTOR = re.compile(r"[0-9]+|\{[A-Za-z_][A-Za-z0-9_]*\}")
_END_PART = re.compile(rf"'[^'\n{MASK}]*'|\"[^\"\n\\$`{MASK}]*\"|\\[^\n{MASK}]|[A-Za-z0-9_./:=+,%@!-]+")


@lru_cache(maxsize=64)
def read_shell_text(text: str) -> ShellText:
    """Parse *text*, in which `MASK` stands for each placeholder."""
    reader = _Reader(text)
    starts = [found.start() for found in re.finditer(MASK, text)]
    try:
        reader.read(_Commands(""))
    except Doubt as doubt:
        reader.readings = {start: how for start, how in reader.readings.items() if start < doubt.since}
        reader.edits = [edit for edit in reader.edits if edit.start < doubt.since]
        reader.readings |= {start: Reading(None, doubt.why) for start in starts if start not in reader.readings}
    for stdin, before in reader.pipes:
        stdin.places += [at for word in before for at in word.all_places]
    commands = tuple(command for command in reader.commands if any(word.all_places for word in command))
    return ShellText(reader.readings, commands, tuple(reader.edits))


@dataclass(frozen=True, slots=True)
class _HereDocument:
    """A here-document whose body starts on the next line; *start* and *end* are those of its end word."""

    delimiter: str
    is_quoted: bool
    strips_tabs: bool
    start: int
    end: int
    word: Word


class _Commands:
    """The commands at the top level or inside `( )` or `$( )`, as far as they have been read."""

    def __init__(self, closer: str, *, may_be_sum: bool = False, is_substitution: bool = False) -> None:
        self.closer = closer
        self.may_be_sum = may_be_sum
        self.is_substitution = is_substitution
        self.words: list[Word] = []
        self.word: Word | None = None
        self.is_target = False
        self.is_stdin = False
        self.pipe: list[Word] = []
        """The words of the commands whose output the next one reads."""
        self.is_group_end = False
        self.is_in_test = False
        """Whether the next command is behind a `&&` in `[[ ]]`; behind a `||`, some shells run it."""
        self.depth = 0

    def begin_word(self, *, is_plain: bool) -> Word:
        if self.word is None:
            self.word = Word()
        self.word.is_plain = self.word.is_plain and is_plain
        return self.word

    @property
    def is_at_start(self) -> bool:
        """Return whether the next word may be a command or an assignment."""
        return all(word.text in RESERVED or ASSIGNMENT.fullmatch(word.text) for word in self.words)


class _Reader(Quotes):
    def __init__(self, text: str, depth: int = 0) -> None:
        super().__init__(text, depth)
        self.commands: list[tuple[Word, ...]] = []
        self.here_documents: list[_HereDocument] = []
        self.pipes: list[tuple[Word, tuple[Word, ...]]] = []
        """What each command behind a `|` reads, and the words that this may come from."""
        self.now = _Commands("")

    def read(self, now: _Commands) -> None:
        """Read commands up to the closing bracket of *now*, or to the end of the text."""
        around, self.now = self.now, now
        outer, start, depth = len(self.here_documents), self.at, self.go_deeper()
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == ")" and now.closer and not now.depth:
                self._end_command(now)
                if len(self.here_documents) > outer:
                    raise Doubt("a here-document is announced right before `)`", start)
                self.at += 1
                self.depth, self.now = depth, around
                return
            self._read_next(now, char, outer)
        self._end_command(now)
        if now.closer:
            raise Doubt(f"its `{now.closer}` is missing", start)

    def read_substitution(self) -> None:
        self.read(_Commands(")", is_substitution=True))

    def check_commands(self, text: str) -> None:
        _Reader(text, self.depth).read(_Commands(""))

    def subscript(self, word: Word) -> str:
        is_one = self.now.word is word and self.now.is_at_start and _SUBSCRIPT.fullmatch(word.text)
        return "in a subscript, which a shell calculates" if is_one else ""

    def _read_next(self, now: _Commands, char: str, outer: int) -> None:
        if char == "\n":
            self._end_command(now)
            self.at += 1
            self._bodies(outer)
        elif char in _BLANKS:
            self._end_word(now)
            self.at += 1
        elif char in ";&|()<>":
            self._operator(now, char)
        elif char == "#" and now.word is None:
            self._comment(now)
        else:
            self._part_of_word(now, char)

    def _part_of_word(self, now: _Commands, char: str) -> None:
        start = self.at
        if self.text.startswith("\\\n", start):  # the line goes on
            self.at += 2
        else:
            word = now.begin_word(is_plain=char not in "\\'\"`$" + MASK)
            if char == MASK:
                self.place(Context.WORD, self.subscript(word), word)
            elif char == "'":
                self.single(word)
            elif char == '"':
                self.double(word)
            elif char in "\\`$":
                self.expansion(char, word, in_double=False)
            else:
                word.text += char
                self.at += 1
        if self.here_documents and "\n" in self.text[start : self.at]:
            raise Doubt("a line goes on while a here-document is announced", start)

    def _operator(self, now: _Commands, char: str) -> None:
        start, self.at = self.at, self.at + 1
        is_in_word = now.word is not None
        if self.text.startswith("(#", start):
            raise Doubt("shells read `(#` differently", start)
        if char in "<>":
            if now.word is not None and now.word.is_plain and _DESCRIPTOR.fullmatch(now.word.text):
                now.word = None
            self._end_word(now)
            self._redirection(now, start)
            return
        if self.text.startswith("&>", start):
            raise Doubt("shells read `&>` differently; write `>FILE 2>&1`", start)
        is_and = self.text.startswith("&&", start)
        self._end_command(now, is_and=is_and, is_piped=char == "|" and self.text[start - 1 : start + 2].count("|") == 1)
        now.is_group_end = char == ")"
        if self.text.startswith("((", start) and not is_in_word:
            before, self.refusal = self.refusal, self.refusal or "in `(( ))`, which a shell calculates"
            self.read(_Commands(")", may_be_sum=True, is_substitution=now.is_substitution))
            self.refusal = before
        elif char == "(":
            now.depth += 1
        elif char == ")" and now.depth:
            now.depth -= 1

    def _redirection(self, now: _Commands, start: int) -> None:
        if self.text.startswith("(", self.at):  # a process substitution
            self.at += 1
            word = now.begin_word(is_plain=False)
            word.text += EXPANSION
            self.read_substitution()
            self.note_inner(word, start)
        elif self.text.startswith("<<<", start):
            self.at = start + 3
            now.is_stdin = True
        elif self.text.startswith("<<", start):
            if now.may_be_sum:
                raise Doubt("shells read `<<` in `(( ))` differently", start)
            self.at = start + 2
            self._announce(now)
        else:
            self.at += self.text.startswith((">", "&", "|"), self.at)
            now.is_target = True

    def _comment(self, now: _Commands) -> None:
        if now.may_be_sum:
            raise Doubt("shells read `#` in `(( ))` differently", self.at)
        while self.at < len(self.text) and self.text[self.at] != "\n":
            if self.text[self.at] == MASK:
                self.place(Context.COMMENT)
            else:
                self.at += 1

    def _end_word(self, now: _Commands) -> None:
        word = now.word
        if word is None:
            return
        if now.is_substitution and word.is_plain and word.text == "case" and now.is_at_start:
            raise Doubt("`case` in `$( )` is not read here", self.at)
        if now.is_stdin:
            word.text = STDIN
        if not now.is_target:
            now.words.append(word)
        now.word, now.is_target, now.is_stdin = None, False, False

    def _end_command(self, now: _Commands, *, is_piped: bool = False, is_and: bool = False) -> None:
        """End the command; if *is_piped*, the next one reads what it prints."""
        self._end_word(now)
        words = [Word("[["), *now.words] if now.is_in_test and now.words else now.words
        if words:
            now.is_in_test = is_and and words[0].text == "[[" and words[-1].text != "]]"
        if words and now.pipe:
            words.append(Word(STDIN))
            self.pipes.append((words[-1], tuple(now.pipe)))
        if words:
            self.commands.append(tuple(words))
        is_group = now.is_group_end if not words else words[0].text in _GROUP_END
        if is_piped:
            now.pipe = [word for command in self.commands for word in command] if is_group else words
        elif words:
            now.pipe = []
        now.words, now.is_target, now.is_stdin = [], False, False

    def _announce(self, now: _Commands) -> None:
        """Read the end word of a here-document."""
        strips_tabs = self.text.startswith("-", self.at)
        self.at += strips_tabs
        while self.text.startswith(_BLANKS, self.at):
            self.at += 1
        start, parts = self.at, list(_end_word_parts(self.text, self.at))
        self.at += sum(map(len, parts))
        delimiter = "".join(_unquote(part) for part in parts)
        following = self.text[self.at : self.at + 1]
        if not delimiter or following not in ("", "\n", *_BLANKS, *";&|<>)"):
            raise Doubt("the end word of its here-document is too unusual", start)
        now.words.append(Word(STDIN))
        is_quoted = any(part[0] in "'\"\\" for part in parts)
        self.here_documents.append(
            _HereDocument(delimiter, is_quoted, strips_tabs, start, self.at, now.words[-1]),
        )

    def _bodies(self, outer: int) -> None:
        """Read the bodies of the here-documents of the line that has just ended."""
        if outer:
            raise Doubt("a line ends in `( )` while a here-document is announced", self.at)
        announced, self.here_documents = self.here_documents, []
        for here in announced:
            start, end, following = self.at, *self._body_end(here)
            self._read_quoted_body(here, end) if here.is_quoted else self._body(here, end)
            if self.at > end:
                raise Doubt("an expansion goes beyond the end of its here-document", start)
            self.at = following

    def _body(self, here: _HereDocument, end: int) -> None:
        while self.at < end:
            char = self.text[self.at]
            if char == MASK:
                self._place_in_body(here)
            elif char in "\\`$":
                start = self.at
                self.expansion(char, Word())
                self.note_inner(here.word, start)
            else:
                self.at += 1

    def _place_in_body(self, here: _HereDocument) -> None:
        here.word.places.append(self.at)
        self.place(Context.HERE)

    def _read_quoted_body(self, here: _HereDocument, end: int) -> None:
        """Unquote the end word of a body with placeholders, and escape what a shell would then expand."""
        if MASK not in self.text[self.at : end]:
            self.at = end
        elif not _PLAIN_END.fullmatch(here.delimiter):
            self.skip(end, "in a quoted here-document whose end word is more than letters")
        else:
            self.edits.append(Edit(here.start, here.end, here.delimiter))
        while self.at < end:
            char = self.text[self.at]
            if char == MASK:
                self._place_in_body(here)
                continue
            if char in "\\`$":
                self.edits.append(Edit(self.at, self.at + 1, f"\\{char}"))
            self.at += 1

    def _body_end(self, here: _HereDocument) -> tuple[int, int]:
        """Find where the body ends, and where the line after its end word starts."""
        line, goes_on = self.at, False
        while line < len(self.text):
            end = self.text.find("\n", line)
            end = len(self.text) if end < 0 else end
            content = self.text[line:end].lstrip("\t") if here.strips_tabs else self.text[line:end]
            if content == here.delimiter and not goes_on:
                return line, min(end + 1, len(self.text))
            if content == here.delimiter:
                break
            goes_on = not here.is_quoted and (len(content) - len(content.rstrip("\\"))) % 2 == 1
            line = end + 1
        raise Doubt(f"its here-document has no line that is just `{here.delimiter}`", here.start)


def _end_word_parts(text: str, at: int) -> Iterator[str]:
    """Yield the parts of the end word at *at*: quoted ones, escaped characters, and plain ones."""
    while found := _END_PART.match(text, at):
        yield found[0]
        at = found.end()


def _unquote(part: str) -> str:
    if part[0] == "\\":
        return part[1:]
    return part[1:-1] if part[0] in "'\"" else part
