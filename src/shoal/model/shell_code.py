"""Find words that a program runs as code: values in them would be run, whatever the quoting."""

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.model.shell import SHELLS, script_index
from shoal.model.shell_reader import ASSIGNMENT, RESERVED, read_shell_text
from shoal.model.shell_text import EXPANSION, MASK, STDIN, Context, Word

_C = re.compile(r"-[A-Za-z]*c|--?[Cc]ommand")
_E = re.compile(r"-[A-Za-z0-9]*[eE]|--?eval|--print|-p")
_VI = re.compile(r"-[A-Za-z]*c|--cmd")
AFTER_FLAG = {
    **dict.fromkeys(("python", "pypy", "psql", "su", "runuser", "fish", "csh", "tcsh", "pwsh", "nu", "elvish", "xonsh",
                     "script", "flock", "npx", "npm", "guile", "expect", EXPANSION), _C),
    **dict.fromkeys(("perl", "ruby", "node", "bun", "lua", "R", "Rscript", "julia", "ts-node", "tsx", "elixir", "erl",
                     "ghc", "scala", "groovy", "clojure", "racket", "sbcl", "emacs", "osascript", "dc"), _E),
    **dict.fromkeys(("vi", "vim", "nvim", "ex", "view"), _VI),
    **dict.fromkeys(("mysql", "mariadb"), re.compile(r"-e|--execute")),
    **dict.fromkeys(("awk", "gawk"), re.compile(r"-e|--source")),
    **dict.fromkeys(("scp", "sftp"), re.compile(r"-[oS]")),
    **dict.fromkeys(("mapfile", "readarray"), re.compile(r"-[A-Za-z]*C")),
    "php": re.compile(r"-r"),
    "env": re.compile(r"-[A-Za-z0]*S|--split-string"),
    "nix-shell": re.compile(r"--run|--command"),
    "git": re.compile(r"-c|-x|--exec|--upload-pack|--receive-pack|-u"),
    "gdb": re.compile(r"--?i?ex|--?eval-command|--?init-eval-command"),
    "find": re.compile(r"-exec(?:dir)?|-ok(?:dir)?"),
    "tar": re.compile(r"-I|--use-compress-program|--to-command|--checkpoint-action|-F|--info-script|--rsh-command"),
    "rsync": re.compile(r"-[A-Za-z]*e|--rsh|--rsync-path"),
    "sort": re.compile(r"--compress-program"),
    "split": re.compile(r"--filter"),
    "deno": re.compile(r"eval"),
    "zip": re.compile(r"-TT|--unzip-command"),
}  # fmt: skip
"""Programs that run the word after an option as code, or what is attached to the option."""
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
"""Programs that run their first argument as code: options with values, and options that name a script file."""
EVERY = frozenset(
    {"alias", "bind", "compgen", "complete", "enable", "eval", "hash", "let", "parallel", "ssh", "tmux", "trap",
     "watch"}
)  # fmt: skip
"""Programs that run all of their arguments as code."""
RUNNING = frozenset(
    {".", "source", "builtin", "command", "coproc", "env", "exec", "nice", "nohup", "setsid", "sudo", "doas", "stdbuf",
     "strace", "time", "timeout", "xargs"}
)  # fmt: skip
"""Commands that run what their first argument names."""
STARTING = RUNNING - {".", "source"} | {
    "bunx", "busybox", "chroot", "chrt", "docker", "dumb-init", "find", "flock", "ionice", "kubectl", "ltrace", "npx",
    "nsenter", "pipenv", "pnpm", "podman", "poetry", "setpriv", "taskset", "tini", "unshare", "uv", "uvx", "xvfb-run",
    "yarn",
}  # fmt: skip
"""Commands that start the command among their arguments."""
DECLARING = frozenset({"declare", "typeset", "local", "export", "readonly", "unset", "make", "gmake"})
"""Commands that calculate or run what is in a name; `make` runs what is in a value."""
RUN_FROM = re.compile(
    r"PATH|ENV|BASH_ENV|PS[0-4]|PROMPT_COMMAND|LD_[A-Z_]+|GIT_\w*(?:PAGER|EDITOR|SSH|COMMAND|ASKPASS|DIFF|PROXY)\w*"
    r"|EDITOR|VISUAL|PAGER|LESSOPEN|BROWSER|SHELL|PYTHON(?:STARTUP|PATH|HOME)|NODE_OPTIONS|NODE_PATH|PERL5(?:OPT|LIB|DB)"
    r"|RUBY(?:OPT|LIB)|JAVA_TOOL_OPTIONS|MAKEFLAGS|MAKEFILES"
)
"""Variables whose values programs run, or that say where programs find what they run."""
OPTIONS_RUN = frozenset({"find", "git", "rsync", "sort", "split", "tar", "zip"})
"""Programs with options that run a command, in any position."""
NAMING_BY_V = frozenset({"printf", "test", "["})
"""Commands that take the word after `-v` as a variable's name; bash evaluates its subscript."""
SPEAKING = frozenset({"echo", "printf"})
AS_SHELL = SHELLS | {"eval", "trap", "ssh", "watch", "su", "runuser"}
"""Those whose code is a shell's."""
FROM_STDIN = SHELLS | {
    "bun", "csh", "elvish", "expect", "fish", "julia", "lua", "node", "nu", "osascript", "perl", "php", "pwsh", "pypy",
    "python", "R", "Rscript", "ruby", "tclsh", "tcsh",
}  # fmt: skip
"""Programs that run their stdin as code, unless an argument names a script file."""
ALWAYS_FROM_STDIN = frozenset({"psql", "mysql", "mariadb", "sqlite3", "at", "batch", "ed", "ex", "gdb", "m4", "dc"})
_STDIN_NAMES = frozenset({"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"})
_OPERAND_OPTIONS = frozenset({"-W", "-X", "-o", "-O", "+o", "+O", "-r", "--require", "-I", "--rcfile", "--init-file"})

