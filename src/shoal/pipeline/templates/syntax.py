"""Parse a template with Jinja's parser, and refuse everything that our templates do not support."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import Environment, TemplateSyntaxError, nodes
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream

from shoal.pipeline.problems import Position, key, nearest, printable
from shoal.pipeline.templates.filters import FILTERS, METHODS, TESTS, BadTemplate

LONGEST = 100  # tokens of one name


class DashedNames(Extension):
    """Lets names such as `steps.write-tests.output` contain dashes."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        """Join tokens that Jinja's lexer takes for a subtraction."""
        return _mark_dashes(list(stream))


def _mark_dashes(tokens: list[Token]) -> Iterator[Token]:
    path: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        is_part = at > 0 and tokens[at - 1].type == "dot"
        path = path if is_part or token.type == "dot" else []
        end = _end_of_name(tokens, at, path) if is_part and _has_dashes(path) else at + 1
        if end > at + 1:
            token = Token(token.lineno, "name", "".join(_sign(part) for part in tokens[at:end]))
        if token.type == "name":
            path = [*path, token.value]
        yield token
        at = end


def _has_dashes(path: list[str]) -> bool:
    """Return whether the next name is a step, an artifact or an axis, from which nothing can be subtracted."""
    match path:
        case ["steps"] | ["matrix"] | ["artifacts"] | ["artifacts", _] | ["steps", _, "artifacts"]:
            return True
        case _:
            return False


def _end_of_name(tokens: list[Token], at: int, path: list[str]) -> int:
    """Find where the name that begins at *at* ends: after a dash, it goes on."""
    kinds = [token.type for token in tokens[at : at + LONGEST]]
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


MAX_TEMPLATE = 256 * 1024
OPTIONAL_FILTERS = ("default", "d")
OPTIONAL_TESTS = ("defined", "undefined")
LOOP_NAMES = frozenset({"index", "index0", "revindex", "revindex0", "first", "last", "length"})

# `{#` opens no comment, because prompts contain `${#list[@]}` and `# Title {#anchor}`. It only parses.
_PARSER = Environment(  # noqa: S701
    extensions=[DashedNames], keep_trailing_newline=True, comment_start_string="\0#", comment_end_string="#\0"
)
_NEWLINE = re.compile(r"\r\n|\r|\n")  # what Jinja counts as one
_STATEMENTS = (nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For)
_DATA = (nodes.Const, nodes.Name, nodes.List, nodes.Tuple, nodes.Dict, nodes.Pair)
_ACCESS = (nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Filter, nodes.Test, nodes.Call, nodes.Keyword)
_LOGIC = (nodes.CondExpr, nodes.And, nodes.Or, nodes.Not, nodes.Compare, nodes.Operand, nodes.Concat)
_SUMS = (nodes.Neg, nodes.Pos, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod)
_PARTS = frozenset((*_STATEMENTS, *_DATA, *_ACCESS, *_LOGIC, *_SUMS))
_TAGS: dict[type[nodes.Node], str] = {
    nodes.Assign: "set",
    nodes.AssignBlock: "set",
    nodes.Block: "block",
    nodes.CallBlock: "call",
    nodes.Extends: "extends",
    nodes.FilterBlock: "filter",
    nodes.FromImport: "import",
    nodes.Import: "import",
    nodes.Include: "include",
    nodes.Macro: "macro",
    nodes.ScopedEvalContextModifier: "autoescape",
    nodes.With: "with",
}


@dataclass(frozen=True, slots=True)
class NameUse:
    """A dotted path that a template uses, and where; *is_optional* if the template handles its absence."""

    path: str
    at: Position
    is_optional: bool = False


@lru_cache(maxsize=64)
def parse_template(text: str) -> nodes.Template:
    """Parse a template; raise `BadTemplate` if it is invalid or refused."""
    if len(text) > MAX_TEMPLATE:
        raise BadTemplate(f"the template is longer than {MAX_TEMPLATE // 1024} KiB; make it shorter")
    try:
        tree = _PARSER.parse(text)
    except TemplateSyntaxError as error:
        why = printable((error.message or "it ends too soon").rstrip("."))[:200]
        raise BadTemplate(f"the template cannot be read: {why}; {_hint(why)}", Position(error.lineno)) from None
    except ValueError:  # Python reads no number of more than 4,300 digits
        raise BadTemplate("the template has a number that is too long; shorten it") from None
    _assert_known(tree)
    return tree


def condition(text: str) -> nodes.Expr:
    """Return the single expression of a condition, with or without its braces."""
    body = parse_template(text.strip() if "{{" in text or "{%" in text else f"{{{{ {text} }}}}").body
    match body:
        case [nodes.Output(nodes=[nodes.Expr() as expression])] if not isinstance(expression, nodes.TemplateData):
            return expression
        case _:
            what = "a condition is one expression, like `a == 'b' and c`"
            raise BadTemplate(f"{what}; write all of it inside of one `{{{{ }}}}`, or none of it")


def find_uses(tree: nodes.Node, text: str) -> tuple[NameUse, ...]:
    """Find each use of a name, with its place in *text*; what `is defined` tests is optional everywhere."""
    found = tuple(_find_uses_in(tree, frozenset()))
    spared = {use.path for use in found if use.is_optional}
    lines = _NEWLINE.split(text)
    return tuple(NameUse(use.path, _place(lines, use), _is_under(use.path, spared)) for use in found)


