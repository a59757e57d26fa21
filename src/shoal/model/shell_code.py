"""Words that a program reads as code of its own: what is put into them would be run, however it is quoted."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.model.shell import SHELLS, script_index
from shoal.model.shell_reader import ASSIGNMENT, RESERVED, read_shell_text
from shoal.model.shell_text import EXPANSION, MASK, STDIN, Context, Word

AFTER_FLAG = {
    "python": re.compile(r"-[A-Za-z]*c"),
    "pypy": re.compile(r"-[A-Za-z]*c"),
    "perl": re.compile(r"-[A-Za-z0-9]*[eE]"),
    "ruby": re.compile(r"-[A-Za-z0-9]*e"),
    "node": re.compile(r"-e|--eval|-p|--print|-pe"),
    "bun": re.compile(r"-e|--eval|-p|--print"),
    "php": re.compile(r"-r"),
    "lua": re.compile(r"-e"),
    "Rscript": re.compile(r"-e"),
    "psql": re.compile(r"-c|--command"),
    "mysql": re.compile(r"-e|--execute"),
    "su": re.compile(r"-c|--command"),
    "runuser": re.compile(r"-c|--command"),
    "env": re.compile(r"-S|--split-string"),
}
"""Programs that read the word behind an option as code."""
_JQ_OPTIONS = {"--arg": 2, "--argjson": 2, "--slurpfile": 2, "--rawfile": 2, "--indent": 1, "-L": 1}
FIRST: dict[str, tuple[dict[str, int], tuple[str, ...]]] = {
    "awk": ({"-v": 1, "-F": 1}, ("-f", "--file")),
    "gawk": ({"-v": 1, "-F": 1}, ("-f", "--file")),
    "mawk": ({"-v": 1, "-F": 1}, ("-f", "--file")),
    "nawk": ({"-v": 1, "-F": 1}, ("-f", "--file")),
    "sed": ({"-l": 1}, ("-f", "--file")),
    "jq": (_JQ_OPTIONS, ("-f", "--from-file")),
    "yq": ({"--arg": 2, "--argjson": 2}, ("--from-file",)),
    "sqlite3": ({"-cmd": 1, "-separator": 1}, ()),
}
"""Programs that read their first argument as code: how many words options take, and options that name a file of it."""
EVERY = frozenset({"eval", "let", "trap", "ssh", "watch"})
"""Programs that read all of their arguments as code."""
STARTING = frozenset(
    {"builtin", "command", "docker", "doas", "env", "exec", "find", "nice", "nohup", "podman", "setsid", "stdbuf",
     "sudo", "time", "timeout", "xargs"}
)  # fmt: skip
"""Commands that start the command that is among their arguments."""
DECLARING = frozenset({"declare", "typeset", "local", "export", "readonly", "unset", "make", "gmake"})
"""Commands that calculate or run what is in a name; `make` runs what is in a value."""
NAMING_BY_V = frozenset({"printf", "test", "["})
"""Commands that take the word behind `-v` for a variable's name; bash runs what is in its subscript."""
SPEAKING = frozenset({"echo", "printf"})
AS_SHELL = SHELLS | {"eval", "trap", "ssh", "watch", "su", "runuser"}
"""Those whose code is a shell's."""
FROM_STDIN = SHELLS | AFTER_FLAG.keys() - {"env", "su", "runuser"} | {"ssh"}

_VERSION = re.compile(r"[0-9.]+$")
_CALCULATED = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v"})
_READ_OPTION = re.compile(r"-[A-Za-z]*[dinNptu]")
_VALUE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=[^\0]*\0.*", re.DOTALL)
_QUOTED_VALUE = re.compile(r"\|\s*quote\s*(?:\(\s*\))?\s*-?\}\}$")


@dataclass(frozen=True, slots=True)
class CodePlace:
    """A place that *program* reads as a part of its code; *is_word* if that is a shell's, and it is unquoted there."""

    start: int
    program: str
    is_word: bool = False

    def takes(self, text: str) -> bool:
        """Say whether the place as it is written hands over one word of the inner shell's."""
        return self.is_word and _QUOTED_VALUE.search(text) is not None