_VERSION = re.compile(r"[0-9.]+$")
_CALCULATED = frozenset({"-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-v"})
_BEFORE_COMMAND = re.compile(r"-.*|[A-Za-z_]\w*=.*|[0-9.]+[smhd]?", re.DOTALL)
_IDENTITY = ("user.name=", "user.email=")
_READ_OPTION = re.compile(r"-[A-Za-z]*[dinNptu]")
_VALUE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\+?=[^\0]*\0.*", re.DOTALL)
_QUOTED_VALUE = re.compile(r"\|\s*quote\s*(?:\(\s*\))?\s*-?\}\}$")


@dataclass(frozen=True, slots=True)
class CodePlaceholder:
    """A placeholder in code of *program*; *is_word* says whether it is an unquoted word of a shell."""

    start: int
    program: str
    is_word: bool = False
    is_option: bool = False
    """Whether its only danger is to become an option, which runs a command."""

    def takes(self, text: str) -> bool:
        """Return whether the placeholder as written passes one word of the inner shell."""
        return self.is_word and _QUOTED_VALUE.search(text) is not None


def find_code_placeholders(command: Sequence[Word]) -> tuple[CodePlaceholder, ...]:
    """Find the placeholders of a command that some program runs as code."""
    words, assigned = list(command), list[Word]()
    while words and (words[0].text in RESERVED or words[0].text[:1] == "-" or ASSIGNMENT.fullmatch(words[0].text)):
        assigned.append(words.pop(0))
    if words[:1] and words[0].text == "function":
        return find_code_placeholders(words[2:])
    found = {place.start: place for place in _assignment_places(assigned, words)}
    if not words:
        return tuple(found.values())
    found |= {place.start: place for place in (*_command_places(words), *_builtin_places(words))}
    if _name(words[0]) not in SPEAKING:
        for at, word in enumerate(words):
            if not at or _name(words[0]) in STARTING:
                found |= {place.start: place for place in _option_places(_name(word), words[at + 1 :])}
            for code in _code_words(words, at, _name(word)):
                found |= {
                    start: CodePlaceholder(start, _name(word), _is_word(_name(word), code, start))
                    for start in code.all_places
                }
    return tuple(found.values())