def path_of(node: nodes.Node) -> str | None:
    """Return the dotted path that an expression is, if it is one."""
    match node:
        case nodes.Name():
            return node.name
        case nodes.Getattr():
            below, part = path_of(node.node), node.attr
        case nodes.Getitem(arg=nodes.Const(value=str() | int() as part)):
            below = path_of(node.node)
        case _:
            return None
    return None if below is None else f"{below}.{part}"


def _assert_known(node: nodes.Node) -> None:
    """Refuse unsupported syntax, here and below."""
    if type(node) not in _PARTS:
        tag = f"`{{% {_TAGS[type(node)]} %}}`" if type(node) in _TAGS else key(_source_of(node))
        raise _refuse(node, f"{tag} is not part of templates; there are `{{{{ … }}}}`, `{{% if %}}` and `{{% for %}}`")
    match node:
        case nodes.Filter():
            _assert_listed(node, "filter", [*FILTERS, *OPTIONAL_FILTERS])
        case nodes.Test():
            _assert_listed(node, "test", [*TESTS, *OPTIONAL_TESTS])
        case nodes.Call():
            _assert_callable(node)
        case nodes.For(recursive=True):
            raise _refuse(node, "a `for` cannot be recursive; write the loops out")
        case nodes.Name(name=name) | nodes.Getattr(attr=name) if name.startswith("_"):
            raise _refuse(node, f"{key(name)} is out of reach, as all names that start with `_` are; use another")
    for child in node.iter_child_nodes():
        _assert_known(child)


def _assert_listed(node: nodes.Filter | nodes.Test, what: str, known: list[str]) -> None:
    if node.name not in known:
        raise _refuse(node, f"no {what} named {key(node.name)}; {nearest(node.name, sorted(known))}")
    if what == "test" and (node.args or node.kwargs):
        raise _refuse(node, f"the test {key(node.name)} takes nothing; write a comparison")
    _assert_written_out(node)


def _assert_callable(node: nodes.Call) -> None:
    match node.node:
        case nodes.Getattr(attr=name) if name not in METHODS:
            raise _refuse(node, f"no {key(f'{name}()')} in templates; {nearest(name, sorted(METHODS))}")
        case nodes.Getattr() | nodes.Name(name="range"):
            _assert_written_out(node)
        case other:
            raise _refuse(node, f"{key(f'{_source_of(other)}()')} cannot be called in templates; only `range()` can")


def _assert_written_out(node: nodes.Filter | nodes.Test | nodes.Call) -> None:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        raise _refuse(node, "`*` and `**` are not part of templates; write the arguments out")


def _source_of(node: nodes.Node) -> str:
    if isinstance(node, nodes.Name):
        return node.name
    return str(getattr(node, "operator", type(node).__name__))


def _refuse(node: nodes.Node, sentence: str) -> BadTemplate:
    return BadTemplate(sentence, Position(node.lineno or 1))


def _hint(why: str) -> str:
    if "char '&'" in why or "char '!'" in why or "got '|'" in why:
        return "write `and`, `or` and `not`"
    return "braces that are meant as they stand go between `{% raw %}` and `{% endraw %}`"


def _find_uses_in(node: nodes.Node, own: frozenset[str], *, is_optional: bool = False) -> Iterator[NameUse]:
    """Find the names used in and below *node*; *own* are those of the enclosing loops."""
    path = path_of(node)
    if path is not None:
        yield from () if _is_own(path, own) else (NameUse(path, Position(node.lineno or 1), is_optional),)
        return
    match node:
        case nodes.For():
            yield from _find_uses_in_loop(node, own)
        case nodes.Call():
            called = [node.node.node] if isinstance(node.node, nodes.Getattr) else []
            yield from _find_uses_in_parts([*called, *node.args, *node.kwargs], own)
        case nodes.Filter() | nodes.Test() if node.name in (*OPTIONAL_FILTERS, *OPTIONAL_TESTS) and node.node:
            yield from _find_uses_in(node.node, own, is_optional=True)
            yield from _find_uses_in_parts([*node.args, *node.kwargs], own)
        case _:
            yield from _find_uses_in_parts(node.iter_child_nodes(), own, is_optional=is_optional)


def _find_uses_in_parts(
    parts: Iterator[nodes.Node] | list[nodes.Node], own: frozenset[str], *, is_optional: bool = False
) -> Iterator[NameUse]:
    for part in parts:
        yield from _find_uses_in(part, own, is_optional=is_optional)


def _find_uses_in_loop(node: nodes.For, own: frozenset[str]) -> Iterator[NameUse]:
    targets = [node.target, *node.target.find_all(nodes.Name)]
    inner = own | {"loop"} | {target.name for target in targets if isinstance(target, nodes.Name)}
    yield from _find_uses_in(node.iter, own)
    yield from _find_uses_in_parts([*([node.test] if node.test else []), *node.body], inner)
    yield from _find_uses_in_parts(node.else_, own)


def _is_own(path: str, own: frozenset[str]) -> bool:
    root, _, rest = path.partition(".")
    return root in own and (root != "loop" or not rest or rest.split(".")[0] in LOOP_NAMES)


def _is_under(path: str, spared: Collection[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:length]) in spared for length in range(1, len(parts) + 1))


def _place(lines: list[str], use: NameUse) -> Position:
    """Find the column, which the parser does not report."""
    line = lines[min(use.at.line, len(lines)) - 1]
    root, *rest = map(re.escape, use.path.split("."))
    whole = root + "".join(rf"\s*[.\[]\s*['\"]?{part}" for part in rest)
    found = re.search(rf"(?<![\w.]){whole}", line) or re.search(rf"(?<![\w.]){root}", line)
    return Position(use.at.line, found.start() + 1 if found else 1)
