"""A template's text as Jinja's parser reads it, with all refused that is no part of our templates."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import lru_cache

from jinja2 import Environment, TemplateSyntaxError, nodes

from shoal.pipeline.dashes import DashedNames
from shoal.pipeline.filters import FILTERS, METHODS, TESTS, BadTemplate
from shoal.pipeline.problems import Position, key, nearest, printable

MAX_TEMPLATE = 256 * 1024
OPTIONAL_FILTERS = ("default", "d")
OPTIONAL_TESTS = ("defined", "undefined")
LOOP_NAMES = frozenset({"index", "index0", "revindex", "revindex0", "first", "last", "length"})

# `{#` opens no comment, for prompts speak of `${#list[@]}` and `# Title {#anchor}`. It only parses, it renders nothing.
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
class Use:
    """A dotted path that a template uses, and where; *is_optional* where it says what happens if there is none."""

    path: str
    at: Position
    is_optional: bool = False


@lru_cache(maxsize=64)
def parsed(text: str) -> nodes.Template:
    """Read a template; raise `BadTemplate` for what cannot be read or is refused."""
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
    """Give the one expression that a condition is, with or without its braces."""
    body = parsed(text.strip() if "{{" in text or "{%" in text else f"{{{{ {text} }}}}").body
    match body:
        case [nodes.Output(nodes=[nodes.Expr() as one])] if not isinstance(one, nodes.TemplateData):
            return one
        case _:
            what = "a condition is one expression, like `a == 'b' and c`"
            raise BadTemplate(f"{what}; write all of it inside of one `{{{{ }}}}`, or none of it")


def used(tree: nodes.Node, text: str) -> tuple[Use, ...]:
    """Find each use of a name, with its place in *text*; what is asked for by `is defined` is optional everywhere."""
    found = tuple(_used(tree, frozenset()))
    spared = {use.path for use in found if use.is_optional}
    lines = _NEWLINE.split(text)
    return tuple(Use(one.path, _place(lines, one), _is_under(one.path, spared)) for one in found)


def path_of(node: nodes.Node) -> str | None:
    """Give the dotted path that an expression is, if it is one."""
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
    """Refuse what is no part of our templates, here and below."""
    if type(node) not in _PARTS:
        tag = f"`{{% {_TAGS[type(node)]} %}}`" if type(node) in _TAGS else key(_written(node))
        raise _refused(node, f"{tag} is not part of templates; there are `{{{{ … }}}}`, `{{% if %}}` and `{{% for %}}`")
    match node:
        case nodes.Filter():
            _assert_listed(node, "filter", [*FILTERS, *OPTIONAL_FILTERS])
        case nodes.Test():
            _assert_listed(node, "test", [*TESTS, *OPTIONAL_TESTS])
        case nodes.Call():
            _assert_callable(node)
        case nodes.For(recursive=True):
            raise _refused(node, "a `for` cannot be recursive; write the loops out")
        case nodes.Name(name=name) | nodes.Getattr(attr=name) if name.startswith("_"):
            raise _refused(node, f"{key(name)} is out of reach, as all names that start with `_` are; use another")
    for child in node.iter_child_nodes():
        _assert_known(child)


def _assert_listed(node: nodes.Filter | nodes.Test, what: str, known: list[str]) -> None:
    if node.name not in known:
        raise _refused(node, f"no {what} named {key(node.name)}; {nearest(node.name, sorted(known))}")
    if what == "test" and (node.args or node.kwargs):
        raise _refused(node, f"the test {key(node.name)} takes nothing; write a comparison")
    _assert_spelt_out(node)


def _assert_callable(node: nodes.Call) -> None:
    match node.node:
        case nodes.Getattr(attr=name) if name not in METHODS:
            raise _refused(node, f"no {key(f'{name}()')} in templates; {nearest(name, sorted(METHODS))}")
        case nodes.Getattr() | nodes.Name(name="range"):
            _assert_spelt_out(node)
        case other:
            raise _refused(node, f"{key(f'{_written(other)}()')} cannot be called in templates; only `range()` can")


def _assert_spelt_out(node: nodes.Filter | nodes.Test | nodes.Call) -> None:
    if node.dyn_args is not None or node.dyn_kwargs is not None:
        raise _refused(node, "`*` and `**` are not part of templates; write the arguments out")


def _written(node: nodes.Node) -> str:
    if isinstance(node, nodes.Name):
        return node.name
    return str(getattr(node, "operator", type(node).__name__))


def _refused(node: nodes.Node, sentence: str) -> BadTemplate:
    return BadTemplate(sentence, Position(node.lineno or 1))


def _hint(why: str) -> str:
    if "char '&'" in why or "char '!'" in why or "got '|'" in why:
        return "write `and`, `or` and `not`"
    return "braces that are meant as they stand go between `{% raw %}` and `{% endraw %}`"


def _used(node: nodes.Node, own: frozenset[str], *, is_optional: bool = False) -> Iterator[Use]:
    """Find the names used in and below *node*; *own* are those of the loops around it."""
    path = path_of(node)
    if path is not None:
        yield from () if _is_own(path, own) else (Use(path, Position(node.lineno or 1), is_optional),)
        return
    match node:
        case nodes.For():
            yield from _used_in_loop(node, own)
        case nodes.Call():
            called = [node.node.node] if isinstance(node.node, nodes.Getattr) else []
            yield from _used_in([*called, *node.args, *node.kwargs], own)
        case nodes.Filter() | nodes.Test() if node.name in (*OPTIONAL_FILTERS, *OPTIONAL_TESTS) and node.node:
            yield from _used(node.node, own, is_optional=True)
            yield from _used_in([*node.args, *node.kwargs], own)
        case _:
            yield from _used_in(node.iter_child_nodes(), own, is_optional=is_optional)


def _used_in(
    parts: Iterator[nodes.Node] | list[nodes.Node], own: frozenset[str], *, is_optional: bool = False
) -> Iterator[Use]:
    for part in parts:
        yield from _used(part, own, is_optional=is_optional)


def _used_in_loop(node: nodes.For, own: frozenset[str]) -> Iterator[Use]:
    targets = [node.target, *node.target.find_all(nodes.Name)]
    inner = own | {"loop"} | {one.name for one in targets if isinstance(one, nodes.Name)}
    yield from _used(node.iter, own)
    yield from _used_in([*([node.test] if node.test else []), *node.body], inner)
    yield from _used_in(node.else_, own)


def _is_own(path: str, own: frozenset[str]) -> bool:
    root, _, rest = path.partition(".")
    return root in own and (root != "loop" or not rest or rest.split(".")[0] in LOOP_NAMES)


def _is_under(path: str, spared: Collection[str]) -> bool:
    parts = path.split(".")
    return any(".".join(parts[:length]) in spared for length in range(1, len(parts) + 1))


def _place(lines: list[str], use: Use) -> Position:
    """Find the column, which the parser does not tell."""
    line = lines[min(use.at.line, len(lines)) - 1]
    root, *rest = map(re.escape, use.path.split("."))
    whole = root + "".join(rf"\s*[.\[]\s*['\"]?{part}" for part in rest)
    found = re.search(rf"(?<![\w.]){whole}", line) or re.search(rf"(?<![\w.]){root}", line)
    return Position(use.at.line, found.start() + 1 if found else 1)