def _assignment_places(assigned: Sequence[Word], words: Sequence[Word]) -> list[CodePlaceholder]:
    """Find the values of variables that programs run; `make` runs any."""
    name = _name(words[0]) if words else ""
    others = words[1:] if name in DECLARING | STARTING else []
    return [
        CodePlaceholder(start, f"{variable}=")
        for word in (*assigned, *others)
        if (variable := word.text.partition("=")[0].rstrip("+")) != word.text
        and (RUN_FROM.fullmatch(variable) or (word in assigned and name in ("make", "gmake")))
        for start in word.all_places
    ]


def _command_places(words: Sequence[Word]) -> list[CodePlaceholder]:
    """Find placeholders that name the command itself, or the file that `.` runs."""
    named, is_option = [words[0]], False
    for word in words[1:] if _name(words[0]) in RUNNING else ():
        if not ASSIGNMENT.fullmatch(word.text) and (not is_option or word.text == EXPANSION):
            named.append(word)
        if not _BEFORE_COMMAND.fullmatch(word.text):
            break
        is_option = word.text.startswith("-") and word.text != "--"
    return [CodePlaceholder(start, "") for word in named if word.text != STDIN for start in word.all_places]


def _name(word: Word) -> str:
    if word.text == EXPANSION:
        return EXPANSION
    name = word.text.rpartition("/")[2]
    return name if name in FIRST or name in ALWAYS_FROM_STDIN else _VERSION.sub("", name) or name


def _builtin_places(words: Sequence[Word]) -> list[CodePlaceholder]:
    """Find placeholders that the shell itself evaluates or runs."""
    first, texts = words[0].text, [word.text for word in words]
    if first == "[[" and not _CALCULATED.isdisjoint(texts):
        return [CodePlaceholder(start, "[[") for word in words for start in word.places]
    if first == "read":
        names = [word for before, word in itertools.pairwise(words) if not _READ_OPTION.fullmatch(before.text)]
        return [CodePlaceholder(start, first) for word in names if word.text != STDIN for start in word.places]
    if first in NAMING_BY_V:
        named = _behind_flags(words[1:], re.compile("-v")) + _options_of_value(first, words[1:])
        return [CodePlaceholder(start, first) for word in named for start in word.places]
    if first not in DECLARING:
        return []
    is_number = any(re.fullmatch(r"-[A-Za-z]*[aAin][A-Za-z]*", text) for text in texts)
    return [
        CodePlaceholder(start, first)
        for word in words[1:]
        for start in word.places
        if ((_VALUE.fullmatch(word.text) is None) != (first in ("make", "gmake")) or is_number) and word.text != STDIN
    ]


def _options_of_value(first: str, rest: Sequence[Word]) -> list[Word]:
    """Find a first argument that could itself be `-v`, so that the next one names a variable."""
    operands = [word for word in rest if word.text not in (STDIN, "]")]
    is_naming = len(operands) > 1 if first == "printf" else len(operands) == 2
    return [word for word in operands[:1] if is_naming and word.text.startswith(MASK)]


def _code_words(words: Sequence[Word], at: int, name: str) -> list[Word]:
    """Find the words after *at* that the program *name* reads as code."""
    if words[at].places:
        return []
    rest = words[at + 1 :]
    code = _code_of_stdin(name, rest) if not at or name != "." else []  # as in `jq .`
    if name in SHELLS:
        script = script_index([name, *(word.text for word in rest)])
        return code if script is None else [words[at + script]]
    if name in AFTER_FLAG:
        code += [word for word in _behind_flags(rest, AFTER_FLAG[name]) if not word.text.startswith(_IDENTITY)]
    if at and _name(words[0]) not in STARTING:
        return code
    if name in FIRST:
        return [*code, *_first_argument(name, rest)]
    return [*code, *(word for word in rest if word.text != STDIN)] if name in EVERY else code