def code_places(command: Sequence[Word]) -> tuple[CodePlace, ...]:
    """Find the places of a command that some program reads as a part of its code."""
    words = list(command)
    while words and (words[0].text in RESERVED or ASSIGNMENT.fullmatch(words[0].text)):
        words.pop(0)
    if not words:
        return ()
    found = {place.start: place for place in _builtin_places(words)}
    if _name(words[0]) not in SPEAKING:
        for at, word in enumerate(words):
            for code in _code_words(words, at, _name(word)):
                found |= {
                    start: CodePlace(start, _name(word), _is_word(_name(word), code, start)) for start in code.places
                }
    return tuple(found.values())


def _name(word: Word) -> str:
    name = word.text.rpartition("/")[2]
    return _VERSION.sub("", name) or name


def _builtin_places(words: Sequence[Word]) -> list[CodePlace]:
    """Find places that a shell itself calculates or runs."""
    first, texts = words[0].text, [word.text for word in words]
    is_test = first == "[[" or "]]" in texts or bool(words[0].places)
    if is_test and not _CALCULATED.isdisjoint(texts):
        return [CodePlace(start, "[[") for word in words for start in word.places]
    if first == "read":
        names = [word for before, word in itertools.pairwise(words) if not _READ_OPTION.fullmatch(before.text)]
        return [CodePlace(start, first) for word in names if word.text != STDIN for start in word.places]
    if first in NAMING_BY_V:
        return [CodePlace(start, first) for word in _behind_flags(words[1:], re.compile("-v")) for start in word.places]
    if first not in DECLARING:
        return []
    is_number = any(re.fullmatch(r"-[A-Za-z]*i[A-Za-z]*", text) for text in texts)
    return [
        CodePlace(start, first)
        for word in words[1:]
        for start in word.places
        if ((_VALUE.fullmatch(word.text) is None) != (first in ("make", "gmake")) or is_number) and word.text != STDIN
    ]


def _code_words(words: Sequence[Word], at: int, name: str) -> list[Word]:
    """Find the words behind *at* that the program *name* there reads as code."""
    if words[at].places:
        return []
    rest = words[at + 1 :]
    texts = [word.text for word in rest]
    stdin = [word for word in rest if word.text == STDIN]
    options = [text for text in texts if text != STDIN]
    code = stdin if name in FROM_STDIN and all(text.startswith("-") for text in options) else []
    if name == "ssh" and len([text for text in options if not text.startswith("-")]) == 1:
        code = stdin
    if name in SHELLS:
        script = script_index([name, *texts])
        return code if script is None else [words[at + script]]
    if name in AFTER_FLAG:
        return [*code, *_behind_flags(rest, AFTER_FLAG[name])]
    if at and _name(words[0]) not in STARTING:
        return code
    if name in FIRST:
        return _first_argument(name, rest)
    return [*code, *(word for word in rest if word.text != STDIN)] if name in EVERY else code


def _behind_flags(rest: Sequence[Word], flag: re.Pattern[str]) -> list[Word]:
    code = [after for before, after in itertools.pairwise(rest) if flag.fullmatch(before.text)]
    return [*code, *(word for word in rest if word.places and flag.match(word.text) and word.text.startswith("-"))]


def _first_argument(name: str, rest: Sequence[Word]) -> list[Word]:
    """Find the first argument that is no option, and all that `-e` names; none where a file has the code."""
    taking, files = FIRST[name]
    if any(word.text in files for word in rest):
        return []
    code = _behind_flags(rest, re.compile(r"-[A-Za-z]*e|--expression")) if name == "sed" else []
    arguments = list(rest)
    while not code and arguments and arguments[0].text.startswith("-"):
        del arguments[: 1 + taking.get(arguments[0].text, 0)]
    operands = [word for word in arguments if word.text != STDIN]
    if name == "sqlite3":
        return operands[1:]
    return code or operands[:1]


def _is_word(program: str, code: Word, start: int) -> bool:
    """Say whether the place is an unquoted word of the inner shell's text."""
    if code.text == STDIN or program not in AS_SHELL:
        return False
    readings = read_shell_text(code.text.replace(EXPANSION, "x")).readings
    inner = [at for at, char in enumerate(code.text) if char == MASK]
    return readings[inner[code.places.index(start)]].context is Context.WORD
