"""Dashes in the names that templates use, where Jinja's lexer sees a subtraction."""

from collections.abc import Iterator

from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

LONGEST = 100  # tokens of one name


class DashedNames(Extension):
    """Read `steps.write-tests.output` as it is meant: steps, artifacts and axes have dashes in their names."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Put together what Jinja's lexer takes for a subtraction."""
        return _dashed(list(stream))


def _dashed(tokens: list[Token]) -> Iterator[Token]:
    path: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        is_part = at > 0 and tokens[at - 1].type == "dot"
        path = path if is_part or token.type == "dot" else []
        end = _end_of_name(tokens, at, path) if is_part and _has_dashes(path) else at + 1
        if end > at + 1:
            token = Token(token.lineno, "name", "".join(_sign(one) for one in tokens[at:end]))
        if token.type == "name":
            path = [*path, token.value]
        yield token
        at = end


def _has_dashes(path: list[str]) -> bool:
    """Say whether what comes next is the name of a step, an artifact or an axis, of which nothing can be subtracted."""
    match path:
        case ["steps"] | ["matrix"] | ["artifacts"] | ["artifacts", _] | ["steps", _, "artifacts"]:
            return True
        case _:
            return False


def _end_of_name(tokens: list[Token], at: int, path: list[str]) -> int:
    """Find where the name that begins at *at* ends: after a dash, it goes on."""
    kinds = [one.type for one in tokens[at : at + LONGEST]]
    end = 0
    while end < len(kinds) and (kinds[end] in ("name", "integer") or (end > 0 and kinds[end] == "sub")):
        is_more = kinds[end] == "sub" or (end > 0 and kinds[end - 1] == "sub")
        if end > 0 and not is_more and "integer" not in kinds[end - 1 : end + 1]:
            break  # a second word, such as the `in` of a test
        if path == ["matrix"] and kinds[end] == "sub" and not _is_word(kinds[end + 1 : end + 3]):
            break  # the value of an axis may be a number, of which something is subtracted
        end += 1
    while end > 0 and kinds[end - 1] == "sub":
        end -= 1
    return at + max(end, 1)


def _is_word(kinds: list[str]) -> bool:
    return kinds[:1] == ["name"] and kinds[1:] != ["dot"]


def _sign(token: Token) -> str:
    return "-" if token.type == "sub" else str(token.value)