def _option_places(name: str, rest: Sequence[Word]) -> list[CodePlaceholder]:
    """Find placeholders that *name* would treat as an option if their value began with `-`."""
    is_interpreter = name in FROM_STDIN
    if not is_interpreter and name not in OPTIONS_RUN:
        return []
    found, before = list[CodePlaceholder](), ""
    for word in rest:
        is_value = before in _OPERAND_OPTIONS if is_interpreter else re.fullmatch("-[A-Za-z]+", before)
        if word.text.startswith(MASK) and not is_value:
            found.append(CodePlaceholder(word.places[0], name, is_option=True))
        is_end = not word.text.startswith(("-", MASK)) or AFTER_FLAG.get(name, _C).fullmatch(word.text)
        if word.text == "--" or (is_interpreter and is_end and not is_value):
            break
        before = word.text
    return found


def _code_of_stdin(name: str, rest: Sequence[Word]) -> list[Word]:
    """Find code that the program reads from its input or from `<(…)`."""
    stdin = [word for word in rest if word.text == STDIN]
    texts = [word.text for word in rest if word.text != STDIN]
    operands = _operands(rest)
    if name in (".", "source") or name in FROM_STDIN:
        is_read = not operands or operands[0].text in _STDIN_NAMES
        is_read = is_read or (name in SHELLS and any(re.fullmatch("-[A-Za-z]*s", text) for text in texts))
        return (stdin if is_read else []) + [word for word in operands[:1] if word.text == EXPANSION and word.inner]
    if name == "xargs":
        return stdin if _puts_into_shell(texts) else []
    if name == "ssh":
        return stdin if len(operands) == 1 else []
    if name == "git":
        return [word for before, word in itertools.pairwise(rest) if "foreach" in before.text]
    is_file = any(a in ("-f", "--file", "--from-file") and b in _STDIN_NAMES for a, b in itertools.pairwise(texts))
    return stdin if is_file or name in ALWAYS_FROM_STDIN or (name == "crontab" and texts == ["-"]) else []


def _operands(rest: Sequence[Word]) -> list[Word]:
    """List the arguments that are neither options nor values of options."""
    words = [word for word in rest if word.text != STDIN]
    taken = [after for before, after in itertools.pairwise(words) if before.text in _OPERAND_OPTIONS]
    is_option = re.compile(r"[-+].+")
    return [word for word in words if not is_option.match(word.text) and not any(word is other for other in taken)]


def _puts_into_shell(texts: Sequence[str]) -> bool:
    """Return whether `xargs` inserts its input into the script of a shell."""
    marks = [after for before, after in itertools.pairwise(texts) if before in ("-I", "--replace")]
    marks += [text[2:] for text in texts if text.startswith("-I") and len(text) > 2]
    at = script_index(list(texts))
    return at is not None and any(mark in texts[at] for mark in marks or ["{}"])


def _behind_flags(rest: Sequence[Word], flag: re.Pattern[str]) -> list[Word]:
    code = [after for before, after in itertools.pairwise(rest) if flag.fullmatch(before.text)]
    return [*code, *(word for word in rest if word.places and flag.match(word.text) and word.text.startswith("-"))]


def _first_argument(name: str, rest: Sequence[Word]) -> list[Word]:
    """Find the first argument that is not an option, and all values of `-e`; none if the code is in a file."""
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
    """Return whether the placeholder is an unquoted word of the inner shell's text."""
    if code.text == STDIN or program not in AS_SHELL or start not in code.places:
        return False
    readings = read_shell_text(code.text.replace(EXPANSION, "x")).readings
    inner = [at for at, char in enumerate(code.text) if char == MASK]
    return readings[inner[code.places.index(start)]].context is Context.WORD
