"""What the parser says of a text that is not YAML, at its place, and what would help."""

from ruamel.yaml.error import MarkedYAMLError, StringMark, YAMLError

from shoal.pipeline.problems import Position, Problem, printable

SHOWN = 200
OPENING = {"'": "quote", '"': "quote", "[": "bracket", "{": "brace"}


def not_yaml(error: YAMLError, text: str, name: str) -> Problem:
    """Make a problem of what the parser raised."""
    if not isinstance(error, MarkedYAMLError):
        return Problem(name, None, "this is not YAML: it cannot be read")
    at, began = _position(error.problem_mark), _position(error.context_mark)
    said = " ".join(part for part in (error.context, error.problem) if part)
    hint = _hint(text.split("\n"), at, began or at) if at else None
    what = f"this is not YAML: {printable(said)[:SHOWN] or 'it cannot be read'}"
    return Problem(name, at or began, f"{what}; {hint}" if hint else what)


def _position(mark: object) -> Position | None:
    return Position(mark.line + 1, mark.column + 1) if isinstance(mark, StringMark) else None


def _hint(lines: list[str], at: Position, began: Position) -> str | None:
    """Say what helps, told by the signs that stand there: what the parser says is for those who wrote it."""
    sign, before = _sign(lines, at), _line(lines, at)[: at.column - 1]
    if sign == "\t":
        return "indent with spaces, not with tabs"
    if began.line < at.line and (what := OPENING.get(_sign(lines, began))):
        return f"close the {what} that opens in line {began.line}, column {began.column}"
    if began.line < at.line and ":" not in _line(lines, began):
        return f"line {began.line} has no `:`"
    if sign == ":":
        return "a text with `: ` in it goes in quotes, and a key stands right below the one before it"
    if sign and sign in "@`%":
        return f"a text that starts with {sign!r} goes in quotes"
    return _hint_by_what_is_before(before)


def _hint_by_what_is_before(before: str) -> str | None:
    if before.endswith("\\"):
        return "in double quotes a backslash is written twice; in single ones it is not"
    if before.rstrip().endswith(("'", '"')):
        return "put all of the text in quotes, of the other kind where it has some inside"
    if not before.strip(" -"):
        return "it stands neither right below what came before nor inside of it: mind how far it is indented"
    return None


def _sign(lines: list[str], at: Position) -> str:
    return _line(lines, at)[at.column - 1 : at.column]


def _line(lines: list[str], at: Position) -> str:
    return lines[at.line - 1] if at.line <= len(lines) else ""
