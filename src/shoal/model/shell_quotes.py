"""Parse quotes and expansions of shell text as sh, dash and bash all do; anything else raises `Doubt`."""

import re

from shoal.model.shell_text import EXPANSION, FILL, MASK, Context, Doubt, Edit, Reading, Word

DEEPEST = 40

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ANSI_BODY = re.compile(r"(?:[^'\\]|\\.)*'", re.DOTALL)
_BACKTICK_BODY = re.compile(r"(?:[^`\\]|\\.)*`", re.DOTALL)
_PLACE = re.compile(MASK)
_SPECIAL = "#?$!@*-0123456789"


class Quotes:
    """One pass over a text; *at* is the position of the next character."""

    def __init__(self, text: str, depth: int = 0) -> None:
        self.text = text
        self.at = 0
        self.readings: dict[int, Reading] = {}
        self.edits: list[Edit] = []
        self.refusal = ""
        """Why every place is refused where the reader is now."""
        self.depth = depth

    def read_substitution(self) -> None:
        """Read the commands of `$(…)`, from just inside its opening."""
        raise NotImplementedError

    def check_commands(self, text: str) -> None:
        """Check that *text* is whole commands; raise `Doubt` if it is not."""
        raise NotImplementedError

    def place(self, context: Context, refusal: str = "", word: Word | None = None) -> None:
        """Read the placeholder that starts here, as a part of *word*."""
        start, self.at = self.at, self.at + 1
        while self.text.startswith(FILL, self.at):
            self.at += 1
        why = refusal or self.refusal
        self.readings[start] = Reading(None, why) if why else Reading(context)
        if word is not None:
            word.text += MASK
            word.places.append(start)

    def go_deeper(self) -> int:
        """Note that another construct begins; return the depth before it."""
        before, self.depth = self.depth, self.depth + 1
        if self.depth > DEEPEST:
            raise Doubt("the text is nested too deeply", self.at)
        return before

    def escape(self, word: Word) -> None:
        """Read a backslash and what it escapes."""
        self.at += 1
        if self.text.startswith(MASK, self.at):
            self.place(Context.WORD, "behind a backslash", word)
            return
        word.text += self.text[self.at : self.at + 1].replace("\n", "")
        self.at += 1

    def single(self, word: Word) -> None:
        """Read a text in single quotes."""
        end = self.text.find("'", self.at + 1)
        if end < 0:
            raise Doubt("its single quotes are not closed", self.at)
        self.at += 1
        while self.at < end:
            if self.text[self.at] == MASK:
                self.place(Context.SINGLE, self.subscript(word), word)
            else:
                word.text += self.text[self.at]
                self.at += 1
        self.at = end + 1

    def double(self, word: Word) -> None:
        """Read a text in double quotes, from its opening quote on."""
        start, self.at = self.at, self.at + 1
        while not self.text.startswith('"', self.at):
            char = self.text[self.at : self.at + 1]
            if not char:
                raise Doubt("its double quotes are not closed", start)
            if char == MASK:
                self.place(Context.DOUBLE, self.subscript(word), word)
            elif char in "\\`$":
                self.expansion(char, word)
            else:
                word.text += char
                self.at += 1
        self.at += 1

    def subscript(self, word: Word) -> str:
        """Return why a placeholder in *word* is refused, if it is in the subscript of an assignment."""
        del word
        return ""

    def expansion(self, char: str, word: Word, *, in_double: bool = True) -> None:
        """Read what also works in double quotes: a backslash, a backtick or a dollar."""
        if char == "\\":
            self.escape(word)
            return
        word.text += EXPANSION
        start = self.at
        if char == "`":
            self.backtick(in_double=in_double)
        else:
            self.dollar(word, in_double=in_double)
        self.note_inner(word, start)

    def note_inner(self, word: Word, start: int) -> None:
        """Mark the placeholders since *start* as part of commands in *word*."""
        found = (place.start() for place in _PLACE.finditer(self.text, start, self.at))
        word.inner += [at for at in found if at not in word.places]

    def dollar(self, word: Word, *, in_double: bool) -> None:
        """Read a dollar and the construct that it begins."""
        start, self.at = self.at, self.at + 1
        following = self.text[self.at : self.at + 1]
        if following == MASK:
            self.place(Context.WORD, "right behind a `$`, which would take it for its own; take the `$` out", word)
        elif self.text.startswith("((", self.at):
            self.arithmetic(start)
        elif following == "(":
            self.at += 1
            self.read_substitution()
        elif following == "{":
            self.parameter(start, in_double=in_double)
        elif following == "[":
            raise Doubt("shells read `$[` differently", start)
        elif following == "'" and not in_double:
            self.ansi(start)
        elif following == '"' and not in_double:
            self.double(word)
        elif following and following in _SPECIAL:
            self.at += 1
            if following == "#" and self.text.startswith(MASK, self.at):
                self.place(Context.WORD, "right behind `$#`, which zsh takes together with it", word)
        elif name := _NAME.match(self.text, self.at):
            self.at = name.end()

    def ansi(self, start: int) -> None:
        r"""Read `$'…'`, which only some shells support; all agree where it ends unless it contains `\'`."""
        body, end = _ANSI_BODY.match(self.text, self.at + 1), self.text.find("'", self.at + 1)
        if body is None or body.end() != end + 1:
            raise Doubt("shells read `$'…'` differently", start)
        self.skip(end + 1, "in `$'…'`, which shells read differently")

    def skip(self, end: int, why: str) -> None:
        """Go to *end*, and refuse each placeholder before it."""
        while self.at < end:
            if self.text[self.at] == MASK:
                self.place(Context.WORD, why)
            else:
                self.at += 1

    def parameter(self, start: int, *, in_double: bool) -> None:
        """Read `${…}`, from its brace."""
        self.at += 1
        if self.text[self.at : self.at + 1] in ("", " ", "\t", "\n", "|"):
            raise Doubt("shells read `${ ` differently", start)
        before, self.refusal = self.refusal, self.refusal or "in `${…}`, where a shell reads it as more than a text"
        depth, inner = self.go_deeper(), Word()
        while not self.text.startswith("}", self.at):
            char = self.text[self.at : self.at + 1]
            if not char:
                raise Doubt("its `}` is missing", start)
            if char == MASK:
                self.place(Context.WORD)
            elif char in "\\`$":
                self.expansion(char, inner, in_double=in_double)
            elif char in "'\"" and in_double:
                raise Doubt('shells read quotes inside of `"${…}"` differently', start)
            elif char in "'\"":
                self.single(inner) if char == "'" else self.double(inner)
            else:
                self.at += 1
        self.at += 1
        self.depth, self.refusal = depth, before

    def arithmetic(self, start: int) -> None:
        """Read `$((…))`, from its parentheses; commands can also begin like that, and are refused."""
        self.at += 2
        opened, depth = 0, self.go_deeper()
        while opened or not self.text.startswith("))", self.at):
            char = self.text[self.at : self.at + 1]
            if not char or char in "'\"\\#" or (char == ")" and not opened):
                raise Doubt("shells read this `$((` differently", start)
            opened += (char == "(") - (char == ")")
            if char == MASK:
                self.place(Context.NUMBER)
            elif char in "`$":
                before, self.refusal = (
                    self.refusal,
                    self.refusal or "in a command in `$((…))`, which a shell calculates",
                )
                self.expansion(char, Word())
                self.refusal = before
            else:
                self.at += 1
        self.at += 2
        self.depth = depth

    def backtick(self, *, in_double: bool) -> None:
        """Read a text in backticks, which must be whole commands once its own backslashes are removed."""
        start = self.at
        body = _BACKTICK_BODY.match(self.text, start + 1)
        if body is None:
            raise Doubt("its backtick is not closed", start)
        escapes = r"\\([\\`$\"])" if in_double else r"\\([\\`$])"
        try:
            self.check_commands(re.sub(escapes, r"\1", body[0][:-1]).replace(MASK, "x").replace(FILL, "x"))
        except Doubt as doubt:
            raise Doubt(f"in backticks: {doubt.why}", start) from None
        self.at += 1
        self.skip(body.end(), "in backticks; write `$(…)` in place of them")
